"""Calls of a loaded kernel on arrays of the caller: checked, on their stream, without a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.measure.buffers import span_elements
from tfsearch.target.cuda.arrays import dense_strides
from tfsearch.target.cuda.context import Context
from tfsearch.target.cuda.launching import Function, Packed
from tfsearch.target.cuda.tensors import Tensor, describe, empty_like, stream_of


class Checked:
    """One argument: what an array must be to be handed to the kernel."""

    def __init__(self, spec: ArgumentSpec, device: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.kind = DType(spec.dtype)
        self.strides = normal(spec.shape, spec.strides)
        self.span = span_elements(spec.shape, spec.strides) * self.kind.bytes
        self._device = device

    def address(self, found: Tensor) -> int:
        """Address of an array that fits.

        ``RequestError``: ``array.device``, ``array.shape``, ``array.dtype``, ``array.strides``,
        ``array.alignment``.
        """
        spec = self.spec
        if found.device is not None and found.device != self._device:
            raise RequestError(
                "array.device",
                f"argument {self.name!r} is on GPU {found.device}; this kernel is on GPU "
                f"{self._device}",
            )
        if found.shape != spec.shape:
            raise RequestError(
                "array.shape",
                f"argument {self.name!r} must have shape {list(spec.shape)}, it has "
                f"{list(found.shape)}",
            )
        if found.kind is not self.kind:
            have = "of another type" if found.kind is None else found.kind.value
            raise RequestError(
                "array.dtype", f"argument {self.name!r} must be {self.kind.value}, it is {have}"
            )
        have = dense_strides(found.shape) if found.strides is None else found.strides
        if normal(found.shape, have) != self.strides:
            raise RequestError(
                "array.strides",
                f"argument {self.name!r} must have strides {list(self.strides)} in elements for "
                f"shape {list(spec.shape)}, it has {list(have)}",
            )
        if found.address % spec.alignment:
            raise RequestError(
                "array.alignment",
                f"argument {self.name!r} must start at a multiple of {spec.alignment} B, it "
                f"starts {found.address % spec.alignment} B after one; a copy of it does",
            )
        return found.address

    def output_address(self, found: Tensor) -> int:
        """The same for an output; ``array.read-only`` where it cannot be written."""
        if not found.writable:
            raise RequestError(
                "array.read-only", f"output {self.name!r} is read-only; give a writable array"
            )
        return self.address(found)


def normal(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with those of dimensions of size one as in dense storage."""
    out: list[int] = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        out.append(step if size == 1 else stride)
        step *= size
    return tuple(reversed(out))


