"""Workloads by name, as every front end takes them: a built-in op, or ``file.py:function``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Accuracy
from tfsearch.ir.workload import Workload

CLASSES = ("accuracy", "reproducible", "alignment", "constant_inputs")
"""Options of every workload, next to those of its op."""


def named_workload(op: str, options: Mapping[str, Any]) -> Workload:
    """The workload of a built-in op, or of a function in a Python file.

    ``accuracy`` (``precise``, ``fast``), ``reproducible``, ``alignment`` (bytes) and
    ``constant_inputs`` (names) are taken out of the options; the rest is the op's.
    ``RequestError`` for what is unknown, missing or wrong.
    """
    rest = dict(options)
    classes: dict[str, Any] = {name: rest.pop(name) for name in CLASSES if name in rest}
    if "accuracy" in classes:
        classes["accuracy"] = _accuracy(classes["accuracy"])
    if "constant_inputs" in classes:
        given = classes["constant_inputs"]
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise RequestError(
                "workload.constant-input", f"constant_inputs is a list of names, not {given!r}"
            )
        names = cast("Iterable[object]", given)
        classes["constant_inputs"] = tuple(str(name) for name in names)
    path, colon, function = op.rpartition(":")
    if colon and path.endswith(".py"):
        from tfsearch.ir.hir.load import load_traced

        return load_traced(path, function, rest, **classes)
    from tfsearch.ir.hir.builtins import build_workload

    return build_workload(op, rest, **classes)


def _accuracy(value: object) -> Accuracy:
    try:
        return Accuracy(value)
    except ValueError:
        known = ", ".join(item.value for item in Accuracy)
        raise RequestError(
            "workload.accuracy", f"unknown accuracy class {value!r}; known: {known}"
        ) from None
