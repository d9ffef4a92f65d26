"""Each rule of the verifier: what it refuses, with place and numbers, and what it accepts."""

from dataclasses import replace

import pytest

from tests.prove.kernels import gemm, prepared, row_sum
from tests.prove.toy import ATOMS, LIMITS, TABLE
from tfsearch.atoms.contract import Completion, Effects
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.limits import Limits
from tfsearch.prove.verify import verify

LEGAL = [
    gemm(13, 37, 21),
    gemm(64, 64, 64, units=3),
    gemm(1001, 1003, 999, units=2, kc=256),
    gemm(5, 7, 3, units=1, packed=False),
    gemm(1, 1, 1, units=1),
    row_sum(7, 21, units=2),
    row_sum(3, 8),
    prepared(3, 13),
]


@pytest.mark.parametrize("module", LEGAL, ids=lambda module: module.main.name)
def test_legal_kernels_are_accepted(module):
    assert verify(module, TABLE, LIMITS) == ()
    assert verify(parse_module(print_module(module)), TABLE, LIMITS) == ()


BASE = """\
kernel k units 2 (
  in a: f32[16, 24] global align 64,
  out c: f32[16, 24] global align 64,
) {
  alloc s: f32[2, 8] scratch align 64
  alloc r: f32[4, 8] register align 4
  alloc l: f32[16] local align 32
  for i in unit * 8..unit * 8 + 8 {
    unrolled v in 0..3 {
      toy.load(r[v, 0 :+ 8], a[i, v * 8 :+ 8])
      toy.store(c[i, v * 8 :+ 8], r[v, 0 :+ 8])
    }
  }
  toy.barrier()
  toy.fill(r[3, 0 :+ 8], 0.5)
  toy.store(l[0 :+ 8], r[3, 0 :+ 8])
  toy.load.aligned(r[3, 0 :+ 8], l[0 :+ 8])
  if unit == 0 {
    toy.store(s[0, 0 :+ 8], r[3, 0 :+ 8])
  } else {
    toy.store(s[1, 0 :+ 8], r[3, 0 :+ 8])
  }
}
"""


def refusals(old, new, limits=LIMITS):
    assert old in BASE
    return verify(parse_module(BASE.replace(old, new, 1)), TABLE, limits)


