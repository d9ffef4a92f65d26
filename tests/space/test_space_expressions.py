"""Expressions: what parses, what is refused, and that values are Python's."""

import ast
import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.space import parse
from tfsearch.space.file.values import evaluate_values

HOSTILE = [
    ("a.__class__", 1, "attribute"),
    ("1 + a.b", 5, "attribute"),
    ("__import__('os')", 1, "__import__"),
    ("__builtins__", 1, "usable name"),
    ("eval('1')", 1, "'eval'"),
    ("max(a, b)(1)", 1, "call"),
    ("max(*a, b)", 5, "unpacking"),
    ("max(a, key=b)", 1, "arguments"),
    ("(x := 3)", 2, ":="),
    ("f'{a}'", 1, "f-string"),
    ("[i for i in a]", 1, "comprehension"),
    ("{i for i in a}", 1, "comprehension"),
    ("(i for i in a)", 1, "generator"),
    ("a[0]", 1, "subscript"),
    ("lambda: 1", 1, "lambda"),
    ("(1, 2)", 1, "tuple"),
    ("{1: 2}", 1, "Dict"),
    ("a in b", 6, "literal list"),
    ("1 < a in (1, 2)", 1, "chained"),
    ("a is 1", 1, "=="),
    ("a @ b", 1, "MatMult"),
    ("math.__class__", 1, "attribute"),
    ("math.system(1)", 1, "call"),
    ("os.pow(2, 3)", 1, "call"),
    ("pow(2, 3, 5)", 1, "arguments"),
    ("sum(a, b)", 1, "list"),
    ("sum([a for a in b])", 1, "written out"),
    ("min([])", 1, "arguments"),
    ("a && b", 3, "'and'"),
    ("a == 1 || b", 8, "'or'"),
    ("!a", 1, "'not'"),
    ("None", 1, "None"),
    ("1j", 1, "1j"),
    ("b'x'", 1, "b'x'"),
    ("...", 1, "Ellipsis"),
    ("2 ** 1000000", 6, "exponent"),
    ("9" * 30, 1, "64 bits"),
    ("1e999", 1, "finite"),
    ("'\\x41'", 2, "backslash"),
    ("a\0", 2, "null"),
    ("", 1, "empty"),
    ("a +", 1, "not an expression"),
    ("a = 1", 1, "not an expression"),
    ("a; b", 1, "not an expression"),
    ("import os", 1, "not an expression"),
    ("-" * 5000 + "1", 1, "deep"),
    ("(" * 300 + "1" + ")" * 300, 1, "parenthes"),
    ("not " * 200 + "a", 1, "deep"),
    ("a + " * 200 + "a", 1, "deep"),
    ("a" * 10000, 1, "longer"),
    ("max(a)", 1, "arguments"),
]


@pytest.mark.parametrize(("text", "column", "what"), HOSTILE, ids=[h[0][:20] for h in HOSTILE])
def test_what_is_outside_the_grammar_is_refused_with_its_place(text, column, what):
    with pytest.raises(RequestError) as caught:
        parse(text)
    assert caught.value.code == "space.expression"
    assert what in caught.value.message
    assert "column " in caught.value.message
    if "not an expression" not in caught.value.message and what not in ("deep", "longer"):
        assert f"column {column}:" in caught.value.message
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ["a is 1", "0x1for", "1 (2)", "'a' (1)", "[1] [a, a]"])
def test_what_python_warns_of_is_refused_without_a_warning(text):
    for read in (parse, evaluate_values):
        with pytest.raises(RequestError) as caught:
            read(text)
        assert caught.value.code == "space.expression"
    assert parse("1or a").names == {"a"}


