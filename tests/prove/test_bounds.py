"""Bounds of windows: exact against brute force, symbolic where it must not enumerate."""

import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.prove.nests import brute, exprs, nests
from tests.prove.toy import LIMITS, TABLE
from tfsearch.ir.tir.expr import Const, Var, as_expr, ceil_div, evaluate, maximum, minimum
from tfsearch.ir.tir.nodes import UNIT
from tfsearch.prove.forms import constant
from tfsearch.prove.limits import Limits
from tfsearch.prove.scope import Scope
from tfsearch.prove.verify import verify

WINDOW_CODES = {"tir.window-bounds", "tir.window-unproved"}


@settings(max_examples=120, deadline=None)
@given(nests())
def test_a_window_is_refused_exactly_when_it_can_leave_its_buffer(kernel):
    refusals = verify(kernel, TABLE, LIMITS)
    codes = {refusal.code for refusal in refusals}
    assume(not codes & {"tir.region-unreached", "tir.negative-dividend"})
    seen, wrong = brute(kernel)
    assume(seen)
    assert ("tir.window-bounds" in codes) == (wrong > 0), refusals
    assert "tir.window-unproved" not in codes


@settings(max_examples=40, deadline=None)
@given(nests())
def test_a_region_is_called_unreached_only_when_it_is(kernel):
    codes = {refusal.code for refusal in verify(kernel, TABLE, LIMITS)}
    assume("tir.region-unreached" in codes)
    assert brute(kernel)[0] == 0


