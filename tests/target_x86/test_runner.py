"""Loading, calling, preparing and timing on this processor."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clib_build import any_compiler

from tests.recipes.contractions import constant_b, gemm, problem
from tfsearch.core import keys
from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.target.x86 import support, target
from tfsearch.target.x86.runner import (
    X86Loaded,
    X86Runner,
    make,
)

pytestmark = pytest.mark.xdist_group("x86_runner")
M, N, K = 5, 33, 65


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runner")


def loaded(folder: Path, name: str, *, ahead: bool = False, **fix: Any) -> X86Loaded:
    """A kernel with the features of every processor, as the runner loads it."""
    compiler = target.compiler(any_compiler())
    workload = gemm(m=M, n=N, k=K)
    bound = problem(constant_b(workload) if ahead else workload, "scalar")
    (point,) = bound.space.fix(fix).sample(1, np.random.default_rng(1))
    source = bound.emit(bound.lower(point), point)
    out = folder / f"{name}.so"
    done = compiler.compile(source, ("-O1",), (), out, timeout_s=60, memory_bytes=4 << 30)
    assert done.status is Status.OK, done.log
    return X86Runner().load(out, source.launch)


def inputs(seed: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "a": rng.integers(-4, 4, (M, K)).astype(np.float32),
        "b": rng.integers(-4, 4, (K, N)).astype(np.float32),
    }


@pytest.mark.parametrize("fix", [{"units": 1}, {"units": 2, "grid_k": 1}, {"grid_k": 2}])
def test_a_kernel_is_called_again_and_again(folder: Path, fix: dict[str, int]) -> None:
    kernel = loaded(folder, "_".join(f"{k}{v}" for k, v in fix.items()), **fix)
    bound = kernel.bind(inputs(0))
    for seed in range(3):
        given = inputs(seed)
        for name, value in given.items():
            bound.write(name, value)
        kernel.call(bound)
        np.testing.assert_array_equal(bound.read("c"), given["a"] @ given["b"])
        assert not bound.damage()


def test_what_is_prepared_is_prepared_again_when_its_input_changes(folder: Path) -> None:
    kernel = loaded(folder, "ahead", ahead=True, pack_b="ahead", units=1)
    first, second = inputs(0), inputs(1)
    bound = kernel.bind(first)
    kernel.call(bound)
    assert not bound.stale
    bound.write("a", second["a"])
    assert not bound.stale
    kernel.call(bound)
    np.testing.assert_array_equal(bound.read("c"), second["a"] @ first["b"])
    bound.write("b", second["b"])
    assert bound.stale
    kernel.call(bound)
    np.testing.assert_array_equal(bound.read("c"), second["a"] @ second["b"])


def test_kernels_are_timed_in_rounds(folder: Path) -> None:
    kernels = [loaded(folder, "one", units=1), loaded(folder, "two", units=1, rows=1)]
    arguments = [[k.bind(inputs(s)) for s in range(2)] for k in kernels]
    for cold in (False, True):
        times = X86Runner().time(kernels, arguments, [3, 5], 4, cold=cold, seed=1)
        assert times.shape == (4, 2)
        assert (times > 0).all()
    product = inputs(0)["a"] @ inputs(0)["b"]
    np.testing.assert_array_equal(arguments[0][0].read("c"), product)


def test_timing_brings_prepared_arguments_up_to_date_first(folder: Path) -> None:
    kernel = loaded(folder, "ahead2", ahead=True, pack_b="ahead", units=1)
    bound = kernel.bind(inputs(0))
    bound.write("b", inputs(1)["b"])
    X86Runner().time([kernel], [[bound]], [2], 2, cold=False, seed=0)
    assert not bound.stale
    np.testing.assert_array_equal(bound.read("c"), inputs(0)["a"] @ inputs(1)["b"])


def test_kernels_timed_together_need_equally_many_argument_sets(folder: Path) -> None:
    kernel = loaded(folder, "sets", units=1)
    one, two = kernel.bind(inputs(0)), kernel.bind(inputs(1))
    with pytest.raises(OSError, match="equally many"):
        X86Runner().time([kernel, kernel], [[one], [one, two]], [1, 1], 1, cold=False, seed=0)


def test_what_cannot_be_loaded_says_so(folder: Path) -> None:
    kernel = loaded(folder, "broken", units=1)
    path = folder / "broken.so"
    wrong = LaunchSpec(EntrySpec("no_such_entry", (), 1, 0))
    with pytest.raises(OSError, match="no symbol no_such_entry"):
        X86Runner().load(path, wrong)
    with pytest.raises(OSError, match="no symbol no_such_entry"):
        kernel.entry_address("no_such_entry")
    damaged = folder / "damaged.so"
    damaged.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(OSError, match=r"damaged\.so"):
        X86Runner().load(damaged, kernel.launch)


def test_a_kernel_that_reports_a_failure_raises_it(folder: Path) -> None:
    compiler = target.compiler(any_compiler())
    bound = problem(gemm(m=2, n=2, k=2), "scalar")
    (point,) = bound.space.sample(1, np.random.default_rng(0))
    source = bound.emit(bound.lower(point), point)
    text = "int fails(void **args) { (void)args; return 7; }\n"
    launch = replace(source.launch, main=replace(source.launch.main, symbol="fails"))
    out = folder / "fails.so"
    compiler.compile(replace(source, text=text), (), (), out, timeout_s=60, memory_bytes=4 << 30)
    kernel = X86Runner().load(out, launch)
    given = {"a": np.ones((2, 2), np.float32), "b": np.ones((2, 2), np.float32)}
    with pytest.raises(OSError, match="returned 7"):
        kernel.call(kernel.bind(given))


def test_probes_report_speeds_by_name() -> None:
    any_compiler()
    runner = make("cpu")
    speeds = runner.probe(("fma", "copy"))
    assert set(speeds) == {"fma", "copy"}
    assert all(speed > 1e6 for speed in speeds.values())
    with pytest.raises(OSError, match="no probe 'warp'"):
        runner.probe(("warp",))
    runner.close()


def test_the_target_has_one_device() -> None:
    with pytest.raises(OSError, match="one device"):
        make("gpu")


# The support library ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_provided(monkeypatch: pytest.MonkeyPatch) -> None:
    """No support library that an earlier test's bundle handed to this process."""
    monkeypatch.setattr(support, "_provided", [])


