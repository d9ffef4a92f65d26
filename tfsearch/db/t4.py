"""Trials as T4 results; :mod:`tfsearch.space.file.t4` reads them and says what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tfsearch.core.records import ParamValue, Status, Trial
from tfsearch.db.records import StoredTrial
from tfsearch.space.file.t4 import CORRECT, OBJECTIVE, SCHEMA_VERSION

_INVALIDITY = {
    Status.OK: CORRECT,
    Status.REFUSED: "constraints",
    Status.COMPILE_ERROR: "compile",
    Status.COMPILE_CRASH: "compile",
    Status.COMPILE_TIMEOUT: "compile",
    Status.WRONG: "correctness",
    Status.NONDETERMINISTIC: "correctness",
    Status.IMPLAUSIBLE: "correctness",
    Status.TIMEOUT: "timeout",
}
_STAND_INS = {"constraints": "InvalidConfig", "compile": "CompilationFailedConfig"}
_DECIMAL = re.compile(r"-?\d+(\.\d+(e[+-]?\d+)?|e[+-]?\d+)")
"""How decimal parameters are recorded; other frameworks have numbers there."""


def t4_results(trials: Iterable[StoredTrial]) -> dict[str, Any]:
    """A T4 document of trials of one workload: one result per configuration, the latest one.

    Cancelled trials are left out. Where schedules of several recipes were tried, ``recipe`` is part
    of the configuration.
    """
    latest: dict[str, Trial] = {}
    for stored in trials:
        if stored.trial.status is not Status.CANCELLED:
            latest[stored.trial.schedule.key] = stored.trial
    several = len({trial.schedule.recipe for trial in latest.values()}) > 1
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {"timeunit": "milliseconds"},
        "results": [_result(trial, several) for trial in latest.values()],
    }


def _result(trial: Trial, several: bool) -> dict[str, Any]:
    schedule, measurement = trial.schedule, trial.measurement
    invalidity = _INVALIDITY.get(trial.status, "runtime")
    configuration: dict[str, object] = {"recipe": schedule.recipe} if several else {}
    configuration |= {name: _value(value) for name, value in schedule.params.items()}
    stand_in = _STAND_INS.get(invalidity, "RuntimeFailedConfig")
    return {
        "timestamp": trial.finished_at,
        "configuration": configuration,
        "times": {
            "compilation": 0.0 if trial.build is None else trial.build.seconds * 1e3,
            "benchmark": 0.0 if measurement is None else sum(measurement.samples_us) / 1e3,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
            "runtimes": [] if measurement is None else [us / 1e3 for us in measurement.samples_us],
        },
        "invalidity": invalidity,
        "correctness": int(trial.status is Status.OK),
        "measurements": [
            {
                "name": OBJECTIVE,
                "value": stand_in if measurement is None else measurement.median_us / 1e3,
                "unit": "ms",
            }
        ],
        "objectives": [OBJECTIVE],
    }


def _value(value: ParamValue) -> ParamValue | float:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return float(value)
    return value
