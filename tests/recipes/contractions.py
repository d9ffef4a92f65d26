"""Workloads of one contraction each, and the processors they are bound to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.ops import ContractAttrs, OpKind
from tfsearch.ir.hir.trace import Tensor, trace
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.workload import Workload
from tfsearch.plugin.target import Device, Problem
from tfsearch.target.x86 import target

F32, F64, F16, BF16, I8, I32 = (
    DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I32,
)  # fmt: skip
AVX2 = ("avx", "avx2", "f16c", "fma")
AVX512 = (*AVX2, "avx512bw", "avx512dq", "avx512f", "avx512vl")
LEVELS: Mapping[str, tuple[str, ...]] = {"avx512": AVX512, "avx2": AVX2, "scalar": ()}


def device(level: str, units: int = 2) -> Device:
    """A processor with the features of a level."""
    nominal = target.nominal()
    record = replace(nominal.record, features=tuple(sorted(LEVELS[level])), units=units)
    return replace(nominal, record=record)


def problem(
    workload: Workload, level: str = "avx512", units: int = 2, *, halves: bool = False
) -> Problem:
    """The workload bound to a processor of a level, whatever this machine has.

    ``halves``: one on which vectors of half the width take half the time.
    """
    from tfsearch.target.x86.device import NOMINAL
    from tfsearch.target.x86.problem import X86Problem

    cpu = replace(NOMINAL, features=tuple(sorted(LEVELS[level])), units=units)
    if halves:
        cpu = replace(cpu, vendor="AuthenticAMD", family=25, model=17)
    return X86Problem(workload, cpu, target.atoms(device(level, units)))


def traced(
    body: Callable[..., object], inputs: Mapping[str, TensorType], **options: object
) -> Workload:
    """A workload from a traced function."""
    accuracy = options.pop("accuracy", Accuracy.PRECISE)
    assert isinstance(accuracy, Accuracy)
    return Workload(trace(body, inputs, "traced"), "traced", accuracy=accuracy, **options)  # type: ignore[arg-type]


def contract(a: Tensor, b: Tensor, dims: str, acc: DType = F32) -> Tensor:
    """A contraction in einsum notation."""
    return a.add_op(OpKind.CONTRACT, b, attrs=ContractAttrs(dims, acc))


def gemm(**options: int | str) -> Workload:
    return build_workload("gemm", {"dtype": "f32", **options})


def einsum(dims: str, sizes: Mapping[str, int], dtype: DType = F32, **options: object) -> Workload:
    """One contraction of two dense inputs."""
    left, right = dims.split("->", maxsplit=1)[0].split(",")
    inputs = {
        "a": TensorType(dtype, tuple(sizes[c] for c in left)),
        "b": TensorType(dtype, tuple(sizes[c] for c in right)),
    }
    acc = F64 if dtype is F64 else F32
    return traced(lambda a, b: {"c": contract(a, b, dims, acc)}, inputs, **options)


def strided(m: int, n: int, k: int) -> Workload:
    """Rows of both factors have gaps; the second one is stored column by column."""
    inputs = {
        "a": TensorType(F32, (m, k), (k + 5, 1)),
        "b": TensorType(F32, (k, n), (1, k + 3)),
    }
    return traced(lambda a, b: {"c": a @ b}, inputs)


def apart(m: int, n: int, k: int) -> Workload:
    """No axis of either factor is contiguous."""
    inputs = {
        "a": TensorType(F32, (m, k), (2 * k, 2)),
        "b": TensorType(F32, (k, n), (3 * n, 3)),
    }
    return traced(lambda a, b: {"c": a @ b}, inputs)


def two_outputs(m: int, n: int, k: int) -> Workload:
    """The product and, along either axis, what is made of it."""

    def body(a: Tensor, b: Tensor, row: Tensor, column: Tensor) -> Mapping[str, Tensor]:
        c = a @ b
        return {"c": c * row.broadcast_in_dim((m, n), (0,)), "d": lang.relu(c + column)}

    types = {"a": (m, k), "b": (k, n), "row": (m,), "column": (n,)}
    return traced(body, {name: TensorType(F32, shape) for name, shape in types.items()})


def transposed_output(m: int, n: int, k: int) -> Workload:
    """The result is stored the other way round, so the factors change places."""
    inputs = {"a": TensorType(F32, (m, k)), "b": TensorType(F32, (k, n))}
    return traced(lambda a, b: {"c": (a @ b).T}, inputs)


def computed_factors(m: int, n: int, k: int) -> Workload:
    """Both factors are computed from inputs on the way in."""

    def body(a: Tensor, b: Tensor, s: Tensor) -> Mapping[str, Tensor]:
        return {"c": (a * s) @ lang.tanh(b)}

    types = {"a": (m, k), "b": (k, n), "s": (k,)}
    return traced(body, {name: TensorType(F32, shape) for name, shape in types.items()})


def quantised(m: int, n: int, k: int) -> Workload:
    """Bytes in, bytes out: sums in i32, scaled in f32, saturated."""

    def body(a: Tensor, b: Tensor, scale: Tensor) -> Mapping[str, Tensor]:
        c = lang.matmul(a, b, acc=I32).cast(F32) * scale
        return {"c": c.cast(I8)}

    inputs = {
        "a": TensorType(I8, (m, k)),
        "b": TensorType(I8, (k, n)),
        "scale": TensorType(F32, (n,)),
    }
    return traced(body, inputs)


def constant_b(workload: Workload) -> Workload:
    """The second factor may be packed ahead of calls."""
    return replace(workload, constant_inputs=("b",))


@cache
def workloads() -> Mapping[str, Workload]:
    """Small workloads of every kind, most with odd sizes."""
    return {
        "f32": gemm(m=33, n=65, k=17),
        "f32-ones": gemm(m=1, n=1, k=1),
        "f32-row": gemm(m=1, n=127, k=33),
        "f32-column": gemm(m=127, n=1, k=17),
        "f32-outer-product": gemm(m=17, n=40, k=1, trans_a="true", trans_b="true"),
        "f32-deep": gemm(m=5, n=3, k=127),
        "f32-trans": gemm(m=17, n=33, k=20, trans_a="true", trans_b="true"),
        "f32-batch": gemm(m=5, n=17, k=9, batch=3),
        "f32-batch-of-one": gemm(m=3, n=17, k=65, batch=1),
        "f32-ahead": constant_b(gemm(m=17, n=40, k=33)),
        "f32-strided": strided(17, 33, 19),
        "f32-apart": apart(7, 18, 11),
        "f32-two-outputs": two_outputs(17, 33, 12),
        "f32-turned": transposed_output(18, 33, 9),
        "f32-computed": computed_factors(9, 33, 17),
        "f32-axes": einsum("amk,bkn->abmn", {"a": 2, "b": 3, "m": 5, "n": 17, "k": 8}),
        "f32-matvec": einsum("mk,k->m", {"m": 33, "k": 65}),
        "f32-vecmat": einsum("k,kn->n", {"n": 33, "k": 65}),
        "f64": gemm(m=17, n=33, k=20, dtype="f64", trans_b="true"),
        "f64-batch": gemm(m=3, n=17, k=5, dtype="f64", batch=2, epilogue="bias+relu"),
        "f16": gemm(m=17, n=33, k=20, dtype="f16", epilogue="bias+relu+residual+scale"),
        "bf16": gemm(m=17, n=33, k=33, dtype="bf16", trans_b="true", epilogue="bias+gelu"),
        "bf16-wide-out": gemm(m=17, n=33, k=33, dtype="bf16", out_dtype="f32"),
        "i8": gemm(m=17, n=33, k=40, dtype="i8"),
        "i8-quantised": quantised(17, 33, 40),
    }