@given(st.text(alphabet="ab01 ()[]{}.,:*+-/%<>=!'\"\\_\n\tλifnotandorelse", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_parses_or_is_a_request_error(text):
    try:
        found = parse(text).names
    except RequestError as error:
        found = error.code
    assert isinstance(found, frozenset) or found == "space.expression"


RESTRICTIONS = [
    "block_size_x*block_size_y >= 32",
    "32 <= block_size_x * block_size_y <= 1024",
    "(tile_x == 1 or tile_y in [1, 2, 4])",
    "block_size_x % tile_x == 0",
    "block_size_x % ((tile_x * tile_y)/2) == 0",
    "not (tile_x == 4 and tile_y == 4 and block_size_x == 8)",
    "tile_x == 0 or (block_size_x*tile_x + (15-1)) * (block_size_y*tile_y + 14) < 12*1024",
    "block_size_x >= 2**5 if tile_x > 1 else True",
]


@pytest.mark.parametrize("text", RESTRICTIONS)
def test_restrictions_of_published_tuners_mean_what_python_means(text):
    grid = np.array(np.meshgrid([8, 16, 48, 96], [1, 2, 16, 32], [1, 2, 3, 4], [1, 2, 3, 4]))
    names = ["block_size_x", "block_size_y", "tile_x", "tile_y"]
    env = dict(zip(names, grid.reshape(4, -1), strict=True))
    got = parse(text).evaluate(env)
    code = compile(text, "text", "eval")
    rows = [{name: int(env[name][i]) for name in names} for i in range(got.size)]
    assert got.tolist() == [bool(eval(code, {}, row)) for row in rows]  # noqa: S307


@functools.cache
def _numeric(depth):
    return st.deferred(lambda: _some_number(depth))


@functools.cache
def _condition(depth):
    return st.deferred(lambda: _some_condition(depth))


def _some_number(depth):
    leaf = st.sampled_from(["a", "b", "c", "0", "1", "3", "7", "2.5", "True"])
    if depth == 0:
        return leaf
    inner = _numeric(depth - 1)
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner)
    return st.one_of(
        leaf,
        binary.map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"(-{t})"),
        inner.map(lambda t: f"abs({t})"),
        st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"max({t[0]}, {t[1]}, {t[2]})"),
        st.tuples(inner, _condition(depth - 1), inner).map(
            lambda t: f"({t[0]} if {t[1]} else {t[2]})"
        ),
        st.sampled_from(["2 ** abs(a)", "a ** 3", "int(a / 2)", "int(2.5 * b)"]),
        st.sampled_from(["ceil(a / 2)", "floor(2.5 * b)", "round(a / 2)", "round(b / 4)"]),
        st.tuples(
            st.sampled_from(["a", "b", "c", "7", "-4"]),
            st.sampled_from("&|^"),
            st.sampled_from(["a", "b", "c", "6"]),
        ).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.sampled_from(["(a << b + 2)", "(a >> 1)", "(~a)", "(~c)", "(b << 33)", "(a >> 40)"]),
        st.tuples(inner, inner, inner).map(lambda t: f"sum([{t[0]}, {t[1]}, {t[2]}])"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
    )


def _some_condition(depth):
    comparison = st.tuples(
        _numeric(max(depth - 1, 0)),
        st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
        _numeric(max(depth - 1, 0)),
    ).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    if depth == 0:
        return comparison
    inner = _condition(depth - 1)
    return st.one_of(
        comparison,
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda t: f"(not {t})"),
        st.tuples(_numeric(1), _numeric(1), _numeric(1)).map(
            lambda t: f"({t[0]} < {t[1]} <= {t[2]})"
        ),
        _numeric(1).map(lambda t: f"({t} in (1, 2, a))"),
        _numeric(1).map(lambda t: f"({t} not in [0, b])"),
        st.tuples(_numeric(1), _numeric(1)).map(lambda t: f"all(({t[0]}, {t[1]}))"),
        st.tuples(_numeric(1), _numeric(1)).map(lambda t: f"any([{t[0]}, {t[1]}])"),
    )


PYTHONS = {
    "abs": abs,
    "all": all,
    "any": any,
    "ceil": math.ceil,
    "floor": math.floor,
    "int": int,
    "max": max,
    "min": min,
    "round": round,
    "sum": sum,
}


def _python(text, row):
    try:
        return eval(text, {"__builtins__": {}, **PYTHONS}, row)  # noqa: S307
    except ZeroDivisionError:
        return None


