"""T1 definitions: one golden case for each way in which readers of the format differ.

Expected sets were made with Kernel Tuner 1.5.0 where it accepts the definition; where it fails or
its own solvers disagree, the comment says what is chosen here.
"""

import itertools
import json

import pytest

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.space import Kind, Space
from tfsearch.space.file import Fill, Init, read_space_file


def parameter(name, values, kind="int"):
    return {"Name": name, "Type": kind, "Values": values}


def t1(parameters, conditions=(), **more):
    items = [
        {"Expression": item, "Parameters": []} if isinstance(item, str) else item
        for item in conditions
    ]
    space = {"TuningParameters": parameters, "Conditions": items}
    return {"ConfigurationSpace": space, **more}


@pytest.fixture
def read(tmp_path):
    def reader(document, **given):
        path = tmp_path / "space.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_space_file(path, given)

    return reader


def legal(found):
    return {
        tuple(points.params(row).values())
        for points in Space((found.space,)).legal_set()
        for row in range(len(points))
    }


A123 = parameter("a", "[1, 2, 3]")
B012 = parameter("b", "[0, 1, 2]")
A23, B21 = parameter("a", "[2, 3]"), parameter("b", "[2, 1]")
GOLDEN = {
    # and/or give operands, of which the condition takes the truth
    "a number is a condition": ([A123, B012], ["b"], lambda a, b: b),
    "and gives an operand": ([A23, B21], ["a and b == 1"], lambda a, b: a and b == 1),
    "or in a comparison": ([A123, B012], ["(b or 2) == 2"], lambda a, b: (b or 2) == 2),
    "not binds weaker than ==": ([A23, B21], ["not a == 2"], lambda a, b: a != 2),
    "or guards a division": (
        [A123, B012], ["b == 0 or a % b == 0"], lambda a, b: b == 0 or a % b == 0,
    ),
    "chained comparison": ([A123, B012], ["1 <= a <= 2"], lambda a, b: 1 <= a <= 2),
    "chain over an expression": ([A123, B012], ["2 <= a*b < 6"], lambda a, b: 2 <= a * b < 6),
    "true division": ([A23, B21], ["a/b == 1.5"], lambda a, b: a / b == 1.5),
    "remainder of a float": (
        [A23, parameter("b", "[2, 4]")], ["a % (b/4) == 0"], lambda a, b: a % (b / 4) == 0,
    ),
    "remainder of a negative": (
        [parameter("a", "[-3, 2, 3]"), parameter("b", "[2]")], ["a % b == 1"],
        lambda a, b: a % b == 1,
    ),
    "floor division of a negative": (
        [parameter("a", "[-3, 2, 3]"), parameter("b", "[2]")], ["a // b == -2"],
        lambda a, b: a // b == -2,
    ),
    "power": ([A23, B21], ["a ** b > 3"], lambda a, b: a**b > 3),
    "^ is exclusive or, not power": ([A23, B21], ["a ^ b == 1"], lambda a, b: a ^ b == 1),
    "& binds tighter than ==": ([A23, B21], ["a & 1 == 1"], lambda a, b: a & 1 == 1),
    "shift": ([A23, B21], ["a << b == 8"], lambda a, b: a << b == 8),
    "max": ([A23, B21], ["max(a, b) == 3"], lambda a, b: max(a, b) == 3),
    "min of a list": ([A23, B21], ["min([a, b, 9]) == 1"], lambda a, b: min([a, b, 9]) == 1),
    "sum": ([A23, B21], ["sum([a, b]) == 4"], lambda a, b: a + b == 4),
    "ceil": ([A23, B21], ["ceil(a / b) == 2"], lambda a, b: -(-a // b) == 2),
    "math.ceil": ([A23, B21], ["math.ceil(a / b) == 2"], lambda a, b: -(-a // b) == 2),
    "abs": ([A23, B21], ["abs(b - a) == 1"], lambda a, b: abs(b - a) == 1),
    "in": ([A23, B21], ["a in (2, 5)"], lambda a, b: a in (2, 5)),
    "conditional": ([A23, B21], ["a if b == 1 else 0"], lambda a, b: a if b == 1 else 0),
    "a boolean equals 1": (
        [A123, parameter("b", "[True, False]", "bool")], ["a == b"], lambda a, b: a == b,
    ),
    "True in an expression": ([A123, B012], ["(a == 1) == True"], lambda a, b: a == 1),
    "texts": (
        [A123, parameter("b", "['x', 'y']", "string")], ["b == 'x' or a > 2"],
        lambda a, b: b == "x" or a > 2,
    ),
    "several conditions all hold": ([A123, B012], ["a > 1", "b > 1"], lambda a, b: a > 1 and b > 1),
    "equal conditions": ([A123, B012], ["a>b", "a > b"], lambda a, b: a > b),
    "a constant condition": ([A123, B012], ["1 == 1"], lambda a, b: True),
    # Kernel Tuner's first solver fails on 1 // 0, its second skips the condition: here it is False.
    "division by zero": ([A123, B012], ["a // b == 1"], lambda a, b: b and a // b == 1),
    # The schema wants objects with one text; texts and lists are met too.
    "a condition as a text": ([A123, B012], [], None),
    "line breaks": ([A123, B012], ["a >\n b"], lambda a, b: a > b),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n, case in GOLDEN.items() if case[2] is not None])
def test_conditions_mean_what_kernel_tuner_makes_of_them(name, read):
    parameters, conditions, holds = GOLDEN[name]
    found = read(t1(parameters, conditions))
    domains = [p.values for p in found.space.parameters]
    assert legal(found) == {row for row in itertools.product(*domains) if holds(*row)}


def test_a_condition_may_be_a_text_or_a_list_of_expressions(read):
    document = t1([A123, B012])
    document["ConfigurationSpace"]["Conditions"] = ["a > 1", {"Expression": ["b > 0", "b < 2"]}]
    assert legal(read(document)) == {(2, 1), (3, 1)}


def test_conditions_may_be_missing_or_null(read):
    document = t1([A123])
    for conditions in (None, []):
        document["ConfigurationSpace"]["Conditions"] = conditions
        assert len(legal(read(document))) == 3
    del document["ConfigurationSpace"]["Conditions"]
    assert len(legal(read(document))) == 3


def test_a_condition_reads_parameters_that_its_list_does_not_name(read):
    document = t1([A123, B012], [{"Expression": "a > b", "Parameters": ["a"]}])
    assert legal(read(document)) == {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}


def test_blocks_have_at_most_1024_threads_as_in_kernel_tuner(read):
    x, y = parameter("block_size_x", "[16, 512]"), parameter("block_size_y", "[2, 4]")
    found = read(t1([x, y]))
    assert legal(found) == {(16, 2), (16, 4), (512, 2)}
    assert Space((found.space,)).count().rejected == {"kernel.block-threads": 1}
    own = read(t1([x, y], ["block_size_x*block_size_y<=1024"]))
    assert Space((own.space,)).count().rejected == {"kernel.condition-1": 1}
    assert len(legal(read(t1([parameter("block_size_w", "[2048]")])))) == 1


VALUES = [
    ("int", "[1, 2]", (1, 2), Kind.ORDINAL),
    ("int", [1, 2], (1, 2), Kind.ORDINAL),
    ("int", "4", (4,), Kind.ORDINAL),
    ("int", 4, (4,), Kind.ORDINAL),
    ("int", "range(1, 4)", (1, 2, 3), Kind.ORDINAL),
    ("int", "1, 2", (1, 2), Kind.ORDINAL),
    ("int", "[2.0, 4.0]", (2, 4), Kind.ORDINAL),
    ("int", "[True, False]", (1, 0), Kind.ORDINAL),
    ("int", "[8, 2, 4]", (8, 2, 4), Kind.ORDINAL),
    ("uint", "[0, 1]", (0, 1), Kind.ORDINAL),
    ("float", "[0.5, 1, 1e-3]", ("0.5", "1.0", "0.001"), Kind.DECIMAL),
    ("bool", "[True, False]", (True, False), Kind.BOOLEAN),
    ("bool", "[0, 1]", (False, True), Kind.BOOLEAN),
    ("string", "['a', 'b']", ("a", "b"), Kind.CATEGORICAL),
    ("string", "[1, 2]", ("1", "2"), Kind.CATEGORICAL),
]


@pytest.mark.parametrize(("kind", "values", "want", "which"), VALUES)
def test_values_take_the_type_that_the_file_states(kind, values, want, which, read):
    (found,) = read(t1([parameter("a", values, kind)])).space.parameters
    assert (found.values, found.kind) == (want, which)
    assert [type(value) for value in found.values] == [type(value) for value in want]


def test_a_float_parameter_is_a_number_in_conditions_and_exact_text_in_records(read):
    found = read(t1([parameter("w", "[0.5, 1.5, 3.0]", "float"), B21], ["w * b == 3"]))
    assert legal(found) == {("1.5", 2), ("3.0", 1)}
    assert found.space.check({"w": "0.5", "b": 2})[0].message.endswith("b = 2, w = 0.5")
    (points,) = Space((found.space,)).legal_set()
    assert sorted(points.column("w")) == [1.5, 3.0]


WRONG = [
    ("{", "kernel.file-syntax", "not JSON"),
    ("[1]", "kernel.file-value", "object"),
    ("[" * 100000, "kernel.file-syntax", "deep"),
    ({}, "kernel.file-key", "ConfigurationSpace"),
    ({"results": []}, "kernel.file-key", "T4"),
    ({"ConfigurationSpace": {}}, "kernel.file-key", "TuningParameters"),
    (t1([]), "kernel.file-value", "no parameter"),
    (t1([{"Name": "a"}]), "kernel.file-key", "TuningParameters[0]: lacks 'Values'"),
    (t1([parameter("a", "[1]", "int64")]), "kernel.file-value", "Type 'int64' is none of"),
    (t1([parameter("a", "[1.5]")]), "kernel.file-value", "a: value 1.5 is not of type int"),
    (t1([parameter("a", "[-1]", "uint")]), "kernel.file-value", "negative"),
    (t1([parameter("a", "['x']")]), "kernel.file-value", "not of type int"),
    (t1([parameter("a", "[2]", "bool")]), "kernel.file-value", "True and False"),
    (t1([parameter("a", "[[1]]")]), "kernel.file-value", "not of type int"),
    (t1([parameter("a", "[]")]), "space.empty-domain", "no values"),
    (t1([parameter("a", "[2, 2]")]), "space.duplicate-value", "twice"),
    (t1([parameter("a", "exit()")]), "space.expression", "Values: expression"),
    (t1([parameter("a b", "[1]")]), "space.name", "a b"),
    (t1([parameter(f"p{i}", "[1]") for i in range(513)]), "kernel.file-value", "513 entries"),
    (t1([A123], ["a > 1"] * 513), "kernel.file-value", "more than 512"),
    (t1([A123, A123]), "space.duplicate-name", "'a' is declared twice"),
    (t1([A123], ["c > 1"]), "space.unknown-name", "kernel.condition-1"),
    (t1([A123], ["a && 1"]), "space.expression", "write 'and'"),
    (t1([A123], ["a == 'x'"]), "space.expression-type", "never equal"),
    (t1([A123], ["a.real > 1"]), "space.expression", "attribute"),
    (t1([A123], ["a is 2"]), "space.expression", "use =="),
    (t1([A123], [""]), "kernel.file-value", "Conditions[0]: Expression: must be a text"),
    (t1([A123], [{"Parameters": ["a"]}]), "kernel.file-key", "Conditions[0]: lacks 'Expression'"),
    (t1([A123], ["a ** 100 > 1"]), "space.expression", "exponent"),
    (t1([A123], ["(a, a) != (1, 1)"]), "space.expression", "a tuple"),
]


@pytest.mark.parametrize(("document", "code", "what"), WRONG)
def test_what_is_wrong_is_one_line_with_the_file_and_the_place(document, code, what, read):
    with pytest.raises(RequestError) as caught:
        read(document)
    assert caught.value.code == code
    assert what in caught.value.message
    assert "space.json" in caught.value.message
    assert len(caught.value.message) < 600


SPEC = {
    "Language": "CUDA",
    "KernelName": "conv",
    "KernelFile": "conv.cu",
    "CompilerOptions": ["", "-std=c++11"],
    "LocalSize": {"X": "block_size_x", "Y": "2"},
    "GlobalSize": {"X": "4096 // block_size_x", "Y": "8"},
    "SharedMemory": 128,
    "Arguments": [
        {"Name": "out", "Type": "float", "MemoryType": "Vector", "AccessType": "WriteOnly",
         "FillType": "Constant", "FillValue": 0.0, "Size": "ProblemSize[0]*max(w)"},
        {"Name": "x", "Type": "float", "MemoryType": "Vector", "AccessType": "ReadOnly",
         "FillType": "Random", "FillValue": 1.0, "Size": 720},
        {"Type": "double", "MemoryType": "Vector", "FillValue": 2, "Size": 1},
        {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 7},
    ],
}  # fmt: skip
BLOCK = [parameter("block_size_x", "[32, 64]"), parameter("w", "[3, 5]")]


def test_the_kernel_part_is_read_with_its_defaults(read):
    spec = {**SPEC, "ProblemSize": [4096]}
    kernel = read(t1(BLOCK, KernelSpecification=spec)).kernel
    assert (kernel.entry, kernel.language, kernel.flags) == ("conv", "cuda", ("-std=c++11",))
    assert kernel.file is not None
    assert kernel.file.name == "conv.cu"
    out, x, second, n = kernel.arguments
    # A parameter in a size stands for the list of its values.
    assert (out.shape, out.io, out.init) == ((4096 * 5,), "out", Init(Fill.VALUE, "0.0"))
    assert (x.shape, x.io, x.init) == ((720,), "in", Init())
    # Without AccessType an array is read and written; without a name it has one by position.
    assert (second.name, second.dtype, second.io) == ("arg2", DType.F64, "inout")
    assert (n.shape, n.io, n.init, n.dtype) == ((), "in", Init(Fill.VALUE, "7"), DType.I32)
    assert kernel.reference == ""


def test_the_problem_size_decides_the_grid_before_global_size_does(read):
    def grid(**changes):
        spec = {**SPEC, "Arguments": [], **changes}
        launch = read(t1(BLOCK, KernelSpecification=spec)).kernel.launch
        env = {"block_size_x": 32, "w": 3}
        return [int(expr.evaluate(env)) for expr in launch.grid]

    assert grid(ProblemSize=[4097, 3]) == [129, 3]
    assert grid(ProblemSize=4097, GridDivX=["block_size_x", "w"]) == [43]
    assert grid(ProblemSize=["w * 100"], GridDivX=[]) == [10]
    assert grid() == [128, 8]
    assert grid(GlobalSizeType="OpenCL") == [4, 4]
    assert grid(Language="OpenCL") == [4, 4]


def test_shared_memory_and_blocks_are_expressions(read):
    launch = read(t1(BLOCK, KernelSpecification={**SPEC, "Arguments": []})).kernel.launch
    assert [expr.text for expr in launch.block] == ["block_size_x", "2"]
    assert launch.smem is not None
    assert launch.smem.evaluate({}) == 128


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"Type": "float4"}, "float4"),
        ({"MemoryType": "Symbol"}, "Symbol"),
        ({"FillType": "Generator"}, "Generator"),
        ({"Size": "ProblemSize[7]"}, "cannot be computed"),
        ({"Size": "open('x')"}, "call"),
        ({"Size": 0}, "from 1"),
        ({"Name": "a b"}, "identifier"),
        ({"AccessType": "Write"}, "AccessType"),
    ],
)
def test_an_argument_that_cannot_be_tuned_still_lets_the_space_be_counted(change, what, read):
    argument = {**SPEC["Arguments"][1], **change}
    found = read(t1(BLOCK, KernelSpecification={**SPEC, "Arguments": [argument]}))
    assert len(legal(found)) == 4
    with pytest.raises(RequestError) as caught:
        _ = found.kernel
    assert what in caught.value.message
    assert "Arguments[0]" in caught.value.message


def test_what_t1_has_no_place_for_stands_under_a_key_of_its_own(read):
    own = {"reference": "ref.py:conv", "terms": 9, "flops": "2 * 9 * 100", "exact": True}
    kernel = read(t1(BLOCK, KernelSpecification=SPEC | {"ProblemSize": [9]}, tfsearch=own)).kernel
    assert (kernel.reference, kernel.terms, kernel.flops) == ("ref.py:conv", 9, 1800)
    assert kernel.exact is True


def test_a_t1_definition_has_no_constants_to_set(read):
    with pytest.raises(RequestError) as caught:
        read(t1([A123]), n="5")
    assert caught.value.code == "kernel.constant"
