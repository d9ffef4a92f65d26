"""The emitted C: golden texts, determinism, names that C or the emitter uses itself."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.kernels import ATOMS, copy_of, every_statement
from tests.recipes.contractions import gemm, problem
from tfsearch.core.errors import InternalError
from tfsearch.core.records import Status
from tfsearch.ir.tir.expr import Const, Var
from tfsearch.ir.tir.nodes import Call, For, If, Kernel, LoopKind, Module, Role
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
