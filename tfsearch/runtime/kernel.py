"""Kernels to call: checked calls, prebound calls, prepared constant inputs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec
from tfsearch.core.records import ServedBy
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.text import parse_program
from tfsearch.ir.hir.types import TensorType
from tfsearch.measure.protocols import Loaded
from tfsearch.runtime.arrays import (
    Array,
    Checked,
    Overwritten,
    address,
    as_host,
    check_apart,
    empty,
    lasting,
    like,
)
from tfsearch.runtime.device import DeviceCaller, DeviceLoaded
from tfsearch.runtime.kernelrecord import KernelRecord
from tfsearch.runtime.native import NativeEntry, NativeLoaded, call_copying, failed

Out = Any
"""An output array, or a tuple of them for programs with several outputs."""

_PREPARED_KEPT = 8


class Kernel:
    """A verified kernel of one workload; several threads may call it at once.

    ``served_by`` says which step of the run-time order found it, ``record`` what it is.
    Call it with the program's inputs in order. Outputs are new arrays aligned to 64 bytes, of
    the kind of the first input, unless ``out`` holds arrays to write to.
    """

    def __init__(self, record: KernelRecord, loaded: Loaded, served_by: ServedBy) -> None:
        self.record = record
        self.served_by = served_by
        self.launch = loaded.launch
        self._loaded = loaded
        if record.workload.program.startswith("{"):
            self._inputs, self._outputs = _own_checks(loaded)
        else:
            program = parse_program(record.workload.program)
            self._inputs = _input_checks(program, loaded)
            self._outputs = _output_checks(program, loaded)
        self._first = self._inputs[0].name if self._inputs else ""
        self._native = isinstance(loaded, NativeLoaded)
        self._device: DeviceCaller | None = None
        if isinstance(loaded, DeviceLoaded):
            self._device = loaded.caller(
                [check.spec for check in self._inputs], [check.spec for check in self._outputs]
            )
        self._prepares: tuple[_Prepare, ...] = ()
        if isinstance(loaded, NativeLoaded):
            self._main = NativeEntry(loaded, loaded.launch.main)
            self._prepares = tuple(_Prepare(loaded, spec) for spec in loaded.launch.prepares)
            self._slots = _slots(loaded.launch.main, self._inputs, self._outputs)
            self._order = [slot for slot in self._slots if isinstance(slot, int)]

    def __repr__(self) -> str:
        work = self.record.workload
        dims = " ".join(f"{name}={value}" for name, value in work.dims.items())
        return f"<Kernel {work.op} {dims} {work.dtype} served by {self.served_by.value}>"

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in call order."""
        return tuple(check.name for check in self._inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of ``out`` and of the result."""
        return tuple(check.name for check in self._outputs)

    def __call__(self, *arrays: Any, out: Out = None) -> Any:
        """One call.

        ``RequestError`` (``array.*``) for arrays that do not fit, ``UnavailableError``
        (``kernel.failed``) when the device fails.
        """
        if self._device is not None:
            return self._device(arrays, out)
        hosts = self._hosts(arrays)
        places = [check.address(a) for check, a in zip(self._inputs, hosts, strict=True)]
        if out is None:
            results = self._new_outputs()
            made = (
                results if type(arrays[0]) is np.ndarray else [like(arrays[0], a) for a in results]
            )
            out = made[0] if len(made) == 1 else tuple(made)
            out_places = [address(a) for a in results]
        else:
            results = self._given_outputs(out)
            out_places = self._check_outputs(results, hosts, places)
        if not self._native:
            call_copying(self._loaded, self._named(hosts), self._written(hosts, results))
        elif self._prepares:
            self._main.call(self._resolved(hosts, places, out_places)[0])
        else:
            every = places + out_places
            self._main.call([every[i] for i in self._order])
        return out

    def bind(self, *arrays: Any, out: Out = None) -> Bound | Callable[[], Any]:
        """Everything about a call done ahead: checks, outputs, addresses, prepared inputs.

        The arrays are held and read anew at every call; constant inputs are read now. Errors as
        in a call. On a device, for the stream that is current now.
        """
        if self._device is not None:
            return self._device.bind(arrays, out)
        hosts = self._hosts(arrays)
        places = [check.address(a) for check, a in zip(self._inputs, hosts, strict=True)]
        given = out is not None
        results = self._given_outputs(out) if given else self._new_outputs()
        out_places = self._check_outputs(results, hosts, places)
        made = _alike(arrays, results)
        result = out if given else (made[0] if len(made) == 1 else tuple(made))
        if not self._native:
            inputs, outputs = self._named(hosts), self._written(hosts, results)
            return Bound(_CopyingCall(self._loaded, inputs, outputs), None, result, (arrays, hosts))
        resolved, prepared = self._resolved(hosts, places, out_places)
        frame = self._main.frame()
        frame.pointers[: len(resolved)] = resolved
        keep = (arrays, hosts, results, prepared, frame, self)
        return Bound(self._main.function, frame.pointers, result, keep)

    def prepare(self, *arrays: Any, version: object = 0, **named: Any) -> None:
        """Work on constant inputs done ahead of calls, and remembered.

        Takes the constant inputs in order, or by name. A later call that is handed the same NumPy
        arrays, or equal views of them, uses the result. An array whose contents changed needs a
        new ``version``. The results of the last eight arrays are kept, and only while the arrays
        live. Without constant inputs nothing is done.
        """
        names = self.record.workload.constant_inputs
        if len(arrays) > len(names):
            raise RequestError(
                "array.count",
                f"this kernel has {len(names)} constant inputs ({', '.join(names) or 'none'}), "
                f"{len(arrays)} arrays were given to prepare",
            )
        given = {**dict(zip(names, arrays, strict=False)), **named}
        hosts: dict[str, Array] = {}
        for name, value in given.items():
            check = next((c for c in self._inputs if c.name == name), None)
            if check is None or name not in names:
                raise RequestError(
                    "array.name",
                    f"{name!r} is no constant input; this kernel has: {', '.join(names) or 'none'}",
                )
            hosts[name] = as_host(name, value)
            check.address(hosts[name])
        for prepare in self._prepares:
            if prepare.takes(hosts):
                prepare.renew(hosts, version)

    def _hosts(self, arrays: Sequence[Any]) -> list[Array]:
        if len(arrays) != len(self._inputs):
            raise RequestError(
                "array.count",
                f"{self.record.workload.op} takes {len(self._inputs)} arrays "
                f"({', '.join(self.input_names)}), {len(arrays)} were given",
            )
        return [
            a if type(a) is np.ndarray else _host(check, a)
            for check, a in zip(self._inputs, arrays, strict=True)
        ]

    def _new_outputs(self) -> list[Array]:
        return [empty(check.shape, check.dtype) for check in self._outputs]

    def _given_outputs(self, out: Out) -> list[Array]:
        values = list(out) if isinstance(out, (tuple, list)) else [out]
        if len(values) != len(self._outputs):
            raise RequestError(
                "array.count",
                f"{self.record.workload.op} has {len(self._outputs)} outputs "
                f"({', '.join(self.output_names)}), out= holds {len(values)}",
            )
        return [as_host(c.name, v) for c, v in zip(self._outputs, values, strict=True)]

    def _check_outputs(
        self, results: Sequence[Array], hosts: Sequence[Array], places: Sequence[int]
    ) -> list[int]:
        """Addresses of outputs that fit, can be written, and share no memory."""
        found: list[int] = []
        taken = list(zip(self._inputs, places, hosts, strict=True))
        for check, array in zip(self._outputs, results, strict=True):
            place = check.output_address(array)
            end = place + check.span
            for other, start, memory in taken:
                if place < start + other.span and start < end:
                    check_apart(check.name, array, other.name, memory)
            taken.append((check, place, array))
            found.append(place)
        return found

    def _resolved(
        self, hosts: Sequence[Array], places: Sequence[int], out_places: Sequence[int]
    ) -> tuple[list[int], list[Mapping[str, Array]]]:
        """Addresses of the main entry's arguments, and the prepared arrays among them."""
        every = [*places, *out_places]
        named = self._named(hosts)
        prepared: list[Mapping[str, Array]] = [p.buffers(named) for p in self._prepares]
        addresses = [
            every[slot] if isinstance(slot, int) else address(_prepared(slot, prepared))
            for slot in self._slots
        ]
        return addresses, prepared

    def _named(self, hosts: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.input_names, hosts, strict=True))

    def _written(self, hosts: Sequence[Array], results: Sequence[Array]) -> dict[str, Array]:
        """The outputs, and the inputs that are overwritten."""
        found = dict(zip(self.output_names, results, strict=True))
        for check, array in zip(self._inputs, hosts, strict=True):
            if isinstance(check, Overwritten):
                found[check.name] = array
        return found


