"""Elementwise programs as register code, held to the program's own reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.recipes.contractions import BF16, F16, F32, F64, I8, I32, LEVELS
from tfsearch.atoms.contract import Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.ops import OpKind
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.trace import Tensor, trace
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.nodes import Buffer, Call, Io, MemorySpace, Module, Param
from tfsearch.ir.tir.walk import walk
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify
from tfsearch.recipes.fragments import (
    Fragments,
    FragmentTile,
    Lanes,
    compute_dtype,
    operand_labels,
)
from tfsearch.target.x86 import target
from tfsearch.target.x86.atoms import vector_atoms

ROWS, COLUMNS = 3, 21
ATOMS = AtomTable(tuple(vector_atoms()), LEVELS["avx512"])
LABELS = ("i", "j")


class Rows:
    """A kernel that walks ROWS x COLUMNS in fragments along columns (or along rows)."""

    def __init__(
        self, program: Program, accuracy: Accuracy = Accuracy.PRECISE, axis: str = "j"
    ) -> None:
        self.program = program
        self.axis = axis
        self.inputs = {
            i: Buffer(
                x.name, x.type.dtype, x.type.sizes or (1,), MemorySpace.GLOBAL, x.type.strides
            )
            for i, x in enumerate(program.inputs)
        }
        self.outputs = [
            Buffer(name, t.dtype, t.sizes, MemorySpace.GLOBAL)
            for (name, _), t in zip(program.outputs, program.output_types, strict=True)
        ]
        self.builder = Builder([*program.input_names, *(b.name for b in self.outputs)])
        self.fragments = Fragments(self.builder, program, ATOMS, accuracy, self.inputs)

    def module(self, lanes: int, body: Callable[[FragmentTile], None] | None = None) -> Module:
        walked, other = ((COLUMNS, ROWS), (ROWS, COLUMNS))[self.axis == "i"]
        across = "i" if self.axis == "j" else "j"
        with self.builder.loop("r", other) as r:
            for at in range(0, walked, lanes):
                place = {across: r, self.axis: at + r * 0}
                valid = min(lanes, walked - at)
                tile = self.fragments.at(place, Lanes.of(lanes, self.axis, valid))
                (body or self._all)(tile)
        params = [Param(b, Io.IN) for b in self.inputs.values()]
        params += [Param(b, Io.OUT) for b in self.outputs]
        return Module((self.builder.kernel("main", tuple(params), 1),))

    def _all(self, tile: FragmentTile) -> None:
        for (_, value), buffer in zip(self.program.outputs, self.outputs, strict=True):
            tile.store(tile.value(value, LABELS), buffer, LABELS)


def checked(module: Module, program: Program, rough: float = 1e-5) -> None:
    """The module verifies, and computes the program on normal numbers."""
    refusals = verify(module, ATOMS, target.limits(target.nominal()))
    assert not refusals, refusals[0]
    rng = np.random.default_rng(0)
    arguments: dict[str, Any] = {}
    for item in program.inputs:
        dtype = item.type.dtype
        values = rng.standard_normal(item.type.sizes) * (40 if dtype.is_integer else 2)
        arguments[item.name] = np.asarray(values).astype(dtype.numpy)
    shaped = {n: v.reshape(v.shape or (1,)) for n, v in arguments.items()}
    outcome = interpret(module, ATOMS, shaped)
    assert not outcome.refusals
    expected = evaluate(program, arguments, round_casts=True)
    for (name, _), want in zip(program.outputs, expected, strict=True):
        got = outcome.outputs[name].astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=rough, atol=rough)


def program_of(body: Callable[..., Tensor], **types: TensorType) -> Program:
    return trace(lambda **given: {"y": body(**given)}, types, "p")


def full(dtype: DType = F32) -> TensorType:
    return TensorType(dtype, (ROWS, COLUMNS))


PROGRAMS: Mapping[str, Callable[[], Program]] = {
    "arithmetic": lambda: program_of(lambda x: (x * 2.0 + 1.0) / (x * x + 3.0) - x, x=full()),
    "maths": lambda: program_of(lambda x: lang.tanh(lang.exp(x * 0.1)) + lang.erf(x), x=full()),
    "row and column": lambda: program_of(
        lambda x, r, c: x * r.broadcast_in_dim((ROWS, COLUMNS), (0,)) + c,
        x=full(), r=TensorType(F32, (ROWS,)), c=TensorType(F32, (COLUMNS,)),
    ),
    "scalar": lambda: program_of(lambda x, s: x * s, x=full(), s=TensorType(F32, ())),
    "kept ones": lambda: program_of(
        lambda x, r: x - r, x=full(), r=TensorType(F32, (ROWS, 1))
    ),
    "transposed": lambda: program_of(
        lambda x, t: x + t.T, x=full(), t=TensorType(F32, (COLUMNS, ROWS))
    ),
    "reshaped ones": lambda: program_of(
        lambda x, v: x + v.reshape(1, COLUMNS), x=full(), v=TensorType(F32, (COLUMNS, 1))
    ),
    "strided": lambda: program_of(
        lambda x: lang.abs(x), x=TensorType(F32, (ROWS, COLUMNS), (2 * COLUMNS + 3, 2))
    ),
    "where": lambda: program_of(
        lambda x, z: lang.where(x > z, x * 2.0, z), x=full(), z=full()
    ),
    "where on another type": lambda: program_of(
        lambda x, q: lang.where(q > 3, x, -x), x=full(), q=full(I8)
    ),
    "where on a broadcast": lambda: program_of(
        lambda x, c: lang.where(
            (c > 0.0).broadcast_in_dim((ROWS, COLUMNS), (1,)), x, -x
        ),
        x=full(), c=TensorType(F32, (COLUMNS,)),
    ),
    "clip": lambda: program_of(lambda x: lang.clip(x, -0.5, 0.75), x=full()),
    "bytes": lambda: program_of(lambda x: (x * 100.0).cast(I8), x=full()),
    "bytes to bytes": lambda: program_of(lambda q: (q.cast(F32) * 2.5).cast(I8), q=full(I8)),
    "integers": lambda: program_of(lambda q: q.cast(I32) * 3 - 7, q=full(I8)),
}  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_computed_by_fragments_of_every_width(name: str, lanes: int) -> None:
    program = PROGRAMS[name]()
    checked(Rows(program).module(lanes), program)


@pytest.mark.parametrize("name", ["arithmetic", "row and column", "transposed", "where"])
def test_fragments_may_run_along_the_other_axis(name: str) -> None:
    program = PROGRAMS[name]()
    checked(Rows(program, axis="i").module(4), program)


@pytest.mark.parametrize(("dtype", "rough"), [(F16, 2e-3), (BF16, 1e-2), (F64, 1e-12)])
def test_narrow_and_wide_types_are_computed_in_their_register_type(
    dtype: DType, rough: float
) -> None:
    program = program_of(lambda x: lang.sigmoid(x) * x, x=full(dtype))
    lanes = 8
    module = Rows(program).module(lanes)
    held = {b.dtype for b in _registers(module)}
    assert held == {compute_dtype(dtype)}
    checked(module, program, rough)


def _registers(module: Module) -> list[Buffer]:
    return [
        statement.buffer
        for _, statement in walk(module.main.body)
        if hasattr(statement, "buffer") and statement.buffer.space is MemorySpace.REGISTER
    ]


def calls(module: Module) -> list[str]:
    return [s.atom for _, s in walk(module.main.body) if isinstance(s, Call)]


def test_a_value_used_twice_is_computed_once_a_place() -> None:
    program = program_of(lambda x: lang.exp(x) * lang.exp(x) + lang.exp(x), x=full())
    module = Rows(program).module(16)
    fragments = -(-COLUMNS // 16)
    assert sum("exp" in name for name in calls(module)) == fragments
    assert sum("load" in name for name in calls(module)) == fragments


def test_programs_deeper_than_the_python_stack_are_computed() -> None:
    def deep(x: Tensor) -> Tensor:
        for step in range(480):
            x = lang.where(x > 0.5, x - 0.25, x) if step % 7 == 0 else x + 0.125
        return x

    program = program_of(deep, x=full())
    checked(Rows(program).module(16), program)


def test_tails_use_partial_atoms_and_whole_fragments_do_not() -> None:
    program = PROGRAMS["arithmetic"]()
    names = calls(Rows(program).module(16))
    assert names.count("x86.load.f32x16.f32") == names.count("x86.load_partial.f32x16.f32") == 1


def test_leaves_and_known_values_are_taken_as_they_are() -> None:
    program = program_of(lambda x, z: lang.exp(x) + z, x=full(), z=full())
    rows = Rows(program)
    exp = next(i for i, op in enumerate(program.ops) if op.kind is OpKind.UNARY)

    def body(tile: FragmentTile) -> None:
        given = tile.load(rows.inputs[1], LABELS)
        tile.know(1, LABELS, given)
        leaf = rows.fragments.at(tile.place, tile.lanes, {exp: given})
        leaf.know(1, LABELS, given)
        value = leaf.value(program.outputs[0][1], LABELS)
        leaf.store(value, rows.outputs[0], LABELS)

    module = rows.module(8, body)
    assert not any("exp" in name for name in calls(module))
    z = np.ones((ROWS, COLUMNS), np.float32)
    outcome = interpret(module, ATOMS, {"x": z, "z": z})
    assert not outcome.refusals
    assert (outcome.outputs["y"] == 2).all()


def test_a_buffer_without_the_lane_axis_receives_the_first_lane() -> None:
    program = trace(lambda x: {"y": x.max(1)}, {"x": full()}, "p")
    rows = Rows(program)

    def body(tile: FragmentTile) -> None:
        value = tile.load(rows.inputs[0], LABELS)
        tile.store(value, rows.outputs[0], ("i",))

    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    outcome = interpret(rows.module(32 // 2, body), ATOMS, {"x": x})
    np.testing.assert_array_equal(outcome.outputs["y"], x[:, 16])


def test_prefetches_ask_for_the_first_element() -> None:
    program = PROGRAMS["arithmetic"]()
    rows = Rows(program)

    def body(tile: FragmentTile) -> None:
        tile.prefetch(rows.inputs[0], LABELS)
        rows._all(tile)

    module = rows.module(16, body)
    assert calls(module).count("x86.prefetch.f32") == 2
    checked(module, program)


def test_fast_maths_is_used_where_it_was_asked_for_and_exists() -> None:
    program = program_of(lambda x: lang.exp(x), x=full())
    assert any("fast_exp" in n for n in calls(Rows(program, Accuracy.FAST).module(16)))
    assert not any("fast" in n for n in calls(Rows(program).module(16)))
    wide = program_of(lambda x: lang.exp(x), x=full(F64))
    assert any(".exp." in n for n in calls(Rows(wide, Accuracy.FAST).module(8)))


def test_a_missing_instruction_is_named_with_the_reasons() -> None:
    program = PROGRAMS["arithmetic"]()
    with pytest.raises(RequestError, match=r"no instruction for load 5 f32/f32") as caught:
        Rows(program).module(5)
    assert caught.value.code == "recipe.no-atom"
    assert "x86.load.f32x16.f32" in caught.value.message
    fragments = Rows(program).fragments
    with pytest.raises(RequestError, match="no instruction for map nothing"):
        fragments.atom(Computation(Kind.MAP, "nothing", (16,), (F32,)))


def test_a_reshape_that_regroups_elements_is_refused() -> None:
    program = program_of(
        lambda x, v: x + v.reshape(ROWS, COLUMNS), x=full(), v=TensorType(F32, (ROWS * COLUMNS,))
    )
    with pytest.raises(RequestError, match="regroups") as caught:
        Rows(program).module(16)
    assert caught.value.code == "recipe.reshape"


def test_labels_follow_broadcasts_transposes_and_reshapes() -> None:
    def body(x: Tensor, v: Tensor) -> Tensor:
        moved = v.broadcast_in_dim((COLUMNS, ROWS), (1,)).T
        return x + moved + x.reshape(ROWS, 1, COLUMNS).reshape(ROWS, COLUMNS)

    program = program_of(body, x=full(), v=TensorType(F32, (ROWS,)))
    kinds = {op.kind: i for i, op in enumerate(program.ops)}
    assert operand_labels(program, kinds[OpKind.TRANSPOSE], LABELS) == (("j", "i"),)
    assert operand_labels(program, kinds[OpKind.BROADCAST], ("j", "i")) == (("i",),)
    checked(Rows(program).module(8), program)
