"""Planted faults of concurrent kernels: each is refused by the verifier or caught in a run.

A fault is a change of a kernel's text. Its codes are all those that say what is wrong; ``V`` marks
faults that the verifier has to see by itself, ``I`` those that only a run shows.
"""

import pytest

from tests.prove.loom import LIMITS, TABLE
from tests.prove.test_team import CASES
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify

PLAIN, PING, CAST, LINE, ROWS, SPLIT = (
    "cooperative", "ping-pong", "multicast", "commit groups", "rows", "split",
)  # fmt: skip
RELEASE = """\
        if 0 < kk1 {
          loom.arrive(empty[(at1 + 2) % 3])
        }
"""
LAST = "      loom.arrive(empty[(j1 * 5 + 4) % 3])\n"
END = "  loom.cluster.arrive()\n  loom.cluster.wait()\n}\n"
START = "  loom.fence.init()\n  loom.cluster.arrive()\n  loom.cluster.wait()\n"
COPY_B = (
    "        loom.copy.box.r8(sb[slot, 0 :+ 8, 0 :+ 8], b[kk * 8 :+ max(0, min(8, 36 - kk * 8)), "
    "col :+ max(0, min(8, 20 - col))], full[slot])\n"
)
FENCED = "      loom.fence.async()\n"
NAMED = "      loom.named(w + 1, 2)\n"

