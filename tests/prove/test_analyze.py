"""Facts of TIR equal what running the loops counts."""

import json
from collections import Counter

import numpy as np
import pytest

from tests.prove.kernels import gemm, prepared, row_sum
from tests.prove.toy import TABLE
from tfsearch.atoms.contract import Access
from tfsearch.core.errors import RequestError
from tfsearch.ir.tir.expr import evaluate
from tfsearch.ir.tir.nodes import UNIT, Call, For, If, Let, MemorySpace, Role, Window
from tfsearch.ir.tir.text import parse_module
from tfsearch.prove.analyze import analyze


def count(kernel):
    """Calls and bytes by running every loop."""
    calls, read, written = Counter(), Counter(), Counter()

    def run(block, env):
        env = dict(env)
        for statement in block:
            match statement:
                case Let(name, value):
                    env[name] = evaluate(value, env)
                case For(name, start, stop, body, _, step, _):
                    for value in range(evaluate(start, env), evaluate(stop, env), step):
                        run(body, {**env, name: value})
                case If(condition, then, orelse):
                    run(then if evaluate(condition, env) else orelse, env)
                case Role(_, first, last, body):
                    if first <= env[UNIT] < last:
                        run(body, env)
                case Call(atom, operands):
                    calls[atom, env[UNIT]] += 1
                    for operand, spec in zip(operands, TABLE[atom].operands, strict=True):
                        if isinstance(operand, Window):
                            sizes = [evaluate(e, env) for e in operand.extents]
                            size = int(np.prod(sizes)) * operand.buffer.dtype.bytes
                            key = operand.buffer.name, env[UNIT]
                            if spec.access is not Access.WRITE:
                                read[key] += size
                            if spec.access is not Access.READ:
                                written[key] += size

    for unit in range(kernel.units):
        run(kernel.body, {UNIT: unit})
    return calls, read, written


ROLES = parse_module("""
kernel k units 3 (in x: f32[40] global align 64, out c: f32[3, 8] global align 64) {
  alloc r: f32[1, 8] register align 4
  role few units 1..3 {
    for i in unit..unit * 3 step 2 {
      let n = min(8, 40 - i * 4)
      for j in 0..i {
        if j % 2 == 0 { toy.load(r[0, 0 :+ 8], x[i * 4 :+ n]) }
        else { toy.load(r[0, 0 :+ 8], x[j :+ max(0, 4 - j)]) }
      }
    }
  }
  toy.fill(r[0, 0 :+ 8], 1.0)
  toy.store(c[unit, 0 :+ 8], r[0, 0 :+ 8])
}
""")


@pytest.mark.parametrize(
    "module",
    [gemm(13, 37, 21), gemm(17, 16, 33, units=4, mr=3, kc=7), row_sum(7, 21, units=2),
     prepared(3, 13), ROLES],
    ids=["gemm", "gemm4", "row_sum", "prepared", "roles"],
)  # fmt: skip
def test_counts_are_exact(module):
    analysis = analyze(module, TABLE)
    for kernel, facts in zip(module.kernels, analysis.kernels, strict=True):
        calls, read, written = count(kernel)
        found = {(w.atom, u): n for w in facts.work for u, n in enumerate(w.calls) if n}
        assert found == calls
        assert {(t.buffer, u): n for t in facts.traffic for u, n in enumerate(t.read) if n} == {
            key: value for key, value in read.items() if value
        }
        assert {(t.buffer, u): n for t in facts.traffic for u, n in enumerate(t.written) if n} == {
            key: value for key, value in written.items() if value
        }


def test_sums_follow_from_closed_forms_at_full_size():
    m, n, k = 1001, 1003, 999
    facts = analyze(gemm(m, n, k, units=2, kc=256), TABLE).main
    rows, panels, blocks = -(-m // 4), -(-n // 16), -(-k // 256)
    assert facts.calls("toy.fma") == rows * panels * k * 4 * 2
    assert facts.flops == facts.calls("toy.fma") * 16
    assert facts.calls("toy.barrier") == 2 * blocks * 2
    assert sum(facts.buffer("b").read) == k * n * 4
    assert sum(facts.buffer("c").written) == blocks * m * n * 4
    assert facts.buffer("c").footprint == m * n * 4
    assert facts.buffer("c").extent == ((0, m), (0, n))
    assert facts.written_bytes(MemorySpace.SCRATCH) == k * panels * 16 * 4
    assert facts.pipe_calls()["sync"] == facts.calls("toy.barrier")
    assert sum(facts.pipe_cycles()["fma"]) == facts.pipe_calls()["fma"]


def test_storage_is_reported_with_its_live_range():
    facts = analyze(gemm(13, 37, 21), TABLE).main
    assert facts.peak_bytes == {
        MemorySpace.SCRATCH: 3 * 16 * 16 * 4,
        MemorySpace.REGISTER: (8 + 1 + 2 + 1)
        * 32,  # acc, av, bv live through the loop that holds t
    }
    pack = next(item for item in facts.allocations if item.buffer == "pack")
    assert (pack.bytes, pack.path, pack.first, pack.last) == (3072, (0,), (0,), (4,))
    acc = next(item for item in facts.allocations if item.buffer == "acc")
    assert (acc.first, acc.last) == ((4,), (4,))


def test_facts_are_json():
    data = analyze(prepared(3, 13), TABLE).to_json()
    assert json.loads(json.dumps(data)) == data
    assert [kernel["name"] for kernel in data["kernels"]] == ["pack", "main"]


def test_an_exact_count_beyond_the_budget_is_an_error():
    with pytest.raises(RequestError) as caught:
        analyze(gemm(1001, 1003, 999, units=2, kc=256), TABLE, max_points=10)
    assert caught.value.code == "analyze.points"
