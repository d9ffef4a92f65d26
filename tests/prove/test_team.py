"""Concurrent kernels give the right result in whatever order things happen; nothing is found."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.prove.loom import LIMITS, TABLE
from tests.prove.team_kernels import line_contraction, ring_contraction, row_sums, split_sums
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.ir.tir.nodes import MemorySpace, Module
from tfsearch.ir.tir.text import parse_kernel, parse_module, print_module
from tfsearch.prove.analyze import analyze
from tfsearch.prove.interpret import interpret, schedules
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
    "square clusters": lambda: product(ring_contraction, 45, 40, 36, square=True, clusters=1),
    "arrivals after copies": lambda: product(ring_contraction, 45, 20, 36, lines=True),
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


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rings_of_any_size_are_legal_and_right(data):
    draw = data.draw
    m, n, k = draw(st.integers(1, 50)), 4 * draw(st.integers(1, 8)), 4 * draw(st.integers(1, 10))
    clusters = draw(st.integers(1, 3))
    options = draw(
        st.sampled_from([{}, {"pingpong": True}, {"cast": True}, {"lines": True},
                         {"cast": True, "pingpong": True}, {"square": True}])
    )  # fmt: skip
    stages = draw(st.integers(2, 4))
    module, arguments, expected = product(
        ring_contraction, m, n, k, stages=stages, clusters=clusters, **options
    )
    found = {refusal.code for refusal in verify(module, TABLE, LIMITS)}
    if found:
        # Where clusters or consumers have nothing to do, some code is never reached.
        assert found <= {"tir.region-unreached"}
        return
    outcome = interpret(module, TABLE, arguments, seed=draw(st.integers(0, 99)))
    assert outcome.refusals == ()
    np.testing.assert_array_equal(outcome.outputs["c"], expected["c"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loom.wait(empty[slot]", "loom.wait(empty[kk]"),
        ("loom.arrive(empty[(at1 + 3) % 4])", "loom.arrive(empty[(kk1 + 3) % 4])"),
    ],
)
def test_what_only_an_unlucky_order_shows_is_among_the_schedules(old, new):
    module, arguments, _ = CASES["more stages than steps"]()
    text = print_module(module)
    assert old in text
    module = parse_module(text.replace(old, new))
    assert verify(module, TABLE, LIMITS) == ()
    runs = [interpret(module, TABLE, arguments, seed=seed) for seed in schedules(module, TABLE)]
    assert any(not run.refusals for run in runs)
    assert any(run.refusals for run in runs)


def test_a_ring_of_one_slot_that_is_released_late_never_goes_on():
    module, arguments, _ = product(ring_contraction, 20, 20, 36, stages=1)
    outcome = interpret(module, TABLE, arguments)
    assert [refusal.code for refusal in outcome.refusals] == ["tir.deadlock"]


SETUP = """\
  for i in 0..3 {
    loom.init(full[i], 1)
    loom.init(empty[i], 2)
  }
  loom.fence.init()
