"""What a remembered proof rests on."""

from __future__ import annotations

import pytest

from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify
from tfsearch.tune import proof


@pytest.mark.parametrize("judge", [HirOracle, Pass, check_outputs, interpret, verify])
def test_whatever_judges_a_proof_is_part_of_its_makers_identity(judge: type) -> None:
    module = judge.__module__
    assert any(module == name or module.startswith(f"{name}.") for name in proof.PROVER)


def test_every_part_of_the_makers_identity_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    every = proof.PROVER
    found = {proof.prover_digest("a"), proof.prover_digest("b")}
    for name in every:
        monkeypatch.setattr(proof, "PROVER", tuple(other for other in every if other != name))
        found.add(proof.prover_digest("a"))
    assert len(found) == 2 + len(every)
