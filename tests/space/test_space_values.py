"""Lists of values written as Python expressions: computed as Python does, or refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.space.file.values import evaluate_values

PUBLISHED = [
    "[16, 32, 48]",
    "[1, 2, 4, 8, 16] + list(range(32, 1024+1, 32))",
    "[2**i for i in range(0, 6)]",
    "[i for i in range(1, 10+1)]",
    "[32 * i for i in range(1, 32)]",
    "[1] + [2 * i for i in range(1, 11)]",
    "range(1, 5)",
    "(1, 2, 4)",
    "1, 2, 4",
    "list(x for x in range(20) if x % 3 == 1 and not x == 7)",
    "[x * y for x in (1, 2) for y in range(x)]",
    "sorted([3, 1, 2])",
    "[0.25, 0.5, 1e-3, -2.0]",
    "[True, False]",
    "['row', \"col\"]",
    "[1] * 3",
    "3 * [1, 2]",
    "[max(1, 2), min([4, 3]), len([1, 2]), sum(range(5)), abs(-3), round(2.5), int(7 / 2)]",
    "[1 << 4, 256 >> 2, 7 // 2, -7 % 3, 2 ** -1, 5 / 2]",
    "[4 if x > 1 else 3 for x in [1, 2]]",
    "[x for x in [1, 2, 3] if 1 < x <= 3]",
    "[x for x in [1, 2, 3] if x in (1, 3) or x == 2]",
    "[math.ceil(2.1), math.floor(2.9)]",
    "16",
    "[]",
]


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_lists_are_what_python_makes_of_them(text):
    want = eval(text, {"math": math})  # noqa: S307
    got = evaluate_values(text)
    assert got == (list(want) if isinstance(want, (tuple, range)) else want)
    if isinstance(got, list):
        assert [type(item) for item in got] == [type(item) for item in want]


HOSTILE = [
    ("__import__('os').system('x')", "call"),
    ("open('/etc/passwd')", "call"),
    ("[].__class__", "Attribute"),
    ("().__class__.__bases__[0]", "Attribute"),
    ("[i for i in ().__class__.__mro__]", "Attribute"),
    ("math.__loader__", "Attribute"),
    ("os.floor(1)", "call"),
    ("eval('1')", "call"),
    ("list(map(abs, [1]))", "call"),
    ("lambda: 1", "Lambda"),
    ("(x := [1])", "NamedExpr"),
    ("f'{1}'", "JoinedStr"),
    ("{1: 2}", "Dict"),
    ("[*[1]]", "Starred"),
    ("9 ** 9 ** 9 ** 9", "64 bits"),
    ("2 ** 64", "64 bits"),
    ("9223372036854775807 + 1", "64 bits"),
    ("2 ** -100000", "exponent"),
    ("1 << 1000000", "shifts"),
    ("10.0 ** 400", "cannot be computed"),
    ("1e308 * 10", "finite"),
    ("(-8) ** 0.5", "root"),
    ("1 // 0", "cannot be computed"),
    ("[0] * 10 ** 9", "more than 65536 values"),
    ("[len(str([[0] * 60000] * 60000))]", "more than 65536 values"),
    ("sorted([[0] * 60000] * 60000)", "more than 65536 values"),
    ("[1 if [[0] * 300] * 300 == [] else 2]", "more than 65536 values"),
    ("[[[0] * 50] * 50] * 50", "more than 65536 values"),
    ("list(range(10 ** 12))", "more than 65536 values"),
    ("[x for x in range(60000) for y in range(60000)]", "steps"),
    ("[sum(range(60000)) for x in range(60000)]", "steps"),
    ("[0 for a in [1] for b in [1] for c in [1] for d in [1] for e in [1]]", "loops"),
    ("[i for i, j in [(1, 2)]]", "plain name"),
    ("'a' * 3", "number"),
    ("'a' + 'b'", "number"),
    ("[1] + 2", "joined"),
    ("[1] - [1]", "joined"),
    ("[1] < 2", "cannot be computed"),
    ("range(1.5)", "whole number"),
    ("range(1, 2, 0)", "cannot be computed"),
    ("range()", "range takes"),
    ("sorted([1], reverse=True)", "keyword"),
    ("[1, 2][5]", "cannot be computed"),
    ("[1][True:]", "Slice"),
    ("b'x'", "Constant"),
    ("None", "Constant"),
    ("x", "unknown name"),
    ("1 is 1", "'is'"),
    ("", "empty"),
    ("[1,", "not an expression"),
    ("import os", "not an expression"),
    ("'\\x41'", "backslash"),
    ("(" * 500 + ")" * 500, ""),
    ("-" * 5000 + "1", "deep"),
    ("[" * 150 + "]" * 150, "deep"),
    ("1" + " + 1" * 3000, "longer"),
]


@pytest.mark.parametrize(("text", "what"), HOSTILE, ids=[h[0][:24] for h in HOSTILE])
def test_hostile_and_meaningless_lists_are_refused_in_one_line(text, what):
    with pytest.raises(RequestError) as caught:
        evaluate_values(text)
    assert caught.value.code == "space.expression"
    assert what in caught.value.message
    assert "column " in caught.value.message
    assert len(str(caught.value)) < 500


def test_known_names_stand_for_their_values():
    names = {"ProblemSize": [4096, 128], "width": [15, 17]}
    assert evaluate_values("(ProblemSize[0] + max(width) - 1) * ProblemSize[-1]", names) == 526336


@given(st.text(alphabet="ab01 ()[]{}.,:*+-/%<>=!'\"\\_\n\tλrangelistforinifelse", max_size=40))
@settings(max_examples=300)
def test_any_text_is_a_value_or_a_request_error(text):
    try:
        found = evaluate_values(text)
    except RequestError as error:
        found = error.code
    assert isinstance(found, (int, float, str, list))
