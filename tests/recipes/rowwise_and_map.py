"""What the tests of the row-wise and map recipes share: kits, programs, ways to run kernels."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from tfsearch.atoms.contract import Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.bounds import evaluate_bounds
from tfsearch.ir.hir.trace import trace
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.expr import evaluate
from tfsearch.ir.tir.nodes import UNIT, Call, For, If, Let, MemorySpace, Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.buffers import strided_empty
from tfsearch.prove.interpret import interpret
from tfsearch.prove.limits import Limits
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Space
from tfsearch.target.x86 import clib
from tfsearch.target.x86.atoms import AVX2, AVX512, BASELINE, vector_atoms
from tfsearch.target.x86.emit import source_of

LEVELS = {"avx512": (AVX512, (16, 8)), "avx2": (AVX2, (8, 4)), "scalar": (BASELINE, (1,))}
FLAGS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "scalar": (),
}
LIMITS = Limits({s: 1 << 30 for s in MemorySpace if s is not MemorySpace.TILE})


@cache
def kit(
    level: str = "avx512",
    caches: tuple[int, ...] = (512, 1024, 2048),
    units: tuple[int, ...] = (1, 2, 3),
) -> Kit:
    """A kit whose caches are so small that every choice is open."""
    features, lanes = LEVELS[level]
    table = AtomTable(vector_atoms(), features)
    return Kit(
        atoms=table,
        lanes=lanes,
        registers={16: 32, 8: 16, 4: 16, 1: 16},
        units=units,
        caches=caches,
        cycles=lambda name: table[name].cost.cycles,
    )


def program(fn, **inputs):
    """A traced program; inputs are (dtype, shape) or (dtype, shape, strides)."""
    types = {n: TensorType(DType(v[0]), *v[1:]) for n, v in inputs.items()}
    return trace(fn, types, getattr(fn, "__name__", "program"))


def workload(prog) -> Workload:
    """A program as a workload."""
    return Workload(prog, "test")


def sample(matched, count, seed=0):
    """Legal points as (space name, parameters)."""
    drawn = Space(tuple(matched.spaces)).sample(count, np.random.default_rng(seed))
    return [(point.recipe_name, dict(point.params)) for point in drawn]


def inputs_of(prog, seed=0):
    """Random inputs in the layouts of the program."""
    rng = np.random.default_rng(seed)
    out = {}
    for item in prog.inputs:
        t = item.type
        values = rng.standard_normal(t.sizes) * 3
        if t.dtype.is_integer:
            values = rng.integers(-100, 100, t.sizes)
        array = strided_empty(t.sizes, t.element_strides, t.dtype.numpy)
        array[...] = np.asarray(values).astype(t.dtype.numpy)
        out[item.name] = array
    return out


def wrong(prog, inputs, outputs) -> list[str]:
    """Outputs with an element outside of its bounds."""
    dense = {name: np.array(value, order="C") for name, value in inputs.items()}
    found = []
    bounds = evaluate_bounds(prog, dense)
    for (name, _), bound, value in zip(prog.outputs, bounds, outputs, strict=True):
        inside = np.asarray(bound.contains(value.reshape(bound.ref.shape)))
        if not inside.all():
            found.append(f"{name}: {int((~inside).sum())} of {inside.size} elements")
    return found


def interpreted(prog, module: Module, atoms, inputs):
    """Outputs of the interpreter; any refusal fails."""
    arguments = {}
    for param in module.main.params:
        if param.buffer.name in inputs:
            value = inputs[param.buffer.name]
            arguments[param.buffer.name] = np.array(value, order="C").reshape(param.buffer.shape)
    outcome = interpret(module, atoms, arguments)
    assert outcome.refusals == ()
    return [outcome.outputs[name] for name, _ in prog.outputs]


@cache
def cpu_flags() -> frozenset[str]:
    """The features that Linux reports."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("needs x86-64 Linux")
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return frozenset(next(x for x in lines if x.startswith("flags")).split(":")[1].split())


