"""TIR of teams of warps as CUDA C++: roles, descriptors of the host, laid-out shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tfsearch.atoms.contract import Atom, Completion, OperandSpec, Sync
from tfsearch.codegen.clike import Dialect, KernelEmitter, Rendered, Scope
from tfsearch.codegen.storage import StoragePlan
from tfsearch.core.errors import InternalError
from tfsearch.ir.layout import Layout, SwizzledLayout, flatten
from tfsearch.ir.tir.expr import Const, Expr, evaluate, multiple_of
from tfsearch.ir.tir.nodes import (
    Alloc,
    Block,
    Box,
    Buffer,
    Call,
    For,
    Kernel,
    Let,
    LoopKind,
    MemorySpace,
    Role,
    Stmt,
    Window,
    tile_dims,
)
from tfsearch.prove.team.program import called
from tfsearch.target.cuda.boxes import Descriptor

FIRST = "tfs_first"
LANE = "tfs_lane"
INTEGER = "int"
_MATRIX = "matrix"
"""The stream of matrix products."""
_SWIZZLES = {None: 0, (1, 3, 3): 32, (2, 3, 3): 64, (3, 3, 3): 128}
"""Bytes of a row that a swizzle of 16-bit elements permutes."""
PACKED = "unsigned"
"""What holds two elements of 16 bits of a fragment."""
WORD = 4


def descriptors(kernel: Kernel) -> Iterator[tuple[str, Descriptor]]:
    """(parameter, descriptor) of every box of a kernel, in the order of its parameters."""
    for param in kernel.params:
        for index, box in enumerate(param.boxes):
            yield (
                _name(param.buffer, index),
                Descriptor(param.buffer.name, box.shape, _swizzle(param.buffer, box)),
            )


def _name(buffer: Buffer, index: int) -> str:
    return f"tfs_box_{buffer.name}_{index}"


def _swizzle(buffer: Buffer, box: Box) -> int:
    found = box.swizzle
    key = (found.bits, found.base, found.shift) if found is not None and found.bits else None
    if key not in _SWIZZLES or buffer.dtype.bytes != 2:
        raise InternalError("codegen.swizzle", f"{buffer.name}: no descriptor has {found}")
    return _SWIZZLES[key]


def has_teams(kernel: Kernel) -> bool:
    """Whether a kernel has roles of warps."""
    return any(isinstance(s, Role) and s.over_warps for s in kernel.body)


class Corner(Rendered):
    """A descriptor's address, with the first element of a box, innermost dimension first."""

    corner: str

    @staticmethod
    def of(address: str, corner: str) -> Corner:
        """An operand that is reached by a descriptor."""
        found = Corner(address)
        found.corner = corner
        return found


class Spot(Rendered):
    """An address in shared memory: where its row begins, the row's number, the place in the row."""

    base: str
    row: str
    at: str

    @staticmethod
    def of(address: str, base: str, row: str, at: str) -> Spot:
        """An operand that is reached row by row."""
        found = Spot(address)
        found.base, found.row, found.at = base, row, at
        return found


