"""Device arrays give what NumPy gives, and references and checks run on them unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.hir_programs import programs, random_inputs
from tests.target_cuda.host_engine import HostEngine
from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.bounds import evaluate_bounds
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.rounding import round_values
from tfsearch.measure.buffers import bits, poison
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import Case, Expected, check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.target.cuda.arrays import DeviceArray, regrouped, uploaded
from tfsearch.target.cuda.engine import walked

ODD = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-310, 3e38, -7.0])


def engine() -> HostEngine:
    return HostEngine()


def same(got: Any, wanted: Any) -> None:
    host = got.host() if isinstance(got, DeviceArray) else np.asarray(got)
    np.testing.assert_array_equal(host.astype(np.float64), np.asarray(wanted).astype(np.float64))


def test_arrays_go_to_the_device_and_back() -> None:
    one = engine()
    for array in (np.arange(12.0).reshape(3, 4), np.float32(7.0).reshape(()), np.empty((0, 3))):
        found = uploaded(one, np.asarray(array))
        same(found, array)
        assert (found.shape, found.dtype) == (np.shape(array), np.asarray(array).dtype)
    wide = np.broadcast_to(np.arange(3.0)[:, None], (3, 1000))
    found = uploaded(one, wide)
    assert found.memory.data.nbytes == 3 * 8
    same(found, wide)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda a, b: (a + b) * 2.0 - b / 3 + 1 / a,
    "maximum": lambda a, b: np.maximum(np.minimum(a, b), -1.0),
    "comparison": lambda a, b: (a < b) | ~(a >= b) & (a == b) | (a != b),
    "where": lambda a, b: np.where(a > b, a, -1.0),
    "odd": lambda a, b: np.isnan(a) | np.isinf(b) | np.isneginf(a) | np.isposinf(b),
    "rounding": lambda a, b: np.rint(a) + np.floor(b) - np.ceil(a) + np.sign(b),
    "clip": lambda a, b: np.clip(a, -1, 2) + np.abs(b),
    "copysign": lambda a, b: np.copysign(a, b),
    "sum": lambda a, b: np.sum(np.where(np.isfinite(a), a, 0.0), axis=1) + 0 * b[:, 0],
    "max": lambda a, b: np.max(a, axis=(0, 1)) + a.max(),
    "min": lambda a, b: np.min(b, axis=0),
    "any": lambda a, b: np.any(a > 1, axis=1) | (a > 2).any(),
    "all": lambda a, b: (a > -99).all() + np.all(~np.isnan(b), axis=0),
    "transpose": lambda a, b: a.transpose((1, 0)).reshape(-1) + b.reshape(-1),
    "broadcast": lambda a, b: np.broadcast_to(a[:1], (3, *a.shape[1:])) + b[0],
    "slices": lambda a, b: a[..., 1:] * b[:, :-1] + a[-1, 2],
    "cast": lambda a, b: a.astype(np.float32).astype(np.float64) + (b > 0).astype(np.float64),
    "count": lambda a, b: np.count_nonzero(a > b) + np.argmax(a > 1),
    "flat": lambda a, b: np.flatnonzero(a.reshape(-1) > b.reshape(-1)),
    "ones": lambda a, b: np.ones_like(a) + np.copy(b),
    "equal": lambda a, b: np.array_equal(a, a, equal_nan=True) + 2 * np.array_equal(a, b),
    "bf16": lambda a, b: round_values(DType.BF16, a) + round_values(DType.F16, b),
    "integers": lambda a, b: round_values(DType.I8, a * 100) - round_values(DType.I32, b),
    "product": lambda a, b: np.matmul(
        np.where(np.isfinite(a), a, 1.0).reshape(1, 5, 4),
        np.where(np.isfinite(b), b, 1.0).transpose().reshape(1, 4, 5),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_what_numpy_gives_without_the_host(name: str) -> None:
    one = engine()
    generator = np.random.default_rng(1)
    a, b = generator.standard_normal((2, 5, 4)) * 3
    a.reshape(-1)[:10], b.reshape(-1)[5:15] = ODD, ODD
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](a, b)
        got = FUNCTIONS[name](uploaded(one, a), uploaded(one, b))
    same(got, wanted)
    assert one.on_host == 0


def test_what_has_no_kernel_is_done_on_the_host_and_counted() -> None:
    one = engine()
    x = uploaded(one, np.arange(6.0).reshape(2, 3))
    same(np.cumsum(x, axis=1), np.cumsum(np.arange(6.0).reshape(2, 3), axis=1))
    same(x[np.array([1, 0])], np.arange(6.0).reshape(2, 3)[[1, 0]])
    same(np.arctan(x), np.arctan(np.arange(6.0).reshape(2, 3)))
    assert one.on_host == 3
    x[x > 3] = -1.0
    assert one.on_host == 3
    x[np.array([0])] = 9.0
    assert one.on_host == 4
    same(x, [[9, 9, 9], [3, -1, -1]])


def test_copies_keep_the_bits_of_every_type() -> None:
    one = engine()
    for kind in (DType.F32, DType.F16, DType.BF16, DType.F64, DType.I8, DType.I32):
        host = poison((3, 4), kind.numpy, 1)
        found = uploaded(one, host).transpose().copy()
        np.testing.assert_array_equal(bits(found.host()), bits(host.T))
        np.testing.assert_array_equal(np.asarray(bits(found)), bits(host.T))
    assert one.on_host == 0


@pytest.mark.parametrize(
    ("shape", "steps", "wanted", "found"),
    [
        ((4, 6), (6, 1), (2, 2, 6), (12, 6, 1)),
        ((6, 4), (1, 6), (1, 6, 4), (0, 1, 6)),
        ((6, 4), (1, 6), (24,), None),
        ((2, 3, 4), (100, 4, 1), (2, 12), (100, 1)),
        ((2, 3, 4), (100, 4, 1), (24,), None),
        ((5,), (0,), (5, 1), (0, 0)),
    ],
)
def test_reshapes_copy_only_where_no_strides_fit(
    shape: Any, steps: Any, wanted: Any, found: Any
) -> None:
    assert regrouped(shape, steps, wanted) == found


def test_dimensions_are_walked_as_one_where_all_inputs_allow() -> None:
    assert walked((4, 5, 6), [(30, 6, 1)]) == ([120], [[1]])
    assert walked((4, 5, 6), [(30, 6, 1), (0, 0, 1)]) == ([20, 6], [[6, 1], [0, 1]])
    assert walked((1, 5, 1), [(9, 2, 7)]) == ([5], [[2]])
    with pytest.raises(ValueError, match="7 dimensions"):
        walked((2,) * 7, [tuple(3**d for d in range(7))])


WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("gemm", {"m": 9, "n": 11, "k": 17, "dtype": "bf16", "trans_b": True}),
    "gemm f32": ("gemm", {"m": 9, "n": 11, "k": 17, "dtype": "f32", "batch": 3}),
    "softmax": ("softmax", {"rows": 7, "cols": 33, "dtype": "bf16"}),
    "layer_norm": ("layer_norm", {"rows": 7, "cols": 33, "dtype": "f32"}),
    "rms_norm": ("rms_norm", {"rows": 5, "cols": 12, "dtype": "f16"}),
}


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("which", Pass)
def test_references_on_the_device_are_those_of_the_host(name: str, which: Pass) -> None:
    op, options = WORKLOADS[name]
    record = build_workload(op, options).record
    one = engine()
    host = HirOracle(record).case(which, 5)
    device = HirOracle(record, placement=lambda _: lambda array: uploaded(one, array)).case(
        which, 5
    )
    assert (host.place, device.place) == ("host", "device")
    assert one.on_host == 0
    for key, wanted in host.expected.items():
        got = device.expected[key]
        assert got.exact == wanted.exact
        for field in ("ref", "lo", "hi"):
            same(getattr(got, field), getattr(wanted, field))
    for key, array in host.inputs.items():
        np.testing.assert_array_equal(bits(device.inputs[key].host()), bits(array))
    assert device.nbytes == host.nbytes


@given(program=programs(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_any_program_has_the_same_bounds_on_the_device(program: Any, seed: int) -> None:
    inputs = random_inputs(program, seed)
    one = engine()
    placed = {name: uploaded(one, np.asarray(array)) for name, array in inputs.items()}
    for got, wanted in zip(
        evaluate_bounds(program, placed, Accuracy.PRECISE),
        evaluate_bounds(program, inputs, Accuracy.PRECISE),
        strict=True,
    ):
        for field in ("ref", "lo", "hi"):
            same(getattr(got, field), getattr(wanted, field))
    for got, wanted in zip(evaluate(program, placed), evaluate(program, inputs), strict=True):
        same(got, wanted)


def outputs(fault: str) -> tuple[np.ndarray[Any, Any], Case]:
    ref = np.linspace(-2, 2, 60).reshape(6, 10)
    got = ref.astype(np.float32)
    if fault == "wrong":
        got[3, 4] += 0.5
    elif fault == "unwritten":
        got[2, 1] = poison((), np.dtype(np.float32), 0)
    elif fault == "nan":
        got[5, 9] = np.nan
    elif fault == "infinite":
        ref[1, 1], got[1, 1] = np.inf, np.inf
    return got, Case({}, {"y": Expected(ref, ref - 1e-6, ref + 1e-6, exact=False)})


@pytest.mark.parametrize("fault", ["", "wrong", "unwritten", "nan", "infinite"])
def test_checks_on_the_device_find_what_those_of_the_host_find(fault: str) -> None:
    got, case = outputs(fault)
    one = engine()
    placed = Case(
        {},
        {
            n: Expected(*(uploaded(one, a) for a in (e.ref, e.lo, e.hi)), exact=e.exact)
            for n, e in case.expected.items()
        },
    )
    wanted = check_outputs({"y": got}, case)
    assert check_outputs({"y": uploaded(one, got)}, placed) == wanted
    assert bool(wanted.message) == (fault in ("wrong", "unwritten", "nan"))
    if not fault:
        assert one.on_host == 0
