"""Buffers that share storage: what is legal, what a run finds, where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from tests.prove.loom import LIMITS, TABLE
from tfsearch.core.records import Refusal
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.interpret import interpret
from tfsearch.prove.shape import shape_hash
from tfsearch.prove.storage import peaks, shared_layout
from tfsearch.prove.verify import verify

TEXT = """\
kernel k units 1 warps 2 lanes 4 (
  in x: f32[2, 8] global align 128,
  out y: f32[2, 8] global align 128,
) {
  alloc first: f32[2, 8] shared align 128
  alloc second: f32[1, 8] shared align 32 over first at 32
  role rows warps 0..2 width 1 as w {
    alloc r: f32[8] register align 4
    loom.load.row(r[0 :+ 8], x[w, 0 :+ 8])
    loom.store.row(first[w, 0 :+ 8], r[0 :+ 8])
    loom.team()
    loom.load.row(r[0 :+ 8], first[(w + 1) % 2, 0 :+ 8])
    loom.team()
    if w == 0 {
      loom.store.row(second[0, 0 :+ 8], r[0 :+ 8])
    }
    loom.team()
    loom.load.row(r[0 :+ 8], second[0, 0 :+ 8])
    loom.store.row(y[w, 0 :+ 8], r[0 :+ 8])
  }
}
"""
X = np.arange(16, dtype=np.float32).reshape(2, 8)


def run(text: str) -> tuple[Module, tuple[Refusal, ...], dict[str, np.ndarray]]:
    module = parse_module(text)
    refusals = verify(module, TABLE, LIMITS)
    for seed in range(6):
        outcome = interpret(module, TABLE, {"x": X}, seed=seed)
        refusals = refusals or outcome.refusals
        if refusals:
            return module, refusals, {}
    return module, (), dict(outcome.outputs)


def test_a_kernel_that_takes_turns_on_storage_is_right() -> None:
    module, refusals, outputs = run(TEXT)
    assert refusals == ()
    np.testing.assert_array_equal(outputs["y"], X[[1, 1]])
    assert parse_module(print_module(module)) == module
    assert print_module(module) == TEXT


FAULTS = {
    "written while it is read through the other": (
        "    loom.team()\n    if w == 0 {\n",
        "    if w == 1 {\n",
        "tir.race",
    ),
    "read after it was written through the other": (
        "    loom.load.row(r[0 :+ 8], second[0, 0 :+ 8])\n",
        "    loom.load.row(r[0 :+ 8], first[1, 0 :+ 8])\n",
        "tir.read-unwritten",
    ),
    "over the edge": ("at 32", "at 64", "tir.storage-over"),
    "before the start": ("at 32", "at -32", "tir.storage-over"),
    "between its alignments": ("at 32", "at 16", "tir.storage-over"),
    "over nothing": ("over first", "over third", "tir.storage-over"),
    "a place in nothing": (" over first", "", "tir.storage-over"),
    "over an argument": ("over first", "over x", "tir.storage-over"),
    "over what is less aligned": (
        "first: f32[2, 8] shared align 128", "first: f32[2, 8] shared align 16", "tir.storage-over",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    old, new, code = FAULTS[name]
    assert TEXT.count(old) == 1
    _, refusals, _ = run(TEXT.replace(old, new))
    assert refusals[0].code == code, refusals


def test_the_rest_of_the_storage_stays_defined() -> None:
    text = TEXT.replace("y[w, 0 :+ 8], r", "y[w, 0 :+ 8], s")
    text = text.replace(
        "    loom.store.row(y", "    alloc s: f32[8] register align 4\n"
        "    loom.load.row(s[0 :+ 8], first[0, 0 :+ 8])\n    loom.store.row(y"
    )  # fmt: skip
    _, refusals, outputs = run(text)
    assert refusals == ()
    np.testing.assert_array_equal(outputs["y"], X[[0, 0]])


def test_shared_storage_counts_once() -> None:
    module = parse_module(TEXT)
    layout = shared_layout(module.main)
    assert layout.offsets == {"first": 0, "second": 32}
    assert (layout.bytes, layout.alignment, layout.requested(16)) == (64, 128, 64 + 112)
    apart = parse_module(TEXT.replace(" over first at 32", ""))
    assert shared_layout(apart.main).offsets == {"first": 0, "second": 64}
    sizes = [
        next(peak.amount for space, peak in peaks(m.main, lambda b: b.bytes).items()
             if space.value == "shared")
        for m in (module, apart)
    ]  # fmt: skip
    assert sizes == [64, 96]
    assert shape_hash(module) != shape_hash(apart)


def test_blocks_side_by_side_have_storage_of_their_own() -> None:
    text = """
    kernel k units 1 warps 2 lanes 4 (in x: f32[2, 8] global align 128,
                                      out y: f32[2, 8] global align 128) {
      role rows warps 0..2 width 1 as w {
        alloc r: f32[8] register align 4
        if 0 < w {
          alloc one: f32[8] shared align 32
          loom.load.row(r[0 :+ 8], x[w, 0 :+ 8])
          loom.store.row(one[0 :+ 8], r[0 :+ 8])
        } else {
          alloc other: f32[8] shared align 32
          loom.load.row(r[0 :+ 8], x[w, 0 :+ 8])
          loom.store.row(other[0 :+ 8], r[0 :+ 8])
        }
        loom.store.row(y[w, 0 :+ 8], r[0 :+ 8])
      }
    }"""
    _, refusals, _ = run(text)
    assert refusals == ()
    assert shared_layout(parse_module(text).main).offsets == {"one": 0, "other": 32}
