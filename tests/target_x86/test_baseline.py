"""The baseline computes the program with NumPy, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.recipes import contractions
from tests.recipes.contractions import F32, traced
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.trace import Tensor
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.workload import Workload
from tfsearch.measure.inputs import Pass, make_inputs
from tfsearch.target.x86.baseline import make

LAUNCH = LaunchSpec(EntrySpec("none", (), 1, 0))


def everything(x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
    smooth = lang.erf(x) + lang.sin(x) * lang.cos(y) + lang.tanh(x) + lang.sigmoid(y)
    roots = lang.sqrt(lang.abs(x) + 1.0) + lang.rsqrt(lang.abs(y) + 1.0) + lang.exp(-lang.abs(x))
    steps = lang.floor(x) + lang.ceil(y) + lang.round(x) + lang.sign(y)
    chosen = lang.where(x > y, x, lang.recip(y * y + 1.0))
    return {
        "a": lang.maximum(smooth, roots) + lang.log(roots),
        "b": (steps / 3.0).cast(DType.I8),
        "c": lang.minimum(chosen.sum(1, keepdims=True), y).T.reshape(2, 6),
        "d": x.max(0) - x.min(0),
    }


def cases() -> Mapping[str, Workload]:
    kinds = {name: TensorType(F32, (3, 4)) for name in "xy"}
    found: dict[str, Workload] = {"every op": traced(everything, kinds)}
    found |= contractions.workloads()
    shape = {"rows": 5, "cols": 33, "dtype": "bf16"}
    found |= {op: build_workload(op, shape) for op in ("softmax", "rms_norm", "layer_norm")}
    return found


@pytest.mark.parametrize("name", list(cases()))
def test_the_baseline_computes_the_program(name: str) -> None:
    program = cases()[name].program
    inputs = make_inputs(program, Pass.NORMAL, 1)
    inputs = {n: np.clip(v, -8, 8).astype(v.dtype) for n, v in inputs.items()}
    outputs: dict[str, Any] = {
        out: np.zeros(t.sizes, t.dtype.numpy)
        for (out, _), t in zip(program.outputs, program.output_types, strict=True)
    }
    before = {n: v.copy() for n, v in inputs.items()}
    make(cases()[name].record, LAUNCH)(inputs, outputs)
    expected = evaluate(program, inputs)
    for (out, _), want, type_ in zip(program.outputs, expected, program.output_types, strict=True):
        rough = 4e-2 if type_.dtype in (DType.BF16, DType.F16) else 1e-4
        got = outputs[out].astype(np.float64)
        scale = max(1.0, float(np.abs(want).max()))
        limit = 1.0 if type_.dtype is DType.I8 else rough * scale
        assert np.abs(got - want).max() <= limit, out
    assert all(np.array_equal(before[n], inputs[n]) for n in inputs)
