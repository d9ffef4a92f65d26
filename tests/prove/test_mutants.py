"""Mutants of legal kernels: every one is refused, caught by the interpreter, or equivalent.

A mutant counts as equivalent only if it runs free of refusals and gives the exact result;
the tests name what may be equivalent, so that a blind verifier cannot pass.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.prove.kernels import gemm, prepared, row_sum
from tests.prove.toy import LIMITS, TABLE
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Binary, Const, Operator
from tfsearch.ir.tir.nodes import (
    Alloc,
    Call,
    For,
    If,
    Let,
    LoopKind,
    MemorySpace,
    Module,
    Scalar,
    Window,
)
from tfsearch.ir.tir.walk import replace_at, walk
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify


def matmul():
    rng = np.random.default_rng(3)
    a = rng.integers(1, 5, (9, 11)).astype(np.float32)
    b = rng.integers(1, 5, (11, 21)).astype(np.float32)
    return gemm(9, 21, 11, units=2, kc=8), {"a": a, "b": b}, {"c": a @ b}


def reduction():
    x = np.random.default_rng(4).integers(1, 5, (7, 21)).astype(np.float32)
    return row_sum(7, 21, units=2), {"x": x}, {"y": x.sum(axis=1)}


def pair():
    rng = np.random.default_rng(5)
    w, x = (rng.integers(1, 5, (3, 13)).astype(np.float32) for _ in range(2))
    return prepared(3, 13), {"w": w, "x": x}, {"y": w + x}


SUBJECTS = {"matmul": matmul, "reduction": reduction, "pair": pair}


def verdict(module, arguments, expected):
    """ "refused", "caught", "wrong", or "same"."""
    if verify(module, TABLE, LIMITS):
        return "refused"
    outcome = interpret(module, TABLE, arguments, seed=1)
    if outcome.refusals:
        return "caught"
    if any((outcome.outputs[name] != value).any() for name, value in expected.items()):
        return "wrong"
    return "same"


def exprs_off(expr):
    """The expression off by one, both ways, with one operator or literal changed."""
    yield "plus", Binary(Operator.ADD, expr, Const(1))
    yield "minus", Binary(Operator.ADD, expr, Const(-1))
    if isinstance(expr, Binary):
        swap = {Operator.MIN: Operator.MAX, Operator.MAX: Operator.MIN}
        if expr.op in swap:
            yield "swapped", replace(expr, op=swap[expr.op])


def mutants_of(statement):
    """(label, statements in its place)."""
    yield "drop", ()
    match statement:
        case For(name, start, stop, _, kind, step, _):
            for label, new in exprs_off(start):
                yield f"start {label}", (replace(statement, start=new),)
            for label, new in exprs_off(stop):
                yield f"stop {label}", (replace(statement, stop=new),)
            yield "step", (replace(statement, step=step + 1),)
            other = LoopKind.SERIAL if kind is LoopKind.UNROLLED else LoopKind.UNROLLED
            yield "kind", (replace(statement, kind=other),)
        case If(condition, then, orelse):
            yield "inverted", (replace(statement, then=orelse, orelse=then),)
            for label, new in exprs_off(condition.left):
                yield (
                    f"condition {label}",
                    (replace(statement, condition=replace(condition, left=new)),),
                )
        case Let(name, value):
            for label, new in exprs_off(value):
                yield f"value {label}", (Let(name, new),)
        case Alloc(buffer):
            yield "dtype", (Alloc(replace(buffer, dtype=DType.I32)),)
            space = MemorySpace.LOCAL if buffer.space.is_register else MemorySpace.REGISTER
            yield "space", (Alloc(replace(buffer, space=space)),)
            shape = (*buffer.shape[:-1], buffer.shape[-1] - 1)
            yield "narrow", (Alloc(replace(buffer, shape=shape)),)
            yield "align", (Alloc(replace(buffer, alignment=3)),)
        case Call(atom, operands):
            yield "twice", (statement, statement)
            for index in range(len(operands) - 1):
                new = list(operands)
                new[index], new[index + 1] = new[index + 1], new[index]
                yield f"swap {index}", (Call(atom, tuple(new)),)
            for index, operand in enumerate(operands):
                for label, new in _operands_off(operand):
                    changed = (*operands[:index], new, *operands[index + 1 :])
                    yield f"operand {index} {label}", (Call(atom, changed),)


def _operands_off(operand):
    if isinstance(operand, Scalar):
        yield "value", Scalar(operand.value + 1)
    if isinstance(operand, Window):
        for part in ("starts", "extents"):
            old = getattr(operand, part)
            for dim, expr in enumerate(old):
                for label, new in exprs_off(expr):
                    values = (*old[:dim], new, *old[dim + 1 :])
                    yield f"{part} {dim} {label}", replace(operand, **{part: values})


# Survivors, each equivalent for the reason given.
AGAIN = {("twice", atom) for atom in ("load", "load.aligned", "store", "fill", "splat", "barrier")}
EQUIVALENT = {
    "matmul": AGAIN
    | {
        ("stop plus", "kb"),  # one block more, of a negative number of steps
        ("stop plus", "i2"),  # a row that the condition inside leaves out
        ("step", "q"),  # a loop of one iteration
        ("kind", "kb"),  # loops of literal counts may be unrolled
        ("kind", "q"),
        ("kind", "jp"),
        ("kind", "w"),  # an unrolled loop that indexes no register may be serial
        ("swap 1", "fma"),  # a product commutes
    },
    "reduction": AGAIN
    | {
        ("twice", "store.one"),
        ("stop plus", "j"),  # 22 and 20 columns in steps of 8 are as many as 21
        ("stop minus", "j"),
        ("kind", "j"),
        ("swap 0", "add"),  # a sum commutes; here an operand is also the destination
        ("swap 1", "add"),
        ("swap 0", "sum"),  # source and destination are one register
    },
    "pair": AGAIN
    | {
        ("stop plus", "j"),
        ("stop minus", "j"),
        ("kind", "r"),
        ("kind", "j"),
        ("swap 0", "add"),
        ("swap 1", "add"),
    },
}


def campaign(subject):
    module, arguments, expected = SUBJECTS[subject]()
    assert verdict(module, arguments, expected) == "same"
    out = []
    for number, kernel in enumerate(module.kernels):
        for path, statement in walk(kernel.body):
            for label, block in mutants_of(statement):
                kernels = list(module.kernels)
                kernels[number] = replace_at(kernel, path, block)
                mutant = Module(tuple(kernels))
                out.append((statement, label, verdict(mutant, arguments, expected)))
    return out


def name_of(statement):
    if isinstance(statement, Call):
        return statement.atom.removeprefix("toy.")
    return getattr(statement, "name", type(statement).__name__)


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_no_mutant_is_missed(subject):
    results = campaign(subject)
    survivors = {(label, name_of(statement)) for statement, label, v in results if v == "same"}
    assert survivors <= EQUIVALENT[subject]
    outcomes = {v for _, _, v in results}
    assert {"refused", "caught"} <= outcomes
    assert len(results) > 100


def test_no_dropped_statement_survives():
    for subject in SUBJECTS.values():
        module, arguments, expected = subject()
        for path, _ in walk(module.main.body):
            main = replace_at(module.main, path, ())
            mutant = Module((*module.prepares, main))
            assert verdict(mutant, arguments, expected) != "same", path
