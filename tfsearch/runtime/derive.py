"""From arrays to the workload that they ask for: dimensions, types, layouts, alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DATA_TYPES, DTYPE_NAMES, DType
from tfsearch.ir.hir.builtins import BUILTINS, Builtin, OptionKind, parse_option, unknown_op
from tfsearch.ir.hir.load import InputShape, Traceable
from tfsearch.ir.hir.named import CLASSES, Op, named_workload, traceable
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.types import TensorType, is_name
from tfsearch.ir.workload import Workload
from tfsearch.runtime.arrays import Array, element_strides

_MARKERS = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117, 1_000_121)
"""Sizes that stand for dimensions while a signature is read off; primes, so that no other size of
a signature equals one of them."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Derived:
    """A workload, and which of the arrays are handed over with their last two axes swapped."""

    workload: Workload
    swapped: tuple[bool, ...]


def derive(op: Op | Traceable, arrays: Sequence[Array], options: Options) -> Derived:
    """The workload that these arrays ask for; ``options`` are the op's and the classes.

    An input stored transposed is asked for through the op's ``trans_`` option where it has one,
    other layouts as strides. Names in the annotations of a function get the sizes and types of
    the arrays. ``RequestError`` when the arrays do not fit the op or one another.
    """
    program = traceable(op)
    if program is not None:
        return _traced(program, arrays, options)
    return _builtin(str(op), arrays, options)


def _traced(program: Traceable, arrays: Sequence[Array], options: Options) -> Derived:
    """See :func:`derive`: a function, whose own options may still be given."""
    shapes = program.shapes
    _count(program.where, [shape.name for shape in shapes], arrays)
    found: dict[str, Any] = {}
    for shape, array in zip(shapes, arrays, strict=True):
        if shape.dtype not in DTYPE_NAMES and shape.dtype not in options:
            found.setdefault(shape.dtype, _dtype(program.where, array).value)
        _read_off(shape, array, options, found)
    workload = named_workload(program, {**options, **found})
    _types(program.where, workload.program, arrays)
    return Derived(_with_strides(workload, arrays), (False,) * len(arrays))


def _read_off(shape: InputShape, array: Array, options: Options, found: dict[str, Any]) -> None:
    """Add the sizes of one array under the names of its dimensions to ``found``."""
    has = f"argument {shape.name!r} must have shape [{','.join(shape.dims)}]"
    if array.ndim != len(shape.dims):
        raise RequestError("array.shape", f"{has}, it has {list(array.shape)}")
    for text, size in zip(shape.dims, array.shape, strict=True):
        if size < 1:
            raise RequestError(
                "array.shape", f"argument {shape.name!r} has an empty shape {list(array.shape)}"
            )
        if not text.isdecimal() and not is_name(text):
            continue  # a range, which the annotation spells out
        known = text if text.isdecimal() else str(options.get(text, found.get(text, size)))
        if not known.isdecimal():
            continue  # an option that is a range
        if int(known) != size:
            which = "" if text.isdecimal() else f" with {text} = {known}"
            raise RequestError("array.shape", f"{has}{which}, it has {list(array.shape)}")
        if is_name(text) and text not in options:
            found[text] = size


def _builtin(op: str, arrays: Sequence[Array], options: Options) -> Derived:
    """See :func:`derive`: a built-in op."""
    if op not in BUILTINS:
        raise unknown_op(op)
    builtin = BUILTINS[op]
    known = {option.name: option for option in builtin.options}
    given = {name: value for name, value in options.items() if name not in CLASSES}
    for name in given:
        if name not in known or known[name].kind is OptionKind.DIM or name == "dtype":
            own = [o.name for o in builtin.options if o.kind is not OptionKind.DIM]
            raise RequestError(
                "workload.unknown-option",
                f"{op} on arrays has no option {name!r}; its options: {', '.join(own[1:])}",
            )
    if not arrays:
        raise RequestError("array.count", f"{op} takes arrays, none were given")
    dtype = _dtype(op, arrays[0])
    dims, program = _dims(builtin, arrays, given, dtype)
    swapped = tuple(
        f"trans_{item.name}" in known and _is_transposed(item.name, array)
        for item, array in zip(program.inputs, arrays, strict=True)
    )
    turned = [a.swapaxes(-1, -2) if s else a for a, s in zip(arrays, swapped, strict=True)]
    final = dict(given)
    for item, swap in zip(program.inputs, swapped, strict=True):
        if swap:
            option = known[f"trans_{item.name}"]
            final[option.name] = not parse_option(op, option, final.get(option.name, False))
    classes = {name: value for name, value in options.items() if name in CLASSES}
    named = {name: value for name, value in final.items() if not _is_off(builtin, name, value)}
    workload = named_workload(op, {**dims, "dtype": dtype.value, **named, **classes})
    _types(op, workload.program, turned)
    return Derived(_with_strides(workload, turned), swapped)


