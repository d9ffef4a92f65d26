"""Calls on arrays of other libraries: on their stream, without copies, wrong ones one line each."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.target_cuda.fake_driver import CUresult, FakeDriver
from tests.target_cuda.fake_gpu import KERNELS, SIZE, launch, runner
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.runtime.device import DeviceLoaded
from tfsearch.target.cuda import support
from tfsearch.target.cuda.tensors import _DlTensor

NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype = ctypes.py_object
NEW.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """An array of a pretended library; its memory is the pretended driver's."""

    def __init__(
        self,
        address: int,
        shape: Sequence[int] = (SIZE,),
        strides: Sequence[int] | None = None,
        *,
        device: tuple[int, int] = (2, 0),
        code: tuple[int, int] = (2, 32),
        fails: str = "",
    ) -> None:
        self.address = address
        self.streams: list[int] = []
        self._device = device
        self._fails = fails
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
        long = ctypes.POINTER(ctypes.c_int64)
        self._dl = _DlTensor(
            data=address, device_type=device[0], device_id=device[1], ndim=len(shape),
            code=code[0], bits=code[1], lanes=1, shape=ctypes.cast(self._shape, long),
            strides=None if self._strides is None else ctypes.cast(self._strides, long),
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, stream: int) -> Any:
        if self._fails:
            raise BufferError(self._fails)
        self.streams.append(stream)
        return NEW(ctypes.addressof(self._dl), b"dltensor", None)


class Interface:
    """An array with the CUDA array interface alone."""

    def __init__(self, address: int, *, read_only: bool = False, **fields: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, read_only), "shape": (SIZE,), "strides": None, "typestr": "<f4",
            "version": 3, **fields,
        }  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setattr(support, "image", support.image)
    found = FakeDriver(kernels=KERNELS)
    found.limit = 1 << 28
    return found


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, api: FakeDriver) -> Iterator[ModuleType]:
    """A pretended library that tells its stream and makes arrays."""
    module: Any = ModuleType("torch")
    module.stream = 7
    module.cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=module.stream)
    )
    module.float32 = "float32"
    module.made = []

    def empty(shape: Sequence[int], dtype: str, device: str) -> Tensor:
        module.made.append((tuple(shape), dtype, device))
        return tensor(api, module)

    module.empty = empty
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def tensor(api: FakeDriver, library: ModuleType | None = None, **fields: Any) -> Tensor:
    kind = type("T", (Tensor,), {"__module__": library.__name__ if library else "other"})
    return kind(api.cuMemAlloc(4 * SIZE)[1], **fields)


def values(api: FakeDriver, one: Tensor) -> Any:
    return api.view(one.address, (SIZE,), np.dtype("f4"))


def caller(api: FakeDriver, folder: Path, alignment: int = 16) -> Any:
    path = folder / "a.cubin"
    path.write_text(json.dumps(["twice"]))
    loaded = runner(api).load(path, launch("twice", alignment))
    assert isinstance(loaded, DeviceLoaded)
    x, y = loaded.launch.main.arguments
    return loaded.caller([x], [y])


def test_a_call_runs_on_the_librarys_stream_and_makes_its_arrays(
    api: FakeDriver, torch: Any, tmp_path: Path
) -> None:
    call = caller(api, tmp_path)
    x = tensor(api, torch)
    values(api, x)[:] = np.arange(SIZE)
    api.calls.clear()
    y = call([x], None)
    np.testing.assert_array_equal(values(api, y), 2 * np.arange(SIZE))
    assert torch.made == [((SIZE,), "float32", "cuda:0")]
    assert x.streams == [-1]
    assert "cuMemcpyHtoD" not in api.calls
    assert "cuCtxSynchronize" not in api.calls
    assert api.streams[-1] == 7
    torch.stream = 9
    assert call([x], y) is y
    assert api.streams[-1] == 9


def test_a_library_without_a_stream_is_waited_for(api: FakeDriver, tmp_path: Path) -> None:
    call = caller(api, tmp_path)
    x, y = tensor(api), tensor(api)
    values(api, x)[:] = 3.0
    api.calls.clear()
    assert call([x], y) is y
    np.testing.assert_array_equal(values(api, y), np.full(SIZE, 6.0))
    assert x.streams == y.streams == [1]
    assert api.calls[-1] == "cuCtxSynchronize"
    with pytest.raises(RequestError, match="give one as out="):
        call([x], None)


