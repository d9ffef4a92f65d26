"""The row-wise recipe: what it takes, what it lowers to, what it says about it."""

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
from tfsearch.cost.model import Machine, estimate
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.bounds import evaluate_bounds
from tfsearch.ir.hir.builtins import layer_norm, rms_norm, softmax
from tfsearch.ir.tir.text import print_module
from tfsearch.prove.shape import shape_hash
from tfsearch.prove.verify import verify
from tfsearch.recipes.domain import as_called
from tfsearch.recipes.rowwise import Rowwise
from tfsearch.recipes.rowwise.match import Pipeline, match
from tfsearch.recipes.rowwise.plan import plan_of
from tfsearch.space import Space


def quantised(x):
    scale = abs(x).max(-1, keepdims=True) / 127.0
    return {"q": lang.round(x / scale).cast("i8"), "scale": scale.reshape((x.shape[0],))}


def log_softmax(x):
    d = x - x.max(-1, keepdims=True)
    return d - lang.log(lang.exp(d).sum(-1, keepdims=True))


def unit_length(x):
    return x * lang.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def min_max(x):
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    return (x - low) / (high - low)


def residual_norm(r, weight, x):
    h = x + r
    return {"h": h, "y": lang.rms_norm(h, weight)}


def masked_softmax(m, x):
    return lang.softmax(lang.where(m > 0, x, -1e30))


def over_rows(x):
    return lang.softmax(x, 0)


def everything(x):
    return {"s": x.sum(), "m": x.max(), "y": x / (x.max() + 200.0)}


def integers(x):
    return {"s": x.sum(-1), "m": x.max(-1), "p": x.cast("i32").min(-1)}


def centred(x):
    return x - x.mean((1, 2), keepdims=True)


def centred_around(x):
    return x - x.mean((0, 2), keepdims=True)


def statistics(x):
    mean = x.mean(-1, keepdims=True)
    d = x - mean
    v = (d * d).mean(-1)
    rows = x.shape[0]
    return {"v": v, "mean": mean, "z": d * lang.rsqrt(v.reshape((rows, 1)) + 1e-5)}


def weighted_sum(w, x):
    return (x * w).sum(-1)


PROGRAMS = {
    "softmax": softmax(7, 45, DType.F32),
    "rms-norm": rms_norm(7, 45, DType.BF16),
    "layer-norm": layer_norm(7, 45, DType.F16),
    "quantised": program(quantised, x=("f32", (7, 45))),
    "quantised-bf16": program(quantised, x=("bf16", (7, 50))),
    "log-softmax": program(log_softmax, x=("f32", (3, 4, 21))),
    "unit-length": program(unit_length, x=("f64", (7, 45))),
    "min-max": program(min_max, x=("f32", (7, 45))),
    "residual": program(
        residual_norm, r=("f32", (7, 45)), weight=("f32", (45,)), x=("f32", (7, 45))
    ),
    "masked-i8": program(masked_softmax, m=("i8", (7, 45)), x=("f32", (7, 45))),
    "masked-f32": program(masked_softmax, m=("f32", (45,)), x=("f32", (7, 45))),
    "over-rows": program(over_rows, x=("f32", (19, 45))),
    "everything": program(everything, x=("f32", (19, 45))),
    "integers": program(integers, x=("i8", (9, 45))),
    "two-axes": program(centred, x=("f32", (5, 6, 45))),
    "outer-axis": program(centred_around, x=("f32", (5, 6, 45))),
    "statistics": program(statistics, x=("f32", (7, 45))),
    "weighted": program(weighted_sum, w=("bf16", (7, 45)), x=("bf16", (7, 45))),
    "one-element": program(over_rows, x=("f32", (1, 1))),
    "one-column": program(log_softmax, x=("f32", (5, 1))),
    "strided": program(log_softmax, x=("f32", (5, 33), (70, 2))),
    "transposed": program(log_softmax, x=("f32", (5, 33), (1, 5))),
    "narrow": program(log_softmax, x=("f32", (5, 3))),
}