FAULTS = {
    # Operand contracts: layout, swizzle, alignment, fragment, issuer.
    "no swizzle": ("V", PLAIN, "alloc sb: f32[3, 8, 8] shared layout \"sw(1,2,3) o (3,8,8):(64,8,1)\"",
                   "alloc sb: f32[3, 8, 8] shared", "tir.operand-layout"),
    "another swizzle": ("V", PLAIN, "sw(1,2,3) o (3,8,8)", "sw(1,3,3) o (3,8,8)",
                        "tir.operand-layout"),
    "padded rows": ("V", PLAIN, "(3,8,8):(64,8,1)", "(3,8,8):(96,12,1)", "tir.operand-layout"),
    "columns first": ("V", PLAIN, "(3,8,8):(64,8,1)", "(3,8,8):(64,1,8)", "tir.operand-layout"),
    "elements overlap": ("V", PLAIN, "(3,8,8):(64,8,1)", "(3,8,8):(32,8,1)", "tir.buffer-layout"),
    "alignment below the swizzle": ("V", PLAIN, ":(64,8,1)\" align 1024", ":(64,8,1)\" align 128",
                                    "tir.buffer-layout"),
    "fragment of others": ("V", PLAIN, 'fragment "pair.m8n8"', 'fragment "team.m32n8"',
                           "tir.operand-fragment"),
    "no fragment": ("V", PLAIN, ' fragment "pair.m8n8"', "", "tir.operand-fragment"),
    "one warp issues": ("V", PLAIN, "warps 2..6 width 2 as w", "warps 2..4 width 1 as w",
                        "tir.issuer"),
    "an odd first warp": ("V", PLAIN, "role loader warps 0..2 width 2 {",
                          "role loader warps 0..1 width 1 {", "tir.issuer",
                          ("warps 2..6 width 2", "warps 1..5 width 2")),
    "barrier as data": ("V", PLAIN, "loom.stage(sc[w, 0 :+ 8, 0 :+ 8]", "loom.stage(full[0 :+ 3]",
                        "tir.operand-dtype"),
    "data as barrier": ("V", PLAIN, "loom.wait(empty[slot]", "loom.wait(sc[slot, 0, 0]",
                        "tir.operand-dtype"),
    "barriers in registers": ("V", PLAIN, "alloc full: barrier[3] shared",
                              "alloc full: barrier[3] register", "tir.barrier-space"),
    # Capacities and registers.
    "too much shared memory": ("V", PLAIN, "f32[2, 8, 8] shared layout \"sw(1,2,3) o (2,8,8)",
                               "f32[99, 8, 8] shared layout \"sw(1,2,3) o (99,8,8)", "tir.capacity"),
    "registers beyond the file": ("V", PLAIN, "loom.registers(40)", "loom.registers(48)",
                                  "tir.registers"),
    "registers in odd steps": ("V", PLAIN, "loom.registers(40)", "loom.registers(36)",
                               "tir.registers"),
    "registers without a start": ("V", PLAIN, " registers 32 (", " (", "tir.registers"),
    "registers below the fragments": ("V", PLAIN, "f32[8, 8] register",
                                      "f32[8, 8] register", "tir.registers",
                                      ("loom.registers(40)\n", "loom.registers(8)\n"
                                       '    alloc more: f32[8, 8] register fragment "pair.m8n8" '
                                       "align 4\n    loom.zero(more[0 :+ 8, 0 :+ 8], 0.0)\n"),
                                      ("loom.wait.bulk(0)",
                                       "loom.wait.bulk(0)\n    loom.zero(more[0 :+ 8, 0 :+ 8], 0.0)"
                                       "\n    loom.zero(acc[0 :+ 8, 0 :+ 8], 0.0)")),
    "start registers beyond the file": ("V", PLAIN, " registers 32 (", " registers 48 (",
                                        "tir.registers"),
    # Who runs what.
    "no such warps": ("V", PLAIN, "warps 2..6 width 2", "warps 2..8 width 2", "tir.role-range"),
    "warps left over": ("V", PLAIN, "warps 2..6 width 2", "warps 2..5 width 2", "tir.role-range"),
    "roles share warps": ("V", PLAIN, "warps 0..2 width 2", "warps 0..4 width 2",
                          "tir.role-overlap"),
    "a role in a role": ("V", ROWS, "    alloc more:", "    role inner warps 0..1 width 1 {\n"
                         "      loom.team()\n    }\n    alloc more:", "tir.role-nested"),
    "a branch that no instance takes": ("V", PING, "if w == 1 {", "if w == 2 {",
                                        "tir.region-unreached"),
    "registers of others": ("V", PLAIN, "role loader", "alloc lost: f32[8, 8] register fragment "
                            "\"pair.m8n8\" align 4\n  role loader", "tir.register-owner",
                            ("loom.zero(acc", "loom.zero(lost")),
    "clusters do not fill": ("V", CAST, "units 4 ", "units 3 ", "tir.team"),
    "clusters too large": ("V", CAST, "cluster [2, 1]", "cluster [8, 1]", "tir.team"),
    "too many warps": ("V", LINE, "warps 4 lanes 4", "warps 99 lanes 4", "tir.team"),
    # Arrival counts.
    "too many arrivals": ("V", PLAIN, "loom.init(empty[i], 2)", "loom.init(empty[i], 1)",
                          "tir.barrier-count"),
    "too few arrivals": ("V", PLAIN, "loom.init(empty[i], 2)", "loom.init(empty[i], 3)",
                         "tir.barrier-count"),
    "every thread arrives": ("V", PLAIN, "loom.arrive(empty[(at1", "loom.arrive.all(empty[(at1",
                             "tir.barrier-count"),
    "arrivals of one unit": ("V", CAST, "loom.init(empty[i], 4)", "loom.init(empty[i], 2)",
                             "tir.barrier-count"),
    "arrivals at one rank": ("V", CAST, "loom.arrive.far(empty[(at1 + 2) % 3], r)",
                             "loom.arrive.far(empty[(at1 + 2) % 3], 0)",
                             "tir.barrier-count tir.deadlock tir.barrier-overflow"),
    "not all initialised": ("V", PLAIN, "for i in 0..3 {", "for i in 0..2 {",
                            "tir.barrier-uninitialised"),
    "never initialised": ("V", PLAIN, "    loom.init(full[i], 1)\n", "",
                          "tir.barrier-uninitialised"),
    "initialised twice": ("I", PLAIN, "    loom.init(full[i], 1)\n", "    loom.init(full[i], 1)\n"
                          "    loom.init(full[i], 1)\n", "tir.barrier-init"),
    "no meeting after the start": ("V", PLAIN, "  loom.team()\n", "", "tir.barrier-init"),
    "initial state not shown": ("V", PLAIN, "  loom.fence.init()\n", "", "tir.proxy-fence"),
    "nothing arrives": ("V", PLAIN, RELEASE, "", "tir.barrier-unpaired", (LAST, "")),
    "nothing waits": ("V", PLAIN, "        loom.wait(full[slot1], at1 // 3 % 2)\n", "",
                      "tir.barrier-unpaired"),
    # Bytes of transactions.
    "bytes of one copy": ("V", PLAIN, "loom.expect(full[slot], 768)", "loom.expect(full[slot], 512)",
                          "tir.barrier-bytes"),
    "a copy is missing": ("V", PLAIN, COPY_B, "", "tir.barrier-bytes tir.read-unwritten"),
    "bytes without the edge": ("V", PLAIN, "loom.expect(full[slot], 768)",
                               "loom.expect(full[slot], 256 + 32 * max(0, min(16, 45 - row)))", "tir.barrier-bytes"),
    "bytes of the own half": ("V", CAST, "loom.expect(full[slot], 768)",
                              "loom.expect(full[slot], 640)", "tir.barrier-bytes"),
    "a mask without the other": ("V", CAST, "full[slot], 3)", "full[slot], 1)",
                                 "tir.barrier-bytes"),
    "a mask of units that are not": ("V", CAST, "full[slot], 3)", "full[slot], 7)",
                                     "tir.cluster-rank"),
    # Divergence.
    "the team meets in one role": ("V", PLAIN, "    loom.registers(16)\n",
                                   "    loom.registers(16)\n    loom.team()\n",
                                   "tir.divergent-barrier"),
    "the team meets under a condition": ("V", ROWS, "      loom.team()\n      if w == 0 {\n",
                                         "      if w == 0 {\n      loom.team()\n",
                                         "tir.divergent-barrier"),
    "the cluster meets unit by unit": ("V", CAST, START, "  loom.fence.init()\n  for u in 0..unit % 2"
                                       " + 1 {\n loom.cluster.arrive()\n loom.cluster.wait()\n }\n",
                                       "tir.divergent-barrier"),
    "a named barrier for more": ("V", PLAIN, NAMED, "      loom.named(w + 1, 4)\n",
                                 "tir.named-barrier"),
    "a named barrier for fewer": ("V", PING, "loom.named(w + 4, 4)", "loom.named(w + 4, 2)",
                                  "tir.named-barrier"),
    "a parity that is none": ("V", PLAIN, "(at // 3 + 1) % 2", "at // 3 + 1", "tir.barrier-parity"),
    # Asynchronous copies and operations.
    "read before the wait": ("V", PLAIN, "        loom.wait(full[slot1], at1 // 3 % 2)\n", "",
                             "tir.in-flight", ("        loom.commit.matrix()\n",
                                               "        loom.commit.matrix()\n"
                                               "        loom.wait(full[slot1], at1 // 3 % 2)\n")),
    "the wrong phase of full": ("I", PLAIN, "at1 // 3 % 2", "(at1 // 3 + 1) % 2",
                                "tir.in-flight tir.read-unwritten tir.deadlock"),
    "the wrong phase of empty": ("I", PLAIN, "(at // 3 + 1) % 2", "at // 3 % 2", "tir.deadlock"),
    "a slot is filled unasked": ("V", PLAIN, "        loom.wait(empty[slot], (at // 3 + 1) % 2)\n",
                                 "", "tir.slot-in-use tir.barrier-unpaired"),
    "released before the maths": ("I", PLAIN, "loom.wait.matrix(1)", "loom.wait.matrix(2)",
                                  "tir.slot-in-use"),
    "released by the wrong name": ("I", PLAIN, "empty[(at1 + 2) % 3]", "empty[at1 % 3]",
                                   "tir.slot-in-use tir.barrier-overflow tir.deadlock"),
    "the accumulator is read early": ("V", PLAIN, "      loom.wait.matrix(0)\n", "",
                                      "tir.in-flight"),
    "the accumulator is cleared late": ("V", PLAIN, "        loom.commit.matrix()\n",
                                        "        loom.commit.matrix()\n"
                                        "        loom.zero(acc[0 :+ 8, 0 :+ 8], 0.0)\n",
                                        "tir.in-flight"),
    "no commit": ("V", PLAIN, "        loom.commit.matrix()\n", "", "tir.group-unpaired"),
    "no wait for the store": ("V", PLAIN, "      loom.wait.bulk.read(0)\n", "", "tir.in-flight "
                              "tir.group-unpaired", ("    loom.wait.bulk(0)\n", "")),
    "the last store is not awaited": ("I", PLAIN, "    loom.wait.bulk(0)\n", "",
                                      "tir.async-unawaited"),
    "staging is reused early": ("V", PLAIN, "      loom.wait.bulk.read(0)\n", "",
                                "tir.in-flight tir.slot-in-use"),
    "the pipeline waits for too little": ("I", LINE, "loom.wait.line(1)", "loom.wait.line(2)",
                                          "tir.in-flight"),
    "the pipeline does not wait": ("V", LINE, "      loom.wait.line(1)\n", "",
                                   "tir.in-flight tir.race tir.group-unpaired", ("    loom.wait.line(0)\n", "")),
    "no barrier after the wait": ("I", LINE, "      loom.wait.line(1)\n      loom.team()\n",
                                  "      loom.wait.line(1)\n", "tir.in-flight tir.race "
                                  "tir.slot-in-use"),
    "no commit in the pipeline": ("I", LINE, "      }\n      loom.commit.line()\n    }\n"
                                  "    loom.wait.line(0)", "      }\n    }\n    loom.wait.line(0)",
                                  "tir.in-flight"),
    # Proxies.
    "no fence before the store": ("V", PLAIN, FENCED, "", "tir.proxy-fence"),
    "a fence before the writes": ("V", PLAIN, FENCED, "", "tir.proxy-fence",
                                  ("      loom.stage(", FENCED + "      loom.stage(")),
    "no fence before the maths": ("V", PLAIN, "      loom.fence.matrix()\n", "", "tir.proxy-fence"),
    "a fence after the meeting is none": ("I", PLAIN, FENCED + NAMED, NAMED, "tir.proxy-fence"),
    # Order among warps.
    "no meeting before the store": ("I", PLAIN, FENCED + NAMED, FENCED, "tir.race"),
    "no meeting before the staging": ("I", PLAIN, NAMED + "      loom.stage(", "      loom.stage(",
                                      "tir.in-flight tir.slot-in-use tir.race"),
    "partial sums are read early": ("I", ROWS, "      loom.team()\n      if w == 0",
                                    "      if w == 0", "tir.race tir.read-unwritten"),
    "partial sums are overwritten": ("I", ROWS, "      }\n      loom.team()\n", "      }\n",
                                     "tir.race"),
    # Clusters.
    "the cluster does not start together": ("V", CAST, START, "  loom.fence.init()\n  loom.team()\n",
                                            "tir.cluster-start"),
    "the cluster does not end together": ("V", CAST, END, "}\n", "tir.cluster-exit"),
    "arrived and never waited": ("V", CAST, END, "  loom.cluster.arrive()\n}\n",
                                 "tir.barrier-unpaired"),
    "a rank beyond the cluster": ("V", CAST, "for r in 0..2 {", "for r in 0..3 {",
                                  "tir.cluster-rank"),
    # Outputs.
    "an output is not covered": ("I", PLAIN, "let turns = (9 - unit + 1)", "let turns = (8 - unit + "
                                 "1)", "tir.output-unwritten"),
    "an output is covered twice": ("I", PLAIN, "row1 + w * 8 :+ max(0, min(8, 45 - (row1 + w * 8)))",
                                   "row1 + w * 0 :+ max(0, min(8, 45 - (row1 + w * 0)))",
                                   "tir.output-twice tir.race tir.slot-in-use tir.in-flight"),
    "an output nothing writes": ("V", PLAIN, "in b:", "out d: f32[4] global align 128,\n  in b:",
                                 "tir.output-unwritten"),
    "sums without atomics": ("I", SPLIT, "loom.reduce.row", "loom.store.row", "tir.race",),
    # Arguments of the host.
    "no descriptor": ("V", PLAIN, ' box [16, 8] strides [36, 1] swizzle "sw(1,2,3)"', "", "tir.box"),
    "a descriptor of another box": ("V", PLAIN, "box [16, 8]", "box [8, 8]", "tir.box"),
    "a descriptor with other strides": ("V", PLAIN, "box [16, 8] strides [36, 1]",
                                        "box [16, 8] strides [40, 1]", "tir.box"),
    "a descriptor without swizzle": ("V", PLAIN, 'strides [36, 1] swizzle "sw(1,2,3)"',
                                     "strides [36, 1]", "tir.box"),
    "strides that descriptors lack": ("V", PLAIN, "in a: f32[45, 36] global align 128 box [16, 8] "
                                      "strides [36, 1]", "in a: f32[45, 36] global strides [37, 1] "
                                      "align 128 box [16, 8] strides [37, 1]", "tir.box"),
    "a base that is not aligned": ("V", PLAIN, "in a: f32[45, 36] global align 128",
                                   "in a: f32[45, 36] global align 4", "tir.box"),
    # Windows.
    "a slot beyond the ring": ("V", PLAIN, "let slot = at % 3", "let slot = at % 4",
                               "tir.window-bounds"),
    "a barrier beyond the ring": ("V", PLAIN, "loom.arrive(empty[(at1 + 2) % 3])",
                                  "loom.arrive(empty[(at1 + 2) % 4])", "tir.window-bounds"),
    "a row of another instance": ("V", PLAIN, "sa[slot1, w * 8 :+ 8", "sa[slot1, w * 16 :+ 8",
                                  "tir.window-bounds"),
}  # fmt: skip


def planted(name):
    stage, case, old, new, codes, *more = FAULTS[name]
    module, arguments, _ = CASES[case]()
    text = print_module(module)
    for before, after in ((old, new), *more):
        assert before in text, before
        text = text.replace(before, after)
    return stage, parse_module(text), arguments, set(codes.split())


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    stage, module, arguments, codes = planted(name)
    refused = verify(module, TABLE, LIMITS)
    if refused:
        assert codes & {refusal.code for refusal in refused}
        assert all(refusal.where for refusal in refused)
        return
    assert stage == "I", "the verifier has to see this"
    found = [
        r for seed in range(4) for r in interpret(module, TABLE, arguments, seed=seed).refusals
    ]
    assert codes & {refusal.code for refusal in found}
    assert all(refusal.where and refusal.message for refusal in found)