def _value_or_overflow(text, env):
    try:
        return parse(text).evaluate(env)
    except RequestError as error:
        if error.code != "space.expression-overflow":
            raise
        return None


@given(_numeric(3))
@settings(max_examples=300, deadline=None)
def test_numbers_equal_pythons_and_are_zero_where_python_raises(text):
    a, b, c = (x.ravel() for x in np.meshgrid([-3, 0, 1, 4], [-2, 0, 5], [False, True]))
    got = _value_or_overflow(text, {"a": a, "b": b, "c": c})
    if got is None:
        return
    got = np.broadcast_to(got, a.shape)
    for i in range(a.size):
        want = _python(text, {"a": int(a[i]), "b": int(b[i]), "c": bool(c[i])})
        assert got[i] == (0 if want is None else pytest.approx(float(want), rel=1e-12, abs=1e-12))


@given(_condition(3))
@settings(max_examples=300, deadline=None)
def test_conditions_equal_pythons_and_are_false_where_python_raises(text):
    a, b, c = (x.ravel() for x in np.meshgrid([-3, 0, 1, 4], [-2, 0, 5], [False, True]))
    got = _value_or_overflow(text, {"a": a, "b": b, "c": c})
    if got is None:
        return
    got = np.broadcast_to(got, a.shape)
    for i in range(a.size):
        row = {"a": int(a[i]), "b": int(b[i]), "c": bool(c[i])}
        assert bool(got[i]) == bool(_python(text, row)), (text, row)


@given(_condition(3))
@settings(max_examples=100, deadline=None)
def test_conjuncts_hold_together_exactly_where_the_whole_holds(text):
    a, b = (x.ravel() for x in np.meshgrid([-3, 0, 1, 4], [-2, 0, 5]))
    env = {"a": a, "b": b, "c": a > b}
    whole = parse(f"{text} and a % b == 0 and b // a < 2")
    try:
        want = np.broadcast_to(whole.evaluate(env), a.shape)
    except RequestError:
        return
    parts = [part.evaluate(env) for part in whole.conjuncts()]
    assert len(parts) >= 3
    got = np.all([np.broadcast_to(part, a.shape) for part in parts], axis=0)
    assert (got == want).all()


def test_helpers_compute_what_their_names_say():
    a = np.arange(-9, 40)
    env = {"a": a, "k": 4, "p": np.abs(a) + 1}
    assert (parse("ceil_div(a, k)").evaluate(env) == [math.ceil(x / 4) for x in a]).all()
    assert (parse("round_up(a, k)").evaluate(env) == [math.ceil(x / 4) * 4 for x in a]).all()
    assert (parse("gcd(a, 12)").evaluate(env) == [math.gcd(int(x), 12) for x in a]).all()
    powers = {1, 2, 4, 8, 16, 32}
    assert (parse("is_pow2(a)").evaluate(env) == [int(x) in powers for x in a]).all()
    assert np.allclose(parse("log2(p)").evaluate(env), np.log2(env["p"]))
    assert not parse("log2(a) < 1").evaluate({"a": 0})
    assert np.allclose(parse("sqrt(p)").evaluate(env), np.sqrt(env["p"]))
    assert not parse("sqrt(a) < 1").evaluate({"a": -1})
    assert parse("math.ceil(a / 2) == ceil(a / 2)").evaluate(env).all()
    assert (parse("pow(a, 2)").evaluate(env) == a**2).all()
    assert parse("float(a)").evaluate({"a": 3}) == 3.0
    assert parse("bool(a)").evaluate({"a": 3}) is True
    assert parse("max([a, 2, 5])").evaluate({"a": 3}) == 5


def test_and_and_or_give_the_operand_that_decides():
    for text in ("(a or 4) == 4", "(a and b) == 2", "(a and b or 7) + 1 == 3", "a and b"):
        for a, b in itertools.product((0, 1, 2), repeat=2):
            want = eval(text, {}, {"a": a, "b": b})  # noqa: S307
            assert parse(text).evaluate({"a": a, "b": b}) == want


