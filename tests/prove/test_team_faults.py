"""Planted faults of concurrent kernels: each is refused by the verifier or caught in a run.

A fault is a change of a kernel's text. Its codes are all those that say what is wrong.
"""

import pytest

from tests.prove.loom import LIMITS, TABLE
from tests.prove.team_faults import FAULTS
from tests.prove.test_team import CASES
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.interpret import interpret, schedules
from tfsearch.prove.verify import verify


def planted(name):
    stage, case, old, new, codes, *more = FAULTS[name]
    module, arguments, _ = CASES[case]()
    text = print_module(module)
    for before, after in ((old, new), *more):
        assert before in text, before
        text = text.replace(before, after)
    return stage, parse_module(text), arguments, set(codes.split())


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    stage, module, arguments, codes = planted(name)
    refused = verify(module, TABLE, LIMITS)
    if refused:
        assert codes & {refusal.code for refusal in refused}
        assert all(refusal.where for refusal in refused)
        return
    assert stage == "I", "the verifier has to see this"
    found = [
        r
        for seed in schedules(module, TABLE)
        for r in interpret(module, TABLE, arguments, seed=seed).refusals
    ]
    assert codes & {refusal.code for refusal in found}
    assert all(refusal.where and refusal.message for refusal in found)
