"""What a remembered proof rests on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.tir.nodes import Block, Call, Module, Scalar, Stmt
from tfsearch.ir.tir.walk import transform
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify
from tfsearch.target.x86 import target
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


def test_what_is_there_for_stability_alone_is_proved_too() -> None:
    device = target.nominal()
    atoms, limits = target.atoms(device), target.limits(device)
    workload = build_workload("softmax", {"rows": 9, "cols": 75, "dtype": "f32"})
    problem = target.problem(workload, device)
    (point,) = problem.space.sample(1, np.random.default_rng(0))
    reduced, module = problem.reduced(point)

    def from_zero(statement: Stmt) -> Block:
        """Row maxima that start at 0 where they started at minus infinity."""
        if not isinstance(statement, Call):
            return (statement,)
        start = [Scalar(0.0) if o == Scalar(-math.inf) else o for o in statement.operands]
        return (Call(statement.atom, tuple(start)),)

    kernels = tuple(replace(k, body=transform(k.body, from_zero)) for k in module.kernels)
    assert Module(kernels) != module
    assert proof.prove_reduced(reduced, module, atoms, limits) == ()
    assert proof.prove_reduced(reduced, Module(kernels), atoms, limits, (Pass.INTEGERS,)) == ()
    (found,) = proof.prove_reduced(reduced, Module(kernels), atoms, limits)
    assert found.code == "proof.wrong-result"
