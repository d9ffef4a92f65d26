"""A copy of one array to another as a loaded kernel, on one thread or on the pool's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.target.x86.compiler import feature_flags
from tfsearch.target.x86.device import processor
from tfsearch.target.x86.runner import Packed, X86Arguments, X86Loaded
from tfsearch.toolchain import find

KINDS = ("plain", "stream")
LINE = 64

_SOURCE = """
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__AVX512F__)
typedef __m512 vec;
#define STREAM _mm512_stream_ps
#elif defined(__AVX__)
typedef __m256 vec;
#define STREAM _mm256_stream_ps
#else
typedef __m128 vec;
#define STREAM _mm_stream_ps
#endif
#define PLAIN(to, value) (*(vec*)(to) = (value))
enum { PER_LINE = 64 / sizeof(vec) };
typedef void (*body_t)(void*, int, int);
typedef void (*run_t)(void*, int, body_t, void*);

static void part(void* context, int thread, int threads) {
  void** args = context;
  size_t lines = %(lines)d, from = lines * thread / threads, to = lines * (thread + 1) / threads;
  const vec* s = args[0];
  vec* d = args[1];
  for (size_t i = from * PER_LINE; i < to * PER_LINE; i += PER_LINE) {
    for (size_t j = 0; j < PER_LINE; ++j) %(store)s((float*)(d + i + j), s[i + j]);
    __asm__ volatile("" ::: "memory"); /* stays a loop; not turned into a call of memcpy */
  }
  _mm_sfence();
}

int tfsearch_main(void** args) {
  if (%(units)d > 1) ((run_t)args[4])(args[3], %(units)d, part, args);
  else part(args, 0, 1);
  return 0;
}
"""


@dataclass(frozen=True)
class Borrowed:
    """Arguments over memory that belongs to another kernel's arguments."""

    packed: Packed
    owner: X86Arguments
    stale: bool = False


class Copy(X86Loaded):
    """Copies the input ``x`` to the output ``y``; ``kind`` is one of :data:`KINDS`.

    Both arrays have whole cache lines and start at one.
    """

    def __init__(self, launch: LaunchSpec, kind: str, units: int, folder: Path) -> None:
        specs = {argument.name: argument for argument in launch.main.arguments}
        self.nbytes = _bytes(specs["x"])
        if self.nbytes % LINE or _bytes(specs["y"]) != self.nbytes:
            raise ValueError(f"{self.nbytes} bytes are no whole cache lines on both sides")
        store = "STREAM" if kind == "stream" else "PLAIN"
        text = _SOURCE % {"lines": self.nbytes // LINE, "store": store, "units": units}
        out = folder / f"copy-{kind}-{units}-{self.nbytes}.so"
        if not out.exists():
            flags = [f for f in ("avx512f", "avx2") if f in processor().features]
            result = find(None).compile_shared(text, flags=feature_flags(flags), out=out)
            if result.status is not Status.OK:
                raise SystemExit(f"the copy did not compile: {result.message}")
        entry = EntrySpec("tfsearch_main", (specs["x"], specs["y"]), units, 0)
        super().__init__(out, LaunchSpec(entry))

    def over(self, arguments: X86Arguments) -> Borrowed:
        """The copy's arguments: the arrays that a kernel of the same launch reads and writes."""
        address = {name: arguments.address(name) for name in ("x", "y")}
        if any(place % LINE for place in address.values()):
            raise ValueError("the arrays do not start at a cache line")
        return Borrowed(Packed(self.launch.main, address), arguments)

    def bind(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> X86Arguments:
        """Not supported: a copy has no memory of its own."""
        raise NotImplementedError(f"a copy borrows its arrays; it takes no inputs {list(inputs)}")


def _bytes(spec: ArgumentSpec) -> int:
    return int(np.prod(spec.shape)) * np.dtype(np.float32).itemsize
