"""Facts of a module, counted exactly from its TIR.

Every count is a sum over the iterations that a statement runs in. Loops that nothing inside
depends on multiply; those that bounds, conditions or partial tiles depend on are expanded
into columns of points with weights, and points that agree in what is still needed are merged.
Counts are kept unit by unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Access, Atom, Kind, Part
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.ir.tir.nodes import (
    Buffer,
    Call,
    Kernel,
    MemorySpace,
    Module,
    Window,
)
from tfsearch.ir.tir.walk import Path, walk
from tfsearch.prove.count import PointsOfUse, count_uses
from tfsearch.prove.storage import Lifetime, lifetimes, peaks


@dataclass(frozen=True)
class Work:
    """What one atom does in a kernel: calls of every unit, its pipe, operations of one call."""

    atom: str
    pipe: str
    calls: tuple[int, ...]
    cycles_per_call: float
    flops_per_call: int

    @property
    def total(self) -> int:
        """Calls of all units."""
        return sum(self.calls)

    @property
    def flops(self) -> int:
        """Floating-point operations of all units; partial tiles count in full."""
        return self.total * self.flops_per_call


@dataclass(frozen=True)
class Traffic:
    """Logical traffic of one buffer in bytes, unit by unit: calls times bytes of the window.

    ``extent`` is the smallest box that holds every window, (first, past the last) a dimension;
    ``footprint`` its bytes.
    """

    buffer: str
    space: MemorySpace
    read: tuple[int, ...]
    written: tuple[int, ...]
    extent: tuple[tuple[int, int], ...]
    footprint: int


@dataclass(frozen=True)
class Allocation:
    """A buffer of the kernel's own: its size, and where it lives (paths of statements)."""

    buffer: str
    space: MemorySpace
    bytes: int
    path: Path
    first: Path
    last: Path


@dataclass(frozen=True)
class KernelFacts:
    """Facts of one kernel. ``peak_bytes``: the most alive at once; of private spaces, per unit."""

    name: str
    units: int
    work: tuple[Work, ...]
    traffic: tuple[Traffic, ...]
    allocations: tuple[Allocation, ...]
    peak_bytes: Mapping[MemorySpace, int] = field(default_factory=dict[MemorySpace, int])

    @property
    def flops(self) -> int:
        """Floating-point operations of all units."""
        return sum(work.flops for work in self.work)

    def calls(self, atom: str) -> int:
        """Calls of an atom by all units; 0 if it is not used."""
        return sum(work.total for work in self.work if work.atom == atom)

    def pipe_calls(self) -> dict[str, int]:
        """Calls by pipe, all units."""
        out: dict[str, int] = {}
        for work in self.work:
            out[work.pipe] = out.get(work.pipe, 0) + work.total
        return out

    def pipe_cycles(self) -> dict[str, tuple[float, ...]]:
        """Cycles of reciprocal throughput by pipe, unit by unit."""
        out: dict[str, tuple[float, ...]] = {}
        for work in self.work:
            before = out.get(work.pipe, (0.0,) * self.units)
            cost = work.cycles_per_call
            out[work.pipe] = tuple(
                a + calls * cost for a, calls in zip(before, work.calls, strict=True)
            )
        return out

    def read_bytes(self, space: MemorySpace) -> int:
        """Bytes read from a space by all units."""
        return sum(sum(item.read) for item in self.traffic if item.space is space)

    def written_bytes(self, space: MemorySpace) -> int:
        """Bytes written to a space by all units."""
        return sum(sum(item.written) for item in self.traffic if item.space is space)

    def buffer(self, name: str) -> Traffic:
        """The traffic of a buffer; ``KeyError`` if no call touches it."""
        for item in self.traffic:
            if item.buffer == name:
                return item
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON."""
        return {
            "name": self.name,
            "units": self.units,
            "flops": self.flops,
            "work": [
                {
                    "atom": work.atom,
                    "pipe": work.pipe,
                    "calls": list(work.calls),
                    "cycles_per_call": work.cycles_per_call,
                    "flops": work.flops,
                }
                for work in self.work
            ],
            "traffic": [
                {
                    "buffer": item.buffer,
                    "space": item.space.value,
                    "read": list(item.read),
                    "written": list(item.written),
                    "extent": [list(pair) for pair in item.extent],
                    "footprint": item.footprint,
                }
                for item in self.traffic
            ],
            "allocations": [
                {
                    "buffer": item.buffer,
                    "space": item.space.value,
                    "bytes": item.bytes,
                    "path": list(item.path),
                    "first": list(item.first),
                    "last": list(item.last),
                }
                for item in self.allocations
            ],
            "peak_bytes": {space.value: size for space, size in sorted(
                self.peak_bytes.items(), key=lambda pair: pair[0].value
            )},
        }  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """Facts of every kernel of a module, main last."""

    kernels: tuple[KernelFacts, ...]

    @property
    def main(self) -> KernelFacts:
        """The kernel that a call runs."""
        return self.kernels[-1]

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON."""
        return {"kernels": [facts.to_json() for facts in self.kernels]}


