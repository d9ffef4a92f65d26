"""Random loop nests around one window, and the same question answered by brute force."""

from hypothesis import strategies as st

from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var, evaluate
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Buffer,
    Call,
    For,
    If,
    Io,
    Kernel,
    Let,
    MemorySpace,
    Param,
    Window,
)

REG = Buffer("reg", DType.F32, (8,), MemorySpace.REGISTER, alignment=4)
ARITHMETIC = [Operator.ADD, Operator.SUB, Operator.MUL, Operator.MIN, Operator.MAX]
LOGIC = [Operator.LT, Operator.LE, Operator.EQ, Operator.NE]


@st.composite
def exprs(draw, names, depth=2) -> Expr:
    """An expression over ``names`` with small literals."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if names and draw(st.booleans()):
            return Var(draw(st.sampled_from(names)))
        return Const(draw(st.integers(-2, 9)))
    op = draw(st.sampled_from([*ARITHMETIC, Operator.FLOORDIV, Operator.MOD]))
    left = draw(exprs(names, depth - 1))
    if op in (Operator.FLOORDIV, Operator.MOD):
        return Binary(op, left, Const(draw(st.integers(1, 6))))
    if op is Operator.MUL:
        return Binary(op, left, Const(draw(st.integers(-2, 5))))
    return Binary(op, left, draw(exprs(names, depth - 1)))


@st.composite
def conditions(draw, names) -> Expr:
    """A predicate over ``names``."""
    if draw(st.integers(0, 3)) == 0:
        op = draw(st.sampled_from([Operator.AND, Operator.OR]))
        return Binary(op, draw(conditions(names)), draw(conditions(names)))
    op = draw(st.sampled_from(LOGIC))
    return Binary(op, draw(exprs(names, 1)), draw(exprs(names, 1)))


@st.composite
def nests(draw):
    """A kernel that loads one window of ``x`` inside random loops, lets and conditions."""
    units = draw(st.integers(1, 3))
    names = [UNIT]
    shape = (draw(st.integers(1, 30)), draw(st.integers(1, 40)))
    x = Buffer("x", DType.F32, shape, MemorySpace.GLOBAL)
    layers = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["for", "for", "let", "if"]))
        if kind == "for":
            name = f"i{number}"
            stop = draw(exprs(names, 2))
            start = draw(st.sampled_from([Const(0), Const(1)]) | exprs(names, 1))
            layers.append(("for", name, start, stop, draw(st.integers(1, 4))))
            names = [*names, name]
        elif kind == "let":
            layers.append(("let", f"n{number}", draw(exprs(names, 2))))
            names = [*names, f"n{number}"]
        else:
            layers.append(("if", draw(conditions(names)), draw(st.booleans())))
    extent = draw(st.just(Const(8)) | exprs(names, 2).map(_at_most_eight))
    window = Window(x, (draw(exprs(names, 2)), draw(exprs(names, 2))), (Const(1), extent))
    body = (Call("toy.load", (Window(REG, (Const(0),), (Const(8),)), window)),)
    for layer in reversed(layers):
        if layer[0] == "for":
            _, name, start, stop, step = layer
            body = (For(name, start, stop, body, step=step),)
        elif layer[0] == "let":
            body = (Let(layer[1], layer[2]), *body)
        else:
            body = (If(layer[1], body) if layer[2] else If(layer[1], (), body),)
    return Kernel("nest", (Param(x, Io.IN),), units, (Alloc(REG), *body))


def _at_most_eight(expr):
    return Binary(Operator.MIN, Const(8), Binary(Operator.MAX, Const(0), expr))


def brute(kernel):
    """(executions, out of bounds) of the window, by running the loops."""
    seen, wrong = 0, 0

    def run(block, env):
        nonlocal seen, wrong
        env = dict(env)
        for statement in block:
            match statement:
                case Let(name, value):
                    env[name] = evaluate(value, env)
                case For(name, start, stop, body, _, step, _):
                    for value in range(evaluate(start, env), evaluate(stop, env), step):
                        run(body, {**env, name: value})
                case If(condition, then, orelse):
                    run(then if evaluate(condition, env) else orelse, env)
                case Call(_, operands):
                    seen += 1
                    window = operands[1]
                    starts = [evaluate(e, env) for e in window.starts]
                    extents = [evaluate(e, env) for e in window.extents]
                    touched = all(e > 0 for e in extents)
                    for s, e, n in zip(starts, extents, window.buffer.shape, strict=True):
                        if e < 0 or (touched and not 0 <= s <= n - e):
                            wrong += 1
                            break

    for unit in range(kernel.units):
        run(kernel.body, {UNIT: unit})
    return seen, wrong
