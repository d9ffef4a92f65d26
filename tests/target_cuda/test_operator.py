"""An operator finds the kernels of the device that its arrays are on."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.target_cuda.fake_driver import Card, FakeDriver
from tests.target_cuda.test_calls import Interface, Tensor
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ServedBy
from tfsearch.runtime import operator as operators
from tfsearch.runtime.serving import Question
from tfsearch.target.cuda import device, driver, toolkit
from tfsearch.target.cuda.device import discovery

CARDS = [Card("NVIDIA H200"), Card("NVIDIA A100", (8, 0), 108, uuid=bytes(16))]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Question]]:
    """What is asked of the database, answered by a kernel that says who it is for."""
    monkeypatch.setattr(toolkit, "bindings", lambda: True)
    driver.use(FakeDriver(CARDS))
    discovery.cache_clear()
    asked: list[Question] = []

    class Kernel(SimpleNamespace):
        def __call__(self, *arrays: Any, out: Any = None) -> Any:
            return self.device, arrays, out

    def answer(question: Question, settings: Any, **_: Any) -> Any:
        asked.append(question)
        return Kernel(served_by=ServedBy.EXACT, device=question.device)

    monkeypatch.setattr(operators, "serve", answer)
    monkeypatch.setattr(operators, "_recorded", lambda workload, have, settings: [])
    yield asked
    driver.use(None)
    discovery.cache_clear()


def on(index: int, *shape: int, **fields: Any) -> Tensor:
    return Tensor(1 << 20, shape, device=(2, index), **fields)


def uuid(index: int) -> str:
    return next(gpu.uuid for gpu in discovery().gpus if gpu.index == index)


def test_each_device_is_served_its_own_kernel(served: list[Question]) -> None:
    softmax = tfsearch.op("softmax")
    first, again, second = on(0, 8, 32), on(0, 8, 32), on(1, 8, 32)
    assert softmax(first) == (uuid(0), (first,), None)
    assert softmax(again)[0] == uuid(0)
    assert softmax(second)[0] == uuid(1)
    assert [(q.target, q.device) for q in served] == [("cuda", uuid(0)), ("cuda", uuid(1))]
    assert served[0].workload.record.dims == {"rows": 8, "cols": 32}
    assert served[0].workload.alignment == 64
    assert softmax.served_by is ServedBy.EXACT
    assert not softmax.staged


def test_types_and_alignment_of_arrays_are_those_of_the_workload(served: list[Question]) -> None:
    softmax = tfsearch.op("softmax")
    softmax(on(0, 8, 32, code=(4, 16)))
    softmax(Tensor((1 << 20) + 8, (8, 32), device=(2, 0)))
    assert [q.workload.record.dtype for q in served] == ["bf16", "f32"]
    assert [q.workload.alignment for q in served] == [64, 8]


def test_arrays_of_different_places_are_refused(served: list[Question]) -> None:
    gemm = tfsearch.op("gemm")
    a = on(0, 16, 16)
    for b, said in (
        (on(1, 16, 16), "argument '1' is on GPU-00000000"),
        (np.zeros((16, 16), np.float32), "'1' is a ndarray in host memory"),
        (on(5, 16, 16), "is on GPU 5, for which no code is generated"),
    ):
        with pytest.raises(RequestError, match=said) as caught:
            gemm(a, b)
        assert caught.value.code == "array.device"
    with pytest.raises(RequestError, match="element type that no program has"):
        gemm(a, on(0, 16, 16, code=(1, 8)))
    assert not served


def test_an_array_that_does_not_name_its_device_is_asked_for(
    served: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FakeDriver, "cuPointerGetAttribute", lambda self, kind, address: (0, 1), raising=False
    )
    tfsearch.op("softmax")(Interface(1 << 20, shape=(4, 16)))
    assert served[0].device == uuid(1)
    assert device.architecture_of((8, 0)) == "sm_80"