def analyze(module: Module, atoms: AtomTable, *, max_points: int = 5_000_000) -> Analysis:
    """Facts of a module that the verifier accepts.

    ``RequestError("analyze.points")`` where an exact count would need more than ``max_points``
    points of loop variables at once; ``KeyError`` for an unknown atom.
    """
    return Analysis(tuple(_kernel(kernel, atoms, max_points) for kernel in module.kernels))


def _kernel(kernel: Kernel, atoms: AtomTable, max_points: int) -> KernelFacts:
    uses = count_uses(kernel, max_points)
    if uses is None:
        raise RequestError(
            "analyze.points",
            f"kernel {kernel.name} needs more than {max_points} points to be counted exactly",
        )
    calls: dict[str, Any] = {}
    read: dict[str, Any] = {}
    written: dict[str, Any] = {}
    buffers: dict[str, Buffer] = {}
    boxes: dict[str, list[tuple[int, int]]] = {}
    for path, statement in walk(kernel.body):
        if not isinstance(statement, Call) or path not in uses:
            continue
        use = uses[path]
        atom = atoms[statement.atom]
        zero = np.zeros(kernel.units, dtype=np.int64)
        calls[atom.id] = calls.get(atom.id, zero) + use.calls
        for index, (operand, spec) in enumerate(
            zip(statement.operands, atom.operands, strict=True)
        ):
            if not isinstance(operand, Window) or atom.computes.kind is Kind.HINT:
                continue
            if spec.part is Part.BARRIER:
                continue
            name, size = operand.buffer.name, operand.buffer.dtype.bytes
            buffers[name] = operand.buffer
            moved = use.elements[index] * size
            if spec.access is not Access.WRITE:
                read[name] = read.get(name, zero) + moved
            if spec.access is not Access.READ:
                written[name] = written.get(name, zero) + moved
            _widen(boxes, name, use, index)
    none = (0,) * kernel.units
    return KernelFacts(
        kernel.name,
        kernel.units,
        tuple(_work(atoms[name], _ints(count)) for name, count in calls.items()),
        tuple(
            Traffic(
                name,
                buffer.space,
                _ints(read[name]) if name in read else none,
                _ints(written[name]) if name in written else none,
                tuple(boxes[name]),
                prod(high - low for low, high in boxes[name]) * buffer.dtype.bytes,
            )
            for name, buffer in buffers.items()
        ),
        tuple(_allocation(item) for item in lifetimes(kernel)),
        {space: peak.amount for space, peak in peaks(kernel, lambda b: b.bytes).items()},
    )


def _work(atom: Atom, calls: tuple[int, ...]) -> Work:
    return Work(atom.id, atom.cost.pipe, calls, atom.cost.cycles, atom.flops)


def _widen(
    boxes: dict[str, list[tuple[int, int]]], name: str, use: PointsOfUse, index: int
) -> None:
    box = use.boxes[index]
    known = boxes.get(name)
    if known is None:
        boxes[name] = list(box)
        return
    boxes[name] = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(known, box, strict=True)]


def _allocation(item: Lifetime) -> Allocation:
    return Allocation(
        item.buffer.name, item.buffer.space, item.buffer.bytes, item.path, item.first, item.last
    )


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
