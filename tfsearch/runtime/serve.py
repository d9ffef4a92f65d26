"""``tfsearch.lookup("gemm", m=512, …)``: the best recorded kernel, to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import NoCandidateError, NotRecordedError, RequestError, UnavailableError
from tfsearch.core.records import ServedBy
from tfsearch.core.settings import Settings
from tfsearch.ir.hir.named import Op, named_workload
from tfsearch.runtime.kernel import Fallback, Kernel
from tfsearch.runtime.serving import (
    Place,
    Question,
    check_allow,
    exact,
    executable,
    load,
    opened,
    record_of,
    resolve,
)

QUESTION_OPTIONS = ("target", "device", "toolchain", "flags", "macros", "protocol")


def lookup(
    op: Op,
    *,
    db: str | None = None,
    allow: Sequence[str] = (),
    fallback: Callable[..., Any] | None = None,
    **options: Any,
) -> Kernel | Fallback:
    """The kernel that serves a workload on this machine.

    ``op`` is a built-in op, ``file.py:function``, or a Python function that is traced; with
    ``space=FILE`` it is the source of a user's own kernel, whose ``inout`` arrays are overwritten.
    ``options`` are the op's (``m=512, dtype="f32"``, and ``accuracy``, ``reproducible``,
    ``alignment``, ``constant_inputs``) and what else changes the answer: ``target``,
    ``device``, ``toolchain``, ``flags``, ``macros``, ``protocol``. ``db`` is a SQLAlchemy URL.

    The order is: this exact workload; with ``"bucket"`` in ``allow``, the schedule recorded for
    a range of dimensions that contains it; with ``"model"``, the cost model's pick, built and
    verified now; then ``fallback``, the caller's own function. ``kernel.served_by`` tells which.

    Raises ``NotRecordedError`` when none of these serves, ``RequestError`` for a wrong request,
    ``UnavailableError`` when a device or a needed compiler is missing.
    """
    question = question_of(op, options)
    return serve(question, core_settings.load(db), allow=allow, fallback=fallback)


def question_of(op: Op, options: Mapping[str, Any]) -> Question:
    """A question from keyword options, as :func:`lookup` takes them."""
    own, rest = split_options(options)
    if "space" in rest:
        from tfsearch.plugin.kernel import flags_of, named_kernel

        kernel = named_kernel(op, rest)
        return Question(kernel, **{**own, "flags": (*flags_of(kernel), *own["flags"])})
    return Question(named_workload(op, rest), **own)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what :class:`Question` takes, the workload's own options); None counts as not given."""
    own = {n: v for n, v in options.items() if n in QUESTION_OPTIONS and v is not None}
    rest = {n: v for n, v in options.items() if n not in QUESTION_OPTIONS}
    for name in ("flags", "macros"):
        value = own.get(name, ())
        if isinstance(value, str):
            raise RequestError("lookup.option", f"{name} is a list of texts, not {value!r}")
        own[name] = tuple(str(item) for item in value)
    return own, rest


def serve(
    question: Question,
    settings: Settings,
    *,
    allow: Sequence[str] = (),
    fallback: Callable[..., Any] | None = None,
) -> Kernel | Fallback:
    """See :func:`lookup`."""
    steps = check_allow(allow)
    try:
        place = resolve(question, settings)
    except UnavailableError:
        if fallback is None:
            raise
        return Fallback(fallback)
    missed: NotRecordedError | None = None
    for step in _steps(place, steps):
        try:
            return step()
        except NotRecordedError as error:
            missed = missed or error
        except (NoCandidateError, UnavailableError):
            if fallback is None:
                raise
    if fallback is not None:
        return Fallback(fallback)
    assert missed is not None
    raise missed


def _steps(place: Place, allow: Sequence[str]) -> Iterator[Callable[[], Kernel]]:
    yield lambda: _exact(place)
    if "bucket" in allow:
        yield lambda: _bucket(place)
    if "model" in allow:
        yield lambda: _model(place)


def _exact(place: Place) -> Kernel:
    with opened(place.settings) as store:
        found = exact(place, store)
    path = executable(place, found)
    loaded = load(place.target, place.device, path, found.launch)
    return Kernel(record_of(place.question.workload, found), loaded, ServedBy.EXACT)


def _bucket(place: Place) -> Kernel:
    from tfsearch.runtime.ondemand import from_bucket

    with opened(place.settings) as store:
        return from_bucket(place, store)


def _model(place: Place) -> Kernel:
    from tfsearch.runtime.ondemand import from_model

    return from_model(place)
