"""Atoms are found by what they compute; each refusal says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfsearch.atoms.contract import (
    Access,
    Atom,
    AtomCost,
    Computation,
    Effects,
    Kind,
    OperandSpec,
    Part,
    Sync,
)
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import InternalError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace

ADD = Computation(Kind.MAP, "add", (8,), (DType.F32,))


def atom(name: str, computes: Computation = ADD, features: frozenset[str] = frozenset()) -> Atom:
    return Atom(name, features, computes, (), lambda views: None, AtomCost("alu", 1.0), "")


WIDE = frozenset({"wide"})


def test_the_first_declared_of_equal_atoms_is_taken() -> None:
    table = AtomTable([atom("wide", features=WIDE), atom("one"), atom("two")], ())
    found = table.usable(ADD)
    assert found is not None
    assert found.id == "one"
    richer = AtomTable(table.values(), ("wide",)).usable(ADD)
    assert richer is not None
    assert richer.id == "wide"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (Computation(Kind.MAP, "mul", (8,), (DType.F32,)), "computes add, wanted mul"),
        (Computation(Kind.MAP, "add", (8,), (DType.F64,)), "works on f32, wanted f64"),
        (Computation(Kind.MAP, "add", (4,), (DType.F32,)), "tile (8,), wanted (4,)"),
        (Computation(Kind.MAP, "add", (8,), (DType.F32,), "fast"), "is precise, wanted fast"),
        (Computation(Kind.MAP, "add", (8,), (DType.F32,), partial=True), "touches whole tiles"),
        (ADD, "needs wide"),
    ],
)
def test_every_refusal_says_why(wanted: Computation, reason: str) -> None:
    table = AtomTable([atom("x", features=WIDE)], ())
    assert table.usable(wanted) is None
    (match,) = table.candidates(wanted)
    assert not match.accepted
    assert match.reason == reason


def test_candidates_are_those_of_the_same_kind() -> None:
    load = Computation(Kind.LOAD, "", (8,), (DType.F32, DType.F32))
    table = AtomTable([atom("x"), atom("load", load)], ())
    assert [m.atom.id for m in table.candidates(ADD)] == ["x"]
    assert table.candidates(ADD)[0].accepted


def test_two_atoms_of_one_name_are_a_bug() -> None:
    with pytest.raises(InternalError, match="declared twice"):
        AtomTable([atom("x"), atom("x")], ())


def test_partial_flags_are_one_a_dimension() -> None:
    spec = OperandSpec(
        "a", Access.READ, DType.F32, (4, 4), frozenset({MemorySpace.GLOBAL}), (True,)
    )
    with pytest.raises(ValueError, match="one flag a dimension"):
        Atom("x", frozenset(), ADD, (spec,), lambda views: None, AtomCost("alu", 1.0), "")


def test_a_table_is_a_mapping_in_declared_order() -> None:
    table = AtomTable([atom("b"), atom("a", features=WIDE)], ("wide",))
    assert list(table) == ["b", "a"]
    assert len(table) == 2
    assert table["a"].features == WIDE
    assert "c" not in table


def test_an_opaque_call_updates_everything_it_is_handed():
    spec = OperandSpec("x", Access.READ, None, (8,), frozenset({MemorySpace.GLOBAL}))
    number = OperandSpec("n", Access.READ, DType.I32, (), frozenset())

    def opaque(*operands):
        return Atom(
            "toy.opaque", frozenset(), Computation(Kind.OPAQUE, "", (8,), ()), operands,
            lambda _: None, AtomCost("pipe", 1.0), "",
        )  # fmt: skip

    with pytest.raises(ValueError, match="an opaque call updates what it is handed"):
        opaque(spec)
    atom = opaque(replace(spec, access=Access.UPDATE), number)
    assert atom.is_plain
    assert atom.find(Part.BARRIER) == -1


@pytest.mark.parametrize("sync", [Sync.INIT, Sync.WAIT, Sync.NAMED, Sync.WAIT_GROUP, Sync.EXPECT])
def test_an_atom_that_synchronises_has_the_operands_for_it(sync: Sync):
    effects = Effects(synchronises=sync, group="copies")
    with pytest.raises(ValueError, match=f"{sync} takes an operand for"):
        Atom("x", frozenset(), ADD, (), lambda _: None, AtomCost("p", 1.0), "", effects=effects)


def test_effects_are_spelt_as_they_are_known():
    with pytest.raises(ValueError, match="grid_barrier"):
        Effects(synchronises="grid_barrier")
    with pytest.raises(ValueError, match="names the group"):
        Effects(synchronises=Sync.COMMIT)
    with pytest.raises(ValueError, match="issuer warps is none of"):
        replace(atom("x"), issuer="warps")
