"""Atoms run in the mode they need; stores past the caches are fenced before others are told."""

from dataclasses import replace

import pytest

from tests.prove.toy import ATOMS, LIMITS
from tfsearch.atoms.contract import WEAK_STORE, Effects, Sync
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.text import parse_kernel
from tfsearch.prove.verify import verify

BY_NAME = {atom.id.removeprefix("toy."): atom for atom in ATOMS}


def variant(name, base, effects):
    return replace(BY_NAME[base], id=f"toy.{name}", effects=effects)


TABLE = AtomTable(
    [
        *ATOMS,
        variant("begin", "barrier", Effects(configures="tiles")),
        variant("end", "barrier", Effects(releases="tiles")),
        variant("work", "fill", Effects(needs="tiles")),
        variant("past", "store", Effects(proxy=WEAK_STORE)),
        variant(
            "fence", "barrier", Effects(synchronises=Sync.FENCE, fences=frozenset({WEAK_STORE}))
        ),
        variant("other", "barrier", Effects(synchronises=Sync.FENCE, fences=frozenset({"async"}))),
    ],
    (),
)
WORK = "toy.work(r[0, 0 :+ 8], 1.0)"
PAST = "toy.past(y[unit, 0 :+ 8], r[0, 0 :+ 8])"
FILL = "toy.fill(r[0, 0 :+ 8], 1.0)"


def codes(body):
    text = f"""
    kernel k units 2 (out y: f32[2, 8] global align 64) {{
      alloc r: f32[1, 8] register align 4
      {body}
    }}"""
    return [(r.code, r.where.split(": ", 1)[1]) for r in verify(parse_kernel(text), TABLE, LIMITS)]


LEGAL = [
    f"toy.begin() {WORK} toy.end() {PAST} toy.fence()",
    f"toy.begin() for i in 0..3 {{ {WORK} }} {PAST} toy.fence() toy.end()",
    f"toy.begin() for i in 0..3 {{ {WORK} if i == 1 {{ {PAST} }} }} toy.fence() toy.end() {PAST} "
    "toy.fence() toy.barrier()",
    f"toy.begin() toy.begin() {WORK} toy.end() toy.end() {PAST} toy.other() toy.fence()",
    f"toy.begin() {WORK} for i in 0..2 {{ {PAST} toy.fence() toy.barrier() }} toy.end()",
]


@pytest.mark.parametrize("body", LEGAL)
def test_kernels_that_set_up_and_fence_are_legal(body):
    assert codes(body) == []


MISSING = ("tir.mode-missing", WORK)
LEFT = ("tir.mode-left", "kernel k units 2 (")
UNSEEN = ("tir.proxy-fence", PAST)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{WORK} {PAST} toy.fence()", [MISSING]),
        (f"toy.begin() toy.end() {WORK} {PAST} toy.fence()", [MISSING]),
        (f"toy.begin() {WORK} {PAST} toy.fence()", [LEFT]),
        (f"if unit == 0 {{ toy.begin() }} {WORK} {PAST} toy.fence() toy.end()", [MISSING]),
        (f"role one units 0..1 {{ toy.begin() }} {WORK} {PAST} toy.fence() toy.end()", [MISSING]),
        (f"toy.begin() for i in 0..2 {{ {WORK} toy.end() }} {PAST} toy.fence()", [MISSING, LEFT]),
        (f"toy.begin() {WORK} {PAST} if unit == 0 {{ toy.end() }} toy.fence()", [LEFT]),
        (f"{FILL} {PAST}", [UNSEEN]),
        (f"{FILL} {PAST} toy.other()", [UNSEEN]),
        (f"{FILL} {PAST} toy.barrier() toy.fence()", [UNSEEN]),
        (f"{FILL} {PAST} if unit == 0 {{ toy.fence() }}", [UNSEEN]),
        (f"{FILL} for i in 0..2 {{ toy.barrier() {PAST} }} toy.fence()", [UNSEEN]),
    ],
)
def test_what_is_not_set_up_or_not_fenced_is_refused_where_it_stands(body, found):
    assert codes(body) == found
