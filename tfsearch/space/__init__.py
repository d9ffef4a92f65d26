"""Search spaces: finite sets of schedules, counted, walked and sampled without being held.

Expressions (:mod:`~tfsearch.space.expr`), the parts of a recipe
(:mod:`~tfsearch.space.parameters`, :mod:`~tfsearch.space.recipe`), and the space over recipes
(:mod:`~tfsearch.space.space`).
"""

from tfsearch.space.enumeration import Counts
from tfsearch.space.expr import Expr, parse
from tfsearch.space.parameters import Constraint, Definition, Kind, Parameter
from tfsearch.space.points import Point, Points, Sample
from tfsearch.space.recipe import RecipeSpace
from tfsearch.space.space import LEGAL_SET_LIMIT, Space

__all__ = [
    "LEGAL_SET_LIMIT",
    "Constraint",
    "Counts",
    "Definition",
    "Expr",
    "Kind",
    "Parameter",
    "Point",
    "Points",
    "RecipeSpace",
    "Sample",
    "Space",
    "parse",
]
