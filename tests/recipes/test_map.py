"""The map recipe: what it takes, what it lowers to, what it says about it."""

import numpy as np
import pytest

from tests.recipes.rowwise_and_map import (
    LIMITS,
    compiled,
    counted,
    inputs_of,
    interpreted,
    kit,
    program,
    sample,
    workload,
    wrong,
)
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import lang
from tfsearch.ir.tir.text import print_module
from tfsearch.prove.verify import verify
from tfsearch.recipes.domain import as_called
from tfsearch.recipes.map import Map
from tfsearch.recipes.map.match import match
from tfsearch.space import Space
from tfsearch.target.x86.emit import source_of


def add(a, b):
    return a + b


def gelu_bias(a, bias):
    return lang.gelu(a + bias)


def doubled_transpose(a):
    return a.T * 2.0


def add_transpose(a, b):
    return a.T + b


def swap_inner(a):
    return a.transpose((0, 2, 1)).cast("f16")


def to_bf16(a):
    return a.cast("bf16")


def selected(a, m):
    return lang.where(m > 0, a, -1.0)


def several(a, b):
    return {"s": a + b, "d": (a - b).cast("i8"), "p": a * b}


def outer_product(a, b):
    return a.reshape((33, 1)) * b.reshape((1, 21))


def symmetric(a):
    return a + a.T


def scaled(a, b):
    return a * b.reshape(())


def row_scaled(a, b):
    return a * b.reshape((7, 1))


def integers(a, b):
    return lang.maximum(a, b).cast("i32") * 3


def widened(a):
    return lang.exp(a.cast("f64"))


def both_ways(a):
    return {"y": a * 2.0, "z": (a + 1.0).T}


def keyword_names(short, x):
    return short - x


PROGRAMS = {
    "add": program(add, a=("f32", (7, 45)), b=("f32", (7, 45))),
    "bias": program(gelu_bias, a=("f32", (7, 45)), bias=("f32", (45,))),
    "transpose": program(doubled_transpose, a=("f32", (37, 45))),
    "transpose-bf16": program(add_transpose, a=("bf16", (37, 45)), b=("bf16", (45, 37))),
    "transpose-batch": program(swap_inner, a=("f32", (3, 37, 45))),
    "cast": program(to_bf16, a=("f32", (5, 6, 7))),
    "select": program(selected, a=("f32", (5, 6, 7)), m=("i8", (5, 6, 7))),
    "several": program(several, a=("f32", (7, 45)), b=("f32", (7, 45))),
    "outer": program(outer_product, a=("f32", (33,)), b=("f32", (21,))),
    "symmetric": program(symmetric, a=("f32", (37, 37))),
    "strided": program(lang.exp, x=("f32", (7, 20), (50, 2))),
    "padded-rows": program(add, a=("f32", (7, 20), (32, 1)), b=("f32", (7, 20))),
    "row-scale": program(row_scaled, a=("f32", (7, 45)), b=("f32", (7,))),
    "scalar": program(scaled, a=("f32", (300,)), b=("f32", (1,))),
    "one": program(doubled_transpose, a=("f32", (1, 1))),
    "integers": program(integers, a=("i8", (7, 45)), b=("i8", (7, 45))),
    "f64": program(widened, a=("f32", (100,))),
    "both-ways": program(both_ways, a=("f32", (37, 20))),
    "keywords": program(keyword_names, short=("f32", (9,)), x=("f32", (9,))),
}


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_compiled_kernels_stay_within_bounds(tmp_path, level):
    cases = []
    for number, (name, prog) in enumerate(PROGRAMS.items()):
        matched = Map().match(workload(prog), kit(level))
        for space, params in sample(matched, 1 if level == "scalar" else 2, seed=number):
            cases.append((name, prog, params, matched.lower(space, params)))
    kernels = compiled(tmp_path, [module for *_, module in cases], level)
    for (name, prog, params, _), kernel in zip(cases, kernels, strict=True):
        inputs = inputs_of(prog)
        assert wrong(prog, inputs, kernel(prog, inputs)) == [], (name, params)


def test_another_compiler_takes_the_kernels(tmp_path):
    prog = PROGRAMS["select"]
    matched = Map().match(workload(prog), kit("avx2"))
    space, params = sample(matched, 1)[0]
    (kernel,) = compiled(tmp_path, [matched.lower(space, params)], "avx2", "clang")
    inputs = inputs_of(prog)
    assert wrong(prog, inputs, kernel(prog, inputs)) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_reduced_kernels_are_legal_and_right_when_interpreted(name):
    matched = Map().match(workload(PROGRAMS[name]), kit())
    for space, params in sample(matched, 3, seed=5):
        small, smaller = matched.reduced(space, params)
        module = Map().match(small, kit()).lower(space, smaller)
        assert verify(module, kit().atoms, LIMITS) == ()
        inputs = inputs_of(small.program)
        outputs = interpreted(small.program, module, kit().atoms, inputs)
        assert wrong(small.program, inputs, outputs) == [], params