def test_a_long_chain_of_operands_is_evaluated_once_each():
    text = " and ".join(f"(a + {n})" for n in range(1, 200))
    assert parse(text).evaluate({"a": np.arange(3)}).tolist() == [199, 200, 201]


def test_shifts_that_python_refuses_are_refused_here():
    for text in ("1 << a", "a >> (0 - 1)", "1 << 64", "1.5 & 1", "~1.5", "1.5 << 1"):
        with pytest.raises(RequestError) as caught:
            parse(text).evaluate({"a": np.array([-1, 2])})
        assert caught.value.code in ("space.expression-overflow", "space.expression-type")


def test_scalars_give_python_scalars_and_columns_broadcast():
    assert parse("a * 2 + 1").evaluate({"a": 3}) == 7
    assert isinstance(parse("a * 2 + 1").evaluate({"a": 3}), int)
    assert parse("a < 3").evaluate({"a": 3}) is False
    grid = parse("a * b").evaluate({"a": np.arange(3)[:, None], "b": np.arange(4)[None, :]})
    assert grid.shape == (3, 4)
    assert grid.dtype == np.int64
    assert parse("a * 2").evaluate({"a": np.zeros(0, np.int64)}).shape == (0,)


def test_wide_integers_stay_exact_and_overflow_is_refused_instead_of_wrapping():
    a = np.array([1, 2, 3], np.int64)
    assert parse("(2**40 * a) // 2**38").evaluate({"a": a}).tolist() == [4, 8, 12]
    assert parse("a * 3000000000 > 2147483647").evaluate({"a": a}).all()
    small = np.array([100, 100], np.int8)
    assert parse("a * a * a * a").evaluate({"a": small}).tolist() == [10**8, 10**8]
    for text in ("a * 2**62 * 4", "(a * 2**40) * (a * 2**40)", "2 ** (a + 62)", "a ** (0 - a)"):
        with pytest.raises(RequestError) as caught:
            parse(text).evaluate({"a": a})
        assert caught.value.code == "space.expression-overflow"


def test_strings_compare_by_value_only_with_strings():
    pack = np.array(["none", "a", "both", "a"])
    env = {"pack": pack, "n": np.arange(4)}
    assert parse("pack == 'a'").evaluate(env).tolist() == [False, True, False, True]
    assert parse("pack in ('a', 'none') and n < 2").evaluate(env).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert parse("'x' if n > 2 else pack").evaluate(env).tolist() == ["none", "a", "both", "x"]
    assert parse("pack != 'absent'").evaluate(env).all()
    for text in (
        "pack == n",
        "pack + 1",
        "pack < 'b'",
        "not pack",
        "pack and n",
        "'a' if n else 1",
    ):
        with pytest.raises(RequestError) as caught:
            parse(text).evaluate(env)
        assert caught.value.code == "space.expression-type"


def test_an_unknown_name_is_named_with_what_is_known():
    with pytest.raises(RequestError) as caught:
        parse("a + bb").evaluate({"a": 1, "b": 2})
    assert caught.value.code == "space.unknown-name"
    assert "'bb'" in caught.value.message
    assert "a, b" in caught.value.message


@pytest.mark.filterwarnings("error")
def test_division_by_zero_warns_nobody():
    a = np.array([0, 1])
    assert parse("1 / a < 5").evaluate({"a": a}).tolist() == [False, True]
    assert parse("a == 0 or 1 % a == 0").evaluate({"a": a}).tolist() == [True, True]
    assert parse("1 // 0 == 0").evaluate({}) is False


def test_canonical_text_forgets_spacing_and_keeps_meaning():
    assert parse(" a*b+  1").canonical == parse("((a * b) + 1)").canonical
    different = ["a*(b+1)", "a*b-1", "a*b+1.0", "a*b+True", "b*a+1", "a*b == 1", "a*b in (1,)"]
    texts = {parse(text).canonical for text in [*different, "a*b + 1"]}
    assert len(texts) == len(different) + 1
    assert parse("a == '1'").canonical != parse("a == 1").canonical
    assert ast.unparse(parse("a and b").tree) == "a and b"
