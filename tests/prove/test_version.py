"""What each version of the verifier refuses: rules do not change without a new version."""

from __future__ import annotations

import hashlib
import re

from tests import repository
from tfsearch.core.records import VERIFIER_VERSION

PROVE = repository.ROOT / "tfsearch" / "prove"
REFUSES = {2: "0e2b5ce4a3d4620c"}
"""By version, a digest of the codes of refusals and of the names of the rules behind them."""


def rules() -> list[str]:
    """Every code that the prover refuses with, and every check."""
    found: set[str] = set()
    for path in PROVE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'"(tir\.[a-z-]+)"', text))
        found.update(re.findall(r"^def (check_\w+|\w+_findings)\(", text, re.MULTILINE))
    return sorted(found)


def test_rules_and_version_belong_together() -> None:
    digest = hashlib.sha256("\n".join(rules()).encode()).hexdigest()[:16]
    assert max(REFUSES) == VERIFIER_VERSION
    assert REFUSES[VERIFIER_VERSION] == digest, (
        "the rules have changed: raise VERIFIER_VERSION in tfsearch/core/records.py by one, once a "
        f"release, and put its line here: {VERIFIER_VERSION + 1}: {digest!r}"
    )
