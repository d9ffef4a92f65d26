"""Emitted kernels on the host: inline PTX becomes calls of a model of the hardware (hopper.hpp).

The text that is compiled is what NVRTC gets, headers included; only the ``asm`` statements, the
declaration of dynamic shared memory and the built-in names differ.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfsearch.core.launch import ArgumentSpec, LaunchSpec
from tfsearch.target.cuda.boxes import Descriptor, encoded
from tfsearch.target.cuda.launching import Configuration

HERE = Path(__file__).parent
CLIB = Path(__file__).parents[2] / "tfsearch" / "target" / "cuda" / "clib"
HEADERS = ("kernel.cuh", "teams.cuh")
HEADER_CHANGE: Callable[[str], str] = str
"""What tests that plant faults do to the headers."""
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _closing(text: str, start: int) -> int:
    """Index behind the parenthesis that closes the one at ``start``."""
    depth, at = 0, start
    while True:
        if text[at] == '"':
            at = _STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        at += 1
        if not depth:
            return at


def _split(text: str, separator: str) -> list[str]:
    """Parts between separators outside of strings and brackets."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = _STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and not depth:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]


def on_host(text: str) -> str:
    """CUDA C++ whose inline PTX calls the model."""
    out, at = [], 0
    for found in re.finditer(r"\basm\b(?:\s+volatile)?\s*(?=\()", text):
        if found.start() < at:
            continue
        end = _closing(text, found.end())
        out += [text[at : found.start()], _statement(text[found.end() + 1 : end - 1])]
        at = end
    code = "".join([*out, text[at:]])
    return re.sub(
        r"extern __shared__ __align__\(\d+\) char (\w+)\[\];",
        r"char *const \1 = hw_shared();",
        code,
    )


def _statement(body: str) -> str:
    template, *operands = _split(body, ":")
    if not _STRING.search(template):  # a macro's argument: nothing that these kernels call
        return 'hw::fail("an instruction of a macro")'
    ptx = "".join(_STRING.findall(template)).replace("\\n", "\n")
    places: list[str] = []
    for part in operands[:2]:
        for one in _split(part, ","):
            if one.strip():
                places.append(_STRING.sub("", one, count=1).strip())
    ptx = re.sub(r"%(\d+)", lambda m: f"({places[int(m[1])]})", ptx)
    labels = re.findall(r"^\s*(\w+):", ptx, re.MULTILINE)
    declared = f"__label__ {', '.join(labels)}; " if labels else ""
    return f"do {{ {declared}{' '.join(_instructions(ptx))} }} while (0)"


def _instructions(ptx: str) -> Iterator[str]:
    inner = ptx.strip()
    if inner.startswith("{"):
        inner = inner[1 : inner.rindex("}")]
    for line in inner.split(";"):
        text = line.strip()
        while label := re.match(r"(\w+):\s*", text):
            yield f"{label[1]}:;"
            text = text[label.end() :]
        guard = re.match(r"@(\w+)\s+", text)
        if guard:
            text = text[guard.end() :]
        if text:
            code = _instruction(text)
            yield f"if ({guard[1]}) {{ {code} }}" if guard else code


def _instruction(text: str) -> str:
    name, _, rest = text.partition(" ")
    operands = [one.strip() for one in _split(rest, ",") if one.strip()]
    for pattern, make in _TABLE:
        found = re.fullmatch(pattern, name)
        if found:
            return make(found, operands)
    return f'hw::fail("{name}: no model of it");'


def _value(text: str) -> str:
    return text[1:-1] if text[0] == "[" else text


def _list(text: str, kind: str) -> str:
    return f"std::vector<{kind}>{{{text[1:-1]}}}"


def _map(text: str) -> tuple[str, str]:
    """A tensor map and its coordinates: ``[map, {x, y}]``."""
    address, corner = _split(text[1:-1], ",")
    return address, _list(corner.strip(), "int")


def _load(found: re.Match[str], o: list[str]) -> str:
    address, corner = _map(o[1])
    mask = f", {o[3]}" if len(o) > 3 else ""
    call = "box_cast" if mask else "box_load"
    assert bool(mask) == (".multicast::cluster" in found[0])
    return f"hw::{call}({_value(o[0])}, {address}, {corner}, {_value(o[2])}{mask});"


def _put(found: re.Match[str], o: list[str]) -> str:
    del found
    address, corner = _map(o[0])
    return f"hw::box_store({address}, {corner}, {_value(o[1])});"


