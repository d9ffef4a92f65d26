"""The canonical text of TIR comes back as the tree it was printed from."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import (
    Alloc,
    Box,
    Buffer,
    Call,
    For,
    If,
    Io,
    Kernel,
    Let,
    LoopKind,
    MemorySpace,
    Module,
    Param,
    Role,
    Scalar,
    Window,
)
from tfsearch.ir.tir.text import (
    first_lines,
    parse_kernel,
    parse_module,
    place,
    print_expr,
    print_kernel,
    print_module,
)
from tfsearch.ir.tir.walk import replace_at, statement_at, transform, walk

NAMES = st.sampled_from(["i", "jr", "x_1", "min", "for", "unit", "weird name", 'quo"te', "a.b"])
EXPRS: st.SearchStrategy[Expr] = st.recursive(
    st.integers(-9, 99).map(Const) | NAMES.map(Var),
    lambda inner: st.builds(Binary, st.sampled_from(list(Operator)), inner, inner),
    max_leaves=12,
)
FLOATS = st.floats(allow_nan=False)
SHAPES = st.recursive(
    st.integers(1, 64),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple),
    max_leaves=5,
)
SWIZZLES = st.builds(Swizzle, st.integers(0, 3), st.integers(0, 4), st.integers(3, 5))
PLAIN_LAYOUTS = SHAPES.map(Layout.compact)
LAYOUTS = PLAIN_LAYOUTS | st.builds(SwizzledLayout, SWIZZLES, PLAIN_LAYOUTS)
BOXES = st.builds(
    Box,
    st.lists(st.integers(0, 300), max_size=3).map(tuple),
    st.lists(st.integers(0, 300), max_size=3).map(tuple),
    st.none() | SWIZZLES,
)


@st.composite
def buffers(draw, space=None):
    shape = tuple(draw(st.lists(st.integers(0, 64), min_size=1, max_size=3)))
    strides = draw(st.none() | st.just(tuple(range(len(shape), 0, -1))))
    return Buffer(
        draw(NAMES) + draw(st.sampled_from(["", "0", "7"])),
        draw(st.sampled_from(list(DType))),
        shape,
        space or draw(st.sampled_from(list(MemorySpace))),
        strides,
        draw(st.sampled_from([1, 4, 64])),
        draw(st.none() | LAYOUTS),
        draw(st.sampled_from(["", "", "m64n8", 'a "strange" one'])),
    )


@st.composite
def calls(draw, visible):
    operands = []
    for _ in range(draw(st.integers(0, 3))):
        choice = draw(st.integers(0, 2))
        if choice == 0 and visible:
            buffer = visible[draw(st.sampled_from(sorted(visible)))]
            rank = len(buffer.shape)
            dims = st.lists(EXPRS, min_size=rank, max_size=rank).map(tuple)
            operands.append(Window(buffer, draw(dims), draw(dims)))
        elif choice == 1:
            operands.append(Scalar(draw(FLOATS)))
        else:
            operands.append(draw(EXPRS))
    atoms = st.sampled_from(["x86.fma.f32x16", "barrier", "odd atom", "sm90.wgmma.m64", "if"])
    return Call(draw(atoms), tuple(operands))


@st.composite
def blocks(draw, visible, depth=2):
    visible = dict(visible)
    out = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["call", "alloc", "let", "for", "if", "role"]))
        if kind == "alloc":
            buffer = draw(buffers())
            visible[buffer.name] = buffer
            out.append(Alloc(buffer))
        elif kind == "let":
            out.append(Let(draw(NAMES), draw(EXPRS)))
        elif kind == "for" and depth:
            out.append(
                For(
                    draw(NAMES),
                    draw(EXPRS),
                    draw(EXPRS),
                    draw(blocks(visible, depth - 1)),
                    draw(st.sampled_from(list(LoopKind))),
                    draw(st.integers(-1, 4)),
                    draw(st.integers(0, 4)),
                )
            )
        elif kind == "if" and depth:
            then, orelse = draw(blocks(visible, depth - 1)), draw(blocks(visible, depth - 1))
            out.append(If(draw(EXPRS), then, orelse))
        elif kind == "role" and depth:
            bounds = draw(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
            width = draw(st.integers(0, 4))
            instance = draw(NAMES | st.just("")) if width else ""
            out.append(
                Role(draw(NAMES), *bounds, draw(blocks(visible, depth - 1)), width, instance)
            )
        else:
            out.append(draw(calls(visible)))
    return tuple(out)


@st.composite
def kernels(draw):
    params = [
        Param(
            draw(buffers(MemorySpace.GLOBAL)),
            draw(st.sampled_from(list(Io))),
            tuple(draw(st.lists(BOXES, max_size=2))),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    visible = {param.buffer.name: param.buffer for param in params}
    return Kernel(
        draw(NAMES),
        tuple(params),
        draw(st.integers(0, 8)),
        draw(blocks(visible)),
        draw(st.sampled_from([1, 1, 12])),
        draw(st.sampled_from([1, 32])),
        draw(st.sampled_from([0, 168])),
        draw(st.sampled_from([(), (2, 1), (1,)])),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(kernels(), min_size=1, max_size=2))
def test_a_module_comes_back_as_it_was_printed(parts):
    module = Module(tuple(parts))
    text = print_module(module)
    assert parse_module(text) == module
    assert print_module(parse_module(text)) == text


@settings(max_examples=300, deadline=None)
@given(EXPRS)
def test_an_expression_keeps_its_tree(expr):
    kernel = Kernel("k", (), 1, (Let("x", expr),))
    assert parse_kernel(print_kernel(kernel)) == kernel


@settings(max_examples=100, deadline=None)
@given(FLOATS)
def test_scalars_come_back_exactly(value):
    kernel = Kernel("k", (), 1, (Call("fill", (Scalar(value),)),))
    back = parse_kernel(print_kernel(kernel)).body[0].operands[0].value
    assert repr(back) == repr(float(value))


def test_differences_of_literals_keep_their_operator():
    i = Var("i")
    assert print_expr(i - 3) == "i - 3"
    assert print_expr(Binary(Operator.SUB, i, Const(3))) == "i - (3)"
    assert print_expr(i - Binary(Operator.ADD, Var("j"), Const(1))) == "i - (j + 1)"


TEXT = """\
kernel gemm units 2 (
  in a: f32[8, 16] global align 64,
  out c: f32[8, 16] global strides [20, 1] align 16,
) {
  for i in unit * 4..unit * 4 + 4 step 2 unroll 2 {
    if i < 6 {
      copy(c[i, 0 :+ 16], a[i, 0 :+ min(16, 20 - i)])
    } else {
      let x = i - 6
      fill(c[x, 0 :+ 16], 0.1)
    }
  }
}
"""


TEAM = """\
kernel g units 4 warps 12 lanes 32 registers 168 cluster [2, 1] (
  in a: f32[64, 64] global align 128 box [32, 8] strides [64, 1] swizzle "sw(1,2,3)",
) {
  alloc full: barrier[4] shared align 8
  alloc ring: f32[4, 32, 8] shared layout "sw(1,2,3) o (4,32,8):(256,8,1)" align 1024
  role maths warps 4..12 width 4 as w {
    alloc acc: f32[32, 16] register fragment "m32n16" align 4
    wait(full[w], w % 2)
  }
}
"""


def test_what_concurrent_kernels_say_is_a_fixed_point():
    kernel = parse_kernel(TEAM)
    assert print_kernel(kernel) == TEAM
    role = kernel.body[2]
    assert (kernel.cluster_size, role.instances, role.over_warps) == (2, 2, True)
    assert kernel.body[1].buffer.bytes == 4096
    assert Role("r", 0, 4, ()).instances == 1


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("sw(1,2,3) o", "sw(1,2,0) o", "line 5, column 43", "swizzle 1,2,0"),
        ('"sw(1,2,3)",', '"128B",', "line 2, column 74", "expected sw(bits,base,shift)"),
        ("width 4", "width 0", "line 6, column 32", "at least 1, not 0"),
        ("warps 4..12 width 4", "warps 4..12", "line 6, column 26", "expected width"),
    ],
)
def test_wrong_concurrent_text_names_its_place(old, new, where, what):
    with pytest.raises(RequestError) as caught:
        parse_kernel(TEAM.replace(old, new, 1))
    assert caught.value.code == "tir.parse"
    assert where in caught.value.message
    assert what in caught.value.message


def test_canonical_text_is_a_fixed_point():
    assert print_module(parse_module(TEXT)) == TEXT
    crowded = TEXT.replace("\n", " ").replace(" :+ ", ":+") + "# a remark"
    assert print_module(parse_module(crowded)) == TEXT


def test_places_quote_the_statement_and_count_from_the_module():
    module = parse_module(TEXT + "\n" + TEXT.replace("gemm", "other"))
    assert first_lines(module) == (1, 15)
    found = place(module.kernels[1], (0, 0, 2), first_line=15)
    assert str(found) == "24:7: fill(c[x, 0 :+ 16], 0.1)"
    lines = print_module(module).splitlines()
    assert lines[found.line - 1][found.column - 1 :] == found.text


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("let x = i - 6", "let x i - 6", "line 9, column 13", "expected =, found 'i'"),
        ("copy(c[i, ", "copy(d[i, ", "line 7, column 12", "buffer 'd' is not declared"),
        ("f32[8, 16] global align", "f31[8, 16] global align", "line 2, column 9", "element type"),
        ("c[x, 0 :+ 16]", "c[x]", "line 10, column 12", "1 dimensions, the buffer 2"),
        ("units 2", "units two", "line 1, column 19", "expected an integer"),
        ("if i < 6", "if i < ?", "line 6, column 12", "unexpected character"),
        ("    }\n  }\n}\n", "    }\n", "line 12, column 1", "the end of the text"),
    ],
)
def test_wrong_text_names_its_place(old, new, where, what):
    with pytest.raises(RequestError) as caught:
        parse_module(TEXT.replace(old, new, 1))
    assert caught.value.code == "tir.parse"
    assert where in caught.value.message
    assert what in caught.value.message


def test_paths_walk_then_before_else():
    kernel = parse_kernel(TEXT)
    paths = [path for path, _ in walk(kernel.body)]
    assert paths == [(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert isinstance(statement_at(kernel, (0, 0, 1)), Let)
    with pytest.raises(IndexError):
        statement_at(kernel, (0, 0, 3))


def test_replacing_keeps_the_branches_apart():
    kernel = parse_kernel(TEXT)
    dropped = replace_at(kernel, (0, 0, 0), ())
    choice = statement_at(dropped, (0, 0))
    assert isinstance(choice, If)
    assert (len(choice.then), len(choice.orelse)) == (0, 2)
    doubled = replace_at(kernel, (0, 0, 2), (kernel.body[0].body[0].orelse[1],) * 2)
    choice = statement_at(doubled, (0, 0))
    assert (len(choice.then), len(choice.orelse)) == (1, 3)
    assert transform(kernel.body, lambda s: (s,)) == kernel.body
