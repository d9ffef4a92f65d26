"""Dispatch by shape: what arrays ask for, what is remembered, what happens on a miss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tfsearch
from tests.runtime.native import Array
from tests.runtime.programs import different, doubled, renamed, summed
from tfsearch.core.errors import NotRecordedError, RequestError
from tfsearch.core.records import ServedBy
from tfsearch.core.settings import Settings
from tfsearch.ir.hir.named import named_workload
from tfsearch.runtime import operator as module
from tfsearch.runtime.arrays import empty
from tfsearch.runtime.derive import derive


def arrays(alignment: int = 16) -> tuple[Array, Array]:
    out: list[Array] = []
    for shape in ((12, 8), (8, 10)):
        raw = empty((12 * 10 + 64,), np.dtype("f4"))
        view = raw[alignment // 4 % 16 :][: shape[0] * shape[1]].reshape(shape)
        view[...] = np.arange(view.size).reshape(shape) % 5
        out.append(view)
    return out[0], out[1]


def test_plain_arrays_find_their_kernel(home: Settings) -> None:
    gemm = tfsearch.op("gemm", target="null")
    assert gemm.served_by is None
    a, b = arrays()
    assert np.array_equal(gemm(a, b), a @ b)
    assert gemm.served_by is ServedBy.EXACT


def test_the_database_is_asked_once(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = module.serve
    monkeypatch.setattr(module, "serve", lambda *a, **k: asked.append(a) or real(*a, **k))
    gemm = tfsearch.op("gemm", target="null")
    for _ in range(3):
        a, b = arrays()
        gemm(a, b)
    assert len(asked) == 1
    gemm.clear()
    gemm(a, b)
    assert len(asked) == 2


@pytest.mark.parametrize("alignment", [64, 32, 16, 8, 4])
def test_any_alignment_gets_the_recorded_kernel(home: Settings, alignment: int) -> None:
    gemm = tfsearch.op("gemm", target="null")
    a, b = arrays(alignment)
    assert np.array_equal(gemm(a, b), a @ b)
    assert gemm.served_by is ServedBy.EXACT
    assert gemm.staged is (alignment < 16)  # the record relies on 16 bytes
    out = np.empty((12, 10), "f4")
    assert gemm(a, b, out=out) is out
    assert np.array_equal(out, a @ b)


def test_a_miss_says_what_the_nearest_record_differs_in(home: Settings) -> None:
    gemm = tfsearch.op("gemm", target="null")
    with pytest.raises(NotRecordedError, match=r"workload\.dims\.m is 12 there, 7 here"):
        gemm(np.ones((7, 8), "f4"), np.ones((8, 10), "f4"))


def test_a_fallback_serves_what_is_not_recorded(home: Settings) -> None:
    gemm = tfsearch.op("gemm", target="null", fallback=np.matmul)
    x, y = np.ones((7, 8), "f4"), np.ones((8, 10), "f4")
    assert np.array_equal(gemm(x, y), x @ y)
    assert gemm.served_by is ServedBy.FALLBACK
    a, b = arrays()
    gemm(a, b)
    assert gemm.served_by is ServedBy.EXACT
    bare = tfsearch.op("gemm", target="null")
    assert np.array_equal(bare(x, y, fallback=lambda p, q: p @ q + 1), x @ y + 1)
    with pytest.raises(NotRecordedError):
        bare(x, y)


def test_the_model_builds_what_is_not_recorded_if_allowed(home: Settings) -> None:
    gemm = tfsearch.op("gemm", target="null", allow=("model",))
    x, y = np.ones((7, 8), "f4"), np.ones((8, 10), "f4")
    assert np.array_equal(gemm(x, y), x @ y)
    assert gemm.served_by is ServedBy.MODEL


def test_options_of_a_call_may_be_lists(home: Settings) -> None:
    a, b = arrays()
    gemm = tfsearch.op("gemm", target="null", fallback=np.matmul)
    for _ in range(2):
        gemm(a, b, constant_inputs=["b"])
        assert gemm.served_by is ServedBy.FALLBACK


def test_without_a_database_the_fallback_serves(home: Settings, tmp_path: Any) -> None:
    gemm = tfsearch.op("gemm", target="null", db=f"sqlite:///{tmp_path}/x.db", fallback=np.matmul)
    a, b = arrays()
    assert np.array_equal(gemm(a, b), a @ b)
    assert gemm.served_by is ServedBy.FALLBACK


def test_threads_share_an_operator(home: Settings) -> None:
    gemm = tfsearch.op("gemm", target="null")

    def work(seed: int) -> bool:
        a, b = arrays()
        a[...] = seed
        return np.array_equal(gemm(a, b), a @ b) and gemm.served_by is ServedBy.EXACT

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))


def test_arrays_of_a_batch_and_epilogues_name_their_dimensions() -> None:
    x, y = np.ones((3, 4, 5), "f4"), np.ones((3, 5, 6), "f4")
    found = derive("gemm", [x, y], {}).workload
    assert dict(found.options) == {"m": 4, "n": 6, "k": 5, "batch": 3, "dtype": "f32"}
    bias = np.ones(6, "f4")
    biased = derive("gemm", [x[0], y[0], bias], {"epilogue": "bias+relu"}).workload
    assert biased.options["epilogue"] == "bias+relu"
    weight = np.ones(8, ml_dtypes.bfloat16)
    norm = derive("rms_norm", [np.ones((2, 8), ml_dtypes.bfloat16), weight], {}).workload
    assert dict(norm.options) == {"rows": 2, "cols": 8, "dtype": "bf16"}


def test_arrays_ask_for_the_same_workload_as_the_options_do() -> None:
    x, y = np.ones((4, 5), "f4"), np.ones((6, 5), "f4")
    for given in ({"trans_b": True}, {"trans_b": True, "trans_a": False, "out_dtype": None}):
        found = derive("gemm", [x, y], given).workload
        wanted = named_workload("gemm", {"m": 4, "n": 6, "k": 5, "dtype": "f32", "trans_b": True})
        assert found.key == wanted.key


def test_a_transposed_view_asks_for_the_transposed_option() -> None:
    x, y = np.ones((4, 5), "f4"), np.ones((6, 5), "f4")
    found = derive("gemm", [x, y.T], {})
    assert found.swapped == (False, True)
    assert found.workload.key == derive("gemm", [x, y], {"trans_b": True}).workload.key
    back = derive("gemm", [x, y.T.copy().T], {"trans_b": True})
    assert back.swapped == (False, True)
    assert "trans_b" not in back.workload.options


def test_other_strides_are_part_of_the_workload() -> None:
    wide = np.ones((4, 9), "f4")
    dense = derive("gemm", [np.ones((4, 5), "f4"), np.ones((5, 6), "f4")], {}).workload
    found = derive("gemm", [wide[:, :5], np.ones((5, 6), "f4")], {}).workload
    assert found.key != dense.key
    assert found.program.inputs[0].type.element_strides == (9, 1)
    named = named_workload(
        "gemm", {"m": 4, "n": 6, "k": 5, "dtype": "f32", "strides": {"a": (9, 1)}}
    )
    assert named.key == found.key
    with pytest.raises(RequestError, match="by input"):
        named_workload("gemm", {"m": 4, "n": 6, "k": 5, "dtype": "f32", "strides": (9, 1)})


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("array.count", lambda g: g(np.ones((2, 2), "f4"))),
        ("array.count", lambda g: g()),
        ("array.shape", lambda g: g(np.ones((2, 3), "f4"), np.ones((4, 2), "f4"))),
        ("array.shape", lambda g: g(np.ones(3, "f4"), np.ones((3, 2), "f4"))),
        ("array.shape", lambda g: g(np.ones((0, 3), "f4"), np.ones((3, 2), "f4"))),
        ("array.dtype", lambda g: g(np.ones((2, 3), "f4"), np.ones((3, 2), "f8"))),
        ("array.dtype", lambda g: g(np.ones((2, 3), "c8"), np.ones((3, 2), "c8"))),
        ("array.dtype", lambda g: g(np.ones((2, 3), bool), np.ones((3, 2), bool))),
        ("array.kind", lambda g: g([[1.0]], [[1.0]])),
        ("hir.strides", lambda g: g(np.ones((2, 3), "f4")[::-1], np.ones((3, 2), "f4"))),
        ("workload.unknown-option", lambda g: g(np.ones((2, 2)), np.ones((2, 2)), m=2)),
        ("workload.unknown-option", lambda g: g(np.ones((2, 2)), np.ones((2, 2)), trans_c=True)),
        ("workload.boolean", lambda g: g(np.ones((2, 2)), np.ones((2, 2)), trans_b="perhaps")),
    ],
)
def test_wrong_arrays_get_one_line(home: Settings, code: str, call: Any) -> None:
    with pytest.raises(RequestError) as caught:
        call(tfsearch.op("gemm", target="null", fallback=np.matmul))
    assert caught.value.code == code
    assert "\n" not in caught.value.message


def test_an_unknown_op_and_an_alignment_are_refused() -> None:
    with pytest.raises(RequestError, match="known ops: gemm"):
        tfsearch.op("gemmm")
    with pytest.raises(RequestError, match="from its arrays"):
        tfsearch.op("gemm", alignment=64)
    with pytest.raises(RequestError, match="strides from its arrays"):
        tfsearch.op("gemm")(*arrays(), strides={"a": (9, 1)})


def _program(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(
        'def doubled(x: "f32[rows, cols]", bias: "f32[cols]", scale=2.0):\n'
        "    return x * scale + bias\n"
    )
    return f"{path}:doubled"


def test_a_function_object_is_tuned_looked_up_and_called(home: Settings, tmp_path: Path) -> None:
    size = {"rows": 6, "cols": 9, "target": "null"}
    report = tfsearch.tune(doubled, **size, trials=2, baseline=False)
    assert report.workload.op == "programs.py:doubled"
    assert tfsearch.lookup(doubled, **size).served_by is ServedBy.EXACT
    x, bias = np.ones((6, 9), "f4"), np.arange(9, dtype="f4")
    call = tfsearch.op(doubled, target="null")
    assert np.array_equal(call(x, bias), x * 2 + bias)
    assert call.served_by is ServedBy.EXACT


def test_the_program_is_the_key_and_neither_name_nor_file(home: Settings, tmp_path: Path) -> None:
    name = _program(tmp_path)
    tfsearch.tune(name, rows=6, cols=9, target="null", trials=2, baseline=False)
    for op, dims in ((doubled, ("rows", "cols")), (renamed, ("m", "n"))):
        found = tfsearch.lookup(op, **dict(zip(dims, (6, 9), strict=True)), target="null")
        assert found.served_by is ServedBy.EXACT
    with pytest.raises(NotRecordedError):
        tfsearch.lookup(different, m=6, n=9, target="null")


def test_a_file_s_function_gets_its_dimensions_from_the_arrays(
    home: Settings, tmp_path: Path
) -> None:
    name = _program(tmp_path)
    call = tfsearch.op(name, target="null")
    x, bias = np.ones((6, 9), "f4"), np.arange(9, dtype="f4")
    with pytest.raises(NotRecordedError, match="rows=6 cols=9"):
        call(x, bias)
    tfsearch.tune(name, rows=6, cols=9, target="null", trials=2, baseline=False)
    assert np.array_equal(call(x, bias), x * 2 + bias)
    assert np.array_equal(tfsearch.op(name, target="null", rows=6)(x, bias), x * 2 + bias)


def test_names_of_types_and_strides_come_from_the_arrays() -> None:
    x, y = np.ones((4, 8), ml_dtypes.bfloat16), np.ones((8, 4), ml_dtypes.bfloat16).T
    found = derive(summed, [x, y], {}).workload
    assert found.record.dims == {"rows": 4, "kind": "bf16"}
    assert [i.type.element_strides for i in found.program.inputs] == [(8, 1), (1, 4)]


@pytest.mark.parametrize(
    ("code", "text", "call"),
    [
        ("array.count", "takes 2 arrays (x, bias)", lambda f: f(np.ones((2, 3), "f4"))),
        ("array.shape", "[cols] with cols = 3", lambda f: f(_ones(2, 3), _ones(4))),
        ("array.shape", "[rows,cols], it has [3]", lambda f: f(_ones(3), _ones(3))),
        ("array.shape", "empty", lambda f: f(_ones(0, 3), _ones(3))),
        ("array.dtype", "must be f32", lambda f: f(_ones(2, 3).astype("f8"), _ones(3))),
        ("program.unknown-option", "'q'", lambda f: f(_ones(2, 3), _ones(3), q=1)),
        ("array.shape", "rows = 5", lambda f: f(_ones(2, 3), _ones(3), rows=5)),
    ],
)
def test_arrays_that_do_not_fit_a_function(code: str, text: str, call: Any) -> None:
    with pytest.raises(RequestError) as caught:
        call(tfsearch.op(doubled, target="null", fallback=np.add))
    assert caught.value.code == code
    assert text in caught.value.message


def _ones(*shape: int) -> Array:
    return np.ones(shape, "f4")


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(RequestError, match="not 5"):
        tfsearch.op(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match="needs an annotation"):
        tfsearch.lookup(lambda x: x, target="null")
    with pytest.raises(RequestError, match="parameters are not known"):
        tfsearch.lookup(iter, target="null")