def _wgmma(found: re.Match[str], o: list[str]) -> str:
    places = ", ".join(f"&{one.strip()}" for one in o[0][1:-1].split(", "))
    half = int(found[2] == "f16")
    return f"hw::wgmma({found[1]}, {half}, {{{places}}}, {', '.join(o[1:])});"


def _call(name: str, *extra: str) -> Callable[[re.Match[str], list[str]], str]:
    def make(found: re.Match[str], o: list[str]) -> str:
        del found
        given = [_value(one) for one in o if one != "_"]
        return f"hw::{name}({', '.join([*given, *extra])});"

    return make


def _assign(form: str) -> Callable[[re.Match[str], list[str]], str]:
    """``form`` in terms of the sources ``{0}``, ``{1}``; the first operand takes it."""

    def make(found: re.Match[str], o: list[str]) -> str:
        del found
        return f"{o[0]} = {form.format(*map(_value, o[1:]))};"

    return make


_BULK = r"cp\.async\.bulk\.tensor\.[23]d"
_TABLE: Sequence[tuple[str, Callable[[re.Match[str], list[str]], str]]] = (
    (r"\.reg", lambda f, o: f"unsigned {o[0].split()[-1]} = 0;"),
    (r"setp\.ne\.b32", _assign("({0}) != ({1})")),
    (r"bra", lambda f, o: f"goto {o[0]};"),
    (r"mapa\.shared::cluster\.u32", _assign("hw::mapa({0}, {1})")),
    (r"mbarrier\.init\.shared::cta\.b64", _call("barrier_init")),
    (r"fence\.mbarrier_init\.release\.cluster", _call("fence_init")),
    (r"fence\.proxy\.async\.shared::cta", _call("fence_async")),
    (r"mbarrier\.arrive\.shared::cta\.b64", _call("barrier_arrive")),
    (r"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64", _call("barrier_arrive")),
    (r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64", _call("barrier_expect")),
    (r"mbarrier\.try_wait\.parity\.shared::cta\.b64", _assign("hw::barrier_try({0}, {1})")),
    (
        _BULK + r"\.shared::cluster\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)?",
        _load,
    ),
    (_BULK + r"\.global\.shared::cta\.bulk_group", _put),
    (r"cp\.async\.bulk\.commit_group", _call("box_commit")),
    (r"cp\.async\.bulk\.wait_group", _call("box_wait", "2")),
    (r"cp\.async\.bulk\.wait_group\.read", _call("box_wait", "1")),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.\2", _wgmma),
    (r"wgmma\.fence\.sync\.aligned", _call("wgmma_fence")),
    (r"wgmma\.commit_group\.sync\.aligned", _call("wgmma_commit")),
    (r"wgmma\.wait_group\.sync\.aligned", _call("wgmma_wait")),
    (r"bar\.sync", _call("named_sync")),
    (r"bar\.arrive", _call("named_arrive")),
    (r"barrier\.cluster\.arrive\.release", _call("cluster_arrive")),
    (r"barrier\.cluster\.wait\.acquire", _call("cluster_wait")),
    (r"setmaxnreg\.dec\.sync\.aligned\.u32", _call("registers", "0")),
    (r"setmaxnreg\.inc\.sync\.aligned\.u32", _call("registers", "1")),
    (
        r"stmatrix\.sync\.aligned\.m8n8\.x[124]\.shared\.b16",
        lambda f, o: f"hw::stmatrix({_value(o[0])}, {_list(o[1], 'unsigned')});",
    ),
    (
        r"st\.global\.v4\.b32",
        lambda f, o: f"hw::store_words({_value(o[0])}, {_list(o[1], 'unsigned')});",
    ),
    (r"cvt\.rn\.bf16x2\.f32", _assign("hw::pair(hw::to_bf16({0}), hw::to_bf16({1}))")),
    (r"cvt\.rn\.bf16\.f32", _assign("hw::to_bf16({0})")),
    (r"cvt\.rn\.f16\.f32", _assign("hw::to_f16({0})")),
    (r"cvt\.f32\.f16", _assign("hw::half_bits({0}, 1)")),
    (r"max\.NaN\.f32", _assign("hw::no_nan({0}, {1}, true)")),
    (r"min\.NaN\.f32", _assign("hw::no_nan({0}, {1}, false)")),
)


class _Names:
    def __getattr__(self, name: str) -> str:
        return name


class _Words:
    def __init__(self, words: Sequence[int]) -> None:
        self.words = (ctypes.c_uint64 * 16)(*words)

    def getPtr(self) -> int:
        return ctypes.addressof(self.words)


class Encoder:
    """The driver's encoder of tensor maps: its rules, and the model's own words for a map."""

    class _Api:
        cuuint64_t = cuuint32_t = int

        def __getattr__(self, name: str) -> Any:
            return _Names()

    api = _Api()

    def cuTensorMapEncodeTiled(
        self, kind: str, rank: int, address: int, dims: list[int], strides: list[int],
        box: list[int], steps: list[int], interleave: str, swizzle: str, *_: str,
    ) -> _Words:  # fmt: skip
        size = {"BFLOAT16": 2, "FLOAT16": 2, "FLOAT32": 4}[kind.rsplit("_", 1)[-1]]
        found = re.search(r"SWIZZLE_(\d+)B", swizzle)
        span = int(found[1]) if found else 0
        assert interleave == "CU_TENSOR_MAP_INTERLEAVE_NONE"
        assert len(dims) == len(box) == len(steps) == rank <= 5
        assert len(strides) == rank - 1
        assert address % 16 == 0
        assert all(1 <= n <= 1 << 32 for n in dims)
        assert all(n % 16 == 0 and 0 < n < 1 << 40 for n in strides)
        assert all(1 <= n <= 256 for n in box)
        assert steps == [1] * rank
        assert box[0] * size % 16 == 0
        assert not span or box[0] * size <= span
        words = [address, size, rank, *dims, *[1] * (5 - rank), size, *strides]
        words += [0] * (13 - len(words))
        words += [sum(n << 9 * d for d, n in enumerate(box)), span, 0]
        return _Words(words)


def compiled(text: str, launch: LaunchSpec, folder: Path, registers: int) -> Callable[..., str]:
    """A kernel that runs in the model: ``run(addresses, seed)`` gives "" or what went wrong."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    entry = launch.main
    how = Configuration.of(launch, entry)
    kinds = re.search(rf"\b{entry.symbol}\((.*?)\) \{{", text)
    assert kinds is not None
    header = HEADER_CHANGE("".join((CLIB / name).read_text() for name in HEADERS))
    body = "\n".join(
        line for line in (header + text).splitlines() if not re.match(r"\s*#(include|pragma)", line)
    )
    names = [one.split()[-1] for one in kinds[1].split(", ")]
    pointers = len(entry.arguments) + bool(entry.workspace_bytes)
    given = [
        f"({one.rsplit(' ', 1)[0].replace('__restrict__', '').replace('*', ' *')})hw_words[{i}]"
        for i, one in enumerate(kinds[1].split(", ")[:pointers])
    ]
    given += [f"*(const tfs_box *)hw_maps[{i}]" for i in range(len(names) - pointers)]
    code = f"""#include "{HERE / "hopper_device.hpp"}"
{on_host(body)}
static hw::u64 hw_words[{max(pointers, 1)}], hw_maps[{max(len(names) - pointers, 1)}];
static void hw_body() {{ {entry.symbol}({", ".join(given)}); }}
static std::string hw_said;
extern "C" const char *hw_main(const hw::u64 *words, const hw::u64 *maps, unsigned seed) {{
  memcpy(hw_words, words, sizeof hw_words);
  memcpy(hw_maps, maps, sizeof hw_maps);
  hw_said = hw::run(hw_body, {how.grid[0]}, {how.block[0]}, {how.cluster[0]}, {how.shared}u,
                    {registers}, seed);
  return hw_said.c_str();
}}
"""
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(code)
    done = subprocess.run(
        [compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
    main = ctypes.CDLL(str(library)).hw_main
    main.restype = ctypes.c_char_p

    def run(addresses: Mapping[str, int], seed: int) -> str:
        words = [addresses[a.name] for a in entry.arguments]
        if entry.workspace_bytes:
            words.append(addresses["workspace"])
        room = (ctypes.c_char * (128 * len(how.boxes) + 64))()
        first = -(-ctypes.addressof(room) // 64) * 64
        maps = [first + 128 * i for i in range(len(how.boxes))]
        for place, box in zip(maps, how.boxes, strict=True):
            ctypes.memmove(place, _encoded(box, entry.arguments, addresses), 128)
        said = main(
            (ctypes.c_uint64 * max(1, len(words)))(*words),
            (ctypes.c_uint64 * max(1, len(maps)))(*maps), seed,
        )  # fmt: skip
        return said.decode()

    return run


def _encoded(
    box: Descriptor, arguments: Sequence[ArgumentSpec], addresses: Mapping[str, int]
) -> bytes:
    driver: Any = Encoder()
    argument = next(a for a in arguments if a.name == box.argument)
    return encoded(driver, box, argument, addresses[box.argument])
