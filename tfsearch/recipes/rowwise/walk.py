"""Code of one walk over a group of lines: accumulate, combine, store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import BinaryAttrs, BinaryFn, ReduceFn
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Expr, ExprLike
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Scalar, Window, window
from tfsearch.recipes.fragments import Fragments, FragmentTile, Lanes, Place, compute_dtype
from tfsearch.recipes.rowwise.match import Domain, Pipeline
from tfsearch.recipes.rowwise.plan import Pass, Plan, Reduction
from tfsearch.recipes.rowwise.schedule import REGISTERS, STAGED, Schedule


@dataclass
class Line:
    """A row (ROWS) or a fragment of neighbouring rows (COLUMNS) on its way through the passes.

    ``tile`` evaluates what does not differ along a row; ``tile.leaves`` holds what is known.
    ``pieces`` are the element fragments that registers keep, by their place along the row.
    ``slot`` is the line of the staged values that are its own, ``turn`` that of its row values.
    """

    index: int
    tile: FragmentTile
    pieces: dict[int, FragmentTile] = field(default_factory=dict[int, FragmentTile])
    slot: ExprLike = 0
    turn: ExprLike = 0


@dataclass(frozen=True)
class Piece:
    """One element fragment: where it is, its lanes, the accumulator chain that it feeds."""

    place: Place
    lanes: Lanes
    chain: int
    slot: tuple[Expr, Expr]


Accumulators = Mapping[int, Buffer]


@dataclass(frozen=True)
class Active:
    """A pass with the lines that it is at and their accumulators."""

    one: Pass
    lines: list[Line]
    acc: Accumulators


class Walker:
    """Emits the statements of passes; the loops around them are the lowering's."""

    def __init__(
        self,
        builder: Builder,
        fragments: Fragments,
        plan: Plan,
        schedule: Schedule,
        outputs: Sequence[Buffer],
    ) -> None:
        self.builder = builder
        self.fragments = fragments
        self.plan = plan
        self.schedule = schedule
        self.outputs = outputs
        self.constants: dict[int, Window] = {}
        self.staged: dict[int, Buffer] = {}

    @property
    def domain(self) -> Domain:
        """The domain of the program."""
        return self.plan.domain

    @property
    def along_rows(self) -> bool:
        """True in the pipeline whose lanes run along the row."""
        return self.domain.pipeline is Pipeline.ROWS

    @property
    def chains(self) -> int:
        """Accumulators of one reduction of one line."""
        schedule = self.schedule
        return schedule.unroll if self.along_rows else schedule.rows

    def fill_constants(self) -> None:
        """Constants of the program live in registers throughout the kernel."""
        lanes = self.schedule.lanes
        tile = self.fragments.at({}, Lanes.of(lanes, self.domain.lane))
        for value in self.plan.constants:
            self.constants[value] = tile.value(value, ())

    def allocate_staging(self, lines: int, deep: int, padded: int) -> None:
        """Memory of the unit for the values that a later pass reads back."""
        if self.schedule.staging != STAGED:
            return
        for value in self.plan.staged:
            dtype = compute_dtype(self.domain.program.ops[value].type.dtype)
            self.staged[value] = self.builder.alloc(
                "staged", dtype, (lines, deep, padded), MemorySpace.LOCAL
            )

    def line(self, index: int, place: Place, lanes: Lanes) -> Line:
        """A line at a place of the kept axes, with the row values that need no reduction."""
        line = Line(index, self.fragments.at(place, lanes, self.constants), slot=index)
        self.row_values(self.plan.passes[0], line)
        return line

    def row_values(self, one: Pass, line: Line) -> None:
        """What is known of a row once a pass is over."""
        labels, program = self.domain.labels, self.domain.program
        for value in one.rows:
            line.tile.leaves[value] = line.tile.value(value, labels[value])
        for position in one.row_outputs:
            value = program.outputs[position][1]
            line.tile.store(
                line.tile.value(value, labels[value]), self.outputs[position], labels[value]
            )

    def handed_on(self, one: Pass) -> dict[int, DType]:
        """Row values of a pass that later passes may read, with the type of their registers."""
        ops = self.domain.program.ops
        found = {r.value: r.acc for r in one.reductions}
        return found | {v: compute_dtype(ops[v].type.dtype) for v in one.rows if v not in found}

    # Accumulators --------------------------------------------------------------------------

    def begin(self, one: Pass, lines: int) -> Accumulators:
        """Accumulators of a pass, holding the identity of their reduction."""
        lanes, out = self.schedule.lanes, dict[int, Buffer]()
        for reduction in one.reductions:
            shape = (lines, self.chains, lanes)
            acc = self.builder.alloc("acc", reduction.acc, shape, MemorySpace.REGISTER)
            out[reduction.value] = acc
            for line in range(lines):
                for chain in range(self.chains):
                    self.fill_identity(reduction, window(acc, line, chain, (0, lanes)))
        return out

    def fill_identity(self, reduction: Reduction, target: Window) -> None:
        """Start an accumulator."""
        computes = Computation(Kind.FILL, "", (self.schedule.lanes,), (reduction.acc,))
        self.builder.call(self.fragments.atom(computes), target, Scalar(reduction.identity))

    def finish(
        self, reduction: Reduction, line: Line, chains: Sequence[Window], *, reuse: bool = True
    ) -> None:
        """Join the chains of a line pairwise, neighbours first, then (ROWS) the lanes.

        With ``reuse`` the first chain of a pair takes the result.
        """
        lanes, acc = self.schedule.lanes, list(chains)
        while len(acc) > 1:
            joined: list[Window] = []
            for a, b in zip(acc[::2], acc[1::2], strict=False):
                target = a if reuse else line.tile.register("joined", reduction.acc)
                self.join(reduction, target, a, b)
                joined.append(target)
            acc = joined + acc[2 * len(joined) :]
        result = acc[0]
        if self.along_rows:
            result = line.tile.register("r", reduction.acc)
            computes = Computation(Kind.REDUCE, reduction.fn.value, (lanes,), (reduction.acc,))
            self.builder.call(self.fragments.atom(computes), result, acc[0])
        line.tile.leaves[reduction.value] = result

    def end(self, one: Pass, line: Line, acc: Accumulators) -> None:
        """What follows a walk: reductions are joined, row values computed."""
        for reduction in one.reductions:
            buffer = acc[reduction.value]
            chains = [
                window(buffer, line.index, chain, (0, self.schedule.lanes))
                for chain in range(self.chains)
            ]
            self.finish(reduction, line, chains)
        self.row_values(one, line)

    def first_lanes(self, reduction: Reduction, line: Line, tile: FragmentTile) -> Window:
        """What a short fragment gives a reduction, the identity in the lanes that are not there."""
        target = line.tile.register("part", reduction.acc)
        self.fill_identity(reduction, target)
        self.join(reduction, target, target, self.source(tile, reduction), tile.lanes.valid)
        return target

    def join(
        self, reduction: Reduction, target: Window, a: Window, b: Window, valid: Expr | None = None
    ) -> None:
        """``target = a combined with b``; with ``valid``, in the first lanes only."""
        lanes = self.schedule.lanes
        computes = Computation(
            Kind.MAP, reduction.combine, (lanes,), (reduction.acc,), partial=valid is not None
        )
        if valid is not None:
            starts = target.starts[:-1]
            target = window(target.buffer, *starts, (target.starts[-1], valid))
        self.builder.call(self.fragments.atom(computes), target, a, b)

    # Elements ------------------------------------------------------------------------------

    def element(self, one: Pass, line: Line, piece: Piece, acc: Accumulators) -> None:
        """One element fragment of a pass."""
        lanes = self.schedule.lanes
        tile = self.fragments.at(piece.place, piece.lanes, line.tile.leaves)
        staging = self.schedule.staging == STAGED
        if staging:
            for value in one.loads:
                tile.leaves[value] = self._load_staged(tile, value, line, piece)
        for reduction in one.reductions:
            target = window(acc[reduction.value], line.index, piece.chain, (0, lanes))
            if piece.lanes.whole and self._multiplies(one, reduction):
                self._multiply_add(tile, reduction, target)
                continue
            value = self.source(tile, reduction)
            valid = None if piece.lanes.whole or not self.along_rows else piece.lanes.valid
            self.join(reduction, target, target, value, valid)
        self.store_outputs(one, tile)
        if staging:
            for value in one.stores:
                self._store_staged(tile, value, line, piece)

    def source(self, tile: FragmentTile, reduction: Reduction) -> Window:
        """What a reduction takes in, in the accumulator's type."""
        value = tile.value(reduction.source, self.domain.labels[reduction.source])
        if value.buffer.dtype is reduction.acc:
            return value
        wide = tile.register("w", reduction.acc)
        tile.call(Kind.CONVERT, "", (reduction.acc, value.buffer.dtype), wide, value)
        return wide

    def store_outputs(self, one: Pass, tile: FragmentTile) -> None:
        """Outputs that differ along a row."""
        labels, program = self.domain.labels, self.domain.program
        for position in one.outputs:
            value = program.outputs[position][1]
            tile.store(
                tile.value(value, labels[value]),
                self.outputs[position],
                labels[value],
                stream=self.schedule.stream,
            )

    def prefetch(self, place: Place) -> None:
        """Ask for the cache lines that hold this place of the inputs."""
        tile = self.fragments.at(place, Lanes.of(self.schedule.lanes, self.domain.lane))
        for value in self.plan.fetched:
            tile.prefetch(self.fragments.buffers[value], self.domain.labels[value])

    def _multiplies(self, one: Pass, reduction: Reduction) -> bool:
        """A sum of products that nothing else in the pass needs is multiply-accumulate."""
        program = self.domain.program
        op = program.ops[reduction.source]
        if reduction.fn is not ReduceFn.SUM or self.schedule.lanes == 1:
            return False
        if not (isinstance(op.attrs, BinaryAttrs) and op.attrs.fn is BinaryFn.MUL):
            return False
        if compute_dtype(op.type.dtype) is not reduction.acc or not reduction.acc.is_float:
            return False
        if self.schedule.staging == REGISTERS:
            return False
        if self.schedule.staging == STAGED and reduction.source in (*one.stores, *one.loads):
            return False
        staging = self.schedule.staging == STAGED
        evaluated = one.staged_evaluated if staging else one.evaluated
        users = [v for v in evaluated if reduction.source in program.ops[v].operands]
        outputs = [program.outputs[i][1] for i in one.outputs]
        same = [r for r in one.reductions if r.source == reduction.source]
        return not users and reduction.source not in outputs and len(same) == 1

    def _multiply_add(self, tile: FragmentTile, reduction: Reduction, target: Window) -> None:
        program, lanes = self.domain.program, self.schedule.lanes
        labels = self.domain.labels
        a, b = (tile.value(o, labels[o]) for o in program.ops[reduction.source].operands)
        computes = Computation(Kind.MMA, "", (1, lanes, 1), (reduction.acc,) * 3)
        self.builder.call(self.fragments.atom(computes), target, a, b)

    def _load_staged(self, tile: FragmentTile, value: int, line: Line, piece: Piece) -> Window:
        dtype: DType = self.staged[value].dtype
        out = tile.register("x", dtype)
        tile.call(Kind.LOAD, "", (dtype, dtype), out, self._slot(value, line.slot, piece))
        return out

    def _store_staged(self, tile: FragmentTile, value: int, line: Line, piece: Piece) -> None:
        dtype = self.staged[value].dtype
        source = tile.value(value, self.domain.labels[value])
        tile.call(Kind.STORE, "", (dtype, dtype), self._slot(value, line.slot, piece), source)

    def _slot(self, value: int, line: ExprLike, piece: Piece) -> Window:
        deep, at = piece.slot
        return window(self.staged[value], line, deep, (at, self.schedule.lanes))