CASES = [
    ("v * 8 :+ 8])\n      toy.store", "v * 8 + 1 :+ 8])\n      toy.store", "tir.window-bounds"),
    ("a[i, v * 8 :+ 8]", "a[i - 1, v * 8 :+ 8]", "tir.window-bounds"),
    ("c[i, v * 8 :+ 8]", "c[i + 1, v * 8 :+ 8]", "tir.window-bounds"),
    ("unit * 8 + 8 {", "unit * 8 + 9 {", "tir.window-bounds"),
    ("unit * 8..unit", "unit * 8 - 1..unit", "tir.window-bounds"),
    ("a[i, v * 8 :+ 8]", "a[i, v * 8 :+ 6 - i]", "tir.window-bounds"),
    ("units 2 (", "units 3 (", "tir.window-bounds"),
    ("r[v, 0 :+ 8], a", "r[v, 0 :+ 4], a", "tir.operand-shape"),
    ("a[i, v * 8 :+ 8]", "a[i, v * 8 :+ 9]", "tir.operand-shape"),
    ("a[i, v * 8 :+ 8]", "a[i :+ 2, v * 8 :+ 8]", "tir.operand-shape"),
    ("toy.barrier()", "toy.barrier(1)", "tir.operand-count"),
    ("toy.barrier()", "toy.nothing()", "tir.atom-unknown"),
    ("toy.barrier()", "toy.wide(r[0, 0 :+ 8])", "tir.atom-unavailable"),
    ("0 :+ 8], 0.5)", "0 :+ 8], r[0, 0 :+ 8])", "tir.operand-kind"),
    ("r[v, 0 :+ 8], a[i, v * 8 :+ 8]", "a[i, v * 8 :+ 8], r[v, 0 :+ 8]", "tir.write-to-input"),
    ("toy.store(c[i", "toy.store(a[i", "tir.write-to-input"),
    ("c[i, v * 8 :+ 8], r[v", "r[v, 0 :+ 8], r[v", "tir.operand-space"),
    ("r: f32[4, 8] register", "r: i32[4, 8] register", "tir.operand-dtype"),
    ("a: f32[16, 24] global", "a: f32[16, 24] global strides [1, 16]", "tir.operand-layout"),
    ("aligned(r[3, 0 :+ 8], l[0", "aligned(r[3, 0 :+ 8], l[4", "tir.operand-alignment"),
    ("l: f32[16] local align 32", "l: f32[16] local align 16", "tir.operand-alignment"),
    ("unrolled v", "for v", "tir.register-index"),
    ("unrolled v in 0..3", "unrolled v in 0..min(3, i)", "tir.unroll-bounds"),
    ("unrolled v in 0..3", "unrolled v in i..i + 3", "tir.unroll-bounds"),
    ("unrolled v in 0..3", "unrolled v in i - i..3", "tir.unroll-bounds"),
    ("unrolled v in 0..3", "let w = 3 unrolled v in 0..w", "tir.unroll-bounds"),
    ("r[v, 0 :+ 8])\n    }", "r[i - i + v, 0 :+ 8])\n    }", "tir.register-index"),
    ("    toy.store(c[i, v * 8 :+ 8], r[v", "let w = v toy.store(c[i, v * 8 :+ 8], r[w",
     "tir.register-index"),
    ("toy.store(l[0 :+ 8], r[3", "let w = 3 toy.store(l[0 :+ 8], r[w", "tir.register-index"),
    ("unrolled v in 0..3", "unrolled v in 0..3 step 0", "tir.loop-step"),
    ("unrolled v in 0..3", "unrolled v in 0..3 step -1", "tir.loop-step"),
    ("unrolled v in 0..3", "unrolled v in 0..3 unroll 0", "tir.loop-unroll"),
    ("unrolled v in 0..3", "unrolled v in 3..3", "tir.region-unreached"),
    ("if unit == 0", "if unit == 2", "tir.region-unreached"),
    ("if unit == 0", "if unit < 2", "tir.region-unreached"),
    ("unrolled v in", "unrolled i in", "tir.name-shadowed"),
    ("unrolled v in", "unrolled unit in", "tir.name-shadowed"),
    ("  toy.barrier()", "  alloc l: f32[16] local align 32", "tir.name-duplicate"),
    ("out c:", "in a: f32[16, 24] global align 64, out c:", "tir.name-duplicate"),
    ("l: f32[16] local", "l: f32[16] global", "tir.alloc-space"),
    ("l: f32[16] local", "l: f32[16] shared", "tir.alloc-space"),
    ("in a: f32[16, 24] global", "in a: f32[16, 24] scratch", "tir.alloc-space"),
    ("s: f32[2, 8]", "s: f32[0, 8]", "tir.buffer-empty"),
    ("s: f32[2, 8] scratch align 64", "s: f32[2, 8] scratch align 48", "tir.buffer-layout"),
    ("s: f32[2, 8] scratch", "s: f32[2, 8] scratch strides [4, 1]", "tir.buffer-layout"),
    ("s: f32[2, 8] scratch", "s: f32[2, 8] scratch strides [-8, 1]", "tir.buffer-layout"),
    ("s: f32[2, 8] scratch", "s: f32[2, 8] scratch strides [8]", "tir.buffer-layout"),
    ("s: f32[2, 8]", "s: f32[65536, 8]", "tir.capacity"),
    ("l: f32[16]", "l: f32[16000]", "tir.capacity"),
    ("r: f32[4, 8]", "r: f32[17, 8]", "tir.capacity"),
    ("units 2 (", "units 9 (", "tir.units"),
    ("units 2 (", "units 0 (", "tir.units"),
    ("v * 8 :+ 8])\n      toy.store", "w * 8 :+ 8])\n      toy.store", "tir.variable-unbound"),
    ("a[i, v * 8 :+ 8]", "a[i // (v - 1), v * 8 :+ 8]", "tir.division-by-zero"),
    ("a[i, v * 8 :+ 8]", "a[i % 0, v * 8 :+ 8]", "tir.division-by-zero"),
    ("a[i, v * 8 :+ 8]", "a[(0 - i) // (0 - 1), v * 8 :+ 8]", "tir.division-by-zero"),
    ("a[i, v * 8 :+ 8]", "a[(i - 1) % 16, v * 8 :+ 8]", "tir.negative-dividend"),
    ("a[i, v * 8 :+ 8]", "a[max((i - 1) // 2, 0), v * 8 :+ 8]", "tir.negative-dividend"),
    ("  toy.barrier()", "  role w units 0..1 {\n toy.barrier()\n }", "tir.divergent-barrier"),
    ("  toy.barrier()", "  if unit == 1 {\n toy.barrier()\n }", "tir.divergent-barrier"),
    ("  toy.barrier()", "  for q in 0..unit {\n toy.barrier()\n }", "tir.divergent-barrier"),
    ("toy.store(c[i, v * 8 :+ 8], r[v, 0 :+ 8])", "toy.barrier()", "tir.output-unwritten"),
    ("  toy.barrier()", "  role w units 1..1 {\n toy.barrier()\n }", "tir.role-range"),
    ("  toy.barrier()", "  role w units 1..3 {\n toy.barrier()\n }", "tir.role-range"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code"), CASES)
def test_a_broken_kernel_is_refused(old, new, code):
    found = refusals(old, new)
    assert code in {refusal.code for refusal in found}, found
    assert all(r.where.startswith("k:") and r.message for r in found)


def test_the_base_of_the_cases_is_legal():
    assert verify(parse_module(BASE), TABLE, LIMITS) == ()


def test_a_refusal_quotes_the_statement_and_the_numbers():
    (found,) = refusals("a[i, v * 8 :+ 8]", "a[i, v * 8 + 1 :+ 8]")
    assert found.where == "k:10:7: toy.load(r[v, 0 :+ 8], a[i, v * 8 + 1 :+ 8])"
    assert (
        "dimension 1 covers 17 to 25 of a[16, 24] at unit=0, i=0, v=2; must stay within 0 to 24"
        in (found.message)
    )


def test_an_unrolled_loop_is_refused_where_it_stands():
    (found,) = refusals("unrolled v in 0..3", "unrolled v in i..i + 3")
    assert found.where.startswith("k:9:5: unrolled v in i..i + 3")
    assert "i..i + 3; both bounds must be literals" in found.message


def test_bounds_of_an_unrolled_loop_may_name_outer_unrolled_variables():
    kernel = BASE.replace("unrolled v in 0..3 {", "unrolled o in 0..3 { unrolled v in o..o + 1 {")
    kernel = kernel.replace("    }\n  }\n  toy.barrier", "    }\n }\n  }\n  toy.barrier")
    assert verify(parse_module(kernel), TABLE, LIMITS) == ()


@pytest.mark.parametrize("completion", [c for c in Completion if c is not Completion.IN_ORDER])
def test_atoms_that_complete_later_are_refused(completion):
    late = [
        replace(atom, effects=Effects(completion)) if atom.id == "toy.load" else atom
        for atom in ATOMS
    ]
    (found,) = verify(parse_module(BASE), AtomTable(late, {"base"}), LIMITS)
    assert found.code == "tir.completion"
    assert found.where.startswith("k:10:7: toy.load(r[v, 0 :+ 8]")
    assert f"toy.load completes by {completion.value}" in found.message


TAIL = """
kernel k units 2 (in a: f32[4000, 1001] global align 64, out c: f32[8] global align 64) {
  alloc r: f32[1, 8] register align 4
  for i in 0..4000 {
    for p in 0..1001 step 32 {
      let n = min(32, 1001 - p)
      if n % 8 != 0 {
        toy.load(r[0, 0 :+ 8], a[i, p + n // 8 * 8 :+ 1])
        toy.store(c[0 :+ 8], r[0, 0 :+ 8])
      }
    }
  }
}
"""


def test_dimensions_are_tried_one_by_one_where_together_they_are_too_many():
    limits = replace(LIMITS, enumeration_points=100)
    assert verify(parse_module(TAIL), TABLE, limits) == ()
    (found,) = verify(parse_module(TAIL.replace(":+ 1]", ":+ 2]")), TABLE, limits)
    assert found.code == "tir.window-bounds"
    assert "dimension 1 covers 1000 to 1002 of a[4000, 1001]" in found.message
    both = TAIL.replace("a[i, p + n", "a[i + 1, p + n")
    (found,) = verify(parse_module(both), TABLE, limits)
    assert found.code == "tir.window-bounds"
    assert "dimension 0 covers 4000 to 4001" in found.message


def test_a_window_of_no_elements_in_one_dimension_may_stand_anywhere_in_another():
    def codes(extent):
        text = TAIL.replace("a[i, p + n // 8 * 8 :+ 1]", f"a[i :+ {extent}, i]")
        return {r.code for r in verify(parse_module(text), TABLE, LIMITS)}

    assert "tir.window-bounds" in codes("1")
    assert not codes("max(0, min(1, 1001 - i))") & {"tir.window-bounds", "tir.window-unproved"}
    assert "tir.window-bounds" in codes("max(0, min(1, 1002 - i))")


def test_places_count_from_the_module():
    module = prepared(3, 13)
    text = print_module(module)
    broken = parse_module(text.replace("y[r, j", "y[r + 1, j"))
    (found,) = verify(broken, TABLE, LIMITS)
    line = int(found.where.split(":")[1])
    assert "y[r + 1, j" in print_module(broken).splitlines()[line - 1]


def test_registers_read_before_any_write_are_refused():
    text = """
    kernel k units 1 (out c: f32[8] global align 64) {
      alloc r: f32[4, 8] register align 4
      toy.fill(r[1, 0 :+ 8], 0.5)
      toy.add(r[0, 0 :+ 8], r[1, 0 :+ 8], r[2, 0 :+ 8])
      toy.store(c[0 :+ 8], r[0, 0 :+ 8])
    }
    """
    (refusal,) = verify(parse_module(text), TABLE, LIMITS)
    assert refusal.code == "tir.read-unwritten"
    assert "operand b of toy.add reads r" in refusal.message


def test_a_register_written_by_an_earlier_iteration_is_not_called_unwritten():
    text = """
    kernel k units 1 (in x: f32[64] global align 64, out c: f32[8] global align 64) {
      alloc r: f32[2, 8] register align 4
      for i in 0..8 {
        if 0 < i {
          toy.add(r[0, 0 :+ 8], r[0, 0 :+ 8], r[1, 0 :+ 8])
        } else {
          toy.fill(r[0, 0 :+ 8], 0.0)
        }
        toy.load(r[1, 0 :+ 8], x[i * 8 :+ 8])
      }
      toy.store(c[0 :+ 8], r[0, 0 :+ 8])
    }
    """
    assert verify(parse_module(text), TABLE, LIMITS) == ()


def test_registers_count_only_while_they_are_used():
    lines = []
    for number in range(20):
        lines.append(f"alloc r{number}: f32[1, 8] register align 4")
    for number in range(20):
        lines.append(f"toy.fill(r{number}[0, 0 :+ 8], 1.0)")
        lines.append(f"toy.store(c[{number}, 0 :+ 8], r{number}[0, 0 :+ 8])")
    body = "\n".join(lines)
    text = f"kernel k units 1 (out c: f32[20, 8] global align 64) {{ {body} }}"
    assert verify(parse_module(text), TABLE, LIMITS) == ()
    fills = [line for line in lines if "fill" in line]
    stores = [line for line in lines if "store" in line]
    body = "\n".join(lines[:20] + fills + stores)
    text = f"kernel k units 1 (out c: f32[20, 8] global align 64) {{ {body} }}"
    (refusal,) = verify(parse_module(text), TABLE, LIMITS)
    assert refusal.code == "tir.capacity"
    assert "20 registers of register are alive at once" in refusal.message
    assert "there are 16" in refusal.message


def test_memory_counts_alignment_and_ends_with_its_block():
    def module(first, second):
        body = f"""
        for i in 0..2 {{ alloc x: f32[{first}] local align 4
          toy.fill(r[0, 0 :+ 8], 1.0) toy.store(x[0 :+ 8], r[0, 0 :+ 8]) }}
        for j in 0..2 {{ alloc y: f32[{second}] local align 4
          toy.fill(r[0, 0 :+ 8], 1.0) toy.store(y[0 :+ 8], r[0, 0 :+ 8])
          toy.store(c[0 :+ 8], r[0, 0 :+ 8]) }}
        """
        head = "kernel k units 1 (out c: f32[8] global align 64) {"
        return parse_module(f"{head} alloc r: f32[1, 8] register align 4 {body} }}")

    assert verify(module(4096, 4096), TABLE, LIMITS) == ()
    (refusal,) = verify(module(4096, 4097), TABLE, LIMITS)
    assert refusal.code == "tir.capacity"
    assert "16388 bytes of local" in refusal.message


def test_buffers_end_with_their_block():
    text = """
    kernel k units 1 (out c: f32[8] global align 64) {
      for i in 0..1 {
        alloc r: f32[1, 8] register align 4
        toy.fill(r[0, 0 :+ 8], 1.0)
        toy.store(c[0 :+ 8], r[0, 0 :+ 8])
      }
    }
    """
    kernel = parse_module(text).main
    assert verify(kernel, TABLE, LIMITS) == ()
    loop = kernel.body[0]
    moved = type(kernel)(kernel.name, kernel.params, 1, (loop, loop.body[2]))
    assert [r.code for r in verify(moved, TABLE, LIMITS)] == ["tir.buffer-unknown"]


def test_a_barrier_in_a_loop_of_equal_trips_is_legal():
    text = """
    kernel k units 3 (out c: f32[3, 8] global align 64) {
      alloc r: f32[1, 8] register align 4
      for i in unit * 4..min(unit * 4 + 4, 12) {
        toy.fill(r[0, 0 :+ 8], 1.0)
        toy.barrier()
      }
      role all units 0..3 { toy.barrier() }
      if unit < 3 { toy.barrier() toy.store(c[unit, 0 :+ 8], r[0, 0 :+ 8]) }
    }
    """
    assert [r.code for r in verify(parse_module(text), TABLE, LIMITS)] == []
    uneven = text.replace("unit * 4 + 4, 12", "unit * 4 + 4, 11")
    found = verify(parse_module(uneven), TABLE, LIMITS)
    assert [r.code for r in found] == ["tir.divergent-barrier"]
    assert "depends on the unit" in found[0].message


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("out p:", "out q:", "tir.prepare-unused"),
        ("out p: f32[3, 16]", "out p: f32[4, 16]", "tir.prepare-mismatch"),
        ("in w: f32[3, 13]", "inout w: f32[3, 13]", "tir.prepare-io"),
        ("kernel pack", "kernel main", "tir.name-duplicate"),
    ],
)
def test_prepare_kernels_fill_what_main_is_given(old, new, code):
    text = print_module(prepared(3, 13)).replace(old, new, 1).replace(" p[r", " p[r")
    if "q:" in new:
        text = text.replace("toy.store(p[", "toy.store(q[", 1)
    assert code in {r.code for r in verify(parse_module(text), TABLE, LIMITS)}


