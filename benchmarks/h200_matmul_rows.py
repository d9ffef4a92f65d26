"""The rows of ``h200_matmul.py``: fixed before anything was tuned for them."""

from __future__ import annotations

from dataclasses import dataclass

ROWS_OF = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)
WEIGHTS = ((17408, 5120), (5120, 17408), (2112, 7168), (7168, 2048), (4096, 7168), (24576, 1536))
"""(n, k)"""
SKINNY, MEDIUM, LARGE, ODD = "skinny", "medium", "large", "odd"


@dataclass(frozen=True)
class Row:
    """``c[m, n] = a · b`` in bf16; ``a`` is stored [m, k] or [k, m], ``b`` [n, k] or [k, n]."""

    kind: str
    m: int
    n: int
    k: int
    a_across: bool = False
    b_across: bool = False

    @property
    def name(self) -> str:
        """``8192x17408x5120``, with what is stored across the sum."""
        stored = "".join(f" {x}" for x, on in (("a", self.a_across), ("b", self.b_across)) if on)
        return f"{self.m}x{self.n}x{self.k}{stored}"

    @property
    def flops(self) -> float:
        """Operations."""
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Of the factors and the result."""
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)


def _kind(m: int, n: int, k: int) -> str:
    if m <= 64:
        return SKINNY
    return LARGE if 2.0 * m * n * k >= 1e11 else MEDIUM


def _more() -> tuple[Row, ...]:
    squares = [
        Row(_kind(s, s, s), s, s, s) for s in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
    ]
    odd = [
        Row(ODD, *sizes)
        for sizes in ((1000, 1000, 1000), (4095, 4097, 4096), (3000, 5000, 1736), (777, 4104, 4104))
    ]
    odd += [Row(ODD, 2048, 2050, 1027), Row(ODD, 129, 8193, 513)]
    majors = [
        Row(_kind(2048, 4096, 4096), 2048, 4096, 4096, *on) for on in ((False, True), (True, False))
    ]
    majors += [Row(_kind(4096, 4096, 4096), 4096, 4096, 4096, True, True)]
    long = [
        Row(MEDIUM, 512, 512, 8192),
        Row(MEDIUM, 256, 256, 65536),
        Row(MEDIUM, 1024, 512, 32768),
    ]
    return (*squares, *odd, *majors, *long)


ROWS: tuple[Row, ...] = (
    *(Row(_kind(m, n, k), m, n, k) for n, k in WEIGHTS for m in ROWS_OF),
    *_more(),
)