def test_the_support_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    any_compiler()
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path / "home"))
    path = support.library_path()
    before = path.stat()
    assert tmp_path in path.parents
    assert support.library_path() == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_cache_that_others_may_write_to_is_not_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_compiler()
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    kept = support.library_path()
    kept.parent.chmod(0o777)
    assert tmp_path not in support.library_path().parents
    kept.parent.chmod(0o700)
    assert support.library_path() == kept
    kept.write_bytes(b"another's")
    kept.chmod(0o666)
    assert support.library_path() == kept
    assert kept.read_bytes()[:4] == b"\x7fELF"
    kept.rename(tmp_path / "another.so")
    kept.symlink_to(tmp_path / "another.so")
    assert support.library_path() == kept
    assert not kept.is_symlink()


def test_a_damaged_support_library_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_compiler()
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    path = support.library_path()
    whole = path.read_bytes()
    for damaged in (whole[:1000], whole[:-1] + b"x", b""):
        path.write_bytes(damaged)
        assert support.library_path() == path
        # Another compiler may have built it this time: the bytes need not be those of before.
        again = path.read_bytes()
        assert again != damaged
        assert keys.digest_bytes(again) == path.with_suffix(".sha256").read_text()
        ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)


def test_without_a_writable_cache_it_serves_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_compiler()
    (tmp_path / "home").write_text("a file where the folder should be")
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path / "home"))
    path = support.library_path()
    assert path.exists()
    assert tmp_path not in path.parents


def test_without_a_compiler_it_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(support, "discover", tuple)
    with pytest.raises(UnavailableError, match=r"tfsearch\[zig\]") as caught:
        support.library_path()
    assert caught.value.code == "x86.support"