def _is_off(builtin: Builtin, name: str, value: Any) -> bool:
    """Whether an option says what leaving it out says too."""
    option = next(o for o in builtin.options if o.name == name)
    return value is None or (
        option.kind is OptionKind.BOOL and not parse_option(builtin.name, option, value)
    )


def _dtype(op: str, array: Array) -> DType:
    try:
        found = DType.of_numpy(array.dtype)
    except KeyError:
        found = DType.BOOL
    if found is DType.BOOL:
        names = ", ".join(d.value for d in DATA_TYPES if d is not DType.BOOL)
        raise RequestError("array.dtype", f"{op} has no kernels for {array.dtype}; it has {names}")
    return found


def _dims(
    builtin: Builtin, arrays: Sequence[Array], given: Options, dtype: DType
) -> tuple[dict[str, int], Program]:
    """Sizes of the op's dimensions, read off the arrays' shapes, and the program's signature."""
    dims = [o for o in builtin.options if o.kind is OptionKind.DIM]
    required = [o.name for o in dims if o.required]
    attempts = [required]
    if len(required) != len(dims):
        attempts.append([o.name for o in dims])
    first: RequestError | None = None
    for names in attempts:
        markers = dict(zip(names, _MARKERS, strict=False))
        program = _signature(builtin, markers, given, dtype)
        try:
            return _unify(builtin.name, program, markers, arrays), program
        except RequestError as error:
            ranks = [array.ndim for array in arrays] == [i.type.rank for i in program.inputs]
            first = error if first is None or ranks else first
    assert first is not None
    raise first


def _signature(
    builtin: Builtin, markers: Mapping[str, int], given: Options, dtype: DType
) -> Program:
    """The program with a marker for every dimension (not all programs build with open ones)."""
    parsed: dict[str, Any] = dict(markers)
    for option in builtin.options:
        value = given.get(option.name)
        if value is not None:
            parsed[option.name] = parse_option(builtin.name, option, value)
    return builtin.build(dtype=dtype, **parsed)


def _count(op: str, names: Sequence[str], arrays: Sequence[Array]) -> None:
    if len(arrays) != len(names):
        raise RequestError(
            "array.count",
            f"{op} takes {len(names)} arrays ({', '.join(names)}), {len(arrays)} were given",
        )


def _unify(
    op: str, program: Program, markers: Mapping[str, int], arrays: Sequence[Array]
) -> dict[str, int]:
    _count(op, program.input_names, arrays)
    named = {marker: name for name, marker in markers.items()}
    dims: dict[str, int] = {}
    for item, array in zip(program.inputs, arrays, strict=True):
        wanted = ",".join(named.get(size, str(size)) for size in item.type.sizes)
        if array.ndim != item.type.rank:
            raise RequestError(
                "array.shape",
                f"argument {item.name!r} must have shape [{wanted}], it has {list(array.shape)}",
            )
        for marker, size in zip(item.type.sizes, array.shape, strict=True):
            if size < 1:
                raise RequestError(
                    "array.shape", f"argument {item.name!r} has an empty shape {list(array.shape)}"
                )
            name = named.get(marker)
            expected = marker if name is None else dims.setdefault(name, size)
            if size != expected:
                known = str(expected) if name is None else f"{name} = {expected}"
                raise RequestError(
                    "array.shape",
                    f"argument {item.name!r} must have shape [{wanted}] with {known}, it has "
                    f"{list(array.shape)}",
                )
    return dims


def _is_transposed(name: str, array: Array) -> bool:
    """Whether the last two axes are stored the other way round, and densely so along the rows."""
    if array.ndim < 2:
        return False
    strides = element_strides(name, array)
    return strides[-1] != 1 and strides[-2] == 1 and strides[-1] >= array.shape[-2]


def _types(op: str, program: Program, arrays: Sequence[Array]) -> None:
    for item, array in zip(program.inputs, arrays, strict=True):
        if array.dtype != item.type.dtype.numpy:
            raise RequestError(
                "array.dtype",
                f"argument {item.name!r} of {op} must be {item.type.dtype.value}, it is "
                f"{array.dtype}",
            )


def _with_strides(workload: Workload, arrays: Sequence[Array]) -> Workload:
    """The workload with the arrays' own strides as the layouts of its inputs."""
    types: dict[str, TensorType] = {}
    for item, array in zip(workload.program.inputs, arrays, strict=True):
        kind = item.type
        if kind.shape == array.shape:
            strides = element_strides(item.name, array)
            types[item.name] = TensorType(kind.dtype, kind.shape, strides)
    return workload.with_inputs(types)
