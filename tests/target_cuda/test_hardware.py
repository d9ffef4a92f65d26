"""Documents of architectures and devices: complete, sourced, the most specific one first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfsearch.atoms.documents import Origin
from tfsearch.core.errors import RequestError
from tfsearch.target.cuda import hardware
from tfsearch.target.cuda.hardware import (
    ARCHITECTURES,
    Hardware,
    architecture_of,
    document,
    documents,
    hardware_of,
    measured_path,
)

H200 = "NVIDIA H200"


def test_every_architecture_and_the_devices_have_documents() -> None:
    names = {d.name for d in documents()}
    assert {*ARCHITECTURES, "h200", "h100"} <= names
    devices = [d for d in documents() if "names" in d.settings]
    assert all(d.settings["architecture"] in ARCHITECTURES for d in devices)


def test_documents_agree_on_what_a_fact_is_measured_in() -> None:
    units: dict[str, str] = {}
    for one in documents():
        for name, fact in one.facts.items():
            assert units.setdefault(name, fact.unit) == fact.unit, (one.name, name)


def test_devices_say_the_same_facts_and_architectures_all_but_what_they_lack() -> None:
    devices = [set(d.facts) for d in documents() if "names" in d.settings]
    assert all(names == devices[0] for names in devices)
    common = set.intersection(*(set(document(name).facts) for name in ARCHITECTURES))
    assert {"limit.registers", "limit.shared", "rate.f32", "matrix.bf16"} <= common
    lacking = {n for a in ARCHITECTURES for n in set(document(a).facts) - common}
    assert lacking == {"limit.cluster", "matrix.f64", "matrix.fp8", "matrix.i8"}


def test_what_shipped_documents_say_was_not_measured_on_the_users_device() -> None:
    every = [fact for d in documents() for fact in d.facts.values() if fact.value is not None]
    assert not [fact for fact in every if fact.origin is Origin.MEASURED]


@pytest.mark.parametrize(
    ("name", "shared", "block"),
    [("sm_80", 164, 163), ("sm_89", 100, 99), ("sm_90a", 228, 227)],
)
def test_shared_memory_of_a_block_leaves_what_the_system_takes(
    name: str, shared: int, block: int
) -> None:
    facts = hardware_of(name, "")
    assert facts.whole("limit.shared") == shared << 10
    assert facts.whole("limit.shared_per_block") == block << 10
    reserved = facts.whole("limit.shared_reserved")
    assert facts.whole("limit.shared") - facts.whole("limit.shared_per_block") == reserved


def test_matrix_rates_give_the_published_peaks() -> None:
    hopper, ampere = hardware_of("sm_90a", ""), hardware_of("sm_80", "")
    assert hopper.number("matrix.bf16") * 132 * 1.83e9 == pytest.approx(989.4e12, rel=1e-3)
    assert ampere.number("matrix.bf16") * 108 * 1.41e9 == pytest.approx(312e12, rel=1e-3)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((9, 1), None),
        ((7, 5), None),
        ((10, 0), None),
    ],
)
def test_code_is_made_for_the_newest_architecture_that_a_device_runs(
    capability: tuple[int, int], name: str | None
) -> None:
    assert architecture_of(capability) == name


def test_the_most_specific_document_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    model = hardware_of("sm_90a", H200, "GPU-1")
    assert model.names == ("h200", "sm_90a")
    assert model.number("units") == 132
    assert not model.measured("bandwidth.copy")
    path = measured_path("GPU-1")
    path.parent.mkdir()
    path.write_text(
        '[bandwidth.copy]\nvalue = 4300\nunit = "GB/s"\norigin = "measured"\n'
        'source = "tfsearch calibrate"\n[clock]\nunit = "GHz"\nunavailable = "not settled"\n'
    )
    card = hardware_of("sm_90a", H200, "GPU-1")
    assert card.names == ("GPU-1", "h200", "sm_90a")
    assert card.number("bandwidth.copy") == 4300
    assert card.measured("bandwidth.copy")
    assert card.digest != model.digest
    assert hardware_of("sm_90a", H200, "GPU-2").names == ("h200", "sm_90a")


def test_an_absent_number_says_what_the_most_specific_document_says() -> None:
    found = hardware_of("sm_90a", H200)
    assert found.get("clock") is None
    with pytest.raises(RequestError, match="h200, sm_90a has no clock: to be measured"):
        found.number("clock")
    with pytest.raises(RequestError, match="none of its documents"):
        found.number("no.such.fact")
    assert found.fact("no.such.fact") is None


def test_an_unknown_model_has_its_architecture_only() -> None:
    found = hardware_of("sm_89", "a card that nobody described")
    assert found == Hardware((document("sm_89"),))
    assert found.architecture == "sm_89"
    assert hardware.folder().is_dir()