class Bound:
    """A call with everything done ahead. ``result`` is what every call returns.

    Calls of one ``Bound`` take turns, for they share outputs and workspace; threads that are to
    run at the same time bind their own.
    """

    __slots__ = ("_block", "_function", "_keep", "_lock", "result")

    def __init__(self, function: Callable[[Any], int], block: Any, result: Any, keep: Any) -> None:
        self._function = function
        self._block = block
        self._keep = keep
        self._lock = threading.Lock()
        self.result = result

    def __call__(self) -> Any:
        """Compute the outputs again; ``UnavailableError`` when the device fails."""
        with self._lock:
            code = self._function(self._block)
        if code:
            raise failed("bound", code)
        return self.result


class Fallback:
    """The caller's own function in place of a kernel.

    It is called with the arrays alone; its result is copied to ``out`` where that is given.
    """

    served_by = ServedBy.FALLBACK

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arrays: Any, out: Out = None) -> Any:
        """Call the function."""
        result = self.function(*arrays)
        if out is None:
            return result
        many = isinstance(out, (tuple, list))
        for target, value in zip(out if many else [out], result if many else [result], strict=True):
            target[...] = value
        return out

    def bind(self, *arrays: Any, out: Out = None) -> Callable[[], Any]:
        """The call as a function without arguments."""
        return lambda: self(*arrays, out=out)

    def prepare(self, *arrays: Any, version: object = 0, **named: Any) -> None:
        """Nothing to do."""


