"""The proof of a recipe shape: its reduced form interpreted and held to the program's reference.

The interpreter finds what structure cannot show (races, reads of unwritten memory, outputs
that are not covered); its outputs are then compared with the reference by the same checks that
built kernels have to pass: exact on small integers (or within the program's own bounds where
it has no exact results), within its bounds on inputs of a wide range, which show what is there for
stability alone, and under a full proof on normal inputs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfsearch.atoms.table import AtomTable
from tfsearch.core import keys
from tfsearch.core.records import Refusal
from tfsearch.ir.tir.nodes import Io, Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.buffers import Array
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import Case, check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.plugin.identity import generator_digest
from tfsearch.prove.interpret import interpret, schedules
from tfsearch.prove.limits import Limits
from tfsearch.prove.shape import shape_hash
from tfsearch.prove.verify import verify

QUICK = (Pass.INTEGERS, Pass.RANGE)
FULL = (Pass.INTEGERS, Pass.NORMAL, Pass.RANGE)


PROVER = (
    "tfsearch.ir",
    "tfsearch.prove",
    "tfsearch.measure.inputs",
    "tfsearch.measure.numerics",
    "tfsearch.measure.oracle",
    "tfsearch.tune.proof",
)
"""Modules and packages that decide a verdict; a change in one of them makes proofs again."""


def prover_digest(generator: str) -> str:
    """Identity of a proof's maker: the prover's code and the code that made atoms and TIR."""
    code = generator_digest(*PROVER)
    return keys.digest("prover", {"code": code, "generator": generator})


def shape_of(workload: Workload, module: Module) -> str:
    """Hash of a recipe shape: the reduced TIR, its signature, and the program it must compute."""
    names = [param.buffer.name for kernel in module.kernels for param in kernel.params]
    fields = {"workload": workload.key, "arguments": names, "tir": shape_hash(module)}
    return keys.digest("shape", fields)


def prove_reduced(
    workload: Workload,
    module: Module,
    atoms: AtomTable,
    limits: Limits,
    passes: Sequence[Pass] = QUICK,
) -> tuple[Refusal, ...]:
    """Every reason why the reduced form is not right; () if it is."""
    refusals = verify(module, atoms, limits)
    if refusals:
        return refusals
    oracle = HirOracle(workload.record)
    for seed, which in enumerate(passes):
        case = oracle.case(which, seed)
        arguments = _arguments(module, case)
        for schedule in schedules(module, atoms):
            outcome = interpret(module, atoms, arguments, seed=seed + schedule)
            if outcome.refusals:
                return outcome.refusals
            outputs = {
                name: np.asarray(outcome.outputs[name]).reshape(expected.ref.shape)
                for name, expected in case.expected.items()
            }
            finding = check_outputs(outputs, case)
            if finding.message:
                place = f"reduced form, pass {which.value}"
                return (Refusal("proof.wrong-result", place, finding.message),)
    return ()


def _arguments(module: Module, case: Case) -> Mapping[str, Array]:
    """The case's inputs in the shapes of the kernels' parameters."""
    found: dict[str, Array] = {}
    for kernel in module.kernels:
        for param in kernel.params:
            name = param.buffer.name
            if param.io in (Io.IN, Io.INOUT) and name in case.inputs:
                found[name] = case.inputs[name].reshape(param.buffer.shape)
    return found
