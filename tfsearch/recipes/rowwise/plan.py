"""Passes over a row: the elementwise DAG cut by reduction depth."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.build import Builder, canonicalise
from tfsearch.ir.hir.facts import facts_of
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BinaryFn,
    BroadcastAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    UnaryAttrs,
    UnaryFn,
)
from tfsearch.ir.hir.program import Program
from tfsearch.recipes.fragments import compute_dtype
from tfsearch.recipes.rowwise.match import Domain

_WORK = frozenset({OpKind.UNARY, OpKind.BINARY, OpKind.SELECT})
COMBINE = {ReduceFn.SUM: "add", ReduceFn.PROD: "mul", ReduceFn.MAX: "max", ReduceFn.MIN: "min"}


@dataclass(frozen=True)
class Reduction:
    """One reduction: its value, what it reduces, and the register type of its accumulator."""

    value: int
    source: int
    fn: ReduceFn
    acc: DType

    @property
    def combine(self) -> str:
        """Name of the lane-wise function that joins two partial results."""
        return COMBINE[self.fn]

    @property
    def identity(self) -> float:
        """What joining leaves unchanged, in the accumulator's type."""
        low, high = (-float("inf"), float("inf"))
        if not self.acc.is_float:
            low, high = -(2.0**31), 2.0**31 - 1
        return {"add": 0.0, "mul": 1.0, "max": low, "min": high}[self.combine]


@dataclass(frozen=True)
class Pass:
    """One walk along a row.

    ``reductions`` and element-wise ``outputs`` (positions in the program's outputs) are computed
    during the walk; then the ``rows`` values that later passes read, and ``row_outputs``.
    ``evaluated`` are the element values that the walk computes. With staging, ``stores`` are
    written to memory of the unit for later passes and ``loads`` read back from it. ``inputs`` are
    the inputs that the walk loads element by element, without and with staging.
    """

    reductions: tuple[Reduction, ...]
    outputs: tuple[int, ...]
    rows: tuple[int, ...]
    row_outputs: tuple[int, ...]
    evaluated: frozenset[int]
    inputs: tuple[int, ...]
    stores: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()
    staged_inputs: tuple[int, ...] = ()
    staged_evaluated: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plan:
    """``passes[0]`` only prepares row values that need no reduction.

    ``constants`` are the CONST values; ``staged`` the values that staging keeps; ``live`` how many
    element values are alive from one pass to the next at most.
    """

    domain: Domain
    passes: tuple[Pass, ...]
    constants: tuple[int, ...]
    staged: tuple[int, ...]
    live: int

    @property
    def element_outputs(self) -> tuple[int, ...]:
        """Outputs that differ along a row, by position."""
        return tuple(i for one in self.passes for i in one.outputs)

    @property
    def fetched(self) -> tuple[int, ...]:
        """Inputs of the first walk that every row reads anew, along the lanes."""
        domain = self.domain
        return tuple(
            v
            for v in self.passes[1].inputs
            if domain.lane_stride(domain.inputs[v], v) == 1
            and any(axis in domain.kept for axis in domain.labels[v])
        )

    @property
    def accumulators(self) -> int:
        """The most reductions of one pass."""
        return max(len(one.reductions) for one in self.passes)


def plan_of(domain: Domain) -> Plan:
    """Cut a row-wise program into passes."""
    program = domain.program
    depth = facts_of(program).depth
    reductions = [
        Reduction(v, op.operands[0], op.attrs.fn, compute_dtype(op.attrs.acc))
        for v, op in enumerate(program.ops)
        if isinstance(op.attrs, ReduceAttrs)
    ]
    element = [i for i, (_, v) in enumerate(program.outputs) if domain.is_element(v)]
    row_outputs = [i for i in range(len(program.outputs)) if i not in element]
    count = 1 + max(
        [depth[r.value] for r in reductions] + [depth[program.outputs[i][1]] + 1 for i in element]
    )
    passes: list[Pass] = []
    for number in range(count):
        own = tuple(r for r in reductions if depth[r.value] == number)
        outputs = tuple(i for i in element if number and depth[program.outputs[i][1]] == number - 1)
        passes.append(
            Pass(
                reductions=own,
                outputs=outputs,
                rows=(),
                row_outputs=tuple(i for i in row_outputs if depth[program.outputs[i][1]] == number),
                evaluated=frozenset(),
                inputs=(),
            )
        )
    return _Walk(domain, passes, depth).finish()


