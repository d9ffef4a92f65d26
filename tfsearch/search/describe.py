"""A space and its points as JSON, for searchers outside of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfsearch.search.problem import Result
from tfsearch.space import Point, RecipeSpace, Space

SHOWN = 4096
"""Values of a domain that are listed."""


def space_json(space: Space) -> dict[str, Any]:
    """Counts, and for every recipe its parameters, definitions and constraints."""
    counts = space.count()
    return {
        "points": counts.points,
        "legal": counts.legal,
        "rejected": dict(counts.rejected),
        "recipes": [_recipe(recipe) for recipe in space.recipes],
    }


def _recipe(recipe: RecipeSpace) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "version": recipe.version,
        "constants": dict(recipe.constants),
        "parameters": [
            {"name": p.name, "kind": p.kind.value, "values": list(p.values[:SHOWN])}
            for p in recipe.parameters
        ],
        "definitions": [
            {"name": d.name, "expression": d.expression.text} for d in recipe.definitions
        ],
        "constraints": [
            {"code": c.code, "expression": c.expression.text, "reason": c.reason}
            for c in recipe.constraints
        ],
    }


def point_json(point: Point) -> dict[str, Any]:
    """``{"recipe": …, "params": {…}}``."""
    return {"recipe": point.recipe_name, "params": dict(point.params)}


def result_json(result: Result) -> Mapping[str, Any]:
    """What became of a point; ``median_us`` and ``ci_us`` are null for a failure."""
    return {
        "schedule": point_json(result.point),
        "status": result.status.value,
        "code": result.code,
        "where": result.where,
        "message": result.message,
        "median_us": result.median_us,
        "ci_us": None if result.ci_us is None else list(result.ci_us),
    }