PLAIN = {
    "lanes": 16, "unroll": 1, "rows": 1, "staging": "reread", "divide": "exact",
    "prefetch": False, "beside": False, "stream": False, "units": 1,
}  # fmt: skip


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_compiled_kernels_stay_within_bounds(tmp_path, level):
    cases = []
    chosen = list(PROGRAMS.items())[:: 3 if level == "scalar" else 1]
    for number, (name, prog) in enumerate(chosen):
        matched = Rowwise().match(workload(prog), kit(level))
        for space, params in sample(matched, 1, seed=number + len(level)):
            cases.append((name, prog, params, matched.lower(space, params)))
    kernels = compiled(tmp_path, [module for *_, module in cases], level)
    for (name, prog, params, _), kernel in zip(cases, kernels, strict=True):
        inputs = inputs_of(prog)
        first = kernel(prog, inputs)
        assert wrong(prog, inputs, first) == [], (name, params)
        again = kernel(prog, inputs)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_reduced_kernels_are_legal_and_right_when_interpreted(name):
    matched = Rowwise().match(workload(PROGRAMS[name]), kit())
    for space, params in sample(matched, 2, seed=5):
        small, smaller = matched.reduced(space, params)
        module = Rowwise().match(small, kit()).lower(space, smaller)
        assert verify(module, kit().atoms, LIMITS) == ()
        inputs = inputs_of(small.program)
        outputs = interpreted(small.program, module, kit().atoms, inputs)
        assert wrong(small.program, inputs, outputs) == [], params


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_side_by_side_give_the_same_answer(name):
    matched = Rowwise().match(workload(PROGRAMS[name]), kit())
    points = Space(tuple(matched.spaces)).legal_set()[0]
    chosen = np.flatnonzero(points.labels("beside"))
    walks = len(next(iter(matched.plans.values())).passes) - 1
    assert len(chosen) == 0 or walks > 1
    for row in np.random.default_rng(9).choice(chosen, min(3, len(chosen)), replace=False):
        params = points.params(int(row))
        assert verify(matched.lower(points.recipe.name, params), kit().atoms, LIMITS) == ()
        small, smaller = matched.reduced(points.recipe.name, params)
        module = Rowwise().match(small, kit()).lower(points.recipe.name, smaller)
        assert verify(module, kit().atoms, LIMITS) == ()
        inputs = inputs_of(small.program)
        outputs = interpreted(small.program, module, kit().atoms, inputs)
        assert wrong(small.program, inputs, outputs) == [], params


@pytest.mark.parametrize(
    "prog",
    [
        softmax(9, 1100, DType.F32),
        softmax(40, 100, DType.F32),
        program(centred, x=("f32", (3, 4, 700))),
    ],
)
def test_passes_side_by_side_ask_for_what_the_first_will_read(prog):
    matched = Rowwise().match(workload(prog), kit())
    points = Space(tuple(matched.spaces)).legal_set()[0]
    both = np.flatnonzero(points.labels("beside") & points.labels("prefetch"))
    assert len(both)
    facts = matched.facts(points)
    for row in np.random.default_rng(2).choice(both, 4, replace=False):
        params = points.params(int(row))
        module = matched.lower(points.recipe.name, params)
        assert verify(module, kit().atoms, LIMITS) == ()
        expected = counted(module, kit().atoms)
        assert {k: int(facts.columns[k][row]) for k in expected} == expected
        silent = matched.lower(points.recipe.name, {**params, "prefetch": False})
        more = {k for k, n in counted(silent, kit().atoms).items() if n != expected[k]}
        assert more == {"calls"}, (more, expected)
        inputs = inputs_of(prog)
        outputs = interpreted(prog, module, kit().atoms, inputs)
        assert wrong(prog, inputs, outputs) == [], params


