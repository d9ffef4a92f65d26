"""Users' kernels that are wrong or cheat the clock: each is caught, and named by its code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.system.conftest import at_home
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.measure.job import Limits
from tfsearch.space.file import kernel_workload
from tfsearch.tune import TuneReport, TuneRequest, tune
from tfsearch.tune.report import AllFailedError, FailedStatus

LIMITS = Limits(deadline_s=30, budget_s=0.1, share=0.2, most=20)
N = 64
PRODUCT = f"""
entry = "product"
reference = "ref.py:product"
terms = {N}
[constants]
N = {N}
[parameters]
ONE = [1]
[[args]]
name = "a"
dtype = "f32"
shape = ["N", "N"]
[[args]]
name = "b"
dtype = "f32"
shape = ["N", "N"]
[[args]]
name = "c"
dtype = "f32"
shape = ["N", "N"]
io = "out"
"""
UPDATE = """
entry = "saxpy"
reference = "ref.py:saxpy"
[constants]
n = 4096
[parameters]
ONE = [1]
[[args]]
name = "a"
dtype = "f32"
init = 2.5
[[args]]
name = "x"
dtype = "f32"
shape = ["n"]
[[args]]
name = "y"
dtype = "f32"
shape = ["n"]
io = "inout"
[[args]]
name = "n"
dtype = "i32"
init = "n"
"""
REFERENCES = """
def product(a, b):
    return a @ b

def saxpy(a, x, y, n):
    return a * x + y
