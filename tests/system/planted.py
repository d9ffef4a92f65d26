"""The x86 target with one more parameter: how the emitted C is sabotaged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Status
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.plugin.target import Device, Problem, Source
from tfsearch.space import Kind, Parameter, Point, Points, Space
from tfsearch.target.x86 import X86Target
from tfsearch.target.x86.problem import X86Problem

M, N, K = 6, 40, 17
ENTRY = "int tfsearch_main(void **args)"
HEAD = f"""
enum {{ M = {M}, N = {N}, K = {K} }};
#define A ((float *)args[0])
#define B ((float *)args[1])
#define C ((float *)args[2])
"""

WRONG: Mapping[str, str] = {
    "last_k_dropped": "right(args); for (int i = 0; i < M; ++i) for (int j = 0; j < N; ++j) "
    "C[i * N + j] -= A[i * K + K - 1] * B[(K - 1) * N + j];",
    "last_k_doubled": "right(args); for (int i = 0; i < M; ++i) for (int j = 0; j < N; ++j) "
    "C[i * N + j] += A[i * K + K - 1] * B[(K - 1) * N + j];",
    "row_skipped": "float row[N]; memcpy(row, C + N, sizeof row); right(args); "
    "memcpy(C + N, row, sizeof row);",
    "past_the_end": "right(args); C[M * N] = 1.0f;",
    "before_the_start": "right(args); C[-1] = 1.0f;",
    "input_written": "right(args); A[0] += 1.0f; right(args);",
    "previous_output": "static float kept[M * N]; static int ready; float now[M * N]; "
    "right(args); memcpy(now, C, sizeof now); if (ready) memcpy(C, kept, sizeof kept); "
    "memcpy(kept, now, sizeof kept); ready = 1;",
    "kept_by_pointer": "static float kept[M * N]; static void *of; "
    "if (of == args[0]) memcpy(C, kept, sizeof kept); "
    "else { right(args); memcpy(kept, C, sizeof kept); of = args[0]; }",
    "zeros": "memset(C, 0, sizeof(float) * M * N);",
    "unwritten": "(void)right;",
    "from_the_11th_call": "static int calls; right(args); if (++calls > 10) C[0] = 0.0f;",
    "in_bf16": "for (int i = 0; i < M; ++i) for (int j = 0; j < N; ++j) { float sum = 0; "
    "for (int k = 0; k < K; ++k) sum += narrow(A[i * K + k]) * narrow(B[k * N + j]); "
    "C[i * N + j] = sum; } (void)right;",
}
NARROW = """
static inline float narrow(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  memcpy(&x, &u, 4);
  return x;
}
"""
OTHER: Mapping[str, tuple[str, Status]] = {
    "nondeterministic": (
        "static int calls; right(args); if (++calls % 2 && C[0] != (float)(int)C[0]) "
        "C[0] *= 1.0f + 0x1p-23f;",
        Status.NONDETERMINISTIC,
    ),
    "crash": ("right(args); *(volatile int *)8 = 1;", Status.CRASH),
    "hang": ("for (volatile int i = 0;; ++i) {} (void)right;", Status.TIMEOUT),
    "compile_error": ('right(args); "', Status.COMPILE_ERROR),
    "compile_crash": ("right(args); /* planted_crash */", Status.COMPILE_CRASH),
    "compile_hang": ("right(args); /* planted_hang */", Status.COMPILE_TIMEOUT),
    "out_of_memory": ("right(args); /* a workspace beyond any memory */", Status.OUT_OF_MEMORY),
    "no_symbol": ("", Status.LOAD_ERROR),
}
BY_FAULT: Mapping[str, Status] = {
    "none": Status.OK,
    **dict.fromkeys(WRONG, Status.WRONG),
    **{name: status for name, (_, status) in OTHER.items()},
}
HUGE = 1 << 46


class PlantedTarget(X86Target):
    name = "planted"

    def problem(self, workload: Workload, device: Device) -> Problem:
        return PlantedProblem(super().problem(workload, device))


class PlantedProblem:
    """Delegates to the real problem; one point, and a fault."""

    def __init__(self, real: Problem) -> None:
        assert isinstance(real, X86Problem)
        self.real = real
        self.workload = real.workload
        self.refusals = real.refusals
        recipe = real.space.recipes[0]
        fault = Parameter("fault", tuple(BY_FAULT), Kind.CATEGORICAL)
        self.space = Space((replace(recipe, parameters=(*recipe.parameters, fault)),))

    def predict(self, points: Points, *, cold: bool = False) -> object:
        return self.real.predict(points, cold=cold)

    def facts(self, points: Points) -> object:
        return self.real.facts(points)

    def lower(self, point: Point, trace: object = None) -> Module:
        return self.real.lower(_without_fault(point))

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        return self.real.reduced(_without_fault(point))

    def emit(self, module: Module, point: Point) -> Source:
        return sabotaged(self.real.emit(module, point), str(point.params["fault"]))

    def probes(self, point: Point) -> tuple[str, ...]:
        return self.real.probes(point)

    def baseline(self) -> None:
        return None


def _without_fault(point: Point) -> Point:
    return Point(point.recipe_name, {k: v for k, v in point.params.items() if k != "fault"})


def sabotaged(source: Source, fault: str) -> Source:
    """The source with another entry around the right one."""
    if fault == "none":
        return source
    if fault == "no_symbol":
        return replace(source, text=source.text.replace(ENTRY, "int another(void **args)"))
    body = WRONG[fault] if fault in WRONG else OTHER[fault][0]
    inner = source.text.replace(ENTRY, "static int right(void **args)")
    assert inner != source.text
    text = f"{inner}{NARROW if 'narrow' in body else ''}{HEAD}{ENTRY} {{ {body} return 0; }}\n"
    launch = source.launch
    if fault == "out_of_memory":
        main = replace(launch.main, workspace_bytes=HUGE)
        launch = LaunchSpec(main, launch.prepares, launch.attributes)
    return replace(source, text=text, launch=launch)


def fragile_compiler(folder: Path) -> Path:
    """A gcc that dies of one source and never finishes another."""
    real = shutil.which("gcc")
    script = folder / "gcc"
    script.write_text(
        "#!/bin/sh\n"
        'case " $* " in *" -c "*) for f in "$@"; do case "$f" in *.c)\n'
        '  grep -q planted_crash "$f" && kill -SEGV $$\n'
        '  grep -q planted_hang "$f" && exec sleep 600;; esac; done;; esac\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(0o755)
    return script
