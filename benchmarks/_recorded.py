"""Recorded spaces (T4 results) as problems for policies: what the library has, by a path."""

from __future__ import annotations

from pathlib import Path

from tfsearch.search.replay import RecordedProblem
from tfsearch.space.file.t4 import read_results
from tfsearch.space.listed import ListedSpace

__all__ = ["ListedSpace", "RecordedProblem", "load"]


def load(path: Path) -> RecordedProblem:
    """A T4 file, perhaps compressed."""
    return RecordedProblem.of(read_results(path))