"""
COPY_A = (
    "loom.copy.box.r16(sa[slot, 0 :+ 16, 0 :+ 8], a[row :+ max(0, min(16, 45 - row)), "
    "kk * 8 :+ max(0, min(8, 36 - kk * 8))], full[slot])"
)
VARIANTS = {
    "the first slots are free": [
        ("loom.wait(empty[slot], (at // 3 + 1) % 2)",
         "if 2 < at { loom.wait(empty[slot], (at // 3 + 1) % 2) }"),
    ],
    "consumers free the slots at the start": [
        ("loom.wait(empty[slot], (at // 3 + 1) % 2)", "loom.wait(empty[slot], at // 3 % 2)"),
        ("loom.registers(40)", "loom.registers(40)\n for s in 0..3 { loom.arrive(empty[s]) }"),
    ],
    "one warp initialises": [
        (SETUP, "role setup warps 4..5 width 1 {\n" + SETUP + "}\n"),
    ],
    "a tile in two boxes": [
        (COPY_A, "for h in 0..2 { loom.copy.box.r8(sa[slot, h * 8 :+ 8, 0 :+ 8], "
         "a[row + h * 8 :+ max(0, min(8, 45 - (row + h * 8))), "
         "kk * 8 :+ max(0, min(8, 36 - kk * 8))], full[slot]) }"),
        ("box [16, 8]", "box [8, 8]"),
    ],
    "branches that arrive alike": [
        ("        if 0 < kk1 {\n          loom.arrive(empty[(at1 + 2) % 3])\n        }\n",
         "if 0 < kk1 { if kk1 < 3 { loom.arrive(empty[(at1 + 2) % 3]) } else { "
         "loom.arrive(empty[(at1 + 2) % 3]) } }\n"),
    ],
    "every thread arrives": [
        ("loom.arrive(empty", "loom.arrive.all(empty"),
        ("loom.init(empty[i], 2)", "loom.init(empty[i], 16)"),
    ],
    "the fence stands on the reader's side": [
        ("      loom.fence.async()\n      loom.named(w + 1, 2)\n",
         "      loom.named(w + 1, 2)\n      loom.fence.async()\n"),
    ],
    "the loader is a single warp": [
        ("role loader warps 0..2 width 2", "role loader warps 1..2 width 1"),
        ("loom.registers(40)", "loom.registers(32)"),
    ],
    "roles in another order": [],
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_other_ways_to_write_a_ring_are_as_legal(name):
    module, arguments, expected = CASES["cooperative"]()
    text = print_module(module)
    for old, new in VARIANTS[name]:
        assert old in text, old
        text = text.replace(old, new)
    module = parse_module(text)
    if not VARIANTS[name]:
        *head, first, second = module.main.body
        module = Module((replace(module.main, body=(*head, second, first)),))
    assert verify(module, TABLE, LIMITS) == ()
    for seed in SEEDS:
        outcome = interpret(module, TABLE, arguments, seed=seed)
        assert outcome.refusals == ()
        np.testing.assert_array_equal(outcome.outputs["c"], expected["c"])


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


def test_every_shared_buffer_has_its_own_place_for_the_whole_kernel():
    peak = peaks(parse_kernel(BESIDE), lambda buffer: buffer.bytes)[MemorySpace.SHARED]
    amount = 128 + 256 + 32  # The second lies in the rest of the first 128 bytes.
    assert (peak.amount, [name for name, _ in peak.holders]) == (amount, ["a", "b", "c", "d"])


def test_arguments_are_asked_for():
    module, arguments, _ = product(ring_contraction, 20, 20, 36)
    with pytest.raises(RequestError) as caught:
        interpret(module, TABLE, {"a": arguments["a"]})
    assert caught.value.code == "interpret.argument"


READERS = """
kernel k units 1 warps 8 lanes 4 (
  in a: f32[160, 8] global align 128 box [32, 8] strides [8, 1],
  in b: f32[40, 8] global align 128 box [8, 8] strides [8, 1],
  out c: f32[32, 8] global align 128,
) {
  alloc full: barrier[2] shared align 8
  alloc empty: barrier[2] shared align 8
  alloc sa: f32[2, 32, 8] shared align 128
  alloc sb: f32[2, 8, 8] shared align 128
  for i in 0..2 {
    loom.init(full[i], 8)
    loom.init(empty[i], COUNT)
  }
  loom.team()
  role loader warps 0..2 width 2 {
    for k in 0..5 {
      loom.wait(empty[k % 2], (k // 2 + 1) % 2)
      loom.copy.line.r32(sa[k % 2, 0 :+ 32, 0 :+ 8], a[k * 32 :+ 32, 0 :+ 8])
      loom.copy.line.r8(sb[k % 2, 0 :+ 8, 0 :+ 8], b[k * 8 :+ 8, 0 :+ 8])
      loom.arrive.after(full[k % 2])
    }
  }
  role maths warps 4..8 width 4 {
    alloc acc: f32[32, 8] register fragment "team.m32n8" align 4
    loom.zero.wide(acc[0 :+ 32, 0 :+ 8], 0.0)
    for k1 in 0..5 {
      loom.wait(full[k1 % 2], k1 // 2 % 2)
      loom.mma.line(acc[0 :+ 32, 0 :+ 8], sa[k1 % 2, 0 :+ 32, 0 :+ 8], sb[k1 % 2, 0 :+ 8, 0 :+ 8])
      RELEASE
    }
    loom.store.wide(c[0 :+ 32, 0 :+ 8], acc[0 :+ 32, 0 :+ 8])
  }
}
"""


@pytest.mark.parametrize(
    ("release", "count", "code"),
    [
        ("loom.arrive.all(empty[k1 % 2])", 16, ""),
        ("loom.named(1, 4) loom.arrive(empty[k1 % 2])", 1, ""),
        ("loom.arrive(empty[k1 % 2])", 1, "tir.slot-in-use"),
    ],
)
def test_one_thread_does_not_speak_for_what_the_others_have_read(release, count, code):
    module = Module(
        (parse_kernel(READERS.replace("RELEASE", release).replace("COUNT", f"{count}")),)
    )
    a, b = integers(1, 160, 8), integers(2, 40, 8)
    assert verify(module, TABLE, LIMITS) == ()
    for seed in SEEDS:
        outcome = interpret(module, TABLE, {"a": a, "b": b}, seed=seed)
        assert {refusal.code for refusal in outcome.refusals} == ({code} if code else set())
        if not code:
            blocks = [a[32 * i : 32 * i + 32] @ b[8 * i : 8 * i + 8] for i in range(5)]
            np.testing.assert_array_equal(outcome.outputs["c"], sum(blocks))


def test_a_thread_that_waits_alone_learns_alone():
    text = READERS.replace("RELEASE", "loom.arrive.all(empty[k1 % 2])").replace("COUNT", "16")
    kernel = parse_kernel(text)
    wait = replace(TABLE["loom.wait"], id="loom.wait.one", issuer="thread")
    table = AtomTable([*TABLE.values(), wait], ())
    for old in ("loom.wait(full", "loom.wait(empty"):
        alone = parse_kernel(text.replace(old, old.replace("wait(", "wait.one(")))
        outcome = interpret(
            Module((alone,)), table, {"a": integers(1, 160, 8), "b": integers(2, 40, 8)}
        )
        assert "tir.in-flight" in {refusal.code for refusal in outcome.refusals}
    assert verify(kernel, table, LIMITS) == ()
