"""Estimates corrected by what was learned of measured times.

A correction belongs to one recipe. Its features are what the recipe itself says of a point: the
logarithms of its numeric parameters, of the quantities that it defines from them and of its integer
facts, and which value each parameter with a choice has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.cost.learned import Correction
from tfsearch.search.problem import Times
from tfsearch.space import Points

FEATURES = 1
"""Version of the features: part of what a learned model is valid for."""
SMALL = 16
"""Numbers up to that have a feature of their own: so many rows are not like one more or less."""
Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Learned:
    """Corrections by the name of their recipe."""

    corrections: Mapping[str, Correction]

    def factor(self, points: Points, facts: Columns) -> Times:
        """What estimates of a batch of one recipe are multiplied with to rank them."""
        correction = self.corrections.get(points.recipe.name)
        if correction is None:
            return np.ones(len(points))
        return np.exp(correction.ranked(matrix(correction.names, points, facts)))


def features(points: Points, facts: Columns) -> dict[str, Times]:
    """Named features of a batch, one column each."""
    out: dict[str, Times] = {}
    for parameter in points.recipe.parameters:
        labels = np.asarray(points.labels(parameter.name))
        if labels.dtype.kind in "if":
            out[f"log {parameter.name}"] = _log(labels)
        for value in parameter.values:
            if _of_its_own(value):
                out[f"{parameter.name}={value}"] = (labels == value).astype(np.float64)
    for definition in points.recipe.definitions:
        column = np.asarray(points.column(definition.name))
        if column.dtype.kind in "iufb":
            out[f"log {definition.name}"] = _log(np.broadcast_to(column, len(points)))
    for name, column in facts.items():
        if np.asarray(column).dtype.kind in "iufb":
            out[f"fact {name}"] = _log(np.broadcast_to(np.asarray(column), len(points)))
    return out


def matrix(names: Sequence[str], points: Points, facts: Columns) -> Times:
    """[rows, names]; a value that no point of the space has is a column of zeros.

    What else is missing is no number, which a correction takes for its centre.
    """
    found = features(points, facts)
    out = np.full((len(points), len(names)), np.nan)
    for place, name in enumerate(names):
        if name in found:
            out[:, place] = found[name]
        elif "=" in name:
            out[:, place] = 0.0
    return out


def _of_its_own(value: object) -> bool:
    return isinstance(value, (str, bool)) or (isinstance(value, int) and 0 <= value <= SMALL)


def _log(column: Any) -> Times:
    return np.log2(np.maximum(np.asarray(column, np.float64), 0.5))