def test_passes_side_by_side_are_offered_where_there_are_several():
    offered = {
        name: bool(Space(tuple(m.spaces)).legal_set()[0].labels("beside").any())
        for name in ("softmax", "rms-norm", "layer-norm", "weighted", "one-element")
        for m in [Rowwise().match(workload(PROGRAMS[name]), kit())]
    }
    assert offered == {
        "softmax": True,
        "rms-norm": True,
        "layer-norm": True,
        "weighted": False,
        "one-element": False,
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_facts_equal_a_walk_over_the_lowered_kernel(name):
    matched = Rowwise().match(workload(PROGRAMS[name]), kit())
    points = Space(tuple(matched.spaces)).legal_set()[0]
    facts = matched.facts(points)
    rows = np.random.default_rng(3).choice(len(points), min(6, len(points)), replace=False)
    for row in rows:
        module = matched.lower(points.recipe.name, points.params(int(row)))
        assert verify(module, kit().atoms, LIMITS) == ()
        expected = counted(module, kit().atoms)
        assert {k: int(facts.columns[k][row]) for k in expected} == expected


@pytest.mark.parametrize(
    "prog",
    [softmax(3, 20, DType.F32), program(over_rows, x=("f32", (4, 20))), PROGRAMS["everything"]],
)
def test_no_two_points_are_the_same_kernel(prog):
    matched = Rowwise().match(workload(prog), kit(units=(1, 2)))
    points = Space(tuple(matched.spaces)).legal_set()[0]
    texts = [print_module(matched.lower("", points.params(i))) for i in range(len(points))]
    assert len(set(texts)) == len(texts) > 1


def test_every_choice_of_a_small_shape_gives_the_same_answer():
    prog = program(log_softmax, x=("f32", (3, 37)))
    matched = Rowwise().match(workload(prog), kit())
    inputs = inputs_of(prog)
    for space, params in sample(matched, 16, seed=1):
        outputs = interpreted(prog, matched.lower(space, params), kit().atoms, inputs)
        assert wrong(prog, inputs, outputs) == [], params


def test_passes_are_cut_by_reduction_depth():
    plan = plan_of(match(PROGRAMS["softmax"]))
    assert [len(one.reductions) for one in plan.passes] == [0, 1, 1, 0]
    assert [one.outputs for one in plan.passes] == [(), (), (), (0,)]
    assert len(plan.staged) == 1
    assert plan.passes[2].stores == plan.passes[3].loads == plan.staged


def test_an_output_that_needs_no_reduction_is_stored_in_the_first_pass():
    plan = plan_of(match(PROGRAMS["residual"]))
    assert [one.outputs for one in plan.passes] == [(), (0,), (1,)]


def test_lanes_run_along_the_contiguous_axis():
    assert match(PROGRAMS["softmax"]).pipeline is Pipeline.ROWS
    assert match(PROGRAMS["over-rows"]).pipeline is Pipeline.COLUMNS


def test_reduced_axes_side_by_side_are_one_row():
    domain = match(PROGRAMS["two-axes"])
    assert [domain.extents[axis] for axis in domain.reduced] == [270]
    domain = match(PROGRAMS["outer-axis"])
    assert [domain.extents[axis] for axis in domain.reduced] == [5, 45]


def test_arguments_keep_the_callers_shape_in_the_launch():
    from tfsearch.target.x86.emit import source_of

    prog = PROGRAMS["two-axes"]
    matched = Rowwise().match(workload(prog), kit())
    space, params = sample(matched, 1)[0]
    _, launch = source_of(matched.lower(space, params), kit().atoms)
    shapes = [a.shape for a in as_called(launch, prog).main.arguments]
    assert shapes == [(5, 6, 45), (5, 6, 45)]


def test_a_reciprocal_replaces_a_division_by_the_row():
    matched = Rowwise().match(workload(PROGRAMS["softmax"]), kit())
    params = dict(sample(matched, 1)[0][1], staging="reread")
    exact = print_module(matched.lower("", {**params, "divide": "exact"}))
    quick = print_module(matched.lower("", {**params, "divide": "reciprocal"}))
    assert "x86.div" in exact
    assert "x86.div" not in quick


def test_reduced_shapes_do_not_depend_on_the_size():
    hashes = set()
    for cols in (2048, 8192):
        matched = Rowwise().match(workload(softmax(64, cols, DType.F32)), kit(caches=(1 << 17,)))
        params = {
            **PLAIN, "unroll": 4, "rows": 2, "staging": "staged", "stream": True, "units": 2,
        }  # fmt: skip
        small, smaller = matched.reduced("rowwise.rows", params)
        assert matched.spaces[0].check(params) == ()
        hashes.add(shape_hash(Rowwise().match(small, kit()).lower("", smaller)))
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"lanes": 16, "unroll": 4}, "rowwise.unroll-extent"),
        ({"staging": "registers", "unroll": 2, "rows": 1}, "rowwise.registers-unroll"),
        ({"staging": "registers", "lanes": 8, "rows": 8}, "rowwise.registers-fit"),
        ({"rows": 8, "unroll": 4, "lanes": 8}, "rowwise.code-size"),
        ({"units": 3, "rows": 8}, "rowwise.units-idle"),
    ],
)
def test_refusals_name_their_numbers(change, code):
    matched = Rowwise().match(workload(softmax(16, 45, DType.F32)), kit())
    assert matched.spaces[0].check(PLAIN) == ()
    refusals = matched.spaces[0].check({**PLAIN, **change})
    assert code in [r.code for r in refusals]
    assert all(any(c.isdigit() for c in r.message) for r in refusals)


