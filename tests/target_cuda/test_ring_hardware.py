"""Emitted ring kernels in a model of the hardware: what descriptors, boxes and barriers mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.target_cuda.hopper import compiled
from tests.target_cuda.test_ring import BATCHED, MAJORS, POINTS, gemm, point
from tfsearch.core.launch import LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.plugin.target import Problem
from tfsearch.space import Point
from tfsearch.target.cuda import target
from tfsearch.target.cuda.emit import source_of

GUARD = 64
"""Elements before and behind an argument that no kernel may write."""


class Memory:
    """An argument at an address that is a multiple of 16 bytes and of no more."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> None:
        size = dtype.bytes
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        self.raw = np.full((count + 2 * GUARD) * size + 64, 0xA5, np.uint8)
        first = GUARD * size - (self.raw.ctypes.data + GUARD * size) % 64 + 16
        self.inside = slice(first, first + count * size)
        flat = self.raw[self.inside].view(dtype.numpy)
        self.array = np.lib.stride_tricks.as_strided(flat, shape, [s * size for s in strides])
        self.address = int(self.raw.ctypes.data + first)

    def untouched(self) -> bool:
        outside = np.ones(self.raw.size, bool)
        outside[self.inside] = False
        return bool((self.raw[outside] == 0xA5).all())


def outcome(
    workload: Workload, module: Module, folder: Path, *, change: Any = None, seeds: int = 3
) -> str:
    """What is wrong of a kernel in the model; "" for nothing."""
    text, launch = source_of(module, target.atoms(target.nominal()))
    text = change(text) if change else text
    run = compiled(text, launch, folder, module.kernels[-1].registers)
    return ran(workload, launch, run, seeds)


def ran(workload: Workload, launch: LaunchSpec, run: Any, seeds: int) -> str:
    oracle = HirOracle(workload.record)
    for seed, which in zip(range(seeds), (Pass.INTEGERS, Pass.NORMAL, Pass.RANGE), strict=False):
        case = oracle.case(which, seed)
        memory = {a.name: Memory(a.shape, a.strides, DType(a.dtype)) for a in launch.main.arguments}
        for name, value in case.inputs.items():
            memory[name].array[...] = value.reshape(memory[name].array.shape)
        found = run({name: one.address for name, one in memory.items()}, seed)
        if found:
            return str(found)
        outputs = {
            name: memory[name].array.reshape(wanted.ref.shape)
            for name, wanted in case.expected.items()
        }
        message = check_outputs(outputs, case).message
        if message:
            return message
        if not all(one.untouched() for one in memory.values()):
            return "bytes outside of an argument are written"
    return ""


def check(problem: Problem, one: Point, folder: Path) -> None:
    assert problem.space.check(one) == ()
    workload, module = problem.reduced(one)
    assert outcome(workload, module, folder) == ""


@pytest.mark.parametrize("name", POINTS)
def test_a_point_is_right_as_the_hardware_reads_it(name: str, tmp_path: Path) -> None:
    check(gemm(), point(**POINTS[name]), tmp_path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("across b", {"tile_n": 128}),
        ("across a", {"tile_n": 40}),
        ("across both", {"tile_n": 128, "tile_m": 256, "high": 2}),
        ("across both", {"tile_n": 64, "wide": 2, "tile_k": 128, "stages": 2}),
        ("across both", {"tile_n": 128, "epilogue": "staged"}),
    ],
    ids=str,
)
def test_majors_are_right_as_the_hardware_reads_them(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    check(gemm(**MAJORS[name]), point(**changes), tmp_path)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("epilogue", ["bias+relu", "scale+residual"])
def test_types_and_epilogues(dtype: str, epilogue: str, tmp_path: Path) -> None:
    problem = gemm(1024, 1024, 512, epilogue=epilogue, dtype=dtype, out_dtype=dtype)
    check(problem, point(tile_n=40), tmp_path)


@pytest.mark.parametrize("name", BATCHED)
def test_planes(name: str, tmp_path: Path) -> None:
    options, changes = BATCHED[name]
    check(gemm(1000, 512, 256, batch="3", **options), point(**changes), tmp_path)


FAULTS: dict[str, tuple[str, str, str]] = {
    "another swizzle": ("cooperative", r"1ull << 62", "2ull << 62"),
    "groups of rows elsewhere": ("cooperative", r"64ull << 32", "32ull << 32"),
    "coordinates change places": (
        "cooperative",
        r"kk \* 64\), \(tile_row \* 128",
        "tile_row * 128), (kk * 64",
    ),
    "too few bytes": ("cooperative", r"(tfs_barrier_expect\(.*), \d+\)", r"\1, 8192)"),
    "one arrival too few": ("cooperative", r"(empty \+ i\)), 2", r"\1, 3"),
    "a slot is given back early": ("cooperative", r"\(at2 \+ 2\) % 3", "at2 % 3"),
    "the wrong parity": ("cooperative", r"\(at1 / 3\) % 2", "(at1 / 3 + 1) % 2"),
    "no wait for products": ("cooperative", r"tfs_product_wait<0>\(\);", ""),
    "no fence before products": ("cooperative", r"tfs_product_fence\(\);", ""),
    "no fence before a copy": ("staged", r"tfs_fence_async\(\);", ""),
    "results are not awaited": ("staged", r"tfs_box_wait<0>\(\);", ";"),
    "transposed": ("cooperative", r"1, 1, 0, 0;", "1, 1, 0, 1;"),
    "barriers are not shown": ("cooperative", r"tfs_fence_init\(\);", ";"),
    "a mask of one": ("a cluster above", r"\), 3, \(kk", "), 1, (kk"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_model_sees_faults(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which, pattern, change = FAULTS[name]
    workload, module = gemm().reduced(point(**POINTS[which]))
    done: list[int] = []

    def changed(text: str) -> str:
        found, count = re.subn(pattern, change, text)
        done.append(count)
        return found

    if "ull" in pattern:
        monkeypatch.setattr("tests.target_cuda.hopper.HEADER_CHANGE", changed)
        assert outcome(workload, module, tmp_path) != ""
    else:
        assert outcome(workload, module, tmp_path, change=changed) != ""
    assert done == [done[0]]
    assert done[0]
