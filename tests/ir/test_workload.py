import dataclasses

import ml_dtypes
import numpy as np
import pytest

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Accuracy
from tfsearch.ir.hir.builtins import BUILTINS, build_workload
from tfsearch.ir.hir.load import load_traced
from tfsearch.ir.workload import Workload

GEMM = {"m": 8, "n": 16, "k": 32, "dtype": "f32"}


def code_of(op, options, **more) -> tuple[str, str]:
    with pytest.raises(RequestError) as caught:
        build_workload(op, options, **more)
    return caught.value.code, caught.value.message


def test_options_may_be_text_or_values():
    typed = build_workload("gemm", {**GEMM, "trans_b": True})
    text = build_workload(
        "gemm", {"k": "32", "trans_b": "true", "n": "16", "m": "8", "dtype": "f32"}
    )
    assert typed.key == text.key
    assert typed.options == text.options


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"m": 0}, "workload.dimension", "at least 1"),
        ({"m": "-5"}, "workload.dimension", "at least 1"),
        ({"m": "12x"}, "workload.dimension", "12x"),
        ({"m": "1.5"}, "workload.dimension", "1.5"),
        ({"m": ""}, "workload.dimension", "positive whole number"),
        ({"m": True}, "workload.dimension", "True"),
        ({"m": 10**12, "n": 10**12}, "workload.too-large", "beyond the memory"),
        ({"m": "9" * 40}, "workload.dimension", "10**18"),
        ({"m": "9..3"}, "hir.dimension", "9..3"),
        ({"dtype": "f8"}, "workload.dtype", "known dtypes"),
        ({"trans_b": "maybe"}, "workload.boolean", "true or false"),
        ({"epilogue": "bias+swish"}, "workload.epilogue", "swish"),
        ({"epilogue": "relu+relu"}, "workload.epilogue", "twice"),
        ({"rows": 4}, "workload.unknown-option", "trans_b"),
    ],
)
def test_wrong_options_get_one_clear_line(change, code, part):
    found, message = code_of("gemm", {**GEMM, **change})
    assert found == code
    assert part in message
    assert "\n" not in message


def test_unknown_ops_and_missing_options_are_named():
    code, message = code_of("gem", GEMM)
    assert code == "workload.unknown-op"
    assert all(name in message for name in BUILTINS)
    assert "a function in it is model.py:NAME" in code_of("model.py", GEMM)[1]
    assert "your own kernel needs a space file" in code_of("dir/kernel.c", GEMM)[1]
    code, message = code_of("gemm", {"m": 1, "n": 1, "dtype": "f32"})
    assert code == "workload.missing-option"
    assert "k" in message


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("gemm", GEMM),
        ("gemm", {**GEMM, "batch": 2, "trans_a": True, "epilogue": "bias+gelu+residual+scale"}),
        ("gemm", {**GEMM, "dtype": "i8", "out_dtype": "f32", "epilogue": "scale"}),
        ("gemm", {**GEMM, "m": "1..64%8"}),
        ("softmax", {"rows": 3, "cols": 5, "dtype": "f16"}),
        ("rms_norm", {"rows": 3, "cols": 5, "dtype": "bf16"}),
        ("layer_norm", {"rows": 3, "cols": 5, "dtype": "f64"}),
    ],
)
def test_records_give_the_workload_back(op, options):
    workload = build_workload(op, options, constant_inputs=(_last_input(op, options),))
    again = Workload.from_record(workload.record)
    assert again.record == workload.record
    assert again.key == workload.key
    assert again.program == workload.program.renamed("main")


def _last_input(op, options):
    return build_workload(op, options).program.input_names[-1]


def test_signatures_of_the_builtins():
    program = build_workload("gemm", {**GEMM, "epilogue": "bias+residual+scale"}).program
    assert program.input_names == ("a", "b", "bias", "residual", "scale")
    assert [n for n, _ in program.outputs] == ["c"]
    assert [i.type.shape for i in program.inputs] == [(8, 32), (32, 16), (16,), (8, 16), (1,)]
    norm = build_workload("layer_norm", {"rows": 3, "cols": 5, "dtype": "f32"}).program
    assert norm.input_names == ("x", "weight", "bias")
    assert [n for n, _ in norm.outputs] == ["y"]
    ranged = build_workload("gemm", {**GEMM, "m": "8..64%8"})
    assert ranged.program.ranges["m"].multiple == 8
    assert ranged.bind({"m": 16}).key == build_workload("gemm", {**GEMM, "m": 16}).key


def test_every_part_of_the_identity_changes_the_key():
    base = build_workload("gemm", GEMM)
    others = [
        build_workload("gemm", {**GEMM, "m": 9}),
        build_workload("gemm", {**GEMM, "dtype": "bf16"}),
        build_workload("gemm", {**GEMM, "trans_b": True}),
        build_workload("gemm", {**GEMM, "epilogue": "relu"}),
        build_workload("gemm", GEMM, accuracy=Accuracy.FAST),
        build_workload("gemm", GEMM, reproducible=False),
        build_workload("gemm", GEMM, alignment=32),
        build_workload("gemm", GEMM, constant_inputs=("b",)),
    ]
    assert len({w.key for w in [base, *others]}) == len(others) + 1
    renamed = dataclasses.replace(base, op="other", program=base.program.renamed("other"))
    assert renamed.key == base.key


def test_strides_change_the_key():
    from tfsearch.ir.hir.text import parse_program, print_program

    base = build_workload("gemm", GEMM)
    text = print_program(base.program).replace("b: f32[32,16]", "b: f32[32,16; strides 20,1]")
    assert dataclasses.replace(base, program=parse_program(text)).key != base.key


