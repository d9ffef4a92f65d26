"""What is reported of a concurrent kernel names the place, the numbers and what would be right."""

from dataclasses import replace

import pytest

from tests.prove.loom import LIMITS, TABLE
from tests.prove.test_team import CASES
from tfsearch.ir.tir.text import parse_kernel, parse_module, print_module
from tfsearch.prove.interpret import SCHEDULES, interpret, schedules
from tfsearch.prove.verify import verify


def changed(case, *edits):
    module, arguments, _ = CASES[case]()
    text = print_module(module)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return parse_module(text), arguments


def found(case, code, *edits):
    """The first finding of a code in a run of a changed kernel that the verifier takes."""
    module, arguments = changed(case, *edits)
    assert verify(module, TABLE, LIMITS) == ()
    for seed in range(8):
        for refusal in interpret(module, TABLE, arguments, seed=seed).refusals:
            if refusal.code == code:
                return refusal
    raise AssertionError(code)


def test_a_deadlock_says_who_waits_for_what():
    refusal = found("cooperative", "tir.deadlock", ("(at // 3 + 1) % 2", "at // 3 % 2"))
    assert refusal.where == "ring:46:9: loom.wait(full[slot1], at1 // 3 % 2)"
    for unit in (0, 1):
        assert f"unit {unit} waits for the roles loader, maths to end" in refusal.message
        assert (
            f"unit {unit} loader waits for parity 0 of empty[0] in phase 0: 2 of 2 arrivals and 0 "
            f"bytes outstanding at 27:9: loom.wait(empty[slot], at // 3 % 2)" in refusal.message
        )
        assert f"unit {unit} maths[1] waits for parity 0 of full[0]" in refusal.message


def test_a_race_names_both_accesses():
    refusal = found("rows", "tir.race", ("      loom.team()\n      if w == 0", "      if w == 0"))
    assert "loom.load.row(more[0 :+ 8], part[i + 1, 0 :+ 8])" in refusal.where
    assert "rows[0] reads part[" in refusal.message
    assert "at 15:7: loom.store.row(part[w, 0 :+ 8], total[0 :+ 8]) wrote" in refusal.message


def test_a_missing_fence_names_the_writer_and_both_proxies():
    fence = "      loom.fence.async()\n      loom.named(w + 1, 2)\n"
    refusal = found(
        "cooperative",
        "tir.proxy-fence",
        (
            fence,
            "      if w == 0 {\n      loom.fence.async()\n      }\n      loom.named(w + 1, 2)\n",
        ),
    )
    assert "loom.store.box.r8" in refusal.where
    assert "wrote through the proxy generic" in refusal.message
    assert "visible to the proxy async" in refusal.message


def test_counts_of_arrivals_are_told_by_role():
    module, _ = changed("cooperative", ("loom.init(empty[i], 2)", "loom.init(empty[i], 5)"))
    (refusal,) = verify(module, TABLE, LIMITS)
    assert refusal.code == "tir.barrier-count"
    assert refusal.message == "empty takes 5 arrivals a phase; role maths makes 2"


def test_bytes_are_told_with_those_over_the_edge():
    module, _ = changed("multicast", ("loom.expect(full[slot], 768)", "loom.expect(full[slot], 8)"))
    (refusal,) = verify(module, TABLE, LIMITS)
    assert refusal.message == "a phase of full of rank 0 expects 8 bytes; its copies bring 768"


def test_registers_are_told_role_by_role():
    module, _ = changed("cooperative", ("loom.registers(40)", "loom.registers(48)"))
    (refusal,) = verify(module, TABLE, LIMITS)
    assert refusal.message == (
        "loader 2 x 16 + maths 4 x 48 and 0 x 32 for other warps are 224 registers a lane; 6 warps "
        "start with 192"
    )


def test_only_concurrent_kernels_need_several_schedules():
    assert len(schedules(CASES["cooperative"]()[0], TABLE)) == SCHEDULES > 2
    assert len(schedules(CASES["rows"]()[0], TABLE)) == 2
    text = "kernel k units 2 () { loom.fence.async() }"
    assert len(schedules(parse_module(text), TABLE)) == 1


def test_a_target_without_teams_refuses_them():
    module, _, _ = CASES["rows"]()
    alone = replace(LIMITS, max_warps=1, lanes=1)
    found = verify(module, TABLE, alone)
    assert [refusal.code for refusal in found] == ["tir.team"]
    assert found[0].message == (
        "a unit has 4 warps of 4 threads; the target runs 1 to 1 warps of 1"
    )


@pytest.mark.parametrize(
    ("reserved", "named", "code"), [(1, "1", ""), (2, "1", "tir.operand-value"),
                                    (0, "8", "tir.operand-value")],
)  # fmt: skip
def test_named_barriers_are_those_that_the_target_leaves(reserved, named, code):
    kernel = parse_kernel(f"kernel k units 1 warps 2 lanes 4 () {{ loom.named({named}, 2) }}")
    limits = replace(LIMITS, reserved_barriers=reserved)
    assert [refusal.code for refusal in verify(kernel, TABLE, limits)] == [code] * bool(code)
