"""Programs from a user's Python file: ``model.py:ffn_up``."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.core.keys import digest_bytes
from tfsearch.core.records import NUMPY_ALIGNMENT, Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.text import parse_type
from tfsearch.ir.hir.trace import trace
from tfsearch.ir.hir.types import Range, TensorType
from tfsearch.ir.workload import OptionValue, Workload, parse_dimension

_DTYPES = {d.value: d for d in DType if d is not DType.BOOL}
_RESERVED = {*_DTYPES, "strides", "col"}


def load_traced(
    path: str | Path,
    function: str,
    options: Mapping[str, str | int | bool],
    *,
    accuracy: Accuracy = Accuracy.PRECISE,
    reproducible: bool = True,
    alignment: int = NUMPY_ALIGNMENT,
    constant_inputs: tuple[str, ...] = (),
) -> Workload:
    """The workload of a function in a Python file, traced.

    Its tensor parameters are annotated in the text syntax, ``x: "f32[m, 4096]"``; the named
    dimensions (and named element types, ``"dtype[m, 4096]"``) come from ``options``. Parameters
    with a default and no such annotation keep their default. The file's standard output goes
    to standard error. Raises ``RequestError``: ``program.no-file``, ``program.import-failed``,
    ``program.no-function``, ``program.annotation``, ``program.missing-option``,
    ``program.unknown-option``, ``program.trace-failed``, or what tracing and workloads raise.
    """
    file = Path(path)
    fn = _function(_module(file), file, function)
    where = f"{file.name}:{function}"
    inputs = _input_types(fn, where, options)
    with _user_code("program.trace-failed", f"tracing {where} failed"):
        program = trace(fn, inputs, function)
    labels = {name: _label(value) for name, value in options.items()}
    return Workload(program, where, labels, accuracy, reproducible, alignment, constant_inputs)


def _label(value: str | int | bool) -> OptionValue:
    """An option as people see it: sizes are numbers whoever gave them."""
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() else text


@contextlib.contextmanager
def _user_code(code: str, what: str) -> Generator[None]:
    """Run a user's code: what it raises becomes one line with the place in the user's file."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except RequestError:
        raise
    except (Exception, SystemExit) as error:
        raise RequestError(code, f"{what}: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return text
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = f" (line {last.tb_lineno} of {last.tb_frame.f_code.co_filename})" if last else ""
    return text + place


def _module(file: Path) -> ModuleType:
    if not file.is_file():
        raise RequestError("program.no-file", f"{file} is not a file")
    name = f"_tfsearch_program_{digest_bytes(str(file.resolve()).encode())[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise RequestError("program.import-failed", f"{file} is not a Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        with _user_code("program.import-failed", f"importing {file} failed"):
            spec.loader.exec_module(module)
    except RequestError:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


def _function(module: ModuleType, file: Path, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        known = [
            n
            for n, v in vars(module).items()
            if inspect.isfunction(v) and v.__module__ == module.__name__
        ]
        raise RequestError(
            "program.no-function",
            f"{file} has no function {name!r}; it has {', '.join(known) or 'none'}",
        )
    return found


def _input_types(
    fn: Callable[..., Any], where: str, options: Mapping[str, str | int | bool]
) -> dict[str, TensorType]:
    texts: dict[str, str] = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        annotation: object = parameter.annotation
        if isinstance(annotation, str) and "[" in annotation:
            texts[name] = _unquoted(annotation)
        elif parameter.default is inspect.Parameter.empty:
            raise RequestError(
                "program.annotation",
                f'{where}: parameter {name!r} needs an annotation such as "f32[m, 4096]"',
            )
    used = {n for t in texts.values() for n in re.findall(r"[A-Za-z_]\w*", t)} - _RESERVED
    for name in options:
        if name not in used:
            raise RequestError(
                "program.unknown-option",
                f"{where} has no option {name!r}; its options: {', '.join(sorted(used)) or 'none'}",
            )
    dims: dict[str, int | Range] = {}
    dtypes: dict[str, DType] = {}
    for name, value in options.items():
        if str(value) in _DTYPES:
            dtypes[name] = _DTYPES[str(value)]
        else:
            dims[name] = parse_dimension(name, value)
    return {n: _parsed(t, n, where, dims, dtypes) for n, t in texts.items()}


def _parsed(
    text: str,
    name: str,
    where: str,
    dims: Mapping[str, int | Range],
    dtypes: Mapping[str, DType],
) -> TensorType:
    for wanted in re.findall(r"[A-Za-z_]\w*(?!\w*\s*:\s*\d)", text):
        if wanted not in _RESERVED and wanted not in dims and wanted not in dtypes:
            raise RequestError(
                "program.missing-option",
                f"{where}: parameter {name!r} ({text}) needs {wanted}: give {wanted}=…",
            )
    try:
        return parse_type(text, dims, dtypes)
    except RequestError as error:
        raise RequestError(
            "program.annotation", f"{where}: annotation {text!r} of {name!r}: {error.message}"
        ) from None


def _unquoted(text: str) -> str:
    """The text of an annotation that postponed evaluation has quoted once more."""
    return str(ast.literal_eval(text)) if text[:1] in "\"'" else text