class _CopyingCall:
    """A call through the general interface, as a function of nothing."""

    def __init__(
        self, loaded: Loaded, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        self._loaded, self._inputs, self._outputs = loaded, inputs, outputs

    def __call__(self, block: Any) -> int:
        del block
        call_copying(self._loaded, self._inputs, self._outputs)
        return 0


_Identities = tuple[tuple[object, ...], ...]


def _owner(array: Array) -> Array:
    """The array that a view looks into; views come and go, it stays."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _identity(array: Array) -> tuple[object, ...]:
    return id(_owner(array)), address(array), array.shape, array.strides


@dataclass(frozen=True)
class _Known:
    """What was made of arrays, as long as their owners live."""

    owners: tuple[weakref.ref[Array], ...]
    version: object
    made: dict[str, Array]

    def holds(self, arrays: Sequence[Array]) -> bool:
        """Whether it was made of these: an identity may be reused after an owner's end."""
        return all(r() is _owner(a) for r, a in zip(self.owners, arrays, strict=True))


class _Prepare:
    """A prepare entry with the results for the arrays that it saw last."""

    def __init__(self, loaded: NativeLoaded, spec: EntrySpec) -> None:
        self._entry = NativeEntry(loaded, spec)
        self._sources = tuple(a.name for a in spec.arguments if a.io == "in")
        self._checks = {a.name: Checked(a) for a in spec.arguments}
        self._lock = threading.Lock()
        self._known: dict[_Identities, _Known] = {}

    def takes(self, hosts: Mapping[str, Array]) -> bool:
        """Whether all the entry's inputs are among these arrays."""
        return all(name in hosts for name in self._sources)

    def buffers(self, hosts: Mapping[str, Array]) -> dict[str, Array]:
        """What the entry makes of these arrays; made once for each of them."""
        arrays = [hosts[name] for name in self._sources]
        known = self._known.get(tuple(map(_identity, arrays)))
        if known is not None and known.holds(arrays):
            return known.made
        return self.renew(hosts, 0)

    def renew(self, hosts: Mapping[str, Array], version: object) -> dict[str, Array]:
        """Make the results, unless they were made of these arrays at this version."""
        arrays = [hosts[name] for name in self._sources]
        key = tuple(map(_identity, arrays))
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.holds(arrays) and known.version == version:
                return known.made
            made = self._make(hosts)
            self._known.pop(key, None)
            owners = tuple(self._reference(_owner(a), key) for a in arrays)
            self._known[key] = _Known(owners, version, made)
            while len(self._known) > _PREPARED_KEPT:
                del self._known[next(iter(self._known))]
            return made

    def _reference(self, array: Array, key: _Identities) -> weakref.ref[Array]:
        return weakref.ref(array, lambda _: self._known.pop(key, None))

    def _make(self, hosts: Mapping[str, Array]) -> dict[str, Array]:
        made: dict[str, Array] = {}
        places: list[int] = []
        for spec in self._entry.spec.arguments:
            check = self._checks[spec.name]
            if spec.io == "in":
                places.append(check.address(hosts[spec.name]))
            else:
                made[spec.name] = lasting(spec.shape, check.kind.numpy, max(64, spec.alignment))
                places.append(check.address(made[spec.name]))
        self._entry.call(places)
        return made


def _alike(arrays: Sequence[Any], results: list[Array]) -> list[Any]:
    """Results as the kind of object that the first argument is."""
    if not arrays or type(arrays[0]) is np.ndarray:
        return results
    return [like(arrays[0], a) for a in results]


def _host(check: Checked, value: object) -> Array:
    """The argument as an array; a Python number for a scalar in the scalar's type."""
    if not check.shape and isinstance(value, (int, float)):
        return np.array(value, check.dtype)
    return as_host(check.name, value)


_Slot = int | str


def _slots(
    main: EntrySpec, inputs: Sequence[Checked], outputs: Sequence[Checked]
) -> tuple[_Slot, ...]:
    """For every argument of the main entry its position among inputs and outputs.

    Or its name, when a prepare entry makes it.
    """
    own = {check.name: index for index, check in enumerate((*inputs, *outputs))}
    return tuple(own.get(a.name, a.name) for a in main.arguments)


def _prepared(name: str, made: Sequence[Mapping[str, Array]]) -> Array:
    return next(arrays[name] for arrays in made if name in arrays)


def _input_checks(program: Program, loaded: Loaded) -> list[Checked]:
    """Checks of the inputs in call order; the launch says what the code relies on."""
    specs: dict[str, ArgumentSpec] = {}
    for entry in (loaded.launch.main, *loaded.launch.prepares):
        for spec in entry.arguments:
            if spec.io in ("in", "inout"):
                specs.setdefault(spec.name, spec)
    return [
        Checked(specs.get(item.name) or _unused(item.name, item.type)) for item in program.inputs
    ]


def _own_checks(loaded: Loaded) -> tuple[list[Checked], list[Checked]]:
    """Checks of what a user's own kernel reads, and of what it only writes, in call order."""
    inputs: list[Checked] = []
    outputs: list[Checked] = []
    for spec in loaded.launch.main.arguments:
        if spec.io == "out":
            outputs.append(Checked(spec))
        else:
            inputs.append(Overwritten(spec) if spec.io == "inout" else Checked(spec))
    return inputs, outputs


def _output_checks(program: Program, loaded: Loaded) -> list[Checked]:
    specs = {a.name: a for a in loaded.launch.main.arguments if a.io in ("out", "inout")}
    return [Checked(specs[name]) for name, _ in program.outputs]


def _unused(name: str, kind: TensorType) -> ArgumentSpec:
    """An input that no entry reads: only its type is checked."""
    return ArgumentSpec(name, kind.dtype.value, kind.sizes, kind.element_strides, "in", 1)
