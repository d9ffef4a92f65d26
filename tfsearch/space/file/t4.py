"""T4 results, the JSON in which auto-tuning frameworks exchange what they measured (schema 1.0.0).

The schema says ``compilation_time``; published data and Kernel Tuner say ``compilation``, which is
followed. Times are milliseconds.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tfsearch.core import strict
from tfsearch.core.errors import RequestError
from tfsearch.space.listed import ListedSpace

SCHEMA_VERSION = "1.0.0"
CORRECT = "correct"
OBJECTIVE = "time"
MAX_BYTES = 1 << 30
_UNITS = {
    "ms": 1.0,
    "milliseconds": 1.0,
    "s": 1e3,
    "seconds": 1e3,
    "us": 1e-3,
    "microseconds": 1e-3,
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Results:
    """A recorded space. ``times_ms`` [rows]: NaN where the configuration failed; ``invalidity``
    [rows]: why, or ``correct``; ``seconds`` [rows]: what measuring it cost altogether.

    Of a configuration that stands several times the last result counts.
    """

    name: str
    space: ListedSpace
    times_ms: Floats
    seconds: Floats
    invalidity: tuple[str, ...]


def is_results(path: str | Path) -> bool:
    """Whether a file's name says that it holds T4 results: ``…T4.json`` or any ``….json.gz``."""
    name = Path(path).name.lower()
    return name.endswith((".json.gz", "t4.json"))


def read_results(path: str | Path) -> Results:
    """Read a T4 file, perhaps compressed (``.gz``).

    ``RequestError`` that begins with the file: ``kernel.file`` (cannot be read),
    ``kernel.file-syntax``, ``kernel.file-value`` (with the number of the result).
    """
    file = Path(path)
    document = _document(file)
    rows = document.get("results")
    if not isinstance(rows, list) or not rows:
        raise _wrong(file, "has no results")
    found: dict[tuple[Any, ...], tuple[float, float, str]] = {}
    names: list[str] = []
    for number, row in enumerate(cast("list[Any]", rows)):
        try:
            configuration = row["configuration"]
            names = names or list(configuration)
            if set(configuration) != set(names):
                raise ValueError(f"has other parameters than the first one: {', '.join(names)}")
            key = tuple(_value(configuration[name]) for name in names)
            found.pop(key, None)
            found[key] = (_time_ms(row), _cost_s(row["times"]), str(row["invalidity"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise _wrong(file, f"result {number}: {said}") from None
    columns = [[key[i] for key in found] for i in range(len(names))]
    label = file.name.removesuffix(".gz").removesuffix(".json").removesuffix("_T4")
    try:
        space = ListedSpace.of(names, columns)
    except RequestError as error:
        raise RequestError(error.code, f"{file}: {error.message}") from None
    times, seconds, invalidity = zip(*found.values(), strict=True)
    return Results(
        f"{file.resolve().parent.name}/{label}",
        space,
        np.array(times, np.float64),
        np.array(seconds, np.float64),
        invalidity,
    )


def _document(file: Path) -> Mapping[str, Any]:
    try:
        if not file.is_file():
            raise RequestError("kernel.file", f"{file} is not a file")
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError("kernel.file", f"cannot read {file}: {error}") from error
    if len(raw) > MAX_BYTES:
        raise RequestError("kernel.file", f"{file} holds more than {MAX_BYTES} bytes")
    try:
        found: object = strict.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RequestError("kernel.file-syntax", f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _wrong(file, "must be a JSON object")
    return cast("Mapping[str, Any]", found)


def _wrong(file: Path, what: str) -> RequestError:
    return RequestError("kernel.file-value", f"{file}: {what}")


def _value(value: Any) -> Any:
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(f"a parameter is {value!r}; a number, a text or a truth value is expected")


def _time_ms(row: Mapping[str, Any]) -> float:
    """The time of a correct result; NaN of another."""
    if row["invalidity"] != CORRECT:
        return math.nan
    for measured in row["measurements"]:
        if measured["name"] == OBJECTIVE or len(row["measurements"]) == 1:
            value = float(measured["value"]) * _UNITS[str(measured.get("unit") or "ms")]
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"its time is {measured['value']!r}, not a positive number")
            return value
    raise ValueError(f"has no measurement named {OBJECTIVE}")


def _cost_s(times: Mapping[str, Any]) -> float:
    """All that a result took, in seconds: lists are summed."""
    total = 0.0
    for part in times.values():
        total += sum(map(float, part)) if isinstance(part, list) else float(part)  # pyright: ignore
    return total / 1e3
