"""Workloads as every front end takes them: a built-in op, ``file.py:function``, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Accuracy
from tfsearch.ir.workload import Workload

if TYPE_CHECKING:
    from tfsearch.ir.hir.load import Traceable

Op = str | Callable[..., Any]
"""What names a program: a built-in op, ``file.py:function``, or a Python function to trace."""

CLASSES = ("accuracy", "reproducible", "alignment", "constant_inputs", "strides")
"""Options of every workload, next to those of its op."""


def traceable(op: Op | Traceable) -> Traceable | None:
    """The function that is to be traced; None for the name of a built-in op.

    Raises ``RequestError`` for a file or a function that is not there.
    """
    from tfsearch.ir.hir.load import Traceable, function_in_file, traced_function

    if isinstance(op, Traceable):
        return op
    if not isinstance(op, str):
        if not callable(op):
            raise RequestError(
                "workload.unknown-op",
                f"an op is a name, file.py:function, or a function, not {op!r}",
            )
        return traced_function(op)
    path, colon, function = op.rpartition(":")
    return function_in_file(path, function) if colon and path.endswith(".py") else None


def named_workload(op: Op | Traceable, options: Mapping[str, Any]) -> Workload:
    """The workload of a built-in op, of a function in a Python file, or of a function.

    ``accuracy`` (``precise``, ``fast``), ``reproducible``, ``alignment`` (bytes),
    ``constant_inputs`` (names) and ``strides`` (by input, in elements, or ``"col"``) are taken
    out of the options; the rest is the op's. ``RequestError`` for what is unknown, missing or
    wrong.
    """
    rest = dict(options)
    classes: dict[str, Any] = {name: rest.pop(name) for name in CLASSES if name in rest}
    strides = classes.pop("strides", {})
    if not isinstance(strides, Mapping):
        raise RequestError(
            "workload.strides", f"strides are by input, such as {{'a': (520, 1)}}, not {strides!r}"
        )
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
    program = traceable(op)
    if program is not None:
        workload = program.workload(rest, **classes)
    else:
        from tfsearch.ir.hir.builtins import build_workload

        workload = build_workload(str(op), rest, **classes)
    return workload.with_strides(cast("Mapping[str, Any]", strides))


def _accuracy(value: object) -> Accuracy:
    try:
        return Accuracy(value)
    except ValueError:
        known = ", ".join(item.value for item in Accuracy)
        raise RequestError(
            "workload.accuracy", f"unknown accuracy class {value!r}; known: {known}"
        ) from None
