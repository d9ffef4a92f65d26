"""The interpreter gives the right numbers, and reports what structure cannot show."""

import numpy as np
import pytest

from tests.prove.kernels import gemm, prepared, row_sum
from tests.prove.toy import TABLE
from tfsearch.core.errors import RequestError
from tfsearch.ir.tir.text import parse_module
from tfsearch.prove.interpret import interpret


def integers(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("m", "n", "k", "options"),
    [
        (13, 37, 21, {}),
        (32, 32, 32, {"units": 3}),
        (5, 7, 3, {"units": 1, "packed": False}),
        (1, 1, 1, {"units": 1}),
        (17, 16, 33, {"units": 4, "mr": 3, "kc": 7}),
    ],
)
def test_a_blocked_matmul_with_tails_is_exact(m, n, k, options):
    rng = np.random.default_rng(0)
    a, b = integers(rng, m, k), integers(rng, k, n)
    for seed in range(3):
        outcome = interpret(gemm(m, n, k, **options), TABLE, {"a": a, "b": b}, seed=seed)
        assert outcome.refusals == ()
        np.testing.assert_array_equal(outcome.outputs["c"], a @ b)


def test_a_reduction_and_a_prepared_operand_are_exact():
    rng = np.random.default_rng(1)
    x = integers(rng, 7, 21)
    outcome = interpret(row_sum(7, 21, units=2), TABLE, {"x": x})
    assert outcome.refusals == ()
    np.testing.assert_array_equal(outcome.outputs["y"], x.sum(axis=1))
    w, x = integers(rng, 3, 13), integers(rng, 3, 13)
    before = w.copy(), x.copy()
    outcome = interpret(prepared(3, 13), TABLE, {"w": w, "x": x})
    assert outcome.refusals == ()
    np.testing.assert_array_equal(outcome.outputs["y"], w + x)
    assert (w == before[0]).all()
    assert (x == before[1]).all()


def run(body, *, units=2, seed=0, params="out c: f32[4, 8] global align 64,", **arguments):
    text = f"kernel k units {units} ({params}) {{ {body} }}"
    return interpret(parse_module(text), TABLE, arguments, seed=seed)


def codes(outcome):
    return [refusal.code for refusal in outcome.refusals]


HEAD = "alloc r: f32[2, 8] register align 4 alloc s: f32[4, 8] scratch align 64 "
FILL = "toy.fill(r[0, 0 :+ 8], 1.0) "
ALL = "if unit == 0 { for q in 0..4 { toy.store(c[q, 0 :+ 8], r[0, 0 :+ 8]) } } "


def test_a_missing_barrier_is_a_race_with_both_accesses_named():
    body = (
        HEAD + FILL + "toy.store(s[unit, 0 :+ 8], r[0, 0 :+ 8]) {} "
        "toy.load(r[1, 0 :+ 8], s[1 - unit, 0 :+ 8]) "
        "toy.store(c[unit, 0 :+ 8], r[1, 0 :+ 8]) toy.store(c[unit + 2, 0 :+ 8], r[1, 0 :+ 8])"
    )
    for seed in range(5):
        assert codes(run(body.replace("{}", "toy.barrier()"), seed=seed)) == []
        outcome = run(body.replace("{}", ""), seed=seed)
        assert "tir.race" in codes(outcome)
        race = next(r for r in outcome.refusals if r.code == "tir.race")
        assert race.where.startswith("k:")
        message = race.message
        if "toy.load" in race.where:
            assert "wrote at" in message
            assert "toy.store(s[unit" in message
        else:
            assert "read at" in message
            assert "toy.load" in message
        assert "with no barrier between" in message


def test_two_units_writing_one_place_race_even_with_equal_values():
    body = HEAD + FILL + "for q in 0..4 { toy.store(c[q, 0 :+ 8], r[0, 0 :+ 8]) }"
    assert codes(run(body)) == ["tir.race"]
    assert codes(run(body, units=1)) == []
    quiet = interpret(
        parse_module(f"kernel k units 2 (out c: f32[4, 8] global align 64) {{ {body} }}"),
        TABLE,
        {},
        detect_races=False,
    )
    assert quiet.refusals == ()


