"""The map recipe: elementwise programs, casts, broadcasts and transposes."""

from tfsearch.recipes.map.recipe import Map, MatchedMap

__all__ = ["Map", "MatchedMap"]