@settings(max_examples=40, deadline=None)
@given(nests())
def test_without_any_budget_nothing_illegal_is_accepted(kernel):
    limits = Limits(LIMITS.capacity, LIMITS.register_bytes, enumeration_points=0)
    codes = {refusal.code for refusal in verify(kernel, TABLE, limits)}
    assume("tir.region-unreached" not in codes)
    if brute(kernel)[1]:
        assert codes & {*WINDOW_CODES, "tir.negative-dividend"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_symbolic_bounds_hold_at_every_point(data):
    scope, names, values = Scope(3), [UNIT], [{UNIT: unit} for unit in range(3)]
    for name in ("i", "j"):
        start = data.draw(exprs(names, 1))
        stop = start + maximum(data.draw(exprs(names, 2)), data.draw(st.integers(0, 2)))
        step = data.draw(st.integers(1, 3))
        scope.loop(name, scope.form(start), scope.form(stop), step, static=False)
        values = [
            {**env, name: value}
            for env in values
            for value in range(evaluate(start, env), evaluate(stop, env), step)
        ]
        names.append(name)
    assume(values)
    assert scope.feasible
    target = data.draw(exprs(names, 3))
    found = [evaluate(target, env) for env in values]
    form = scope.form(target)
    assert scope.lower(form) <= min(found)
    assert max(found) <= scope.upper(form)
    multiple = scope.multiple(form)
    assert all(value % multiple == 0 if multiple else value == 0 for value in found)


def scope_of(units, *loops):
    scope = Scope(units)
    for name, start, stop, step in loops:
        first, last = scope.form(as_expr(start)), scope.form(as_expr(stop))
        scope.loop(name, first, last, step, static=False)
    return scope


def bounds(scope, expr):
    form = scope.form(expr)
    return scope.lower(form), scope.upper(form)


def test_correlated_tails_are_exact():
    ic, i, m, mc = Var("ic"), Var("i"), 1001, 96
    scope = scope_of(1, ("ic", 0, ceil_div(m, mc), 1), ("i", 0, minimum(mc, m - ic * mc), 1))
    assert bounds(scope, ic * mc + i) == (0, m - 1)
    scope = scope_of(
        1, ("ic", 0, ceil_div(m, mc), 1), ("i", 0, ceil_div(minimum(mc, m - ic * mc), 8), 1)
    )
    assert bounds(scope, ic * mc + i * 8 + minimum(8, m - ic * mc - i * 8))[1] == m


def test_shares_of_units_are_exact():
    unit, r = Var(UNIT), Var("r")
    for units, rows in itertools.product((2, 3, 7), (5, 64, 97)):
        scope = scope_of(units, ("r", unit * rows // units, (unit + 1) * rows // units, 1))
        assert bounds(scope, r) == (0, rows - 1)


def test_distances_inside_a_share_are_whole_steps():
    share, j = Var(UNIT) % 4, Var("j")
    first, last = share * 195 // 4, (share + 1) * 195 // 4
    scope = scope_of(8, ("j", first, minimum(last, 194), 1))
    assert bounds(scope, (last - first) * 16) == (48 * 16, 49 * 16)
    assert bounds(scope, (j - first) * 16 + 16) == (16, 49 * 16)


def test_steps_reach_the_last_multiple_only():
    j = Var("j")
    scope = scope_of(1, ("j", 0, 96, 16))
    assert bounds(scope, j + 16) == (16, 96)
    scope = scope_of(1, ("j", 0, 100, 16))
    assert bounds(scope, j + minimum(16, 100 - j)) == (4 + 12, 100)


def test_tiles_in_one_loop_use_quotient_and_remainder():
    t, m, n = Var("t"), 1001, 333
    rows, columns = ceil_div(m, 96), ceil_div(n, 64)
    scope = scope_of(2, ("t", Var(UNIT), rows * columns, 2))
    row = t // evaluate(columns, {}) * 96
    column = t % evaluate(columns, {}) * 64
    assert bounds(scope, row + minimum(96, m - row)) == (96, m)
    assert bounds(scope, column + minimum(64, n - column)) == (64, n)
    again = t // 6 * 6 + t % 6
    assert bounds(scope, again)[1] == evaluate(rows * columns, {}) - 1


def test_conditions_narrow():
    i, m = Var("i"), 1001
    scope = scope_of(1, ("i", 0, ceil_div(m, 8), 1))
    left = minimum(8, m - i * 8)
    mark = scope.mark()
    scope.assume(scope.form(left.eq(8)))
    assert bounds(scope, i * 8 + 8)[1] <= m
    scope.reset(mark)
    assert bounds(scope, i * 8 + 8)[1] == 1008
    scope.assume(scope.form((i * 8 + 7).lt(m)))
    assert bounds(scope, i * 8 + 8)[1] <= m


def test_empty_tiles_past_the_edge_touch_nothing():
    j, v, n = Var("j"), Var("v"), 37
    scope = scope_of(1, ("j", 0, ceil_div(n, 16), 1), ("v", 0, 2, 1))
    extent = maximum(0, minimum(8, n - j * 16 - v * 8))
    clipped = scope.algebra.clipped(scope.form(extent))
    start = scope.form(j * 16 + v * 8)
    assert scope.upper((start[0], start[1])) == 40
    assert scope.upper(scope.form(extent)) == 8
    assert clipped != scope.form(extent)


def test_conditions_on_shares_of_units_narrow_through_quotients_and_remainders():
    unit, blocks = Var(UNIT), 11
    for units, share, ways in ((8, unit % 2, 2), (4, unit % 4, 4), (8, unit // 2 % 4, 4)):
        scope = scope_of(units)
        first, last = share * blocks // ways, (share + 1) * blocks // ways
        scope.assume(scope.form(last.eq(blocks)))
        assert scope.feasible
        assert bounds(scope, first) == (blocks * (ways - 1) // ways,) * 2


def test_a_divisor_that_nothing_can_reach_is_no_error():
    scope = Scope(1)
    i = scope.algebra.variable(scope.loop("i", constant(1), constant(5), 1, static=False))
    quotient = scope.form(Const(8) // Var("i"))
    assert scope.upper(quotient) == 8
    scope.narrow(i)
    assert not scope.feasible
    assert scope.upper(quotient) >= 8