def test_streams_and_prefetches_are_offered_beyond_the_caches_only():
    large = Rowwise().match(workload(softmax(64, 512, DType.F32)), kit(caches=(512, 1024, 2048)))
    small = Rowwise().match(workload(softmax(64, 512, DType.F32)), kit(caches=(1 << 15, 1 << 20)))
    for name in ("stream", "prefetch"):
        assert large.spaces[0].by_name[name].values == (False, True)
        assert small.spaces[0].by_name[name].values == (False,)


def test_a_working_set_beyond_the_caches_is_read_from_memory_once():
    prog = softmax(4096, 512, DType.F32)
    matched = Rowwise().match(workload(prog), kit(caches=(1 << 15, 1 << 18, 1 << 20)))
    points = Space(tuple(matched.spaces)).legal_set()[0]
    facts = matched.facts(points)
    stream = points.labels("stream").astype(bool)
    memory = sum(phase.bytes.get("memory", 0) for phase in facts.phases)
    size = 4096 * 512 * 4
    alone = points.column("units") == 1
    assert set(memory[alone & stream]) == {2.0 * size}
    assert set(memory[alone & ~stream]) == {3.0 * size}


def test_estimates_are_positive_and_above_the_bound():
    matched = Rowwise().match(workload(PROGRAMS["softmax"]), kit())
    points = Space(tuple(matched.spaces)).legal_set()[0]
    levels = {"l1": 64.0, "l2": 32.0, "l3": 16.0, "memory": 4.0}
    machine = Machine(3.0, levels, {}, (0.1, 5.0), {"f32": 1e11}, None, False, "test")
    times = estimate(matched.facts(points), machine)
    assert (times.estimate_us > times.bound_us).all()
    assert (times.bound_us > 0).all()


@pytest.mark.parametrize(
    ("prog", "why"),
    [
        (program(lambda x: x + 1.0, x=("f32", (4, 4))), "no reduction"),
        (
            program(lambda a, b: (a @ b).sum(-1), a=("f32", (4, 4)), b=("f32", (4, 4))),
            "contraction",
        ),
        (program(lambda x: {"r": x.sum(0), "c": x.sum(1)}, x=("f32", (4, 5))), "2 different sets"),
        (program(lambda x: x.reshape((10, 2)).sum(-1), x=("f32", (4, 5))), "regroups"),
        (program(lambda x: (x + x.T).sum(-1), x=("f32", (4, 4))), "two dimensions"),
    ],
)
def test_other_programs_are_refused_with_the_reason(prog, why):
    with pytest.raises(RequestError, match=why) as caught:
        Rowwise().match(workload(prog), kit())
    assert caught.value.code == "recipe.rowwise"


def test_a_missing_instruction_is_a_refusal_of_that_width():
    matched = Rowwise().match(workload(PROGRAMS["unit-length"]), kit())
    assert matched.spaces[0].by_name["lanes"].values == (8,)
    assert [r.code for r in matched.refusals] == ["recipe.no-atom"]


def test_infinities_and_nans_go_through():
    prog = program(lambda x: {"m": x.max(-1), "s": x.sum(-1)}, x=("f32", (4, 21)))
    x = inputs_of(prog)["x"]
    x[0, 3], x[1, 20], x[2, :] = np.inf, np.nan, -np.inf
    matched = Rowwise().match(workload(prog), kit())
    for space, params in sample(matched, 4):
        top, total = interpreted(prog, matched.lower(space, params), kit().atoms, {"x": x})
        expected = [b.ref for b in evaluate_bounds(prog, {"x": x})]
        assert np.array_equal(top, expected[0].astype(np.float32), equal_nan=True)
        assert np.array_equal(np.isnan(total), np.isnan(expected[1]))
