"""tfsearch: finds the fastest correct kernel for a tensor program on this machine.

``tfsearch.tune("gemm", m=512, n=512, k=512, dtype="f32")`` searches and records;
``tfsearch.lookup("gemm", …)`` gives the recorded kernel to call; ``tfsearch.op("gemm")(a, b)``
dispatches by shape. Everything is imported on first use.
"""

from __future__ import annotations

from typing import Any

_PUBLIC = ("lookup", "op", "tune")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "tune":
        return import_module("tfsearch.tune")
    if name in _PUBLIC:
        return getattr(import_module("tfsearch.runtime"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("tfsearch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
