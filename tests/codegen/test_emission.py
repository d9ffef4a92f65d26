"""The emitted C: golden texts, determinism, names that C or the emitter uses itself."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.kernels import ATOMS, F32, LOAD, STORE, argument, copy_of, every_statement
from tests.recipes.contractions import gemm, problem
from tfsearch.codegen.clike import KernelEmitter
from tfsearch.codegen.storage import plan
from tfsearch.core.errors import InternalError
from tfsearch.core.records import Status
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Var
from tfsearch.ir.tir.nodes import (
    Buffer,
    Call,
    For,
    If,
    Io,
    Kernel,
    LoopKind,
    MemorySpace,
    Module,
    Param,
    Role,
    window,
)
from tfsearch.ir.tir.walk import walk
from tfsearch.plugin.target import Source
from tfsearch.space import Point
from tfsearch.target.x86.compiler import X86Compiler
from tfsearch.target.x86.emit import CDialect, source_of
from tfsearch.toolchain import discover

Golden = Callable[[str, str], None]

POINT = {
    "rows": 2, "columns": 2, "kc": 7, "m_tiles": 2, "n_tiles": 1, "order": "nkm", "inner": "nm",
    "pack_a": "none", "pack_b": "none", "unroll": 2, "stream": False, "units": 2, "grid_m": 1,
    "grid_o": 1, "grid_k": 1, "prefetch": 0, "finish": "after",
}  # fmt: skip
COLLIDING = ["int", "unit", "args", "restrict", "acc", "NAN", "INFINITY", "i", "tfs_workspace"]
COLLIDING += ["float", "long", "main", "return", "tfs_f32x1", "uint16_t", "row"]
COLLIDING += ["__LINE_", "__x86_64_", "_", "__"]


def contraction() -> tuple[Module, str]:
    bound = problem(gemm(m=3, n=20, k=7, epilogue="bias+relu"), "avx2")
    recipe = next(r for r in bound.space.recipes if r.name.endswith("f32x8"))
    point = Point(recipe.name, POINT)
    module = bound.lower(point)
    return module, bound.emit(module, point).text


def test_a_kernel_with_every_statement_is_emitted_as_recorded(golden: Golden) -> None:
    text, _ = source_of(every_statement(), ATOMS)
    golden("every_statement.c", text)


def test_a_contraction_is_emitted_as_recorded(golden: Golden) -> None:
    golden("contraction.c", contraction()[1])


def test_emission_is_deterministic() -> None:
    assert source_of(every_statement(), ATOMS) == source_of(every_statement(), ATOMS)
    assert contraction()[1] == contraction()[1]


def test_calls_in_the_text_are_those_of_the_kernel() -> None:
    module, text = contraction()
    called = {s.atom for _, s in walk(module.main.body) if isinstance(s, Call)}
    emitted = set(re.findall(r"tfs_(load|loadn|store|storen|fma|set1|max|add)_", text))
    assert ("fma" in emitted) == any(".fma." in name for name in called)
    serial = [
        s for _, s in walk(module.main.body) if isinstance(s, For) and s.kind is LoopKind.SERIAL
    ]
    body = text.split("tfsearch_main_thread")[0]
    expanded = len(re.findall(r"\bfor \(", body))
    assert expanded >= len(serial)
    branches = [s for _, s in walk(module.main.body) if isinstance(s, (If, Role))]
    assert len(re.findall(r"\bif \(", body)) >= len(branches)


@pytest.mark.parametrize("name", COLLIDING)
def test_arguments_may_have_names_that_c_or_the_kernel_uses(name: str, tmp_path: Path) -> None:
    compilers = discover()
    if not compilers:
        pytest.skip("needs gcc, clang or zig")
    text, launch = source_of(copy_of([name, f"{name}2"]), ATOMS)
    assert [a.name for a in launch.main.arguments] == [name, f"{name}2"]
    source = Source(text, "c", launch, (), ())
    out = tmp_path / "kernel.so"
    done = X86Compiler(compilers[0]).compile(
        source, ("-O0",), (), out, timeout_s=60, memory_bytes=4 << 30
    )
    assert done.status is Status.OK, done.log
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    block = (ctypes.c_void_p * 6)(x.ctypes.data, y.ctypes.data)
    assert ctypes.CDLL(str(out))[launch.main.symbol](block) == 0
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -1e300, 5e-324, 1.5, 3.0])
def test_literals_keep_every_bit(value: float) -> None:
    text = CDialect().literal(value)
    assert math.copysign(1, float.fromhex(text)) == math.copysign(1, value)
    assert float.fromhex(text) == value


def test_literals_without_a_number() -> None:
    literal = CDialect().literal
    assert literal(float("nan")) == "NAN"
    assert (literal(math.inf), literal(-math.inf)) == ("INFINITY", "-INFINITY")


def test_an_unrolled_loop_needs_literal_bounds() -> None:
    loop = For("i", Const(0), Var("n"), (), LoopKind.UNROLLED)
    with pytest.raises(InternalError, match="unrolled loop i") as caught:
        source_of(Module((Kernel("main", (), 1, (loop,)),)), ATOMS)
    assert caught.value.code == "codegen.unrolled"


class Device(CDialect):
    """A language of devices: arguments in the signature, memory that threads share."""

    def argument(self, index: int) -> None:  # type: ignore[override]
        return None

    def pointer(self, element: str, name: str, address: str) -> str:
        return f"{element} *__restrict__ {name} = ({element} *){address};"

    def array(self, buffer: Buffer) -> str:
        place = {MemorySpace.SHARED: "__shared__ ", MemorySpace.LOCAL: ""}[buffer.space]
        return f"{place}{self.element(buffer.dtype)} {buffer.name}[{buffer.shape[0]}];"

    def unroll(self, count: int) -> str:
        return f"#pragma unroll {count}"


def staged() -> Kernel:
    """Copies four floats by way of every kind of memory."""
    x, y = argument("x", (4,)), argument("y", (4,))
    builder = Builder(["x", "y"])
    places = [
        builder.alloc(name, F32, (size,), space)
        for name, size, space in (
            ("near", 4, MemorySpace.SHARED),
            ("own", 4, MemorySpace.LOCAL),
            ("far", 8, MemorySpace.SCRATCH),
            ("big", 5000, MemorySpace.LOCAL),
        )
    ]
    held = window(builder.alloc("r", F32, (1, 1), MemorySpace.REGISTER), 0, (0, 1))
    with builder.loop("i", 4, unroll=2) as i:
        for source, sink in itertools.pairwise([x, *places, y]):
            builder.call(LOAD, held, window(source, i))
            builder.call(STORE, window(sink, i), held)
    return builder.kernel("main", (Param(x, Io.IN), Param(y, Io.OUT)), 2)


def test_a_dialect_says_how_arguments_arrive_and_where_memory_is() -> None:
    kernel = staged()
    emitter = KernelEmitter(kernel, ATOMS, Device(), plan(kernel))
    assert emitter.parameters() == [
        ("const float", "x_"),
        ("float", "y_"),
        ("char", "tfs_workspace"),
    ]
    lines = [line.strip() for line in emitter.lines()]
    assert lines[:6] == [
        "__shared__ float near[4];",
        "float own[4];",
        "float *__restrict__ far = (float *)(tfs_workspace + 0);",
        "float *__restrict__ big = (float *)(tfs_workspace + 4096 + unit * 20480L);",
        "tfs_f32x1 r_0;",
        "#pragma unroll 2",
    ]
    assert not [line for line in lines if "args" in line or "GCC" in line]


def test_host_c_has_no_memory_that_threads_of_a_unit_share() -> None:
    with pytest.raises(InternalError, match="near: C has no shared memory") as caught:
        source_of(Module((staged(),)), ATOMS)
    assert caught.value.code == "codegen.space"