"""
HEAD = """
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
enum { CELLS = N * N };
static void right(const float *a, const float *b, float *c) {
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      float sum = 0;
      for (int k = 0; k < N; k++) sum += a[i * N + k] * b[k * N + j];
      c[i * N + j] = sum;
    }
}
struct job { const float *a, *b; float *c; };
static void *later(void *given) {
  struct job *j = given;
  usleep(1000);
  right(j->a, j->b, j->c);
  return 0;
}
static void *spin(void *given) {
  for (volatile int on = 1; on;) {}
  return given;
}
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}
static int calls;
static float kept[CELLS], kept_a[CELLS], kept_b[CELLS];
"""
RIGHT = "right(a, b, c);"
KEEP = (
    "memcpy(kept_a, a, sizeof kept); memcpy(kept_b, b, sizeof kept); memcpy(kept, c, sizeof kept);"
)
START = "pthread_t t; pthread_create(&t, 0, {0}, &j); pthread_detach(t);"
HANDED_OVER = (
    "struct job *own = malloc(sizeof *own); *own = (struct job){a, b, c};"
    "pthread_t t; pthread_create(&t, 0, later, own); pthread_detach(t);"
)
CHEATS: dict[str, tuple[str, Status, str, str]] = {
    "keeps results by comparing inputs": (
        "if (!memcmp(a, kept_a, sizeof kept) && !memcmp(b, kept_b, sizeof kept)) {"
        f"memcpy(c, kept, sizeof kept); return; }} {RIGHT} {KEEP}",
        Status.IMPLAUSIBLE, "measure.kept-results", "has not seen before",
    ),
    "keeps many results by a hash of the inputs": (
        "static float table[64][CELLS]; static uint64_t of[64]; uint64_t h = 1469598103934665603u;"
        "const uint32_t *p = (const uint32_t *)a, *q = (const uint32_t *)b;"
        "for (int i = 0; i < CELLS; i++) h = (h ^ p[i] ^ ((uint64_t)q[i] << 32)) * 1099511628211u;"
        "int at = h >> 58; if (of[at] == h) { memcpy(c, table[at], sizeof kept); return; }"
        f"{RIGHT} of[at] = h; memcpy(table[at], c, sizeof kept);",
        Status.IMPLAUSIBLE, "measure.kept-results", "has not seen before",
    ),
    "keeps results by comparing every 97th input": (
        "int same = 1; for (int i = 0; i < CELLS; i += 97)"
        " same &= a[i] == kept_a[i] && b[i] == kept_b[i];"
        f"if (same) {{ memcpy(c, kept, sizeof kept); return; }} {RIGHT} {KEEP}",
        Status.WRONG, "verify.kept", "earlier call",
    ),
    "keeps a result by pointer": (
        "static const float *last; if (last == a) { memcpy(c, kept, sizeof kept); return; }"
        f"{RIGHT} last = a; {KEEP}",
        Status.WRONG, "verify.kept", "earlier call",
    ),
    "keeps a result by pointer once it is timed": (
        "static const float *of[2]; static float both[2][CELLS]; if (calls > 12)"
        "for (int i = 0; i < 2; i++) if (of[i] == a) { memcpy(c, both[i], sizeof kept); return; }"
        f"int at = calls++ & 1; {RIGHT} of[at] = a; memcpy(both[at], c, sizeof kept);",
        Status.WRONG, "verify.kept", "after timing",
    ),
    "changes an input": (
        f"{RIGHT} ((float *)a)[3] = 7;", Status.WRONG, "verify.input-changed", "a changed at [0,3]",
    ),
    "changes an input and restores it": (
        f"float was = a[3]; *(volatile float *)&a[3] = 7; {RIGHT} *(volatile float *)&a[3] = was;"
        f"{RIGHT}",
        Status.WRONG, "verify.input-written", "read-only",
    ),
    "reads its stack before it writes it": (
        f"{RIGHT} volatile float own[N]; c[7] += own[N / 2];",
        Status.WRONG, "verify.uninitialised", "did not write",
    ),
    "reads allocated memory before it writes it": (
        f"float *own = malloc(sizeof kept); {RIGHT}"
        "for (int i = 0; i < CELLS; i++) c[i] += *(volatile float *)&own[i]; free(own);",
        Status.WRONG, "verify.uninitialised", "did not write",
    ),
    "reads a small allocation before it writes it": (
        f"float *own = malloc(64); {RIGHT} c[0] += *(volatile float *)&own[9]; free(own);",
        Status.WRONG, "verify.uninitialised", "did not write",
    ),
    "leaves what an earlier call wrote": (
        f"if (c[5] == c[5] && calls++ > 12) return; {RIGHT}",
        Status.WRONG, "verify.skipped", "writes nothing",
    ),
    "skips every other call": (
        f"if (calls++ > 12 && calls % 2) return; {RIGHT}",
        Status.WRONG, "verify.skipped", "row of calls",
    ),
    "does nothing when it was called a moment ago": (
        f"static int64_t last; if (now() - last < 20000) return; {RIGHT} last = now();",
        Status.WRONG, "verify.skipped", "row of calls",
    ),
    "does less where addresses are round": (
        f"{RIGHT} if ((uintptr_t)c % 4096 == 0) c[9] = 0;",
        Status.WRONG, "verify.address", "wrong at others",
    ),
    "is right in its first call": (
        f"if (calls++) return; {RIGHT}", Status.WRONG, "verify.unwritten", "output c",
    ),
    "is right in its first calls": (
        f"if (++calls > 12) return; {RIGHT}", Status.WRONG, "verify.later-calls", "after timing",
    ),
    "leaves the work to a thread": (
        HANDED_OVER, Status.WRONG, "verify.late", "after it has returned",
    ),
    "leaves the work to a thread once it is timed": (
        f"if (calls++ < 12) {{ {RIGHT} return; }} {HANDED_OVER}",
        Status.WRONG, "verify.late", "after",
    ),
    "leaves a thread running": (
        f"{RIGHT} static struct job j; if (!calls++) {{ {START.format('spin')} }}",
        Status.WRONG, "verify.threads", "still running",
    ),
    "computes in lower precision": (
        "for (int i = 0; i < CELLS; i++) { union { float f; uint32_t u; } v = { a[i] };"
        "v.u &= 0xffff0000u; kept_a[i] = v.f; } right(kept_a, b, c);",
        Status.WRONG, "verify.wrong", "pass normal",
    ),
    "writes nothing": ("(void)right;", Status.WRONG, "verify.unwritten", "output c"),
    "writes zeros": ("memset(c, 0, sizeof kept);", Status.WRONG, "verify.wrong", "output c"),
    "writes behind the end": (
        f"{RIGHT} c[CELLS] = 1;", Status.WRONG, "verify.out-of-bounds", "after the buffer",
    ),
    "differs from run to run": (
        f"{RIGHT} if (++calls & 1 && c[5] != rintf(c[5])) c[5] *= 1 + 1.2e-7f;",
        Status.NONDETERMINISTIC, "verify.nondeterministic", "in one run",
    ),
    "crashes": ("*(volatile int *)8 = 1;", Status.CRASH, "measure.crash", "SIGSEGV"),
    "hangs": ("for (volatile int on = 1; on;) {}", Status.TIMEOUT, "measure.timeout", "killed"),
}  # fmt: skip
HONEST = {
    "plain": RIGHT,
    "with memory of its own": (
        "float *own = malloc(sizeof kept); right(a, b, own); memcpy(c, own, sizeof kept);free(own);"
    ),
    "with a table that it makes once": (
        f"static float *table; if (!table) table = calloc(CELLS, 4); {RIGHT} c[3] += table[7];"
    ),
    "with a thread that it waits for": (
        "struct job j = {a, b, c}; pthread_t t; pthread_create(&t, 0, later, &j);"
        "pthread_join(t, 0);"
    ),
}

# The same for y = a x + y, whose output is an input too.
UPDATED = "for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];"
UPDATES: dict[str, tuple[str, Status, str, str]] = {
    "misses one element": (f"n -= 1; {UPDATED}", Status.WRONG, "verify.wrong", "[4095]"),
    "keeps a result by pointer": (
        "static const float *last; static float kept[4096];"
        "if (last == x) { for (int i = 0; i < n; i++) y[i] = kept[i]; return; }"
        f"{UPDATED} last = x; for (int i = 0; i < n; i++) kept[i] = y[i];",
        Status.WRONG, "verify.kept", "output y",
    ),
    "is right in its first calls": (
        f"static int calls; if (++calls > 12) return; {UPDATED}",
        Status.WRONG, "verify.later-calls", "after timing",
    ),
    "leaves another rounding mode": (
        f"{UPDATED} unsigned mode; __asm__ volatile(\"stmxcsr %0\" : \"=m\"(mode));"
        "mode |= 0x4000; __asm__ volatile(\"ldmxcsr %0\" : : \"m\"(mode));",
        Status.WRONG, "verify.float-mode", "rounding mode",
    ),
    "leaves subnormals flushed": (
        f"static int calls; {UPDATED} unsigned mode;"
        "__asm__ volatile(\"stmxcsr %0\" : \"=m\"(mode));"
        "if (++calls > 12) mode |= 0x8040; __asm__ volatile(\"ldmxcsr %0\" : : \"m\"(mode));",
        Status.WRONG, "verify.float-mode", "after timing: the call leaves subnormal",
    ),
}  # fmt: skip


@dataclass
class Bench:
    folder: Path
    home: Settings

    def tune(self, text: str, space: str = PRODUCT, limits: Limits = LIMITS) -> TuneReport:
        (self.folder / "kernel.c").write_text(text)
        (self.folder / "kernel.toml").write_text(space)
        (self.folder / "ref.py").write_text(REFERENCES)
        work = kernel_workload(self.folder / "kernel.c", self.folder / "kernel.toml", {})
        request = TuneRequest(work, target="x86", trials=1, limits=limits)
        store = open_store(self.home.database_url)
        try:
            return tune(request, store=store, settings=self.home)
        finally:
            store.close()

    def failure(self, text: str, space: str = PRODUCT, limits: Limits = LIMITS) -> FailedStatus:
        with pytest.raises(AllFailedError) as caught:
            self.tune(text, space, limits)
        (line,) = caught.value.table
        return line


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    folder = tmp_path / "kernel"
    folder.mkdir()
    return Bench(folder, at_home(tmp_path / "home", monkeypatch))


def product(body: str) -> str:
    return f"{HEAD}\nvoid product(const float *a, const float *b, float *c) {{ {body} }}\n"


@pytest.mark.parametrize("name", CHEATS)
def test_a_kernel_that_cheats_is_caught_and_named(bench: Bench, name: str) -> None:
    body, status, code, word = CHEATS[name]
    limits = replace(LIMITS, deadline_s=3) if status is Status.TIMEOUT else LIMITS
    line = bench.failure(product(body), limits=limits)
    assert (line.status, line.code) == (status, code), line.message
    assert word in line.message


@pytest.mark.parametrize("name", UPDATES)
def test_so_is_one_whose_output_is_an_input(bench: Bench, name: str) -> None:
    body, status, code, word = UPDATES[name]
    text = f"void saxpy(float a, const float *x, float *y, int n) {{ {body} }}\n"
    line = bench.failure(text, UPDATE)
    assert (line.status, line.code) == (status, code), line.message
    assert word in line.message


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes_and_was_audited(bench: Bench, name: str) -> None:
    report = bench.tune(product(HONEST[name]))
    assert report.best is not None
    store = open_store(bench.home.database_url)
    (trial,) = [one.trial for one in store.trials()]
    store.close()
    assert trial.measurement is not None
    audit = trial.measurement.conditions["audit"]
    assert audit["audited"]
    assert audit["new_over_known"] < 1.5