def test_a_write_after_two_units_read_races_with_the_other_one():
    body = (
        HEAD + FILL + "if unit == 0 { for q in 0..4 { toy.store(s[q, 0 :+ 8], r[0, 0 :+ 8]) } } "
        "toy.barrier() toy.load(r[1, 0 :+ 8], s[0, 0 :+ 8]) {} "
        "if unit == 0 { toy.store(s[0, 0 :+ 8], r[1, 0 :+ 8]) } " + ALL
    )
    assert codes(run(body.replace("{}", "toy.barrier()"))) == []
    for seed in range(5):
        assert "tir.race" in codes(run(body.replace("{}", ""), seed=seed))


def test_a_barrier_that_not_all_reach_is_a_deadlock_naming_who_waits():
    outcome = run(HEAD + FILL + ALL + "if unit == 1 { toy.barrier() }")
    assert codes(outcome) == ["tir.deadlock"]
    assert "units that have ended (0): unit 1 waits at" in outcome.refusals[0].message
    assert "toy.barrier()" in outcome.refusals[0].message


def test_unwritten_memory_is_poison_wherever_it_lives():
    load = "toy.load(r[1, 0 :+ 8], {}[0, 0 :+ 8]) "
    for name, code in (("s", "tir.read-unwritten"), ("c", "tir.read-unwritten")):
        outcome = run(HEAD + FILL + load.format(name) + ALL, units=1)
        assert codes(outcome) == [code]
        assert f"elements of {name} that nothing has written" in outcome.refusals[0].message
    local = "alloc l: f32[1, 8] local align 32 "
    assert codes(run(HEAD + local + FILL + load.format("l") + ALL, units=1)) == [
        "tir.read-unwritten"
    ]
    outcome = run(HEAD + "toy.add(r[0, 0 :+ 8], r[0, 0 :+ 8], r[1, 0 :+ 8])" + ALL, units=1)
    assert codes(outcome) == ["tir.read-unwritten", "tir.read-unwritten"]


def test_a_partial_write_leaves_the_rest_poisoned():
    body = (
        HEAD + FILL + "toy.store(s[0, 0 :+ 5], r[0, 0 :+ 8]) "
        "toy.load(r[1, 0 :+ 8], s[0, 0 :+ {}]) " + ALL
    )
    assert codes(run(body.replace("{}", "5"), units=1)) == []
    assert codes(run(body.replace("{}", "6"), units=1)) == ["tir.read-unwritten"]


def test_an_allocation_in_a_loop_starts_unwritten_each_time():
    body = HEAD + (
        "for i in 0..2 { alloc t: f32[1, 8] register align 4 "
        "if i < 1 { toy.fill(t[0, 0 :+ 8], 1.0) } "
        "toy.store(s[i, 0 :+ 8], t[0, 0 :+ 8]) } "
    )
    assert codes(run(body + FILL + ALL, units=1)) == ["tir.read-unwritten"]


def test_outputs_that_are_not_fully_written_are_refused():
    body = HEAD + FILL + "for q in 0..3 { toy.store(c[q, 0 :+ 8], r[0, 0 :+ 8]) }"
    outcome = run(body, units=1)
    assert codes(outcome) == ["tir.output-unwritten"]
    assert "8 of 32 elements of c were never written, the first at [3, 0]" in (
        outcome.refusals[0].message
    )


def test_windows_are_checked_again_at_run_time():
    body = HEAD + FILL + "for q in 0..5 { toy.store(c[q, 0 :+ 8], r[0, 0 :+ 8]) }"
    outcome = run(body, units=1)
    assert codes(outcome) == ["tir.window-bounds"]
    assert "covers 4 to 5, 0 to 8 of c" in outcome.refusals[0].message
    assert outcome.outputs == {}