class TeamEmitter(KernelEmitter):
    """Emits kernels whose roles are warps. Integers are of 32 bits but for offsets in memory.

    ``InternalError`` (``codegen.extent``) for an argument with a dimension beyond them.
    """

    def __init__(
        self, kernel: Kernel, atoms: Mapping[str, Atom], dialect: Dialect, plan: StoragePlan
    ) -> None:
        super().__init__(kernel, atoms, dialect, plan)
        self._threads = kernel.warps * kernel.lanes
        self._sums: dict[str, None] = {}
        for param in kernel.params:
            if max(param.buffer.shape, default=0) >= 1 << 30:
                raise InternalError("codegen.extent", f"{param.buffer.name} is too long")
        self._copies = {
            fragment: spec.copies
            for name in called(kernel.body)
            for spec in atoms[name].operands
            for fragment in spec.fragments
        }

    def block(self, block: Block, scope: Scope) -> None:
        """Roles side by side are one chain of branches."""
        before: Stmt | None = None
        for statement in block:
            beside = isinstance(before, Role) and before.over_warps
            if isinstance(statement, Role) and statement.over_warps:
                self._role(statement, scope, "else " if beside else "")
            else:
                self.statement(statement, scope)
            before = statement

    def _role(self, role: Role, scope: Scope, before: str) -> None:
        lanes, outer = self.kernel.lanes, self._threads
        first, last, self._threads = role.first * lanes, role.last * lanes, role.width * lanes
        everyone = (role.first, role.last) == (0, self.kernel.warps)
        condition = f"if (threadIdx.x >= {first} && threadIdx.x < {last}) "
        self.line(f"{before}{'' if everyone else condition}{{")
        self.line(f"  const int {LANE} = (threadIdx.x - {first}) % {self._threads};")
        self.line(f"  const bool {FIRST} = {LANE} == 0;")
        self.line(f"  (void){LANE}, (void){FIRST};")
        if role.instance:
            # All threads of a warp have one number: it is put where the compiler sees that.
            number = f"(threadIdx.x - {first}) / {self._threads}"
            self.line(f"  const {INTEGER} {role.instance} = __shfl_sync(0xFFFFFFFFu, {number}, 0);")
        self.nested(role.body, scope)
        self.line("}")
        self._threads = outer

    def statement(self, statement: Stmt, scope: Scope) -> None:
        """As for one thread a unit, with narrower integers."""
        if isinstance(statement, Let):
            value = self.expression(scope.resolve(statement.value))
            self.line(f"const {INTEGER} {statement.name} = {value};")
        elif isinstance(statement, For) and statement.kind is LoopKind.SERIAL:
            self._serial(statement, scope)
        elif isinstance(statement, Alloc) and statement.buffer.fragment:
            self._fragment(statement.buffer)
        elif isinstance(statement, Call):
            super().statement(statement, scope)
            self._settled(statement, scope)
        else:
            super().statement(statement, scope)

    def _settled(self, call: Call, scope: Scope) -> None:
        """Fragments that products write are bound to the wait for the last of them."""
        effects = self.atoms[call.atom].effects
        if effects.completion is Completion.MATRIX_GROUP:
            sums = call.operands[0]
            assert isinstance(sums, Window)
            starts = [scope.resolve(start) for start in sums.starts]
            self._sums[self._registers(sums, starts)] = None
        elif effects.synchronises == Sync.WAIT_GROUP and call.operands[0] == Const(0):
            for name in self._sums if effects.group == _MATRIX else ():
                self.line(f"tfs_settled({name});")

    def _serial(self, loop: For, scope: Scope) -> None:
        start, stop = scope.resolve(loop.start), scope.resolve(loop.stop)
        self.line(self.dialect.unroll(max(loop.unroll, 1)))
        step = f"{loop.name} += {loop.step}"
        self.line(
            f"for ({INTEGER} {loop.name} = {self.expression(start)}; "
            f"{loop.name} < {self.expression(stop)}; {step}) {{"
        )
        self.nested(loop.body, scope)
        self.line("}")

    def _fragment(self, buffer: Buffer) -> None:
        """The share of one thread of every fragment of an array of them."""
        count = self._words(buffer, prod(buffer.shape[-2:]))
        packed = buffer.dtype.bytes < WORD
        element = PACKED if packed else self.dialect.element(buffer.dtype)
        for index in range(prod(buffer.shape[:-2])):
            self.line(f"tfs_vec<{element}, {count}> {buffer.name}_{index};")

    def _words(self, buffer: Buffer, elements: int) -> int:
        """Registers of one thread for so many elements of a fragment."""
        copies = self._copies.get(buffer.fragment, 1)
        return elements * copies * buffer.dtype.bytes // (self._threads * WORD)

    def window(self, operand: Window, spec: OperandSpec, scope: Scope) -> Rendered:
        """Fragments by their registers, boxes by their descriptors, the rest by address."""
        buffer = operand.buffer
        starts = [scope.resolve(start) for start in operand.starts]
        if buffer.fragment:
            return self._registers(operand, starts)
        if spec.box is not None and buffer.space is MemorySpace.GLOBAL:
            return self._box(buffer, spec, starts)
        if buffer.space is MemorySpace.SHARED:
            return self._shared(buffer, starts)
        return self._global(operand, spec, starts, scope)

    def _registers(self, operand: Window, starts: list[Expr]) -> Rendered:
        buffer = operand.buffer
        rows, columns = buffer.shape[-2:]
        number = 0
        for start, extent in zip(starts[:-2], buffer.shape[:-2], strict=True):
            number = number * extent + evaluate(start, {})
        name, at = f"{buffer.name}_{number}", evaluate(starts[-1], {})
        width = evaluate(operand.extents[-1], {})
        if width == columns:
            return Rendered(name)
        share, first = self._words(buffer, width * rows), self._words(buffer, at * rows)
        return Rendered(f"tfs_part<{share}>({name}.x + {first})")

    def _box(self, buffer: Buffer, spec: OperandSpec, starts: list[Expr]) -> Rendered:
        wanted = (1,) * (len(buffer.shape) - len(spec.shape)) + spec.shape
        params = next(p for p in self.kernel.params if p.buffer.name == buffer.name)
        index = next(i for i, box in enumerate(params.boxes) if box.shape == wanted)
        corner = ", ".join(self.expression(start) for start in reversed(starts))
        return Corner.of(f"&{_name(buffer, index)}", corner)

    def _shared(self, buffer: Buffer, starts: list[Expr]) -> Rendered:
        """The address before the swizzle, which is what copies and matrix products take."""
        layout = buffer.layout
        plain = layout.layout if isinstance(layout, SwizzledLayout) else layout
        if plain is None:
            strided = zip(starts, buffer.dense_strides, strict=True)
            offsets = [start * stride for start, stride in strided]
        else:
            laid_out = zip(starts, plain.modes, strict=True)
            offsets = [_offset(buffer.name, start, mode) for start, mode in laid_out]
        base, last = offsets[0], offsets[-1]
        for offset in offsets[1:-1]:
            base = base + offset
        whole = base + last if len(offsets) > 1 else base
        row = starts[-2] if len(starts) > 1 else Const(0)
        return Spot.of(
            f"({buffer.name} + {self.expression(whole)})",
            f"({buffer.name} + {self.expression(base)})",
            self.expression(row),
            self.expression(last),
        )

    def _global(
        self, operand: Window, spec: OperandSpec, starts: list[Expr], scope: Scope
    ) -> Rendered:
        buffer, strides = operand.buffer, operand.buffer.dense_strides
        extents = [self.expression(scope.resolve(extent)) for extent in operand.extents]
        dims = tile_dims(operand, len(spec.shape))
        n, step = (extents[dims[-1]], str(strides[dims[-1]])) if dims else ("1", "1")
        rows, ld = (extents[dims[-2]], str(strides[dims[-2]])) if len(dims) > 1 else ("1", "0")
        parts = [self.pointer(buffer)]
        for start, stride in zip(starts, strides, strict=True):
            if start != Const(0):
                parts.append(f"(long){self.expression(start)} * {stride}")
        return Rendered(f"({' + '.join(parts)})", n, rows, ld, step)


def _offset(name: str, start: Expr, mode: Layout) -> Expr:
    """Offset of a place of one dimension. In a nested one it is a literal or starts a block."""
    if isinstance(mode.stride, int):
        return start * mode.stride
    if isinstance(start, Const):
        return Const(mode(start.value))
    sizes, steps = flatten(mode.shape), flatten(mode.stride)
    if len(sizes) != 2 or multiple_of(start) % sizes[0] or steps[1] % sizes[0]:
        raise InternalError("codegen.layout", f"{name}: no offset of a place inside of a block")
    return start * (steps[1] // sizes[0])
