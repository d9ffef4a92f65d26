"""The simulated clock of the null device: an analytic time, made up and stated here in full.

No number on this page describes real hardware. The time of a kernel, in microseconds, is

    launch + work / (RATE · lanes · gain) · spill · side + bytes / (BANDWIDTH · overlap)

    gain    = block / (block + 24 / unroll)           short blocks pay a loop overhead
    spill   = 1 + max(0, block·lanes·unroll - 4096) / 4096    too large a tile spills
    side    = 1.06 where ``order`` is backward, else 1
    overlap = stages / (stages + 1)

``work`` is the number of multiply-adds of contractions plus the elements of every other op and
``bytes`` the size of all arguments. The estimate that ranks leaves out ``spill`` and ``side``,
so that it is good but not perfect, as real models are; the bound is ``work`` at the best
conceivable rate or ``bytes`` at full bandwidth, whichever is longer, and is never above the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfsearch.ir.hir.ops import ContractAttrs, OpKind
from tfsearch.ir.hir.program import Program

Column = np.ndarray[Any, np.dtype[Any]]
Times = np.ndarray[Any, np.dtype[np.float64]]

BLOCKS = (8, 16, 32, 64, 128, 256)
LANES = (1, 2, 4, 8, 16)
UNROLLS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
ORDERS = ("forward", "backward")

LAUNCH_US = 1.0
RATE = 1000.0
BANDWIDTH = 10_000.0
SPILL_AT = 4096
NOISE = 0.01
"""Relative standard deviation of a simulated sample."""


def work(program: Program) -> int:
    """Operations of a bound program: multiply-adds of contractions, elements of other ops."""
    total = 0
    for op in program.ops:
        if op.kind in (OpKind.INPUT, OpKind.CONST):
            continue
        if isinstance(op.attrs, ContractAttrs):
            sizes: dict[str, int] = {}
            for labels, operand in zip((op.attrs.lhs, op.attrs.rhs), op.operands, strict=True):
                sizes.update(zip(labels, program.ops[operand].type.sizes, strict=True))
            total += math.prod(sizes.values())
        else:
            total += op.type.count
    return total


def traffic(program: Program) -> int:
    """Bytes of all arguments of a bound program."""
    arguments = [item.type for item in program.inputs] + list(program.output_types)
    return sum(kind.bytes for kind in arguments)


def estimate_us(facts: Mapping[str, int], columns: Mapping[str, Column]) -> Times:
    """The estimate for columns of parameters (numeric ones), microseconds."""
    block, lanes, unroll, stages = (
        np.asarray(columns[name], dtype=np.float64)
        for name in ("block", "lanes", "unroll", "stages")
    )
    gain = block / (block + 24.0 / unroll)
    compute = facts["work"] / (RATE * lanes * gain)
    memory = facts["bytes"] / BANDWIDTH * (stages + 1) / stages
    return LAUNCH_US + compute + memory


def bound_us(facts: Mapping[str, int]) -> float:
    """A time that no point of the space can beat, microseconds."""
    return max(facts["work"] / (RATE * max(LANES)), facts["bytes"] / BANDWIDTH)


def time_us(facts: Mapping[str, int], params: Mapping[str, int | str | bool]) -> float:
    """The simulated time of one point, microseconds, without noise."""
    block, lanes, unroll, stages = (
        float(params[name]) for name in ("block", "lanes", "unroll", "stages")
    )
    gain = block / (block + 24.0 / unroll)
    spill = 1.0 + max(0.0, block * lanes * unroll - SPILL_AT) / SPILL_AT
    side = 1.06 if params["order"] == "backward" else 1.0
    compute = facts["work"] / (RATE * lanes * gain) * spill * side
    memory = facts["bytes"] / BANDWIDTH * (stages + 1) / stages
    return LAUNCH_US + compute + memory
