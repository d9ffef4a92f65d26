"""Tuning: the session loop that proposes, proves, builds, measures, records.

The package is also the function ``tfsearch.tune("gemm", m=512, …)``: see
:func:`tfsearch.tune.front.tune_op`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfsearch.tune.front import Interrupted, NotSavedWarning, open_for_tuning
    from tfsearch.tune.observer import Observer, Progress, Silent, Stage, Started, TrialEnded
    from tfsearch.tune.report import AllFailedError, Best, TuneReport
    from tfsearch.tune.request import Plan, TuneRequest, resolve
    from tfsearch.tune.run import tune

_LAZY = {
    "Interrupted": "front",
    "NotSavedWarning": "front",
    "open_for_tuning": "front",
    "AllFailedError": "report",
    "Best": "report",
    "Observer": "observer",
    "Plan": "request",
    "Progress": "observer",
    "Silent": "observer",
    "Stage": "observer",
    "Started": "observer",
    "TrialEnded": "observer",
    "TuneReport": "report",
    "TuneRequest": "request",
    "resolve": "request",
    "tune": "run",
}

__all__ = [
    "AllFailedError",
    "Best",
    "Interrupted",
    "NotSavedWarning",
    "Observer",
    "Plan",
    "Progress",
    "Silent",
    "Stage",
    "Started",
    "TrialEnded",
    "TuneReport",
    "TuneRequest",
    "open_for_tuning",
    "resolve",
    "tune",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


class _Callable(ModuleType):
    """``tfsearch.tune`` is this package and the front door's function under one name."""

    def __call__(self, op: str | Callable[..., Any], **options: Any) -> TuneReport:
        from tfsearch.tune.front import tune_op

        return tune_op(op, **options)


sys.modules[__name__].__class__ = _Callable
