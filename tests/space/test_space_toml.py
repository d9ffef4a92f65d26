"""Our own space files: what they say, and what is wrong with them in one line."""

import pytest

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.space import Kind, Space
from tfsearch.space.file import Fill, Init, read_space_file

SAXPY = """
entry = "saxpy"
kernel = "saxpy.c"
reference = "reference.py:saxpy"
flags = ["-mavx2"]
terms = "k // 2"
flops = "2 * n"
constraints = [
  "BLOCK % UNROLL == 0",
  { expr = "bytes <= 4096", reason = "{bytes} bytes exceed a page" },
]

[constants]
n = 1024
k = 8
mode = "fast"
strict = true

[parameters]
UNROLL = [1, 2, 4]
BLOCK = "range(4, 4 * k + 1, 4)"
LAYOUT = ["ROW", "COL"]
PAD = [false, true]
W = [0.5, 1]

[definitions]
bytes = "BLOCK * 4 * (2 if PAD else 1) * 32"

[[args]]
name = "x"
dtype = "f32"
shape = ["n", 4]

[[args]]
name = "y"
dtype = "float64"
shape = ["n"]
io = "inout"
init = "positive"

[[args]]
name = "index"
dtype = "i32"
shape = ["n"]
init = "0..n - 1"

[[args]]
name = "a"
dtype = "f32"
init = 2.5

[launch]
grid = ["ceil_div(n, BLOCK)", 2]
block = "BLOCK"
cluster = [1]
smem = "bytes"
"""


@pytest.fixture
def read(tmp_path):
    def reader(text, **given):
        path = tmp_path / "space.toml"
        path.write_text(text)
        return read_space_file(path, given)

    return reader


def test_a_file_says_its_space(read):
    space = read(SAXPY).space
    kinds = {p.name: (p.values, p.kind) for p in space.parameters}
    assert kinds == {
        "UNROLL": ((1, 2, 4), Kind.ORDINAL),
        "BLOCK": (tuple(range(4, 33, 4)), Kind.ORDINAL),
        "LAYOUT": (("ROW", "COL"), Kind.CATEGORICAL),
        "PAD": ((False, True), Kind.BOOLEAN),
        "W": (("0.5", "1.0"), Kind.DECIMAL),
    }
    counts = Space((space,)).count()
    assert counts.points == 3 * 8 * 2 * 2 * 2
    assert counts.rejected == {"kernel.condition-2": 3 * 4 * 2 * 2}
    (refusal,) = space.check({"UNROLL": 1, "BLOCK": 32, "LAYOUT": "ROW", "PAD": True, "W": "0.5"})
    assert (refusal.code, refusal.message) == ("kernel.condition-2", "8192 bytes exceed a page")


def test_a_file_says_its_kernel(read):
    found = read(SAXPY)
    kernel = found.kernel
    assert (kernel.entry, kernel.flags, kernel.terms) == ("saxpy", ("-mavx2",), 4)
    assert (kernel.flops, kernel.reference) == (2048, "reference.py:saxpy")
    assert kernel.file == (found.path.parent / "saxpy.c").resolve()
    x, y, index, a = kernel.arguments
    assert (x.dtype, x.shape, x.io, x.init) == (DType.F32, (1024, 4), "in", Init())
    assert (y.dtype, y.io, y.init) == (DType.F64, "inout", Init(Fill.POSITIVE))
    assert index.init == Init(Fill.RANGE, "0", "1023")
    assert (a.shape, a.init) == ((), Init(Fill.VALUE, "2.5"))
    env = {"n": 1024, "BLOCK": 32, "bytes": 7}
    assert [expr.evaluate(env) for expr in kernel.launch.grid] == [32, 2]
    assert [expr.text for expr in kernel.launch.block] == ["BLOCK"]
    assert kernel.launch.smem is not None


def test_constants_can_be_replaced_and_keep_their_types(read):
    found = read(SAXPY, n="64", mode="safe", strict="false")
    assert found.constants == {"n": 64, "k": 8, "mode": "safe", "strict": False}
    assert found.kernel.arguments[0].shape == (64, 4)
    wrong = [
        ({"m": "1"}, "no constant 'm'"),
        ({"n": "x"}, "whole number"),
        ({"strict": "2"}, "true or false"),
        ({"n": "9" * 19}, "64-bit"),
    ]
    for given, what in wrong:
        with pytest.raises(RequestError) as caught:
            read(SAXPY, **given)
        assert what in caught.value.message


MINIMAL = "[parameters]\nA = [1, 2]\n"


def test_a_space_needs_parameters_only_and_tuning_needs_more(read):
    found = read(MINIMAL)
    assert Space((found.space,)).count().legal == 2
    with pytest.raises(RequestError) as caught:
        _ = found.kernel
    assert "lacks 'entry'" in caught.value.message


