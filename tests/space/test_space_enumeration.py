"""Enumeration, counts, samples and neighbours against a brute-force product."""

import itertools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.space import (
    Constraint,
    Definition,
    Kind,
    Parameter,
    Point,
    RecipeSpace,
    Space,
    enumeration,
    join,
    plan,
)
from tfsearch.space import (
    space as space_module,
)

NUMBERS = ["p0", "p1", "p2", "p3", "d", "1", "2", "5"]


@st.composite
def conditions(draw, names, texts):
    """A Python condition over integer ``names`` and string ``texts``."""
    number = st.sampled_from([*names, "1", "2", "5"])
    term = st.tuples(number, st.sampled_from(["+", "-", "*", "//", "%"]), number).map(" ".join)
    simple = st.tuples(
        st.one_of(number, term), st.sampled_from(["<", "<=", "==", "!=", ">"]), number
    ).map(lambda t: f"({t[0]}) {t[1]} {t[2]}")
    options = [simple, number.map(lambda n: f"{n} in (0, 2, 3)")]
    if texts:
        options.append(st.sampled_from([f"{t} {op} 'x'" for t in texts for op in ("==", "!=")]))
    part = st.one_of(options)
    joined = st.tuples(part, st.sampled_from(["and", "or"]), part).map(
        lambda t: f"({t[0]}) {t[1]} ({t[2]})"
    )
    return draw(st.one_of(part, joined, part.map(lambda c: f"not ({c})")))


@st.composite
def recipes(draw):
    """A small random recipe with a derived column, and its constraints' Python texts."""
    parameters, names, texts = [], [], []
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["int", "int", "int", "bool", "str"]))
        name = f"p{i}"
        if kind == "bool":
            parameters.append(Parameter(name, (False, True), Kind.BOOLEAN))
            names.append(name)
        elif kind == "str":
            values = draw(st.permutations(["x", "y", "z"]))[: draw(st.integers(1, 3))]
            parameters.append(Parameter(name, tuple(values), Kind.CATEGORICAL))
            texts.append(name)
        else:
            values = draw(st.lists(st.integers(-2, 6), min_size=1, max_size=4, unique=True))
            parameters.append(Parameter(name, tuple(values), Kind.ORDINAL))
            names.append(name)
    base = [*names, "k"]
    derived = f"{draw(st.sampled_from(base))} // {draw(st.sampled_from(base))} + k"
    bodies = draw(st.lists(conditions([*base, "d"], texts), max_size=5))
    recipe = RecipeSpace(
        "r",
        1,
        tuple(parameters),
        (Definition("d", derived),),
        tuple(Constraint(f"c.c{i}", text, "{d}") for i, text in enumerate(bodies)),
        {"k": draw(st.integers(0, 3))},
    )
    return recipe


def holds(recipe, constraint, params):
    """Python's verdict on one point; definitions are read by name, so they fail when used."""

    class Names(dict):
        def __missing__(self, name):
            definition = next(d for d in recipe.definitions if d.name == name)
            return eval(definition.expression.text, {"__builtins__": {}}, self)  # noqa: S307

    names = Names({**params, **recipe.constants})
    try:
        return bool(eval(constraint.expression.text, {"__builtins__": {}}, names))  # noqa: S307
    except ZeroDivisionError:
        return False


def brute_force(recipe):
    """Every point in index order with the codes of the constraints it fails."""
    domains = [p.values for p in recipe.parameters]
    names = [p.name for p in recipe.parameters]
    for values in itertools.product(*domains):
        params = dict(zip(names, values, strict=True))
        yield params, [c.code for c in recipe.constraints if not holds(recipe, c, params)]


@given(
    recipes(),
    st.integers(1, 9),
    st.sampled_from([1, 3, 1 << 17]),
    st.sampled_from([0, 2, 999]),
    st.sampled_from([0, 9, 1 << 15]),
    st.sampled_from([0, 1 << 16]),
)
@settings(max_examples=300, deadline=None)
def test_enumeration_equals_brute_force(recipe, limit, work, hold, on_grid, unsampled):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "SMALL", on_grid)
        patch.setattr(plan, "SMALL", unsampled)
        patch.setattr(join, "WORK", work)
        patch.setattr(enumeration, "HOLD", hold)
        space = Space((recipe,))
        rows = list(brute_force(recipe))
        legal = {index for index, (_, failing) in enumerate(rows) if not failing}
        seen = []
        for points in space.chunks(limit):
            assert 0 < len(points) <= limit
            for row in range(len(points)):
                index = int(points.index[row])
                point = points.point(row)
                assert dict(point.params) == rows[index][0]
                assert space.encode(point) == index
                assert space.decode("r", index) == point
                seen.append(index)
        assert len(seen) == len(set(seen))
        assert set(seen) == legal
        counts = space.count()
        assert counts == Space((recipe,)).count()
        assert counts.points == len(rows) == space.points
        assert counts.legal == len(legal)
        assert counts.legal + sum(counts.rejected.values()) == counts.points
        ranked = Space((recipe,)).sample(len(rows) + 1, np.random.default_rng(1))
        assert sorted(space.encode(point) for point in ranked) == sorted(legal)


