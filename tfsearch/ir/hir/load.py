"""Programs that are a user's Python functions: as objects, or in a file (``model.py:ffn_up``)."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.core.keys import digest_bytes
from tfsearch.core.records import NUMPY_ALIGNMENT, Accuracy
from tfsearch.ir.dtypes import DTYPE_NAMES, DType
from tfsearch.ir.hir.text import parse_type
from tfsearch.ir.hir.trace import trace
from tfsearch.ir.hir.types import Range, TensorType
from tfsearch.ir.workload import OptionValue, Workload, parse_dimension

_PACKAGE = str(Path(__file__).parents[2])
_RESERVED = {*DTYPE_NAMES, "strides", "col"}
_TYPE = re.compile(r"\s*(\w+)\s*\[([^\];]*)(?:;[^\]]*)?\]\s*(?::\s*col)?\s*")


@dataclass(frozen=True)
class InputShape:
    """What an annotation says of an array: the texts of its element type and of its dimensions."""

    name: str
    dtype: str
    dims: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Traceable:
    """A function to be traced; ``where`` is what messages and records call it.

    Its tensor parameters are annotated in the text syntax, ``x: "f32[m, 4096]"``. Parameters with
    a default and no such annotation keep their default. Names in annotations, of dimensions and
    of element types (``"dtype[m, 4096]"``), are the program's options.
    """

    fn: Callable[..., Any]
    where: str

    @cached_property
    def annotations(self) -> dict[str, str]:
        """The annotation of every tensor parameter, in order.

        ``RequestError`` (``program.annotation``) for a parameter that has none, nor a default.
        """
        try:
            parameters = inspect.signature(self.fn).parameters
        except (TypeError, ValueError) as error:
            raise RequestError(
                "program.annotation", f"{self.where}: its parameters are not known: {error}"
            ) from None
        texts: dict[str, str] = {}
        for name, parameter in parameters.items():
            annotation: object = parameter.annotation
            if isinstance(annotation, str) and "[" in annotation:
                texts[name] = _unquoted(annotation)
            elif parameter.default is inspect.Parameter.empty:
                raise RequestError(
                    "program.annotation",
                    f'{self.where}: parameter {name!r} needs an annotation such as "f32[m, 4096]"',
                )
        return texts

    @property
    def shapes(self) -> list[InputShape]:
        """The annotations taken apart; ``RequestError`` (``program.annotation``) for others."""
        found: list[InputShape] = []
        for name, text in self.annotations.items():
            match = _TYPE.fullmatch(text)
            if match is None:
                raise RequestError(
                    "program.annotation",
                    f'{self.where}: annotation {text!r} of {name!r} is not one such as "f32[m, 8]"',
                )
            dims = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
            found.append(InputShape(name, match[1], tuple(dims)))
        return found

    def workload(
        self,
        options: Mapping[str, Any],
        *,
        accuracy: Accuracy = Accuracy.PRECISE,
        reproducible: bool = True,
        alignment: int = NUMPY_ALIGNMENT,
        constant_inputs: tuple[str, ...] = (),
    ) -> Workload:
        """The function traced with these options.

        What it prints goes to standard error. Raises ``RequestError``: ``program.annotation``,
        ``program.missing-option``, ``program.unknown-option``, ``program.trace-failed``, or what
        tracing and workloads raise.
        """
        given = {name: _plain(value) for name, value in options.items()}
        inputs = _input_types(self.annotations, self.where, given)
        name = getattr(self.fn, "__name__", "program")
        with _user_code("program.trace-failed", f"tracing {self.where} failed"):
            program = trace(self.fn, inputs, name)
        labels = {name: _label(value) for name, value in given.items()}
        return Workload(
            program, self.where, labels, accuracy, reproducible, alignment, constant_inputs
        )


def traced_function(fn: Callable[..., Any]) -> Traceable:
    """A function object as a program; its label names its file where it has one."""
    name = getattr(fn, "__name__", type(fn).__name__)
    code = getattr(fn, "__code__", None)
    file = getattr(code, "co_filename", "")
    return Traceable(fn, f"{Path(file).name}:{name}" if file.endswith(".py") else name)


def function_in_file(path: str | Path, function: str) -> Traceable:
    """A function of a Python file, which is imported.

    Its standard output goes to standard error. Raises ``RequestError``: ``program.no-file``,
    ``program.import-failed``, ``program.no-function``.
    """
    file = Path(path)
    return Traceable(_function(_module(file), file, function), f"{file.name}:{function}")


def load_traced(
    path: str | Path, function: str, options: Mapping[str, Any], **classes: Any
) -> Workload:
    """The workload of a function in a Python file, traced: see :class:`Traceable`."""
    return function_in_file(path, function).workload(options, **classes)


def _plain(value: Any) -> str | int | bool:
    """An option as text or number: an element type by its canonical name."""
    if isinstance(value, (bool, int)):
        return value
    try:
        return DType.named(value).value
    except ValueError:
        return str(value)


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
    except RequestError as error:
        place = _place(error, _PACKAGE)
        if not place:
            raise
        raise RequestError(error.code, error.message + place) from error
    except (Exception, SystemExit) as error:
        raise RequestError(code, f"{what}: {brief_error(error)}") from error


def brief_error(error: BaseException) -> str:
    """An error of a user's code in one line, with the place in the user's file."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return text
    return text + _place(error)


def _place(error: BaseException, outside: str = "") -> str:
    """The innermost place of an error; of those outside a folder where one is given."""
    found = [
        (step.tb_frame.f_code.co_filename, step.tb_lineno) for step in _steps(error.__traceback__)
    ]
    kept = [
        at for at in found if not outside or not at[0].startswith((outside, contextlib.__file__))
    ]
    return f" (line {kept[-1][1]} of {kept[-1][0]})" if kept else ""


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


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
    texts: Mapping[str, str], where: str, options: Mapping[str, str | int | bool]
) -> dict[str, TensorType]:
    used = {n for t in texts.values() for n in re.findall(r"[A-Za-z_]\w*", t)} - _RESERVED
    for name in options:
        if name not in used:
            raise RequestError(
                "program.unknown-option",
                f"{where} has no option {name!r}; its options: {', '.join(sorted(used)) or 'none'}",
            )
    dims: dict[str, int | Range] = {}
    dtypes: dict[str, DType] = dict(DTYPE_NAMES)
    for name, value in options.items():
        if str(value) in DTYPE_NAMES:
            dtypes[name] = DTYPE_NAMES[str(value)]
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
