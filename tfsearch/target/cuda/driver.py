"""CUDA's driver behind one narrow door: every answer checked, errors with their names.

The module that makes the calls (``cuda.bindings.driver``) is loaded on first use, and tests put
another in its place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

NAME_BYTES = 128
_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
STICKY = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "CUDA_ERROR_UNKNOWN",
    }
)
"""Errors after which a context answers nothing else: the process has to end."""


class CudaError(OSError):
    """A call of the driver failed; ``name`` is the error's name in CUDA."""

    def __init__(self, call: str, name: str, text: str = "") -> None:
        super().__init__(f"{call}: {name}" + (f" ({text})" if text else ""))
        self.name = name

    @property
    def sticky(self) -> bool:
        """Whether every later call in this process fails too."""
        return self.name in STICKY


class CudaMemoryError(MemoryError):
    """The device has not as much memory as was asked for."""


class Driver:
    """The functions of the driver with their answers checked.

    ``driver.cuMemAlloc(n)`` gives what the call returns beside its status: nothing, one value or
    a tuple. :class:`CudaError` when the status is not 0, :class:`CudaMemoryError` when it says
    that the device's memory is used up.
    """

    def __init__(self, api: Any) -> None:
        self.api = api
        self._wrapped: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        found = self._wrapped.get(name)
        if found is None:
            found = self._wrapped[name] = self._checked(name)
        return found

    def _checked(self, name: str) -> Callable[..., Any]:
        function = getattr(self.api, name)

        def call(*arguments: Any) -> Any:
            status, *values = function(*arguments)
            if int(status):
                raise self.error(name, status)
            return values[0] if len(values) == 1 else tuple(values) or None

        return call

    def error(self, call: str, status: Any) -> OSError | MemoryError:
        """The exception for a status."""
        name = str(getattr(status, "name", status))
        if name == _MEMORY:
            return CudaMemoryError(f"{call}: {name}")
        text = ""
        _, found = self.api.cuGetErrorString(status)
        if found:
            text = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
        return CudaError(call, name, text)


_driver: Driver | None = None


def use(api: Any) -> None:
    """Make calls through another module from now on; None: through CUDA's bindings again."""
    global _driver  # noqa: PLW0603 - one driver in a process, as there is one libcuda
    _driver = None if api is None else Driver(api)


def driver() -> Driver:
    """The driver, initialised.

    ``ImportError`` without CUDA's bindings; ``OSError`` when the driver's library is not there or
    does not start.
    """
    global _driver  # noqa: PLW0603
    if _driver is None:
        ctypes.CDLL("libcuda.so.1")  # where it is not there, the bindings are not loaded either
        _driver = Driver(import_module("cuda.bindings.driver"))
    try:
        _driver.cuInit(0)
    except OSError:
        raise
    except Exception as error:  # the bindings' loader raises errors of many classes
        raise OSError(f"libcuda: {str(error).splitlines()[0]}") from error
    return _driver
