"""``tfsearch.tune("gemm", m=512, n=512, k=512, dtype="f32", trials=16)``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import NotSavedError, RequestError
from tfsearch.db import Store, open_store
from tfsearch.ir.hir.named import Op, named_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin.kernel import flags_of, named_kernel
from tfsearch.space.file import KernelWorkload
from tfsearch.tune.observer import Observer
from tfsearch.tune.report import TuneReport
from tfsearch.tune.request import TuneRequest
from tfsearch.tune.run import tune

_REQUEST = {field.name for field in fields(TuneRequest)} - {"workload"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a session; everything measured is saved and ``report`` says what is known."""

    def __init__(self, report: TuneReport) -> None:
        super().__init__("interrupted; what was measured is recorded")
        self.report = report


class NotSavedWarning(UserWarning):
    """The result is valid, and not in the database."""


def open_for_tuning(url: str) -> tuple[Store | None, NotSavedError | None]:
    """The store, or None with the reason why nothing can be saved in it.

    Other errors (not a database, from the future, unreachable) are raised.
    """
    try:
        return open_store(url), None
    except NotSavedError as error:
        return None, error


def tune_op(
    op: Op,
    *,
    db: str | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> TuneReport:
    """Tune a built-in op, ``file.py:function``, or a Python function that is traced.

    With ``space=FILE`` the op is a user's own kernel, a source file: other options are constants of
    the space file, and ``reference="file.py:function"`` wins over the file's. Otherwise options
    are the op's (``m=512, dtype="bf16"``) and those of :class:`TuneRequest` (``target``,
    ``trials``, ``seconds``, ``policy``, ``flags``, …); ``db`` is a SQLAlchemy URL. When
    the result could not be saved, a :class:`NotSavedWarning` is issued. Raises the errors of
    :func:`tfsearch.tune.run.tune`, and :class:`Interrupted` after Ctrl-C.
    """
    wanted = {name: options.pop(name) for name in list(options) if name in _REQUEST}
    for name in ("flags", "macros"):
        if name in wanted:
            wanted[name] = _texts(name, wanted[name])
    workload: Workload | KernelWorkload
    if "space" in options:
        workload = named_kernel(op, options)
        wanted["flags"] = (*flags_of(workload), *wanted.get("flags", ()))
    else:
        workload = named_workload(op, options)
    request = TuneRequest(workload, **wanted)
    places = core_settings.load(db)
    store, unsaved = open_for_tuning(places.database_url)
    try:
        report = tune(request, store=store, settings=places, observer=observer, unsaved=unsaved)
    finally:
        if store is not None:
            store.close()
    if report.unsaved is not None:
        warnings.warn(f"not saved: {report.unsaved.message}", NotSavedWarning, stacklevel=2)
    if report.interrupted:
        raise Interrupted(report)
    return report


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RequestError("tune.option", f"{name} is a list of texts, not {value!r}")
    return tuple(str(item) for item in value)