@given(recipes(), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_the_grid_and_the_join_give_the_same_rows_in_the_same_order_with_the_same_counts(
    recipe, limit
):
    found = []
    for on_grid in (0, 1 << 15):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(join, "SMALL", on_grid)
            space = Space((recipe,))
            rows = [points.index.tolist() for points in space.chunks(limit)]
            found.append((rows, space.count()))
    assert found[0] == found[1]


@given(recipes())
@settings(max_examples=80, deadline=None)
def test_a_point_is_charged_to_the_first_constraint_in_the_charge_order(recipe):
    flat = tuple(
        Constraint(c.code, f"({c.expression.text}) or False", c.reason) for c in recipe.constraints
    )
    recipe = RecipeSpace("r", 1, recipe.parameters, recipe.definitions, flat, recipe.constants)
    space = Space((recipe,))
    order = space.charge_order("r")
    want = {}
    for _, failing in brute_force(recipe):
        if failing:
            code = min(failing, key=order.index)
            want[code] = want.get(code, 0) + 1
    assert space.count().rejected == want


@given(recipes())
@settings(max_examples=80, deadline=None)
def test_check_names_exactly_the_constraints_that_fail(recipe):
    space = Space((recipe,))
    for params, failing in brute_force(recipe):
        assert [r.code for r in space.check(Point("r", params))] == failing


@given(recipes())
@settings(max_examples=60, deadline=None)
def test_neighbours_are_the_legal_single_moves_and_symmetric(recipe):
    space = Space((recipe,))
    legal = [Point("r", params) for params, failing in brute_force(recipe) if not failing]
    moves = {point: space.neighbours(point) for point in legal}
    for point, found in moves.items():
        assert len(found) == len(set(found))
        want = set()
        for parameter in recipe.parameters:
            code = parameter.encode(point.params[parameter.name])
            for other in parameter.neighbours(code):
                move = Point("r", {**point.params, parameter.name: parameter.values[other]})
                if move in moves:
                    want.add(move)
        assert set(found) == want
        assert all(point in moves[other] for other in found)


@given(recipes(), st.data())
@settings(max_examples=60, deadline=None)
def test_fixing_a_parameter_keeps_exactly_the_points_with_its_value(recipe, data):
    parameter = data.draw(st.sampled_from(recipe.parameters))
    value = data.draw(st.sampled_from(parameter.values))
    fixed = Space((recipe,)).fix({parameter.name: value})
    found = {p.point(row) for p in fixed.chunks() for row in range(len(p))}
    want = {
        Point("r", params)
        for params, failing in brute_force(recipe)
        if not failing and params[parameter.name] == value
    }
    assert found == want


def two_recipes():
    a = Parameter("a", tuple(range(1, 7)), Kind.ORDINAL)
    b = Parameter("b", tuple(range(1, 6)), Kind.ORDINAL)
    c = Parameter("c", ("x", "y"), Kind.CATEGORICAL)
    d = Parameter("d", (False, True), Kind.BOOLEAN)
    constraint = Constraint("r.product", "a * b <= 9", "{a} x {b}")
    split = Constraint("s.text", "c == 'x' or d", "")
    return Space(
        (
            RecipeSpace("one", 1, (a, b), (), (constraint,)),
            RecipeSpace("two", 1, (d, a, c, b), (), (constraint, split)),
        )
    )


@pytest.mark.parametrize("hold", [0, 1 << 20], ids=["streamed", "held"])
def test_samples_are_uniform_over_the_legal_points_of_all_recipes(hold, monkeypatch):
    monkeypatch.setattr(enumeration, "HOLD", hold)
    space = two_recipes()
    legal = space.count().legal
    rng = np.random.default_rng(20240)
    first, every = {}, {}
    rounds, size = 1500, 4
    for _ in range(rounds):
        drawn = [(p.recipe_name, space.encode(p)) for p in space.sample(size, rng)]
        assert len(set(drawn)) == size
        first[drawn[0]] = first.get(drawn[0], 0) + 1
        for key in drawn:
            every[key] = every.get(key, 0) + 1
    for found, total in ((first, rounds), (every, rounds * size)):
        assert len(found) == legal
        expected = total / legal
        chi2 = sum((count - expected) ** 2 / expected for count in found.values())
        freedom = legal - 1
        assert abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5


def test_large_draws_are_distinct_and_cover_the_range():
    rng = np.random.default_rng(5)
    ranks = space_module.draw(10**15, 5000, rng)
    assert len(set(ranks.tolist())) == 5000
    assert ranks.max() > 0.99 * 10**15
    assert sorted(space_module.draw(50, 50, rng).tolist()) == list(range(50))
    counts = np.zeros(40)
    for _ in range(2000):
        counts[space_module.draw(40, 8, rng)] += 1
    expected = 2000 * 8 / 40
    assert ((counts - expected) ** 2 / expected).sum() < 39 + 4 * 78**0.5


def test_sampling_the_same_seed_gives_the_same_points():
    one = list(two_recipes().sample(10, np.random.default_rng(3)))
    two = list(two_recipes().sample(10, np.random.default_rng(3)))
    assert one == two
    assert len(two_recipes().sample(0, np.random.default_rng(3))) == 0


def test_the_legal_set_is_the_chunks_and_computed_once():
    space = two_recipes()
    held = space.legal_set()
    assert [p.recipe.name for p in held] == ["one", "two"]
    for points in held:
        parts = [c.index for c in space.chunks(5) if c.recipe is points.recipe]
        assert np.concatenate(parts).tolist() == points.index.tolist()
    assert all(a is b for a, b in zip(held, space.legal_set(), strict=True))
    with pytest.raises(ValueError, match="read-only"):
        held[0].index[0] = 1


def test_a_legal_set_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(space_module, "LEGAL_SET_LIMIT", 10)
    with pytest.raises(RequestError) as caught:
        two_recipes().legal_set()
    assert caught.value.code == "space.too-many-legal"


def test_a_space_without_recipes_or_without_parameters_is_well_defined():
    empty = Space(())
    assert empty.count() == enumeration.Counts(0, 0, {})
    assert list(empty.chunks()) == []
    assert len(empty.sample(3, np.random.default_rng(0))) == 0
    single = Space((RecipeSpace("r", 1, ()),))
    assert single.count().legal == 1
    assert [p.point(0) for p in single.chunks()] == [Point("r", {})]
    assert single.check(Point("r", {})) == ()
    never = (Constraint("r.never", "k > 2", "{k}"),)
    refused = Space((RecipeSpace("r", 1, (), (), never, {"k": 1}),))
    assert refused.count().rejected == {"r.never": 1}
    assert list(refused.chunks()) == []


def test_spaces_beyond_64_bits_are_counted_but_not_enumerated():
    parameters = tuple(Parameter(f"p{i}", tuple(range(1, 101)), Kind.ORDINAL) for i in range(12))
    constraint = Constraint("r.pair", "p0 * p1 <= 100", "")
    space = Space((RecipeSpace("r", 1, parameters, (), (constraint,)),))
    counts = space.count()
    pairs = sum(100 // a for a in range(1, 101))
    assert counts.legal == pairs * 100**10
    assert counts.legal + sum(counts.rejected.values()) == 100**12
    last = space.decode("r", 100**12 - 1)
    assert space.encode(last) == 100**12 - 1
    for call in (lambda: next(space.chunks()), lambda: space.sample(1, np.random.default_rng())):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.code == "space.too-large"


def test_dead_prefixes_are_never_extended():
    """A constraint on the first two of thirteen parameters leaves one prefix in ten thousand."""
    parameters = tuple(Parameter(f"p{i}", tuple(range(10)), Kind.ORDINAL) for i in range(13))
    pair = Constraint("r.pair", "p0 == 3 and p12 == 4", "")
    chain = [Constraint(f"r.c{i}", f"p{i} == p{i + 1}", "") for i in range(1, 12)]
    space = Space((RecipeSpace("r", 1, parameters, (), (pair, *chain)),))
    (points,) = space.legal_set()
    assert points.params(0) == {"p0": 3, **{f"p{i}": 4 for i in range(1, 13)}}
    assert space.count().points == 10**13


@pytest.mark.parametrize("kind", ["linked", "free"])
def test_a_hundred_million_points_most_of_them_legal_stay_under_500_megabytes(kind):
    resource = pytest.importorskip("resource", reason="resource: peak memory of a process")
    del resource
    program = f"""
        import pathlib, re, resource, sys
        from tfsearch.space import Constraint, Kind, Parameter, RecipeSpace, Space
        ps = tuple(Parameter(f"p{{i}}", tuple(range(1, 11)), Kind.ORDINAL) for i in range(8))
        cs = [Constraint(f"c.c{{i}}", f"p{{i}} * p{{i + 1}} <= 95", "") for i in range(7)]
        space = Space((RecipeSpace("r", 1, ps, (), tuple(cs) if {kind == "linked"} else ()),))
        seen = sum(len(points) for points in space.chunks())
        counts = space.count()
        assert counts.points == 10**8 and counts.legal == seen > 9 * 10**7
        status = pathlib.Path("/proc/self/status")
        if status.exists():  # elsewhere the peak may be that of the process that started this one
            print(int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) * 1024)
        else:
            scale = 1 if sys.platform == "darwin" else 1024
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(done.stdout) < 500e6
