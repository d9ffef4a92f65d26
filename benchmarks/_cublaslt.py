"""cuBLASLt through ctypes: the algorithms that its heuristics name for one product."""

from __future__ import annotations

import ctypes
from typing import Any

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
COMPUTE_32F, R_32F, R_16BF = 68, 0, 14
"""cublasComputeType_t and cudaDataType_t."""
TRANS_A, TRANS_B, WORKSPACE_BYTES = 3, 4, 1
"""Attributes of a product and of a preference."""
WORKSPACE = 64 << 20


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def library() -> Any:
    """The library that PyTorch has loaded, or one that is found; ``OSError`` where none is."""
    for name in NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"none of {', '.join(NAMES)} loads")


class Product:
    """``c[m, n] = a · b`` in bf16 with f32 sums, row by row; either factor may be across the sum.

    ``algorithms`` are at most ``count`` that the heuristics name, best first. ``OSError`` when the
    library is missing or refuses.
    """

    def __init__(
        self, m: int, n: int, k: int, *, a_across: bool, b_across: bool, count: int, workspace: int
    ) -> None:
        self._lib = library()
        self._workspace = workspace
        self._handle = self._made("cublasLtCreate")
        self._product = self._made("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
        # Column by column the result is its transpose: the second factor comes first.
        for what, on in ((TRANS_A, not b_across), (TRANS_B, a_across)):
            self._set("cublasLtMatmulDescSetAttribute", self._product, what, ctypes.c_int32(on))
        self._b = self._layout(*((n, k) if b_across else (k, n)))
        self._a = self._layout(*((m, k) if a_across else (k, m)))
        self._c = self._layout(n, m)
        self.algorithms = self._heuristics(count)
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _call(self, name: str, *words: Any) -> None:
        status = getattr(self._lib, name)(*words)
        if status:
            raise OSError(f"{name} answers {status}")

    def _made(self, name: str, *words: Any) -> ctypes.c_void_p:
        out = ctypes.c_void_p()
        self._call(name, ctypes.byref(out), *words)
        return out

    def _set(self, name: str, target: ctypes.c_void_p, what: int, value: Any) -> None:
        self._call(name, target, what, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        return self._made("cublasLtMatrixLayoutCreate", R_16BF, *sizes)

    def _heuristics(self, count: int) -> list[_Found]:
        preference = self._made("cublasLtMatmulPreferenceCreate")
        room = ctypes.c_uint64(WORKSPACE)
        self._set(
            "cublasLtMatmulPreferenceSetAttribute", preference, WORKSPACE_BYTES, room
        )  # fmt: skip
        found, returned = (_Found * count)(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, self._product, self._b, self._a,
            self._c, self._c, preference, count, found, ctypes.byref(returned),
        )  # fmt: skip
        return [one for one in found[: returned.value] if one.state == 0]

    def run(self, algorithm: int, a: int, b: int, c: int, stream: int = 0) -> None:
        """Enqueue the product on addresses with one of ``algorithms``."""
        one = self.algorithms[algorithm]
        place = ctypes.c_void_p
        self._call(
            "cublasLtMatmul", self._handle, self._product, ctypes.byref(self._one), place(b),
            self._b, place(a), self._a, ctypes.byref(self._zero), place(c), self._c, place(c),
            self._c, ctypes.byref(one.algorithm), place(self._workspace),
            ctypes.c_size_t(WORKSPACE), place(stream),
        )  # fmt: skip