class _Walk:
    """Which values each pass evaluates, with and without staging."""

    def __init__(self, domain: Domain, passes: list[Pass], depth: tuple[int, ...]) -> None:
        self.domain = domain
        self.program = domain.program
        self.passes = passes
        self.depth = depth

    def finish(self) -> Plan:
        rows: set[int] = set()
        earlier: set[int] = set()
        cuts: list[tuple[int, ...]] = []
        for number, one in enumerate(self.passes):
            evaluated, frontier, _ = self._walk(one, frozenset())
            rows |= frontier
            _, _, loads = self._walk(one, frozenset(earlier))
            cuts.append(tuple(sorted(loads)))
            staged_evaluated, _, _ = self._walk(one, frozenset(earlier))
            self.passes[number] = self._with(one, evaluated, staged_evaluated, loads)
            earlier |= evaluated
        staged = tuple(sorted({v for cut in cuts for v in cut}))
        stored: set[int] = set()
        final: list[Pass] = []
        for number, one in enumerate(self.passes):
            stores = tuple(v for v in staged if v in one.staged_evaluated and v not in stored)
            stored |= set(stores)
            own = tuple(sorted(v for v in rows if self.depth[v] == number))
            final.append(replace(one, rows=own, stores=stores))
        constants = tuple(v for v, op in enumerate(self.program.ops) if op.kind is OpKind.CONST)
        return Plan(self.domain, tuple(final), constants, staged, self._live(final))

    def _with(
        self,
        one: Pass,
        evaluated: frozenset[int],
        staged_evaluated: frozenset[int],
        loads: frozenset[int],
    ) -> Pass:
        def inputs(values: frozenset[int]) -> tuple[int, ...]:
            return tuple(sorted(v for v in values if self.program.ops[v].kind is OpKind.INPUT))

        return replace(
            one,
            evaluated=evaluated,
            inputs=inputs(evaluated),
            loads=tuple(sorted(loads)),
            staged_inputs=inputs(staged_evaluated),
            staged_evaluated=staged_evaluated,
        )

    def _walk(
        self, one: Pass, known: frozenset[int]
    ) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """(element values evaluated, row values read, values cut because they are known)."""
        evaluated: set[int] = set()
        frontier: set[int] = set()
        cut: set[int] = set()
        stack = [r.source for r in one.reductions]
        stack += [self.program.outputs[i][1] for i in one.outputs]
        while stack:
            value = stack.pop()
            op = self.program.ops[value]
            if not self.domain.is_element(value):
                if not self._is_constant(value):
                    frontier.add(value)
                continue
            if value in known and op.kind in _WORK:
                cut.add(value)
                continue
            if value not in evaluated:
                evaluated.add(value)
                stack.extend(op.operands)
        return frozenset(evaluated), frozenset(frontier), frozenset(cut)

    def _is_constant(self, value: int) -> bool:
        op = self.program.ops[value]
        while op.kind in (OpKind.BROADCAST, OpKind.RESHAPE, OpKind.TRANSPOSE):
            op = self.program.ops[op.operands[0]]
        return op.kind is OpKind.CONST

    def _live(self, passes: list[Pass]) -> int:
        """Element values that registers must carry over a pass boundary, at most."""
        most = 0
        for boundary in range(2, len(passes)):
            before = frozenset(v for one in passes[:boundary] for v in one.evaluated)
            needed: set[int] = set()
            for one in passes[boundary:]:
                _, _, cut = self._walk(one, before)
                needed |= cut
                evaluated, _, _ = self._walk(one, before)
                needed |= {
                    v for v in evaluated & before if self.program.ops[v].kind is OpKind.INPUT
                }
            most = max(most, len(needed))
        return max(most, 1)


def divides_by_rows(domain: Domain) -> bool:
    """True when elements are divided by a value of their row."""
    return any(_is_row_division(domain, v) for v in range(len(domain.program.ops)))


def _is_row_division(domain: Domain, value: int) -> bool:
    op = domain.program.ops[value]
    if not (isinstance(op.attrs, BinaryAttrs) and op.attrs.fn is BinaryFn.DIV):
        return False
    divisor = domain.program.ops[op.operands[1]]
    if not (isinstance(divisor.attrs, BroadcastAttrs) and domain.is_element(value)):
        return False
    below = divisor.operands[0]
    return not domain.is_element(below) and domain.program.ops[below].kind is not OpKind.CONST


def with_reciprocals(domain: Domain) -> Program:
    """The program with ``x / row`` written as ``x * (1 / row)``.

    Two roundings instead of one: (1 + u)² stays within the one ulp that a division may err,
    for divisors whose reciprocal is a normal number.
    """
    program = domain.program
    builder = Builder(program.name, {i.name: i.type for i in program.inputs})
    new: dict[int, int] = {i: i for i in range(len(program.inputs))}
    for index in range(len(program.inputs), len(program.ops)):
        op = program.ops[index]
        operands = [new[o] for o in op.operands]
        if not _is_row_division(domain, index):
            new[index] = builder.add(op.kind, operands, op.attrs, op.type)
            continue
        divisor = program.ops[op.operands[1]]
        inverse = builder.add(OpKind.UNARY, [new[divisor.operands[0]]], UnaryAttrs(UnaryFn.RECIP))
        spread = builder.add(OpKind.BROADCAST, [inverse], divisor.attrs, divisor.type)
        attrs = BinaryAttrs(BinaryFn.MUL)
        new[index] = builder.add(OpKind.BINARY, [operands[0], spread], attrs, op.type)
    outputs = tuple((name, new[v]) for name, v in program.outputs)
    return canonicalise(Program(program.name, builder.inputs, tuple(builder.ops), outputs))
