"""Search policies: ask/tell, seeing only the space, predictions and earlier results."""

from tfsearch.search.problem import Policy, Predicted, Problem, Result
from tfsearch.search.registry import (
    POLICIES,
    PolicyContext,
    PolicyEntry,
    make_policy,
    parse_policy,
)
from tfsearch.search.scan import Pool, Scan, scan

__all__ = [
    "POLICIES",
    "Policy",
    "PolicyContext",
    "PolicyEntry",
    "Pool",
    "Predicted",
    "Problem",
    "Result",
    "Scan",
    "make_policy",
    "parse_policy",
    "scan",
]