def test_constant_inputs_and_alignment_are_checked():
    assert code_of("gemm", GEMM, constant_inputs=("w",))[0] == "workload.constant-input"
    assert code_of("gemm", GEMM, alignment=48)[0] == "workload.alignment"
    workload = build_workload("gemm", GEMM, constant_inputs=("b", "a"))
    assert workload.constant_inputs == ("a", "b")


MODEL = """
import sys
from tfsearch.ir.hir.lang import relu
print("noise of the user's file")

def ffn_up(x: "dtype[m, 64]", w: "dtype[64,128]", slope: float = 2.0):
    return relu(x @ w) * slope

def fails(x: "f32[m]"):
    return x * (1 / 0)

def branches(x: "f32[m]"):
    return x if x.max() > 0 else -x

def bare(x):
    return x

def wrong(x: "f32[m"):
    return x
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_python_function_is_traced_with_its_options(model, capsys):
    workload = load_traced(model, "ffn_up", {"m": "32", "dtype": "bf16"})
    assert workload.op == "model.py:ffn_up"
    assert workload.program.inputs[0].type.sizes == (32, 64)
    assert workload.record.dims == {"m": 32}
    assert capsys.readouterr().out == ""
    assert load_traced(model, "ffn_up", {"m": "1..8", "dtype": "f32"}).program.ranges


def test_postponed_annotations_work_too(tmp_path):
    path = tmp_path / "later.py"
    path.write_text('from __future__ import annotations\ndef f(x: "f32[n]"): return x + 1\n')
    assert load_traced(path, "f", {"n": 4}).program.inputs[0].type.sizes == (4,)


@pytest.mark.parametrize(
    ("function", "options", "code", "part"),
    [
        ("nothing", {}, "program.no-function", "ffn_up"),
        ("ffn_up", {"dtype": "f32"}, "program.missing-option", "m"),
        ("ffn_up", {"m": 1}, "program.missing-option", "dtype"),
        ("ffn_up", {"m": 1, "dtype": "f32", "q": 1}, "program.unknown-option", "dtype, m"),
        ("ffn_up", {"m": 0, "dtype": "f32"}, "workload.dimension", "at least 1"),
        ("fails", {"m": 4}, "program.trace-failed", "ZeroDivisionError"),
        ("branches", {"m": 4}, "hir.control-flow", "truth of a tensor"),
        ("bare", {}, "program.annotation", "needs an annotation"),
        ("wrong", {"m": 4}, "program.annotation", "f32[m"),
    ],
)
def test_wrong_functions_get_one_clear_line(model, function, options, code, part):
    with pytest.raises(RequestError) as caught:
        load_traced(model, function, options)
    assert caught.value.code == code
    assert part in caught.value.message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("return -x if x.sum() > 0 else x", "hir.control-flow"),
        ("return x + x.cast('f16')", "hir.mixed-dtypes"),
        ("return sorted([x, x])", "hir.control-flow"),
        ("return np.exp(x)", "program.trace-failed"),
        ("return x.sort()", "program.trace-failed"),
        ("return tf.exp(x, x)", "program.trace-failed"),
    ],
)
def test_what_cannot_be_traced_is_shown_in_the_users_file(tmp_path, line, code):
    path = tmp_path / "odd.py"
    head = "import numpy as np\nimport tfsearch.ir.hir.lang as tf\n"
    path.write_text(f'{head}def f(x: "f32[n]"):\n    y = x + 1\n    {line}\n')
    with pytest.raises(RequestError) as caught:
        load_traced(path, "f", {"n": 4})
    assert caught.value.code == code
    assert caught.value.message.endswith(f"(line 5 of {path})")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("import no_such_module_here\n", "ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_on_import_says_why(tmp_path, text, part):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        load_traced(path, "f", {})
    assert caught.value.code == "program.import-failed"
    assert part in caught.value.message


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(RequestError, match="not a file"):
        load_traced(tmp_path / "absent.py", "f", {})


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("float32", "f32"), ("float64", "f64"), ("float16", "f16"), ("bfloat16", "bf16"),
        ("int8", "i8"), (np.float32, "f32"), (np.dtype("f8"), "f64"),
        (ml_dtypes.bfloat16, "bf16"),
    ],
)  # fmt: skip
def test_other_names_of_element_types_are_the_same_workload(model, name, canonical):
    def options(dtype):
        return {"m": 4, "n": 4, "k": 4, "dtype": dtype}

    found, wanted = (
        build_workload("gemm", options(name)),
        build_workload("gemm", options(canonical)),
    )
    assert (found.key, found.record) == (wanted.key, wanted.record)
    if canonical != "i8":
        found = load_traced(model, "ffn_up", {"m": 32, "dtype": name})
        assert found.record == load_traced(model, "ffn_up", {"m": 32, "dtype": canonical}).record


def test_annotations_and_casts_may_use_other_names(tmp_path):
    path = tmp_path / "names.py"
    path.write_text(
        'def a(x: "int32[4, 4]"): return x.cast("float16")\n'
        'def b(x: "i32[4, 4]"): return x.cast("f16")\n'
    )
    assert load_traced(path, "a", {}).key == load_traced(path, "b", {}).key


@pytest.mark.parametrize("name", ["f33", "bool", "float", "int64", None, bool, np.int64])
def test_an_unknown_element_type_is_refused(name):
    with pytest.raises(RequestError, match=r"f32.*bf16.*float32") as caught:
        build_workload("gemm", {"m": 4, "n": 4, "k": 4, "dtype": name})
    assert caught.value.code == "workload.dtype"
