"""Kinds of nodes are documents; a node that would poison results is told why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfsearch.cli import main
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.measure.locks import DeviceLock
from tfsearch.plugin import kinds, node, registry
from tfsearch.plugin.target import Device, NodeTarget
from tfsearch.target.null import NullTarget
from tfsearch.target.null.runner import NullRunner
from tfsearch.toolchain import DoctorRow


class Unsteady(NullRunner):
    """Every probe reads a tenth of the one before."""

    speed = 1.0

    def probe(self, names: Sequence[str]) -> dict[str, float]:
        self.speed /= 10
        return dict.fromkeys(names, self.speed)


def unsteady(selector: str) -> Unsteady:
    del selector
    return Unsteady()


class Watched(NullTarget):
    """A target that knows its machine."""

    name = "watched"
    said: tuple[str, ...] = ()

    def node_probes(self, device: Device) -> Sequence[str]:
        return ("fma",)

    def node_problems(self, device: Device) -> Sequence[str]:
        return self.said


class Throttled(Watched):
    name = "throttled"
    runner = "tests.plugin.test_node:unsteady"
    said = ("the card is too hot",)

    def toolchains(self) -> Any:
        return (DoctorRow("cc", "", "", "", False, "not found; get it with: apt-get"),)


@pytest.fixture(autouse=True)
def targets() -> Iterator[None]:
    for target in (Watched, Throttled):
        registry.register(target.name, target)
    yield
    for target in (Watched, Throttled):
        registry.unregister(target.name)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path / "home"))
    return Settings(tmp_path / "home", "sqlite://")


def document(folder: Path, **fields: str) -> str:
    given = {"about": '"x"', "target": '"watched"', "devices": '["null*"]', "compile": "0"}
    path = folder / "mine.toml"
    path.write_text("".join(f"{n} = {v}\n" for n, v in {**given, **fields}.items() if v))
    return str(path)


def test_every_kind_of_this_package_is_a_sound_document() -> None:
    assert kinds.names() == ("h200", "m2", "x86")
    for name in kinds.names():
        assert kinds.kind(name).devices


def test_a_sound_node_has_no_problems(places: Settings) -> None:
    target = registry.get("watched")
    assert isinstance(target, NodeTarget)
    assert node.self_test(target, target.devices(), places) == []
    assert not list((places.home / "locks").glob("*self*"))


def test_each_problem_is_a_line(
    places: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places.home.mkdir()
    places.home.chmod(0o777)
    kind = document(tmp_path, target='"throttled"')
    assert main(["doctor", "--node", "--kind", kind]) == 5
    told = capsys.readouterr()
    checks = [line.partition(":")[0] for line in told.out.splitlines()]
    assert checks == ["toolchain", "permissions", "device", "speed"]
    assert "the card is too hot" in told.out
    assert "the speed of fma fell to 0 %" in told.out
    assert told.err.startswith("error[node.unfit]: 4 problems, the first: toolchain: cc")
    assert main(["worker", "--head", "--kind", kind]) == 5
    assert "error[node.unfit]" in capsys.readouterr().err


def test_locks_that_keep_nobody_out_and_slow_timers_are_problems(
    places: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = NullTarget()
    monkeypatch.setattr(DeviceLock, "acquire", lambda self: None)
    monkeypatch.setattr(node, "timer_step_ns", lambda: 5000)
    found = node.self_test(target, target.devices(), places)
    assert [one.check for one in found] == ["locks", "clock"]


def test_a_home_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = NullTarget()
    places = Settings(tmp_path / "file" / "home", "sqlite://")
    found = node.self_test(target, target.devices(), places)
    assert [one.check for one in found] == ["permissions", "locks"]


def test_what_no_node_here_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="needs target amx, which is not installed"):
        kinds.kind("m2").place()
    with pytest.raises(UnavailableError, match="no device here is of kind mine"):
        kinds.kind(document(tmp_path, devices='["Other*"]')).place()
    with pytest.raises(RequestError, match="unknown kind 'h300'; known: h200, m2, x86"):
        kinds.kind("h300")
    with pytest.raises(RequestError, match="cannot be read"):
        kinds.kind(str(tmp_path / "none.toml"))
    for fields, text in (
        ({"compile": "-1"}, "compile is a whole number"),
        ({"devices": "[]"}, "devices is a list"),
        ({"target": ""}, "target is missing"),
        ({"about": '"x"\nmore = 1'}, "more is unknown"),
        ({"about": "x"}, "is no TOML"),
    ):
        with pytest.raises(RequestError, match=text):
            kinds.kind(document(tmp_path, **fields))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("doctor", "--kind", "x86"), "--kind goes with --node"),
        (("doctor", "--node", "--kind", "no"), "unknown kind 'no'"),
        (("worker", "--head", "--kind", "x86", "--target", "null"), "leave those options out"),
    ],
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1
