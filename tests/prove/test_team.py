"""Concurrent kernels give the right result in whatever order things happen; nothing is found."""

import numpy as np
import pytest

from tests.prove.loom import LIMITS, TABLE
from tests.prove.team_kernels import line_contraction, ring_contraction, row_sums, split_sums
from tfsearch.core.errors import RequestError
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.ir.tir.text import parse_kernel, parse_module, print_module
from tfsearch.prove.analyze import analyze
from tfsearch.prove.interpret import interpret
from tfsearch.prove.shape import shape_hash
from tfsearch.prove.storage import peaks
from tfsearch.prove.verify import verify

SEEDS = range(6)


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def product(kernel, m, n, k, **options):
    a, b = integers(1, m, k), integers(2, k, n)
    return kernel(m, n, k, **options), {"a": a, "b": b}, {"c": a @ b}


def rows(count, columns, **options):
    x = integers(3, count, columns)
    return row_sums(count, columns, **options), {"x": x}, {"y": x.sum(axis=1)}


def split(columns, depth):
    x, y = integers(4, depth, columns), integers(5, columns)
    return split_sums(columns, depth), {"x": x, "y": y}, {"y": y + x.sum(axis=0)}


CASES = {
    "cooperative": lambda: product(ring_contraction, 45, 20, 36),
    "one consumer": lambda: product(ring_contraction, 21, 20, 12, consumers=1),
    "three consumers": lambda: product(ring_contraction, 45, 12, 20, consumers=3),
    "two stages": lambda: product(ring_contraction, 20, 20, 36, stages=2),
    "one step": lambda: product(ring_contraction, 30, 20, 8),
    "more stages than steps": lambda: product(ring_contraction, 20, 20, 12, stages=4),
    "ping-pong": lambda: product(ring_contraction, 45, 20, 36, pingpong=True),
    "multicast": lambda: product(ring_contraction, 45, 20, 36, cast=True),
    "multicast ping-pong": lambda: product(ring_contraction, 45, 20, 36, cast=True, pingpong=True),
    "commit groups": lambda: product(line_contraction, 70, 20, 36),
    "commit groups, two stages": lambda: product(line_contraction, 40, 8, 36, stages=2),
    "rows": lambda: rows(5, 75),
    "rows of one unit": lambda: rows(3, 9, units=1, warps=3),
    "split": lambda: split(20, 7),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_right_under_every_seed(name):
    module, arguments, expected = CASES[name]()
    assert verify(module, TABLE, LIMITS) == ()
    for seed in SEEDS:
        outcome = interpret(module, TABLE, arguments, seed=seed)
        assert outcome.refusals == ()
        for key, value in expected.items():
            np.testing.assert_array_equal(outcome.outputs[key], value)


@pytest.mark.parametrize("name", CASES)
def test_the_text_comes_back(name):
    module, _, _ = CASES[name]()
    assert parse_module(print_module(module)) == module


def test_the_same_seed_gives_the_same_run():
    module, arguments, _ = product(ring_contraction, 20, 20, 36)
    runs = [interpret(module, TABLE, arguments, seed=3) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    np.testing.assert_array_equal(runs[0].outputs["c"], runs[1].outputs["c"])


def test_the_shape_of_a_kernel_does_not_depend_on_names():
    module = ring_contraction(20, 20, 36)
    text = print_module(module)
    for old, new in (("maths", "consumer"), (" as w ", " as which "), ("w * 8", "which * 8")):
        text = text.replace(old, new)
    text = text.replace("sc[w", "sc[which").replace("named(w ", "named(which ")
    text = text.replace("row1 + w ", "row1 + which ")
    other = parse_module(text.replace("which * 8 :+", "which * 8 :+"))
    assert other != module
    assert shape_hash(other) == shape_hash(module)
    assert shape_hash(ring_contraction(20, 20, 36, stages=4)) != shape_hash(module)


@pytest.mark.parametrize("name", CASES)
def test_calls_are_counted_as_often_as_they_run(name):
    module, arguments, _ = CASES[name]()
    facts = analyze(module, TABLE).main
    outcome = interpret(module, TABLE, arguments)
    assert sum(work.total for work in facts.work) == outcome.steps
    assert not {"full", "empty"} & {item.buffer for item in facts.traffic}


BESIDE = """
kernel k units 1 warps 4 lanes 4 (out y: f32[8] global align 4) {
  alloc a: f32[8] shared align 128
  role one warps 0..1 width 1 { alloc b: f32[10] shared align 4 }
  role two warps 1..2 width 1 { alloc c: f32[64] shared align 128 }
  if unit == 1 { alloc d: f32[8] shared align 4 }
}
"""


def test_shared_memory_of_roles_side_by_side_is_alive_at_once():
    peak = peaks(parse_kernel(BESIDE), lambda buffer: buffer.bytes)[MemorySpace.SHARED]
    assert (peak.amount, [name for name, _ in peak.holders]) == (128 + 128 + 256, ["a", "b", "c"])


def test_arguments_are_asked_for():
    module, arguments, _ = product(ring_contraction, 20, 20, 36)
    with pytest.raises(RequestError) as caught:
        interpret(module, TABLE, {"a": arguments["a"]})
    assert caught.value.code == "interpret.argument"
