"""The built-in workloads, as ordinary traced functions, and the registry of their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.core.records import NUMPY_ALIGNMENT, Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.trace import Tensor, as_dtype, trace
from tfsearch.ir.hir.types import Dim, TensorType
from tfsearch.ir.workload import OptionValue, Workload, parse_dimension

EPILOGUES = ("bias", "relu", "gelu", "silu", "tanh", "sigmoid", "residual", "scale")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lang.relu,
    "gelu": lang.gelu,
    "silu": lang.silu,
    "tanh": lang.tanh,
    "sigmoid": lang.sigmoid,
}


def gemm(
    m: Dim,
    n: Dim,
    k: Dim,
    dtype: DType,
    *,
    out_dtype: DType | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    batch: Dim | None = None,
    epilogue: str | None = None,
) -> Program:
    """c[m,n] = epilogue(a[m,k] · b[k,n]), each with a leading ``batch`` dimension if given.

    ``trans_a`` stores a as [k,m], ``trans_b`` stores b as [n,k]. f16 and bf16 accumulate in f32, i8
    in i32. ``epilogue`` is a ``+``-joined list of :data:`EPILOGUES`, applied in the order
    written, in the accumulator's type (f32 for i8): ``bias[n]`` (of ``dtype``; f32 for i8),
    ``residual`` (like c) and ``scale[1]`` (of the computing type) are further inputs.
    """
    lead = () if batch is None else (batch,)
    out = out_dtype or (DType.I32 if dtype is DType.I8 else dtype)
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    steps = parse_epilogue(epilogue)
    extra = {
        "bias": TensorType(DType.F32 if dtype.is_integer else dtype, (n,)),
        "residual": TensorType(out, (*lead, m, n)),
        "scale": TensorType(wide, (1,)),
    }
    inputs = {
        "a": TensorType(dtype, (*lead, k, m) if trans_a else (*lead, m, k)),
        "b": TensorType(dtype, (*lead, n, k) if trans_b else (*lead, k, n)),
        **{step: extra[step] for step in steps if step in extra},
    }

    def body(a: Tensor, b: Tensor, **more: Tensor) -> Mapping[str, Tensor]:
        acc = DType.I32 if dtype is DType.I8 else wide
        c = lang.matmul(a, b, trans_a, trans_b, acc=acc, out_dtype=wide if steps else acc)
        for step in steps:
            c = _apply_step(step, c, more)
        return {"c": c.cast(out)}

    return trace(body, inputs, "gemm")


def _apply_step(step: str, c: Tensor, more: Mapping[str, Tensor]) -> Tensor:
    if step in _ACTIVATIONS:
        return _ACTIVATIONS[step](c)
    operand = more[step].cast(c.dtype)
    return c * operand.reshape(()) if step == "scale" else c + operand


def parse_epilogue(text: str | None) -> tuple[str, ...]:
    """The steps of an epilogue; ``RequestError`` for an unknown or repeated one."""
    steps = tuple(s.strip() for s in text.split("+")) if text else ()
    for step in steps:
        if step not in EPILOGUES:
            raise RequestError(
                "workload.epilogue",
                f"epilogue step {step!r} is unknown; known: {', '.join(EPILOGUES)}, joined by +",
            )
        if steps.count(step) > 1:
            raise RequestError("workload.epilogue", f"epilogue step {step!r} is given twice")
    return steps


def softmax(rows: Dim, cols: Dim, dtype: DType) -> Program:
    """y[rows,cols] = softmax of x[rows,cols] along the columns."""

    def body(x: Tensor) -> Mapping[str, Tensor]:
        return {"y": lang.softmax(x)}

    return trace(body, {"x": TensorType(dtype, (rows, cols))}, "softmax")


def rms_norm(rows: Dim, cols: Dim, dtype: DType) -> Program:
    """y[rows,cols] = RMSNorm of x[rows,cols] along the columns, times weight[cols]; eps 1e-6."""
    inputs = {"x": TensorType(dtype, (rows, cols)), "weight": TensorType(dtype, (cols,))}

    def body(x: Tensor, weight: Tensor) -> Mapping[str, Tensor]:
        return {"y": lang.rms_norm(x, weight)}

    return trace(body, inputs, "rms_norm")


def layer_norm(rows: Dim, cols: Dim, dtype: DType) -> Program:
    """y[rows,cols] = LayerNorm of x along the columns, times weight[cols], plus bias[cols];
    eps 1e-5.
    """
    inputs = {
        "x": TensorType(dtype, (rows, cols)),
        "weight": TensorType(dtype, (cols,)),
        "bias": TensorType(dtype, (cols,)),
    }

    def body(x: Tensor, weight: Tensor, bias: Tensor) -> Mapping[str, Tensor]:
        return {"y": lang.layer_norm(x, weight, bias)}

    return trace(body, inputs, "layer_norm")


class OptionKind(Enum):
    """What an option of a built-in workload holds."""

    DIM = "dimension"
    DTYPE = "dtype"
    BOOL = "boolean"
    EPILOGUE = "epilogue"


@dataclass(frozen=True)
class Option:
    """An option of a built-in workload; ``required`` ones have no default."""

    name: str
    kind: OptionKind
    help: str
    required: bool = True


@dataclass(frozen=True)
class Builtin:
    """A built-in workload: its options and the function that makes its program.

    ``build`` takes parsed options by name (dimensions, :class:`DType`, booleans, strings).
    """

    name: str
    help: str
    options: tuple[Option, ...]
    build: Callable[..., Program]


_ROWWISE = (
    Option("rows", OptionKind.DIM, "number of rows"),
    Option("cols", OptionKind.DIM, "number of columns"),
    Option("dtype", OptionKind.DTYPE, "element type"),
)
BUILTINS: dict[str, Builtin] = {
    b.name: b
    for b in (
        Builtin(
            "gemm",
            "c[m,n] = a[m,k] · b[k,n]",
            (
                Option("m", OptionKind.DIM, "rows of c"),
                Option("n", OptionKind.DIM, "columns of c"),
                Option("k", OptionKind.DIM, "length of the sums"),
                Option("dtype", OptionKind.DTYPE, "element type of a and b"),
                Option("out_dtype", OptionKind.DTYPE, "element type of c", required=False),
                Option("trans_a", OptionKind.BOOL, "a is stored [k,m]", required=False),
                Option("trans_b", OptionKind.BOOL, "b is stored [n,k]", required=False),
                Option("batch", OptionKind.DIM, "leading batch dimension", required=False),
                Option(
                    "epilogue",
                    OptionKind.EPILOGUE,
                    f"+-joined list of {', '.join(EPILOGUES)}",
                    required=False,
                ),
            ),
            gemm,
        ),
        Builtin("softmax", "softmax along the columns of x[rows,cols]", _ROWWISE, softmax),
        Builtin("rms_norm", "RMSNorm along the columns of x[rows,cols]", _ROWWISE, rms_norm),
        Builtin("layer_norm", "LayerNorm along the columns of x[rows,cols]", _ROWWISE, layer_norm),
    )
}


def unknown_op(op: object) -> RequestError:
    """The error for what is no built-in op; the name of a file gets a word on how to use it."""
    hint, ending = "", PurePath(str(op)).suffix
    if ending == ".py":
        hint = f"; a function in it is {op}:NAME"
    elif ending:
        hint = "; your own kernel needs a space file (--space FILE, space=FILE)"
    return RequestError(
        "workload.unknown-op", f"unknown op {op!r}; known ops: {', '.join(BUILTINS)}{hint}"
    )


def build_workload(
    op: str,
    options: Mapping[str, str | int | bool],
    *,
    accuracy: Accuracy = Accuracy.PRECISE,
    reproducible: bool = True,
    alignment: int = NUMPY_ALIGNMENT,
    constant_inputs: tuple[str, ...] = (),
) -> Workload:
    """The workload of a built-in op from its options, as the command line or Python gives them.

    Raises ``RequestError``: ``workload.unknown-op``, ``.unknown-option``, ``.missing-option``,
    ``.dimension``, ``.dtype``, ``.boolean``, ``.epilogue``, ``.too-large``.
    """
    if op not in BUILTINS:
        raise unknown_op(op)
    builtin = BUILTINS[op]
    known = {o.name: o for o in builtin.options}
    for name in options:
        if name not in known:
            raise RequestError(
                "workload.unknown-option",
                f"{op} has no option {name!r}; its options: {', '.join(known)}",
            )
    parsed: dict[str, Any] = {}
    for option in builtin.options:
        if option.name in options:
            parsed[option.name] = parse_option(op, option, options[option.name])
        elif option.required:
            raise RequestError(
                "workload.missing-option",
                f"{op} needs {option.name} ({option.help}): give {option.name}=…",
            )
    return Workload(
        program=builtin.build(**parsed),
        op=op,
        options={name: _label(value, options[name]) for name, value in parsed.items()},
        accuracy=accuracy,
        reproducible=reproducible,
        alignment=alignment,
        constant_inputs=constant_inputs,
    )


def parse_option(op: str, option: Option, value: str | int | bool) -> Any:
    """One option's value as ``build`` takes it; ``RequestError`` for a wrong one."""
    match option.kind:
        case OptionKind.DIM:
            return parse_dimension(option.name, value)
        case OptionKind.DTYPE:
            try:
                return as_dtype(value)
            except RequestError as error:
                raise RequestError("workload.dtype", f"{op}: {error.message}") from None
        case OptionKind.BOOL:
            words = {"true": True, "false": False, "1": True, "0": False}
            found = words.get(str(value).lower())
            if found is None:
                raise RequestError("workload.boolean", f"{option.name}={value}: need true or false")
            return found
        case OptionKind.EPILOGUE:
            return "+".join(parse_epilogue(str(value)))


def _label(parsed: Any, given: str | int | bool) -> OptionValue:
    if isinstance(parsed, bool):
        return "true" if parsed else "false"
    if isinstance(parsed, DType):
        return parsed.value
    return parsed if isinstance(parsed, (int, str)) else str(given)
