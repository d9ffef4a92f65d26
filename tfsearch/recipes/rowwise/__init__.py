"""The row-wise recipe: reductions over one set of axes, any number of passes over each row."""

from tfsearch.recipes.rowwise.recipe import MatchedRowwise, Rowwise

__all__ = ["MatchedRowwise", "Rowwise"]
