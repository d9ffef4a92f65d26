"""Run time: looking recorded kernels up, calling them, dispatching by shape, frozen bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfsearch.runtime.arrays import empty
    from tfsearch.runtime.bundle import Bundle, export_bundle, load_bundle
    from tfsearch.runtime.kernel import Bound, Fallback, Kernel
    from tfsearch.runtime.operator import Operator, op
    from tfsearch.runtime.serve import lookup, question_of

_LAZY = {
    "Bound": "kernel",
    "Bundle": "bundle",
    "Fallback": "kernel",
    "Kernel": "kernel",
    "Operator": "operator",
    "empty": "arrays",
    "export_bundle": "bundle",
    "load_bundle": "bundle",
    "lookup": "serve",
    "op": "operator",
    "question_of": "serve",
}

__all__ = [
    "Bound",
    "Bundle",
    "Fallback",
    "Kernel",
    "Operator",
    "empty",
    "export_bundle",
    "load_bundle",
    "lookup",
    "op",
    "question_of",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
