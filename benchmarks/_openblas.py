"""NumPy's own OpenBLAS called from C with the signature of a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Status
from tfsearch.target.x86.runner import X86Arguments, X86Loaded
from tfsearch.toolchain import find

_SOURCE = """
#include <stdint.h>
typedef void (*gemm_t)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                       const float *, int64_t, float, float *, int64_t);
int tfsearch_main(void **args) {
  ((gemm_t)(uintptr_t)%d)(101, 111, 111, %d, %d, %d, 1.0f, args[0], %d, args[1], %d, 0.0f, args[2],
                          %d);
  return 0;
}
"""


def library() -> ctypes.CDLL:
    """The OpenBLAS that NumPy's wheel ships (64-bit integers, symbols prefixed ``scipy_``)."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = sorted(folder.glob("libscipy_openblas64_*.so"))
    if not found:
        raise SystemExit("NumPy was not installed from a wheel with its own OpenBLAS")
    return ctypes.CDLL(str(found[0]))


def set_threads(count: int) -> None:
    """Threads that OpenBLAS uses from now on."""
    library().scipy_openblas_set_num_threads64_(count)


def corename() -> str:
    """Name of the kernel family that OpenBLAS chose for this processor."""
    function = library().scipy_openblas_get_corename64_
    function.restype = ctypes.c_char_p
    return function().decode()


class OpenBlas(X86Loaded):
    """``sgemm`` of one shape as a loaded kernel: a C adapter that calls OpenBLAS directly."""

    def __init__(self, m: int, n: int, k: int, launch: LaunchSpec, folder: Path) -> None:
        address = ctypes.cast(library().scipy_cblas_sgemm64_, ctypes.c_void_p).value
        out = folder / f"openblas-{m}x{n}x{k}.so"
        result = find(None).compile_shared(_SOURCE % (address, m, n, k, k, n, n), out=out)
        if result.status is not Status.OK:
            raise SystemExit(f"the OpenBLAS adapter did not compile: {result.message}")
        plain = tuple(a for a in launch.main.arguments if a.io in ("in", "out"))
        entry = type(launch.main)(launch.main.symbol, plain, 1, 0)
        super().__init__(out, LaunchSpec(entry))

    def bind(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> X86Arguments:
        """Arguments of the same names as the tuned kernel's."""
        return super().bind(inputs)
