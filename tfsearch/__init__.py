"""tfsearch: finds the fastest correct kernel for a tensor program on this machine.

``tfsearch.tune("gemm", m=512, n=512, k=512, dtype="f32")`` searches and records;
``tfsearch.lookup("gemm", …)`` gives the recorded kernel to call; ``tfsearch.op("gemm")(a, b)``
dispatches by shape. Everything is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfsearch import tune as tune
    from tfsearch.runtime import lookup as lookup
    from tfsearch.runtime import op as op

__all__ = ["lookup", "op", "tune"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "tune":
        return import_module("tfsearch.tune")
    if name in ("lookup", "op"):
        return getattr(import_module("tfsearch.runtime"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("tfsearch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
