"""Calling kernels: what is checked, allocated and prepared, and by how many threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.runtime.native import TAIL, Array, PythonNative, argument, kernel
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.runtime import Kernel, empty
from tfsearch.runtime.arrays import address

M, N, K = 4, 6, 3


def gemm(**more: Any) -> Any:
    return build_workload("gemm", {"m": M, "n": N, "k": K, "dtype": "f32"}, alignment=16, **more)


def plain(body: Any = None, workspace: int = 0) -> tuple[Kernel, PythonNative]:
    def multiply(arrays: dict[str, Array], work: Array, tail: Any) -> int:
        assert tuple(tail) == TAIL
        arrays["c"][...] = arrays["a"] @ arrays["b"]
        return 0

    arguments = (argument("a", (M, K), "in"), argument("b", (K, N), "in"),
                 argument("c", (M, N), "out"))  # fmt: skip
    launch = LaunchSpec(EntrySpec("main", arguments, 1, workspace))
    loaded = PythonNative(launch, {"main": body or multiply})
    return kernel(gemm(), loaded), loaded


def packed() -> tuple[Kernel, PythonNative]:
    """B is packed by a prepare entry; here packing is transposing."""

    def pack(arrays: dict[str, Array], work: Array, tail: Any) -> int:
        arrays["b_packed"][...] = arrays["b"].T
        return 0

    def multiply(arrays: dict[str, Array], work: Array, tail: Any) -> int:
        arrays["c"][...] = arrays["a"] @ arrays["b_packed"].T
        return 0

    main = (argument("a", (M, K), "in"), argument("b_packed", (N, K), "prepared", 64),
            argument("c", (M, N), "out"))  # fmt: skip
    prepare = (argument("b", (K, N), "in"), argument("b_packed", (N, K), "out", 64))
    launch = LaunchSpec(EntrySpec("main", main, 1, 0), (EntrySpec("pack", prepare, 1, 0),))
    loaded = PythonNative(launch, {"main": multiply, "pack": pack})
    return kernel(gemm(constant_inputs=("b",)), loaded), loaded


def arrays(seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    a, b = empty((M, K), np.dtype("f4")), empty((K, N), np.dtype("f4"))
    a[...], b[...] = random.integers(-4, 5, a.shape), random.integers(-4, 5, b.shape)
    return a, b


def refused(call: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value


def test_a_call_gives_a_new_aligned_array() -> None:
    run, _ = plain()
    a, b = arrays()
    c = run(a, b)
    assert np.array_equal(c, a @ b)
    assert address(c) % 64 == 0
    assert run(a, b) is not c
    assert (run.input_names, run.output_names) == (("a", "b"), ("c",))


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("f4"), DType.F32])
def test_empty_takes_what_numpy_takes_as_a_dtype(dtype: Any) -> None:
    made = empty((3, 5), dtype)
    assert (made.shape, made.dtype) == ((3, 5), np.float32)
    assert address(made) % 64 == 0


def test_out_is_written_and_returned() -> None:
    run, _ = plain()
    a, b = arrays()
    out = empty((M, N), np.dtype("f4"))
    assert run(a, b, out=out) is out
    assert np.array_equal(out, a @ b)
    many = (empty((M, N), np.dtype("f4")),)
    assert run(a, b, out=many) is many
    assert np.array_equal(many[0], a @ b)


def test_each_wrong_input_has_its_own_line() -> None:
    run, loaded = plain()
    a, b = arrays()
    cases: list[tuple[str, str, Any]] = [
        ("array.count", "1 were given", lambda: run(a)),
        ("array.shape", "'a' must have shape [4, 3], it has [3, 4]", lambda: run(a.T.copy(), b)),
        ("array.dtype", "'b' must be f32 (float32), it is float64", lambda: run(a, b.astype("f8"))),
        ("array.strides", "'b' must have strides [24, 4] B", lambda: run(a, np.asfortranarray(b))),
        ("array.kind", "'a' is a list, not an array", lambda: run(a.tolist(), b)),
        ("array.alignment", "'a' must start at a multiple of 16 B, it starts 4 B after one",
         lambda: run(_shifted(a, 4), b)),
    ]  # fmt: skip
    for code, text, call in cases:
        error = refused(call)
        assert error.code == code
        assert text in error.message
    assert loaded.calls == []


def test_negative_strides_and_broadcasts_are_refused() -> None:
    run, _ = plain()
    a, b = arrays()
    assert refused(lambda: run(a[::-1], b)).code == "array.strides"
    assert refused(lambda: run(np.broadcast_to(a[:1], a.shape), b)).code == "array.strides"


def test_each_wrong_output_has_its_own_line() -> None:
    run, loaded = plain()
    a, b = arrays()
    good = empty((M, N), np.dtype("f4"))
    frozen = good.copy()
    frozen.flags.writeable = False
    shared = empty((M * K + M * N,), np.dtype("f4"))
    cases = {
        "array.read-only": lambda: run(a, b, out=frozen),
        "array.shape": lambda: run(a, b, out=good.reshape(N, M)),
        "array.dtype": lambda: run(a, b, out=good.astype("f8")),
        "array.strides": lambda: run(a, b, out=np.asfortranarray(good)),
        "array.count": lambda: run(a, b, out=(good, good)),
        "array.alignment": lambda: run(a, b, out=_shifted(good, 4)),
        "array.overlap": lambda: run(
            shared[: M * K].reshape(M, K), b, out=shared[8 : 8 + M * N].reshape(M, N)
        ),
    }
    for code, call in cases.items():
        assert refused(call).code == code
    assert loaded.calls == []


def test_strides_of_dimensions_of_size_one_do_not_matter() -> None:
    work = build_workload("softmax", {"rows": 1, "cols": 8, "dtype": "f32"}, alignment=16)
    spec = (argument("x", (1, 8), "in"), argument("y", (1, 8), "out"))

    def copy(found: dict[str, Array], work: Array, tail: Any) -> int:
        found["y"][...] = found["x"]
        return 0

    run = kernel(work, PythonNative(LaunchSpec(EntrySpec("main", spec, 1, 0)), {"main": copy}))
    wide = empty((4, 8), np.dtype("f4"))
    wide[...] = 7
    row = wide[::4]
    assert row.strides[0] != 32
    assert np.array_equal(run(row), row)


def test_a_failure_of_the_kernel_is_an_error() -> None:
    run, _ = plain(lambda found, work, tail: 3)
    a, b = arrays()
    with pytest.raises(UnavailableError, match="failure 3"):
        run(a, b)
    bound = run.bind(a, b)
    with pytest.raises(UnavailableError, match="failure 3"):
        bound()


def test_a_bound_call_reads_its_arrays_anew() -> None:
    run, _ = plain()
    a, b = arrays()
    bound = run.bind(a, b)
    assert np.array_equal(bound(), a @ b)
    a[...] = 2
    result = bound()
    assert result is bound.result
    assert np.array_equal(result, a @ b)


def test_a_bound_call_keeps_its_arrays_alive() -> None:
    run, _ = plain()
    bound = run.bind(*arrays(3))
    gc.collect()
    a, b = arrays(3)
    assert np.array_equal(bound(), a @ b)


def test_constant_inputs_are_prepared_once_per_array_and_version() -> None:
    run, loaded = packed()
    a, b = arrays()
    run.prepare(b)
    assert loaded.calls == ["pack"]
    assert np.array_equal(run(a, b), a @ b)
    assert np.array_equal(run(a, b), a @ b)
    assert loaded.calls == ["pack", "main", "main"]
    before = b.copy()
    b[...] = 1
    assert np.array_equal(run(a, b), a @ before)  # the caller said that b is constant
    run.prepare(b, version=1)
    assert np.array_equal(run(a, b), a @ b)
    run.prepare(b=b, version=1)
    assert loaded.calls.count("pack") == 2


def test_another_array_is_prepared_by_itself_also_when_it_reuses_an_identity() -> None:
    run, _ = packed()
    for seed in range(30):
        a, b = arrays(seed)
        assert np.array_equal(run(a, b), a @ b)
        del b


def test_views_of_a_prepared_array_are_not_prepared_again() -> None:
    run, loaded = packed()
    a, b = arrays()
    assert np.array_equal(run(a, b.reshape(K, N)), a @ b)
    assert np.array_equal(run(a, b[:, :]), a @ b)
    assert loaded.calls == ["pack", "main", "main"]


def test_prepare_takes_constant_inputs_only() -> None:
    run, _ = packed()
    a, b = arrays()
    assert refused(lambda: run.prepare(a=a)).code == "array.name"
    assert refused(lambda: run.prepare(b, a)).code == "array.count"
    assert refused(lambda: run.prepare(a)).code == "array.shape"
    normal, loaded = plain()
    normal.prepare()
    assert loaded.calls == []


def test_a_bound_call_prepares_ahead() -> None:
    run, loaded = packed()
    a, b = arrays()
    bound = run.bind(a, b)
    assert loaded.calls == ["pack"]
    assert np.array_equal(bound(), a @ b)
    assert np.array_equal(bound(), a @ b)
    assert loaded.calls == ["pack", "main", "main"]


def test_threads_do_not_share_a_workspace() -> None:
    barrier = threading.Barrier(4, timeout=10)

    def through_workspace(found: dict[str, Array], work: Array, tail: Any) -> int:
        floats = work.view("f4")[: M * N].reshape(M, N)
        floats[...] = found["a"] @ found["b"]
        barrier.wait()  # all four are between writing and reading their workspaces
        found["c"][...] = floats
        return 0

    run, _ = plain(through_workspace, workspace=4096)
    pairs = [arrays(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(lambda pair: run(*pair), pairs))
            for (a, b), c in zip(pairs, results, strict=True):
                assert np.array_equal(c, a @ b)


def test_calls_of_one_bound_take_turns() -> None:
    inside: list[int] = []

    def watch(found: dict[str, Array], work: Array, tail: Any) -> int:
        inside.append(1)
        assert len(inside) == 1
        found["c"][...] = found["a"] @ found["b"]
        inside.pop()
        return 0

    run, _ = plain(watch)
    a, b = arrays()
    bound = run.bind(a, b)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: bound(), range(200)):
            assert np.array_equal(result, a @ b)


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def from_dlpack(array: Array) -> Foreign:
    return Foreign(array)


def test_dlpack_arrays_go_in_and_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, __name__.partition(".")[0], module)
    run, _ = plain()
    a, b = arrays()
    c = run(Foreign(a), Foreign(b))
    assert isinstance(c, Foreign)
    assert np.array_equal(np.from_dlpack(c), a @ b)


def test_arrays_of_another_device_are_refused() -> None:
    run, _ = plain()
    a, b = arrays()
    error = refused(lambda: run(Foreign(a, (2, 0)), b))
    assert error.code == "array.device"
    assert "'a' is on DLPack device (2, 0)" in error.message


def _shifted(array: Array, by: int) -> Array:
    raw = empty((array.nbytes + 64,), np.dtype("u1"))
    out = raw[by : by + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