def compiled(folder: Path, modules: list[Module], level: str, compiler: str = "gcc"):
    """One callable per module, compiled together; skips when something is missing."""
    missing = sorted(LEVELS[level][0] - cpu_flags())
    if missing:
        pytest.skip(f"needs CPU features {', '.join(missing)}")
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    named = [Module((replace(m.main, name=f"k{i}"),)) for i, m in enumerate(modules)]
    sources = [source_of(m, kit(level).atoms) for m in named]
    text = "\n".join(text for text, _ in sources)
    source, library = folder / "kernels.c", folder / "kernels.so"
    source.write_text(text, encoding="utf-8")
    command = [compiler, "-std=gnu17", "-O0", "-fPIC", "-shared", "-ffp-contract=off"]
    command += [*FLAGS[level], "-I", str(clib.include_dir()), "-o", str(library), str(source)]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    return [partial(_call, getattr(loaded, x.main.symbol), x.main) for _, x in sources]


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, _BODY, ctypes.c_void_p)


@_RUN
def _in_turn(pool, units, body, argument):
    for unit in range(units):
        body(argument, unit, units)


def _aligned(nbytes: int):
    raw = np.full(nbytes + 128, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _call(function, entry, prog, inputs):
    """Run a kernel on aligned copies; units one after another; bytes around outputs watched."""
    keep, outputs, pointers = [], [], []
    for item in prog.inputs:
        value = inputs[item.name]
        span = value.itemsize * (
            1
            + sum(
                (n - 1) * s for n, s in zip(item.type.sizes, item.type.element_strides, strict=True)
            )
        )
        memory = _aligned(span)
        view = np.lib.stride_tricks.as_strided(
            memory.view(value.dtype),
            value.shape,
            tuple(s * value.itemsize for s in item.type.element_strides),
        )
        view[...] = value
        keep.append(memory)
        pointers.append(memory.ctypes.data)
    guards = []
    for t in prog.output_types:
        memory = _aligned(t.bytes + 64)
        guards.append(memory[t.bytes :])
        outputs.append(memory[: t.bytes].view(t.dtype.numpy).reshape(t.sizes))
        pointers.append(memory.ctypes.data)
    workspace = _aligned(entry.workspace_bytes + 64)
    runner = ctypes.cast(_in_turn, ctypes.c_void_p).value
    arguments = (ctypes.c_void_p * (len(pointers) + 3))(
        *pointers, *([workspace.ctypes.data] if entry.workspace_bytes else [None]), None, runner
    )
    function(arguments)
    assert all((guard == 0xA5).all() for guard in guards)
    return outputs


def counted(module: Module, atoms) -> dict[str, int]:
    """Calls, loads, stores and flops by walking every iteration of every unit."""
    kernel = module.main
    totals = {"calls": 0, "loads": 0, "stores": 0, "flops": 0}
    for unit in range(kernel.units):
        _walk(kernel.body, {UNIT: unit}, atoms, totals)
    return totals


def _walk(block, env, atoms, totals):
    names = dict(env)
    for statement in block:
        match statement:
            case Call(atom):
                kind = atoms[atom].computes.kind
                totals["calls"] += 1
                totals["loads"] += kind in (Kind.LOAD, Kind.SPLAT, Kind.TRANSPOSE)
                totals["stores"] += kind in (Kind.STORE, Kind.TRANSPOSE)
                totals["flops"] += atoms[atom].flops
            case Let(name, value):
                names[name] = evaluate(value, names)
            case For(name, start, stop, body, _, step):
                for index in range(evaluate(start, names), evaluate(stop, names), step):
                    _walk(body, {**names, name: index}, atoms, totals)
            case If(condition, then, orelse):
                _walk(then if evaluate(condition, names) else orelse, names, atoms, totals)
            case _:
                pass