class CudaCaller:
    """See :class:`tfsearch.runtime.device.DeviceCaller`; several threads may call it at once."""

    def __init__(
        self,
        context: Context,
        launch: LaunchSpec,
        main: Function,
        prepares: Sequence[tuple[EntrySpec, Function]],
        inputs: Sequence[ArgumentSpec],
        outputs: Sequence[ArgumentSpec],
    ) -> None:
        self._context = context
        self._launch = launch
        self._main = main
        self._prepares = prepares
        self._inputs = [Checked(spec, context.index) for spec in inputs]
        self._outputs = [Checked(spec, context.index) for spec in outputs]
        self._order = {c.name: i for i, c in enumerate((*self._inputs, *self._outputs))}
        self._local = threading.local()

    def __call__(self, arrays: Sequence[Any], out: Any) -> Any:
        """Check, then enqueue on the current stream of the first array's library."""
        stream, places, result = self._resolved(arrays, out)
        with _Active(self._context):
            self._run(self._calls(places, stream or 0))
        self._settle(stream)
        return result

    def bind(self, arrays: Sequence[Any], out: Any) -> Callable[[], Any]:
        """Everything but the launches done ahead, for the stream that is current now."""
        stream, places, result = self._resolved(arrays, out)
        with _Active(self._context):
            calls = self._calls(places, stream or 0, kept=False)
        keep = (arrays, out, result)

        def launch() -> Any:
            with _Active(self._context):
                self._run(calls)
            self._settle(stream)
            return keep[2]

        return launch

    def _run(self, calls: Sequence[Packed]) -> None:
        try:
            for call in calls:
                call.launch()
        except OSError as error:
            raise UnavailableError("kernel.failed", f"the kernel failed: {error}") from error

    def _settle(self, stream: int | None) -> None:
        """A library without a stream of its own must not see results before they are there."""
        if stream is None:
            with _Active(self._context):
                self._context.synchronise()

    def _resolved(self, arrays: Sequence[Any], out: Any) -> tuple[int | None, list[int], Any]:
        """The stream, the addresses of inputs and outputs, the result."""
        if len(arrays) != len(self._inputs):
            names = ", ".join(check.name for check in self._inputs)
            raise RequestError(
                "array.count",
                f"this kernel takes {len(self._inputs)} arrays ({names}), {len(arrays)} were given",
            )
        device = self._context.index
        stream = stream_of(arrays[0], device) if arrays else 0
        wait = stream is None
        places = [
            check.address(describe(check.name, value, synchronised=wait))
            for check, value in zip(self._inputs, arrays, strict=True)
        ]
        if out is None:
            made = [empty_like(arrays[0], c.spec.shape, c.kind, device) for c in self._outputs]
            out = made[0] if len(made) == 1 else tuple(made)
        else:
            made = list(out) if isinstance(out, (tuple, list)) else [out]
            if len(made) != len(self._outputs):
                names = ", ".join(check.name for check in self._outputs)
                raise RequestError(
                    "array.count",
                    f"this kernel has {len(self._outputs)} outputs ({names}), out= holds "
                    f"{len(made)}",
                )
        taken = list(zip(self._inputs, places, strict=True))
        for check, value in zip(self._outputs, made, strict=True):
            place = check.output_address(describe(check.name, value, synchronised=wait))
            for other, start in taken:
                if place < start + other.span and start < place + check.span:
                    raise RequestError(
                        "array.overlap",
                        f"output {check.name!r} shares memory with argument {other.name!r}; give "
                        "it memory of its own",
                    )
            taken.append((check, place))
            places.append(place)
        return stream, places, out

    def _calls(self, places: Sequence[int], stream: int, *, kept: bool = True) -> list[Packed]:
        """The launches of one call; a thread keeps those of each stream and fills them anew."""
        frames = self._local.__dict__.setdefault("frames", {})
        frame = frames.get(stream) if kept else None
        if frame is None:
            frame = _Frame(self._context, self._launch, self._main, self._prepares, stream)
            if kept:
                frames[stream] = frame
        return frame.filled(self._order, places)


class _Frame:
    """Packed launches of the entries, with workspaces and prepared arguments of their own."""

    def __init__(
        self,
        context: Context,
        launch: LaunchSpec,
        main: Function,
        prepares: Sequence[tuple[EntrySpec, Function]],
        stream: int,
    ) -> None:
        self._context = context
        self._owned: list[int] = []
        self._prepared: dict[str, int] = {}
        self._entries: list[tuple[EntrySpec, Packed]] = []
        for entry, function in (*prepares, (launch.main, main)):
            words = [0] * len(entry.arguments)
            for argument in entry.arguments:
                if argument.io == "prepared" and argument.name not in self._prepared:
                    size = span_elements(argument.shape, argument.strides)
                    self._prepared[argument.name] = self._own(size * DType(argument.dtype).bytes)
            if entry.workspace_bytes:
                place = self._own(entry.workspace_bytes)
                context.fill(place, 0, entry.workspace_bytes)
                words.append(place)
            packed = Packed(context.driver, function, words, stream, entry)
            self._entries.append((entry, packed))

    def _own(self, size: int) -> int:
        place = self._context.allocate(size)
        self._owned.append(place)
        return place

    def filled(self, order: dict[str, int], places: Sequence[int]) -> list[Packed]:
        """The launches with the addresses of a call."""
        for entry, packed in self._entries:
            for position, argument in enumerate(entry.arguments):
                at = self._prepared.get(argument.name)
                packed.set(position, places[order[argument.name]] if at is None else at)
        return [packed for _, packed in self._entries]

    def __del__(self) -> None:
        for place in self._owned:
            self._context.release(place)


class _Active:
    """The context current on this thread for a while; the caller's comes back afterwards."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pushed = False

    def __enter__(self) -> None:
        self._pushed = self._context.push()

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            self._context.pop()
