"""``tfsearch.op("gemm")(a, b)``: dispatch by shape to recorded kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import NotRecordedError, RequestError, UnavailableError
from tfsearch.core.records import ServedBy
from tfsearch.core.settings import Settings
from tfsearch.ir.hir.builtins import BUILTINS, unknown_op
from tfsearch.ir.hir.named import CLASSES, Op, traceable
from tfsearch.ir.workload import Workload
from tfsearch.runtime.arrays import (
    Array,
    address,
    alignment_of,
    as_host,
    element_strides,
    empty,
    like,
    on_host,
)
from tfsearch.runtime.derive import Derived, derive
from tfsearch.runtime.foreign import Placed, placed
from tfsearch.runtime.kernel import Fallback, Kernel, Out
from tfsearch.runtime.serve import serve, split_options
from tfsearch.runtime.serving import Question, check_allow, opened

MOST_ALIGNMENT = 64
ROUTES_KEPT = 4096
"""Kinds of arrays that an operator remembers; beyond that it starts anew."""

_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class _Route:
    """What serves arrays of one kind.

    ``swapped``: arrays handed over with their last two axes swapped; ``staged``: the kernel
    relies on more alignment than the arrays have, so those are copied to aligned memory first.
    """

    kernel: Kernel | Fallback
    swapped: tuple[bool, ...]
    staged: bool = False


class Operator:
    """An op that picks the recorded kernel for the arrays it is called with.

    The first call with arrays of some shapes, types, layouts and alignment asks the database;
    later ones find the kernel in memory, until :meth:`clear`. Several threads may call it at once.
    """

    def __init__(
        self,
        op: Op,
        *,
        db: str | None = None,
        allow: Sequence[str] = (),
        fallback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self._op = op
        self._program = None if isinstance(op, str) else traceable(op)
        self.name = self._program.where if self._program else str(op)
        self.fallback = fallback
        self._db = db
        self._allow = check_allow(allow)
        _refuse_layouts(options)
        self._question, options = split_options(options)
        self._classes = {n: options.pop(n) for n in list(options) if n in CLASSES}
        self._options = options
        self._routes: dict[_Shape, _Route] = {}
        self._last = threading.local()
        if isinstance(op, str) and op not in BUILTINS and ":" not in op:
            raise unknown_op(op)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"

    @property
    def served_by(self) -> ServedBy | None:
        """Which step served this thread's last call; None before the first."""
        return getattr(self._last, "served_by", None)

    @property
    def staged(self) -> bool:
        """Whether this thread's last call copied arrays that are less aligned than the record's.

        Arrays made by :func:`tfsearch.runtime.empty` never are.
        """
        return getattr(self._last, "staged", False)

    def __call__(
        self,
        *arrays: Any,
        out: Out = None,
        fallback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute the op on arrays.

        ``options`` are the op's that are no dimension (``trans_b=True``). ``fallback`` is called
        with the arrays when no kernel is recorded; without one that is a ``NotRecordedError``
        that says what the nearest record differs in. ``RequestError`` for arrays that do not
        fit. Outputs are of the kind of the first array; ``out`` is written to and returned.
        """
        if not all(type(a) is np.ndarray or on_host(a) for a in arrays):
            return self._on_device(arrays, out, options, fallback)
        hosts = [a if type(a) is np.ndarray else as_host(str(i), a) for i, a in enumerate(arrays)]
        key = self._key(hosts, out, options, fallback)
        route = self._routes.get(key)
        if route is None:
            route = self._find(hosts, out, options, fallback)
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            self._routes[key] = route
        kernel = route.kernel
        self._last.served_by = kernel.served_by
        self._last.staged = route.staged
        if isinstance(kernel, Fallback):
            return kernel(*arrays, out=out)
        if route.staged or any(route.swapped):
            return self._indirect(route, kernel, arrays, hosts, out)
        return kernel(*arrays, out=out)

    def _on_device(
        self, arrays: Sequence[Any], out: Out, options: dict[str, Any], fallback: Any
    ) -> Any:
        """A call on arrays in a device's memory: on their device, nothing is copied."""
        outs = () if out is None else out if isinstance(out, (tuple, list)) else (out,)
        found = placed(arrays, outs, MOST_ALIGNMENT)
        _refuse_layouts(options)
        parts: list[Any] = [(a.shape, a.dtype, a.strides) for a in found.shadows]
        plain = ((n, tuple(v) if isinstance(v, list) else v) for n, v in options.items())
        key = (
            found.target,
            found.selector,
            *parts,
            found.alignment,
            tuple(sorted(plain)),
            fallback,
        )
        route = self._routes.get(key)
        if route is None:
            route = self._device_route(found, options, fallback)
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            self._routes[key] = route
        self._last.served_by = route.kernel.served_by
        self._last.staged = False
        turned = [
            a.swapaxes(-1, -2) if swap else a for a, swap in zip(arrays, route.swapped, strict=True)
        ]
        return route.kernel(*turned, out=out)

    def _device_route(self, found: Placed, options: dict[str, Any], fallback: Any) -> _Route:
        own = fallback or self.fallback
        self._program = self._program or traceable(self._op)
        derived = derive(
            self._program or self._op, found.shadows, {**self._options, **options, **self._classes}
        )
        settings = core_settings.load(self._db)
        place = {"target": found.target, "device": found.selector}
        recorded = _recorded(derived.workload, found.alignment, settings)
        for alignment in (c for c in recorded if c <= found.alignment):
            try:
                return _Route(
                    serve(self._asked(derived, alignment, place), settings), derived.swapped
                )
            except NotRecordedError:
                continue  # recorded for another device or compiler
            except UnavailableError:
                if own is None:
                    raise
        asked = self._asked(derived, found.alignment, place)
        return _Route(serve(asked, settings, allow=self._allow, fallback=own), derived.swapped)

    def kernel(self, *arrays: Any, **options: Any) -> Kernel | Fallback:
        """The kernel that a call with these arrays uses; errors as in a call."""
        if not all(on_host(a) for a in arrays):
            return self._device_route(placed(arrays, (), MOST_ALIGNMENT), options, None).kernel
        hosts = [as_host(str(i), a) for i, a in enumerate(arrays)]
        return self._find(hosts, None, options, None).kernel

    def clear(self) -> None:
        """Forget what was found, so that newly recorded kernels and an edited file are seen."""
        self._routes.clear()
        self._program = None

    def _key(
        self, hosts: Sequence[Array], out: Out, options: dict[str, Any], fallback: Any
    ) -> _Shape:
        place = MOST_ALIGNMENT
        parts: list[Any] = []
        for a in hosts:
            place |= address(a)
            parts.append((a.shape, a.dtype, a.strides))
        if out is not None:
            for a in out if isinstance(out, (tuple, list)) else (out,):
                place |= address(as_host("out", a))
        parts.append(place & -place)
        if options or fallback is not None:
            _refuse_layouts(options)
            plain = ((n, tuple(v) if isinstance(v, list) else v) for n, v in options.items())
            parts.append((tuple(sorted(plain)), fallback))
        return tuple(parts)

    def _find(
        self, hosts: Sequence[Array], out: Out, options: dict[str, Any], fallback: Any
    ) -> _Route:
        """Ask for the workload at the arrays' alignment, then at lower ones, then staged."""
        own = fallback or self.fallback
        self._program = self._program or traceable(self._op)
        derived = derive(
            self._program or self._op, hosts, {**self._options, **options, **self._classes}
        )
        settings = core_settings.load(self._db)
        have = min(alignment_of(a, MOST_ALIGNMENT) for a in [*hosts, *_outs(out)])
        for alignment in _recorded(derived.workload, have, settings):
            try:
                found = serve(self._asked(derived, alignment), settings)
            except NotRecordedError:
                continue  # recorded for another device or compiler
            except UnavailableError:
                if own is None:
                    raise
                continue
            return _Route(found, derived.swapped, staged=alignment > have)
        asked = self._asked(derived, have)
        return _Route(serve(asked, settings, allow=self._allow, fallback=own), derived.swapped)

    def _asked(
        self, derived: Derived, alignment: int, place: Mapping[str, str] | None = None
    ) -> Question:
        workload = replace(derived.workload, alignment=alignment)
        return Question(workload, **{**self._question, **(place or {})})

    def _indirect(
        self,
        route: _Route,
        kernel: Kernel,
        arrays: Sequence[Any],
        hosts: Sequence[Array],
        out: Out,
    ) -> Any:
        """A call with some arrays transposed back, or copied to aligned memory."""
        turned = [
            a.swapaxes(-1, -2) if swap else a for a, swap in zip(hosts, route.swapped, strict=True)
        ]
        if not route.staged:
            result = kernel(*turned, out=out)
        else:
            turned = [_aligned(a) for a in turned]
            made = kernel(*turned)
            results = made if isinstance(made, tuple) else (made,)
            for target, value in zip(_outs(out), results, strict=False):
                target[...] = value
            result = made if out is None else out
        if out is not None:
            return out
        if isinstance(result, tuple):
            return tuple(like(arrays[0], a) for a in result)
        return like(arrays[0], result)


_CLASSES = (64, 32, 16, 8, 4, 2, 1)


def _recorded(workload: Workload, have: int, settings: Settings) -> list[int]:
    """Alignment classes that the workload is recorded for: at most ``have`` first, best first."""
    order = [c for c in _CLASSES if c <= have] + [c for c in reversed(_CLASSES) if c > have]
    try:
        with opened(settings) as store:
            return [
                c for c in order if store.workload(replace(workload, alignment=c).key) is not None
            ]
    except NotRecordedError:
        return []  # no database yet


def _refuse_layouts(options: Mapping[str, Any]) -> None:
    for name in ("alignment", "strides"):
        if name in options:
            raise RequestError(f"workload.{name}", f"an operator takes the {name} from its arrays")


def _outs(out: Out) -> list[Array]:
    if out is None:
        return []
    return [as_host("out", a) for a in (out if isinstance(out, (tuple, list)) else (out,))]


def _aligned(array: Array) -> Array:
    """The array, or a copy of the same layout at an aligned address."""
    if alignment_of(array, MOST_ALIGNMENT) == MOST_ALIGNMENT:
        return array
    strides = element_strides("", array)
    span = 1 + sum(s * (n - 1) for s, n in zip(strides, array.shape, strict=True))
    flat = empty((span,), array.dtype)
    copy = np.lib.stride_tricks.as_strided(flat, array.shape, array.strides)
    copy[...] = array
    return copy


def op(name: Op, **options: Any) -> Operator:
    """An op to call on arrays, such as ``op("gemm")(a, b, trans_b=True)``; see :class:`Operator`.

    ``name`` is a built-in op, ``file.py:function``, or a Python function that is traced; names of
    dimensions in a function's annotations get the sizes that the arrays have at each call.
    ``options``: ``db``, ``allow``, ``fallback``, what :func:`tfsearch.lookup` takes
    (``target``, ``toolchain``, ``flags``, …), and options of the op that hold for every call.
    """
    return Operator(name, **options)