def test_a_prepared_argument_that_nobody_fills_is_refused():
    alone = type(prepared(3, 13))((prepared(3, 13).main,))
    assert [r.code for r in verify(alone, TABLE, LIMITS)] == ["tir.prepare-missing"]


def test_beyond_the_budget_a_window_is_unproved_unless_an_end_refutes_it():
    text = """
    kernel k units 1 (in x: f32[{size}] global align 64, out c: f32[8] global align 64) {{
      alloc r: f32[1, 8] register align 4
      for i in 0..1000 {{ for j in 0..1000 {{
        toy.load(r[0, 0 :+ 8], x[(i * j) * 8 // 7 % 1001 :+ 8])
        toy.store(c[0 :+ 8], r[0, 0 :+ 8])
      }} }}
    }}
    """
    limits = Limits(LIMITS.capacity, LIMITS.register_bytes, enumeration_points=2000)
    assert verify(parse_module(text.format(size=1008)), TABLE, limits) == ()
    (found,) = verify(parse_module(text.format(size=1007)), TABLE, limits)
    assert found.code == "tir.window-unproved"
    assert "more than 2000 points" in found.message
    (found,) = verify(parse_module(text.format(size=20)), TABLE, limits)
    assert found.code == "tir.window-bounds"


def test_a_report_stops_at_its_limit():
    lines = "\n".join("toy.nothing()" for _ in range(100))
    text = f"kernel k units 1 () {{ {lines} }}"
    limits = Limits(LIMITS.capacity, max_refusals=5)
    assert len(verify(parse_module(text), TABLE, limits)) == 5