WRONG = [
    ("entry = 1", "kernel.file-key", "lacks 'parameters'"),
    ("a = [\n1,,2]", "kernel.file-syntax", "line 2"),
    ("[parameters]\nA = []", "space.empty-domain", "no values"),
    ("[parameters]\nA = 3", "kernel.file-value", "parameters.A: must be a list"),
    ("[parameters]\nA = [1, 'x']", "kernel.file-value", "mixes values"),
    ("[parameters]\nA = [1, 1]", "space.duplicate-value", "twice"),
    ('[parameters]\nA = ["a\\nb"]', "kernel.file-value", "cannot be printed"),
    ("[parameters]\nA = [inf, 1.0]", "kernel.file-value", "finite"),
    ("[parameters]\nA = 'open(1)'", "space.expression", "parameters.A: expression"),
    ("[parameters]\n'a-b' = [1]", "space.name", "a-b"),
    ("sizes = 1\n" + MINIMAL, "kernel.file-key", "unknown key 'sizes'"),
    ("constraints = ['B > 1']\n" + MINIMAL, "space.unknown-name", "'B'"),
    ("constraints = [7.5]\n" + MINIMAL, "kernel.file-value", "constraints[1]: must be a table"),
    ("constraints = [{ expr = 'A', why = 'x' }]\n" + MINIMAL, "kernel.file-key", "'why'"),
    ("constraints = [{ expr = 'A', reason = '{B}' }]\n" + MINIMAL, "space.reason", "{B}"),
    ("constraints = 'A > 1'\n" + MINIMAL, "kernel.file-value", "constraints: must be a list"),
    ("constants = { n = 1.5 }\n" + MINIMAL, "kernel.file-value", "constants.n"),
    ("definitions = { d = 'A.b' }\n" + MINIMAL, "space.expression", "definitions.d"),
    ("definitions = { d = 'A ** 70' }\n" + MINIMAL, "space.expression", "exponent"),
]


@pytest.mark.parametrize(("text", "code", "what"), WRONG)
def test_what_is_wrong_is_one_line_with_the_file_and_the_place(text, code, what, read):
    with pytest.raises(RequestError) as caught:
        read(text)
    assert caught.value.code == code
    assert what in caught.value.message
    assert "space.toml" in caught.value.message


KERNEL_WRONG = [
    ("entry = 'f x'", "identifier"),
    ("args = 1", "args: must be a list"),
    ("args = [{ name = 'x' }]", "args[1]: lacks 'dtype'"),
    ("args = [{ name = 'x', dtype = 'f31' }]", "'f31'; known: f64, f32, f16, bf16, i32, i8"),
    ("args = [{ name = 'x', dtype = 'f32', shape = ['A'] }]", "'A'"),
    ("args = [{ name = 'x', dtype = 'f32', shape = [0] }]", "at least 1"),
    ("args = [{ name = 'x', dtype = 'f32', shape = ['3 / 2'] }]", "whole number"),
    ("args = [{ name = 'x', dtype = 'f32', shape = [2], io = 'rw' }]", "in, out or inout"),
    ("args = [{ name = 'x', dtype = 'f32', io = 'out' }]", "passed by value"),
    ("args = [{ name = 'x', dtype = 'f32', init = 'noise' }]", "'noise'"),
    ("args = [{ name = 'x', dtype = 'f32', init = '5..2' }]", "empty"),
    ("args = [{ name = 'x', dtype = 'f32' }, { name = 'x', dtype = 'f32' }]", "twice"),
    ("launch = { grid = [1, 2, 3, 4] }", "three dimensions"),
    ("launch = { grids = 1 }", "unknown key 'grids'"),
    ("flags = ['']", "flags: must be a text"),
    ("terms = 0", "at least 1"),
    ("exact = 1", "true or false"),
]


@pytest.mark.parametrize(("line", "what"), KERNEL_WRONG)
def test_what_is_wrong_with_the_kernel_part_leaves_the_space(line, what, read):
    name = line.partition(" ")[0]
    needed = {"entry": "entry = 'f'", "args": "args = []"}
    lines = [text for key, text in needed.items() if key != name]
    found = read("\n".join([*lines, line, MINIMAL]))
    assert Space((found.space,)).count().legal == 2
    with pytest.raises(RequestError) as caught:
        _ = found.kernel
    assert what in caught.value.message
    assert "space.toml" in caught.value.message


@pytest.mark.parametrize("value", ["a\\nb", "a\\u0000b", "x" * 9000], ids=["line", "null", "long"])
@pytest.mark.parametrize("table", ["constants]\nT = ", "parameters]\nA = [1]\nT = "])
def test_a_text_that_no_compiler_takes_as_a_macro_is_refused(table, value, read):
    text = f'"{value}"' if table.startswith("c") else f'["{value}"]'
    more = "[parameters]\nA = [1]" if table.startswith("c") else ""
    with pytest.raises(RequestError, match=r"T: value .*(printed|more than 8192)"):
        read(f"[{table}{text}\n{more}")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", '{"General": NaN}', "NaN"),
        ("a.json", '{"General": -1e999}', "beyond the range"),
        ("a.json", '{"General": 1' + "0" * 5000 + "}", "too many digits"),
        ("a.json", "[" * 100_000, "deep"),
        ("a.toml", "A = 1" + "0" * 5000, "digits"),
    ],
)
def test_numbers_that_only_python_reads_are_no_json_and_no_toml(name, text, what, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=what) as caught:
        read_space_file(tmp_path / name)
    assert caught.value.code == "kernel.file-syntax"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, content in ((tmp_path / "absent.toml", None), (tmp_path / "raw.toml", b"\xff\xfe")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(RequestError) as caught:
            read_space_file(path)
        assert caught.value.code in ("kernel.file", "kernel.file-syntax")
        assert path.name in caught.value.message