def test_empty_windows_may_start_outside():
    body = (
        HEAD
        + FILL
        + ALL
        + "for q in 0..9 { toy.load(r[1, 0 :+ 8], c[q, 0 :+ min(8, max(0, 4 - q))]) }"
    )
    assert codes(run(body, units=1)) == []


def test_what_the_contract_forbids_is_not_executed():
    body = HEAD + FILL + "toy.store(x[0, 0 :+ 8], r[0, 0 :+ 8]) " + ALL
    params = "in x: f32[1, 8] global align 64, out c: f32[4, 8] global align 64,"
    outcome = run(body, params=params, x=np.zeros((1, 8), np.float32))
    assert codes(outcome) == ["tir.write-to-input"]
    assert outcome.steps == 0


@pytest.mark.parametrize("given", [None, np.zeros((2, 8), np.float32), np.zeros((1, 8))])
def test_arguments_must_fit(given):
    params = "in x: f32[1, 8] global align 64, out c: f32[4, 8] global align 64,"
    arguments = {} if given is None else {"x": given}
    with pytest.raises(RequestError, match="argument x"):
        run(HEAD + FILL + ALL, params=params, **arguments)


def test_strided_arguments_keep_their_gaps():
    params = "inout c: f32[4, 8] global strides [11, 1] align 64,"
    body = (
        "alloc r: f32[2, 8] register align 4 "
        + FILL
        + (
            "for q in 0..4 { toy.load(r[1, 0 :+ 8], c[q, 0 :+ 8]) "
            "toy.add(r[1, 0 :+ 8], r[1, 0 :+ 8], r[0, 0 :+ 8]) "
            "toy.store(c[q, 0 :+ 8], r[1, 0 :+ 8]) }"
        )
    )
    c = integers(np.random.default_rng(2), 4, 8)
    outcome = run(body, units=1, params=params, c=c)
    assert outcome.refusals == ()
    np.testing.assert_array_equal(outcome.outputs["c"], c + 1)


def test_the_same_seed_gives_the_same_run_and_seeds_differ():
    body = (
        HEAD + FILL + "for q in 0..4 { toy.store(s[q, 0 :+ 8], r[0, 0 :+ 8]) } toy.barrier() " + ALL
    )
    runs = [[run(body, units=3, seed=seed).refusals for _ in range(2)] for seed in range(8)]
    assert all(first == second for first, second in runs)
    assert len({first for first, _ in runs}) > 1


def test_logic_and_roles_follow_the_expressions():
    body = (
        HEAD
        + FILL
        + (
            "role a units 0..1 { for q in 0..4 { if q == 1 or q == 3 and unit == 0 { "
            "toy.store(c[q, 0 :+ 8], r[0, 0 :+ 8]) } } } "
            "role b units 1..2 { for p in 0..4 step 2 { if not_(p) { "
            "toy.store(c[p, 0 :+ 8], r[0, 0 :+ 8]) } } }"
        ).replace("not_(p)", "p != 1 and p <= 2")
    )
    assert codes(run(body)) == []


def test_hints_neither_read_nor_race():
    body = HEAD + FILL + "toy.prefetch(s[unit, 0]) toy.prefetch(c[0, 0]) " + ALL
    assert codes(run(body)) == []


def test_an_error_inside_an_atom_names_the_statement():
    from tests.prove.toy import ATOMS, _atom
    from tfsearch.atoms.contract import Kind
    from tfsearch.atoms.table import AtomTable

    def broken(ops):
        ops[0][:] = np.zeros(3, np.float32)

    atom = _atom("broken", Kind.MAP, "broken", ATOMS[0].operands[:1], broken)
    text = (
        "kernel k units 1 (out c: f32[1, 8] global align 64) { alloc r: f32[1, 8] register align 4 "
        "toy.broken(r[0, 0 :+ 8]) toy.store(c[0, 0 :+ 8], r[0, 0 :+ 8]) }"
    )
    outcome = interpret(parse_module(text), AtomTable([*ATOMS, atom], ()), {})
    assert codes(outcome) == ["tir.semantics"]
    assert "toy.broken(r[0, 0 :+ 8])" in outcome.refusals[0].where
