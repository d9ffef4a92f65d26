"""The oracle of users' kernels: what it asks of the reference, and what it lets pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import WorkloadRecord
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import check_outputs
from tfsearch.measure.reference import KernelOracle

MATMUL = "def f(a, b):\n    return a @ b\n"


def argument(name: str, shape: tuple[int, ...], io: str = "in", dtype: str = "f32",
             init: tuple[str, str, str] = ("random", "", "")) -> dict[str, Any]:  # fmt: skip
    return {"name": name, "dtype": dtype, "shape": list(shape), "io": io, "init": list(init)}


def oracle(
    folder: Path, code: str, arguments: list[dict[str, Any]], *, terms: int = 1, exact: Any = None
) -> KernelOracle:
    file = folder / f"ref_{keys.digest_bytes(code.encode())[:8]}.py"
    file.write_text(code)
    program = {
        "arguments": arguments,
        "terms": terms,
        "exact": exact,
        "reference": keys.digest_bytes(file.read_bytes()),
    }
    record = WorkloadRecord("k.c:f", {}, "f32", keys.canonical(program))
    return KernelOracle(record, {}, f"{file}:f")


def matmul(folder: Path, k: int = 64, dtype: str = "f32") -> KernelOracle:
    arguments = [
        argument("a", (24, k), dtype=dtype),
        argument("b", (k, 40), dtype=dtype),
        argument("c", (24, 40), "out", dtype),
    ]
    return oracle(folder, MATMUL, arguments, terms=k)


def sequential(a: Any, b: Any, kind: Any = np.float32) -> Any:
    """Summed term by term in one type, the worst order there is."""
    total = np.zeros((a.shape[0], b.shape[1]), kind)
    for k in range(a.shape[1]):
        total = total + np.outer(a[:, k], b[k]).astype(kind)
    return total


def test_small_integers_are_exact_and_one_missing_element_shows(tmp_path: Path) -> None:
    case = matmul(tmp_path).case(Pass.INTEGERS, 3)
    assert case.expected["c"].exact
    right = sequential(case.inputs["a"], case.inputs["b"])
    assert check_outputs({"c": right}, case).message == ""
    short = sequential(case.inputs["a"][:, :-1], case.inputs["b"][:-1])
    assert "elements wrong" in check_outputs({"c": short}, case).message


@pytest.mark.parametrize("which", [Pass.NORMAL, Pass.RANGE])
@pytest.mark.parametrize("k", [1, 7, 64, 1000])
def test_any_order_of_summation_in_f32_passes(tmp_path: Path, which: Pass, k: int) -> None:
    for seed in range(3):
        case = matmul(tmp_path, k).case(which, seed)
        assert not case.expected["c"].exact
        found = check_outputs({"c": sequential(case.inputs["a"], case.inputs["b"])}, case)
        assert found.message == ""


@pytest.mark.parametrize("which", [Pass.NORMAL, Pass.RANGE])
def test_zeros_lower_precision_and_a_changed_term_do_not_pass(tmp_path: Path, which: Pass) -> None:
    case = matmul(tmp_path).case(which, 1)
    a, b = case.inputs["a"], case.inputs["b"]
    right = sequential(a, b)
    with np.errstate(all="ignore"):
        halves = sequential(a.astype(np.float16), b.astype(np.float16)).astype(np.float32)
    wrong = [np.zeros_like(right), halves, sequential(a[:, 1:], b[1:]), right * np.float32(1.001)]
    for outputs in wrong:
        assert check_outputs({"c": outputs.astype(np.float32)}, case).message != ""


def test_elementwise_maths_has_a_few_roundings_and_no_more(tmp_path: Path) -> None:
    code = "import numpy as np\ndef f(x):\n    return np.exp(x)\n"
    found = oracle(tmp_path, code, [argument("x", (4096,)), argument("y", (4096,), "out")])
    for which in (Pass.INTEGERS, Pass.NORMAL):
        case = found.case(which, 5)
        assert not case.expected["y"].exact
        right = np.exp(case.inputs["x"])
        assert check_outputs({"y": right}, case).message == ""
        assert check_outputs({"y": right * np.float32(1 + 1e-4)}, case).message != ""


def test_a_badly_conditioned_difference_is_allowed_what_its_inputs_make_of_it(
    tmp_path: Path,
) -> None:
    code = "def f(a, x, y):\n    return a * x - y\n"
    arguments = [
        argument("a", (), init=("value", "3.0", "")),
        argument("x", (100_000,)),
        argument("y", (100_000,)),
        argument("out", (100_000,), "out"),
    ]
    found = oracle(tmp_path, code, arguments)
    for which in (Pass.NORMAL, Pass.RANGE):
        case = found.case(which, 2)
        rounded = np.float32(3.0) * case.inputs["x"] - case.inputs["y"]
        assert check_outputs({"out": rounded}, case).message == ""


CONVOLUTION = "import numpy\n\n\ndef f(x, w):\n    return numpy.convolve(x, w[::-1], 'valid')\n"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sums_that_cancel_are_allowed_what_their_terms_make_of_them(
    tmp_path: Path, dtype: str
) -> None:
    # Few weights and many results: some results are differences of two far larger terms.
    count, taps = 5000, 9
    arguments = [
        argument("x", (count + taps - 1,), dtype=dtype),
        argument("w", (taps,), dtype=dtype),
        argument("y", (count,), "out", dtype),
    ]
    found = oracle(tmp_path, CONVOLUTION, arguments, terms=taps)
    for seed in range(20):
        case = found.case(Pass.RANGE, seed)
        x, w = case.inputs["x"], case.inputs["w"]
        y = np.zeros(count, x.dtype)
        for tap in range(taps):
            y += x[tap : tap + count] * w[tap]
        assert check_outputs({"y": y}, case).message == ""


def test_integers_are_exact_in_every_pass(tmp_path: Path) -> None:
    code = "def f(x, y):\n    return x + y\n"
    arguments = [argument(n, (50,), dtype="i32") for n in "xy"]
    found = oracle(tmp_path, code, [*arguments, argument("z", (50,), "out", "i32")])
    for which in Pass:
        case = found.case(which, 1)
        right = case.inputs["x"] + case.inputs["y"]
        assert check_outputs({"z": right}, case).message == ""
        right[7] += 1
        assert check_outputs({"z": right}, case).message != ""


def test_a_rounded_result_may_fall_either_way_only_where_the_reference_does(
    tmp_path: Path,
) -> None:
    code = "import numpy as np\ndef f(x):\n    return np.rint(x * 3)\n"
    arguments = [argument("x", (4000,)), argument("y", (4000,), "out", "i32")]
    case = oracle(tmp_path, code, arguments).case(Pass.NORMAL, 1)
    right = np.rint(case.inputs["x"] * np.float32(3)).astype(np.int32)
    assert check_outputs({"y": right}, case).message == ""
    right[5] += 1
    assert check_outputs({"y": right}, case).message != ""


def test_fills_hold_in_every_pass(tmp_path: Path) -> None:
    code = "def f(table, index, scale):\n    assert isinstance(scale, float)\n" \
        "    return table[index] * scale\n"  # fmt: skip
    arguments = [
        argument("table", (10,), init=("positive", "", "")),
        argument("index", (200,), dtype="i32", init=("range", "0", "9")),
        argument("scale", (), init=("value", "0.5", "")),
        argument("out", (200,), "out"),
    ]
    found = oracle(tmp_path, code, arguments)
    contents = set()
    for which in Pass:
        case = found.case(which, 4)
        assert case.inputs["table"].min() > 0
        assert (case.inputs["index"].min(), case.inputs["index"].max()) == (0, 9)
        assert case.inputs["scale"] == np.float32(0.5)
        assert case.inputs["scale"].shape == ()
        contents.add(case.inputs["table"].tobytes())
    assert len(contents) == 3
    again = found.case(Pass.NORMAL, 4)
    assert again.inputs["table"].tobytes() in contents
    assert found.case(Pass.NORMAL, 5).inputs["table"].tobytes() not in contents


def test_a_reference_may_write_to_what_it_is_given(tmp_path: Path) -> None:
    code = "def f(x, y):\n    y += x\n    x[:] = 0\n    return y\n"
    found = oracle(tmp_path, code, [argument("x", (9,)), argument("y", (9,), "inout")])
    case = found.case(Pass.INTEGERS, 1)
    assert np.array_equal(case.expected["y"].ref, case.inputs["x"] + case.inputs["y"])


def test_several_outputs_come_in_the_order_of_the_arguments(tmp_path: Path) -> None:
    code = "def f(x):\n    return x.sum(), x * 2\n"
    arguments = [argument("total", (), "out"), argument("x", (8,)), argument("twice", (8,), "out")]
    case = oracle(tmp_path, code, arguments, terms=8).case(Pass.INTEGERS, 0)
    assert case.expected["total"].ref == case.inputs["x"].sum()
    assert np.array_equal(case.expected["twice"].ref, case.inputs["x"] * 2)


def test_outputs_beyond_their_type_scale_the_inputs_down(tmp_path: Path) -> None:
    code = "def f(x):\n    return x * 1e4\n"
    arguments = [argument("x", (64,), dtype="f16"), argument("y", (64,), "out", "f16")]
    case = oracle(tmp_path, code, arguments).case(Pass.RANGE, 0)
    assert np.abs(case.expected["y"].ref).max() <= 65504 / 4
    huge = code.replace("x * 1e4", "x * 0 + 1e6")
    with pytest.raises(RequestError, match="beyond its type") as caught:
        oracle(tmp_path, huge, arguments).case(Pass.RANGE, 0)
    assert caught.value.code == "measure.inputs"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("def f(x):\n    return x[:-1]\n", "returned shape [7] for y, which has [8]"),
        ("def f(x):\n    return x, x\n", "returned 2 results; the kernel writes y"),
        ("def f(x):\n    return None\n", "no numbers for y"),
        ("def f(x):\n    x = 1 / 0\n", "ZeroDivisionError: division by zero (line 2 of"),
        ("def f():\n    return 1\n", "TypeError"),
        ("import sys\ndef f(x):\n    sys.exit(3)\n", "SystemExit"),
    ],
)
def test_a_reference_that_fails_is_named_with_its_place(
    tmp_path: Path, code: str, what: str
) -> None:
    found = oracle(tmp_path, code, [argument("x", (8,)), argument("y", (8,), "out")])
    with pytest.raises(RequestError) as caught:
        found.case(Pass.NORMAL, 0)
    assert caught.value.code == "kernel.reference"
    assert what in caught.value.message


def test_a_reference_that_changed_since_is_not_used(tmp_path: Path) -> None:
    made = matmul(tmp_path)
    file = next(tmp_path.glob("ref_*.py"))
    record = WorkloadRecord(
        "k.c:f",
        {},
        "f32",
        keys.canonical({"arguments": [], "terms": 1, "exact": None, "reference": "0" * 64}),
    )
    assert made.terms == 64
    with pytest.raises(RequestError, match="changed while"):
        KernelOracle(record, {}, f"{file}:f")


def test_exactness_can_be_stated(tmp_path: Path) -> None:
    code = "def f(x):\n    return x / 4\n"
    arguments = [argument("x", (16,)), argument("y", (16,), "out")]
    assert not oracle(tmp_path, code, arguments).case(Pass.INTEGERS, 0).expected["y"].exact
    stated = oracle(tmp_path, code, arguments, exact=True).case(Pass.INTEGERS, 0)
    assert stated.expected["y"].exact
    never = matmul(tmp_path)
    never.exact = False
    assert not never.case(Pass.INTEGERS, 0).expected["c"].exact