def test_a_bound_call_is_one_launch(api: FakeDriver, torch: Any, tmp_path: Path) -> None:
    x, y = tensor(api, torch), tensor(api, torch)
    bound = caller(api, tmp_path).bind([x], y)
    values(api, x)[:] = 5.0
    api.calls.clear()
    assert bound() is y
    np.testing.assert_array_equal(values(api, y), np.full(SIZE, 10.0))
    assert [c for c in api.calls if not c.startswith("cuCtx")] == ["cuLaunchKernelEx"]


def test_the_callers_context_comes_back(api: FakeDriver, torch: Any, tmp_path: Path) -> None:
    call = caller(api, tmp_path)
    x, y = tensor(api, torch), tensor(api, torch)
    api.calls.clear()
    call([x], y)
    assert "cuCtxPushCurrent" not in api.calls
    api.current = 99
    call([x], y)
    assert api.calls.count("cuCtxPushCurrent") == api.calls.count("cuCtxPopCurrent") == 1
    assert api.current == 99


def test_the_cuda_array_interface_is_enough(api: FakeDriver, tmp_path: Path) -> None:
    call = caller(api, tmp_path)
    x, y = tensor(api), tensor(api)
    values(api, x)[:] = 2.0
    call([Interface(x.address)], Interface(y.address, strides=(4,)))
    np.testing.assert_array_equal(values(api, y), np.full(SIZE, 4.0))


def test_wrong_arrays_are_one_line_each(api: FakeDriver, torch: Any, tmp_path: Path) -> None:
    call = caller(api, tmp_path)
    x, y = tensor(api, torch), tensor(api, torch)
    at = x.address
    wrong: list[tuple[Any, Any, str, str]] = [
        (np.zeros(SIZE, np.float32), y, "array.device", "'x' is a ndarray in host memory"),
        (tensor(api, torch, device=(1, 0)), y, "array.device", "in host memory"),
        (tensor(api, torch, device=(2, 1)), y, "array.device", "is on GPU 1; this kernel is on"),
        (3.0, y, "array.kind", "'x' is a float, not an array of a GPU"),
        (tensor(api, torch, fails="requires grad"), y, "array.kind", "requires grad"),
        (tensor(api, torch, shape=(3,)), y, "array.shape", "must have shape [64], it has [3]"),
        (tensor(api, torch, code=(2, 64)), y, "array.dtype", "must be f32, it is f64"),
        (tensor(api, torch, code=(1, 32)), y, "array.dtype", "it is of another type"),
        (tensor(api, torch, strides=(2,)), y, "array.strides", "must have strides [1]"),
        (Tensor(at + 4), y, "array.alignment", "multiple of 16 B, it starts 4 B after one"),
        (x, Tensor(at + 64), "array.overlap", "'y' shares memory with argument 'x'"),
        (x, Interface(y.address, read_only=True), "array.read-only", "'y' is read-only"),
        (x, (y, y), "array.count", "has 1 outputs (y), out= holds 2"),
        (Interface(at, strides=(6,)), y, "array.strides", "not whole elements"),
    ]
    api.calls.clear()
    for given, out, code, said in wrong:
        with pytest.raises(RequestError) as caught:
            call([given], out)
        assert caught.value.code == code, caught.value
        assert said in caught.value.message
        assert "\n" not in caught.value.message
    with pytest.raises(RequestError, match="takes 1 arrays"):
        call([x, x], y)
    assert "cuLaunchKernelEx" not in api.calls


def test_a_device_that_refuses_is_said(api: FakeDriver, torch: Any, tmp_path: Path) -> None:
    call = caller(api, tmp_path)
    x, y = tensor(api, torch), tensor(api, torch)
    api.fail["cuLaunchKernelEx"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(UnavailableError, match="the kernel failed: cuLaunchKernelEx") as caught:
        call([x], y)
    assert caught.value.code == "kernel.failed"