@pytest.mark.parametrize("name", PROGRAMS)
def test_facts_equal_a_walk_over_the_lowered_kernel(name):
    matched = Map().match(workload(PROGRAMS[name]), kit())
    points = Space(tuple(matched.spaces)).legal_set()[0]
    facts = matched.facts(points)
    rows = np.random.default_rng(3).choice(len(points), min(6, len(points)), replace=False)
    for row in rows:
        module = matched.lower(points.recipe.name, points.params(int(row)))
        assert verify(module, kit().atoms, LIMITS) == ()
        expected = counted(module, kit().atoms)
        assert {k: int(facts.columns[k][row]) for k in expected} == expected


@pytest.mark.parametrize("name", ["add", "transpose", "transpose-batch", "symmetric", "scalar"])
def test_no_two_points_are_the_same_kernel(name):
    matched = Map().match(workload(PROGRAMS[name]), kit(units=(1, 2)))
    points = Space(tuple(matched.spaces)).legal_set()[0]
    texts = [print_module(matched.lower("", points.params(i))) for i in range(len(points))]
    assert len(set(texts)) == len(texts) > 1


def test_dense_axes_are_walked_as_one():
    assert list(match(PROGRAMS["cast"]).extents.values()) == [210]
    assert list(match(PROGRAMS["add"]).extents.values()) == [315]


def test_axes_that_a_broadcast_or_a_gap_keeps_apart_stay_apart():
    assert sorted(match(PROGRAMS["bias"]).extents.values()) == [7, 45]
    assert sorted(match(PROGRAMS["padded-rows"]).extents.values()) == [7, 20]


def test_arguments_keep_the_callers_shape_in_the_launch():
    prog = PROGRAMS["cast"]
    matched = Map().match(workload(prog), kit())
    space, params = sample(matched, 1)[0]
    _, launch = source_of(matched.lower(space, params), kit().atoms)
    assert [a.shape for a in launch.main.arguments] == [(1, 1, 210)] * 2
    assert [a.shape for a in as_called(launch, prog).main.arguments] == [(5, 6, 7)] * 2


def test_turned_inputs_go_through_transposing_instructions():
    matched = Map().match(workload(PROGRAMS["transpose"]), kit())
    params = {"lanes": 16, "unroll": 1, "block": 1, "stream": False, "units": 1}
    turned = print_module(matched.lower("map", {**params, "gather": "transpose"}))
    strided = print_module(matched.lower("map", {**params, "gather": "strided"}))
    assert "x86.transpose." in turned
    assert "load_strided" not in turned
    assert "load_strided" in strided


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"unroll": 4}, "map.unroll-extent"),
        ({"gather": "transpose", "unroll": 2}, "map.transpose-unroll"),
        ({"block": 2}, "map.block-effect"),
        ({"gather": "transpose", "block": 4, "units": 3}, "map.units-idle"),
    ],
)
def test_refusals_name_their_numbers(change, code):
    matched = Map().match(workload(PROGRAMS["transpose"]), kit())
    params = {
        "lanes": 16, "unroll": 1, "gather": "strided", "block": 1, "stream": False, "units": 1,
    }  # fmt: skip
    assert matched.spaces[0].check(params) == ()
    refusals = matched.spaces[0].check({**params, **change})
    assert [r.code for r in refusals] == [code]
    assert any(c.isdigit() for c in refusals[0].message)


@pytest.mark.parametrize(
    ("prog", "why"),
    [
        (program(lambda x: x.sum(-1), x=("f32", (4, 4))), "is a reduce"),
        (program(lambda a, b: a @ b, a=("f32", (4, 4)), b=("f32", (4, 4))), "is a contract"),
        (program(lambda x, y: {"a": x, "b": y}, x=("f32", (4,)), y=("f32", (5,))), "common shape"),
    ],
)
def test_other_programs_are_refused_with_the_reason(prog, why):
    with pytest.raises(RequestError, match=why) as caught:
        Map().match(workload(prog), kit())
    assert caught.value.code == "recipe.map"


def test_a_reshape_that_regroups_is_refused():
    prog = program(lambda x: x.reshape((10, 2)) + 1.0, x=("f32", (4, 5)))
    with pytest.raises(RequestError, match="regroups") as caught:
        Map().match(workload(prog), kit())
    assert caught.value.code == "recipe.reshape"


def test_bytes_of_a_map_beyond_the_caches_come_from_memory():
    prog = program(add, a=("f32", (4096, 512)), b=("f32", (4096, 512)))
    matched = Map().match(workload(prog), kit(caches=(1 << 15, 1 << 18, 1 << 20)))
    points = Space(tuple(matched.spaces)).legal_set()[0]
    (phase,) = matched.facts(points).phases
    stream = points.labels("stream").astype(bool)
    alone = points.column("units") == 1
    size = 4096 * 512 * 4
    assert set(phase.bytes["memory"][alone & stream]) == {3.0 * size}
    assert set(phase.bytes["memory"][alone & ~stream]) == {4.0 * size}
