"""The processor at hand: features, identity, caches, and the document that describes it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from tfsearch.atoms.documents import Document, load
from tfsearch.core.records import DeviceRecord

SELECTOR = "cpu"
"""How the one device of a machine is named."""
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY_STEP = 1 << 28
"""Memory sizes are rounded up to this: a kernel update reserves a few pages more or less."""
TILE_FEATURES = "amx_"
"""How the names of features begin that need the tile registers."""
# Linux: arch/x86/include/uapi/asm/prctl.h and unistd_64.h, Documentation/arch/x86/xstate.rst.
SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18
FALLBACK_CACHES = (32 << 10, 1 << 20, 8 << 20)


@dataclass(frozen=True)
class Processor:
    """What ``/proc`` and ``/sys`` say; caches and memory in bytes."""

    vendor: str
    family: int
    model: int
    stepping: int
    features: tuple[str, ...]
    caches: tuple[int, ...]
    units: int
    memory_bytes: int

    @property
    def record(self) -> DeviceRecord:
        """The fields that can change a time, as a measurement's key holds them.

        The name for people is left to the model fields: virtual machines report none that tells
        two processors apart.
        """
        return DeviceRecord(
            name=f"{self.vendor}-{self.family}-{self.model}-{self.stepping}",
            kind="cpu",
            model=f"family {self.family} model {self.model} stepping {self.stepping}",
            features=self.features,
            units=self.units,
            memory_bytes=-(-self.memory_bytes // MEMORY_STEP) * MEMORY_STEP,
            partitioning=f"caches {'/'.join(str(c) for c in self.caches)}",
            driver=f"linux-{os.uname().release}" if hasattr(os, "uname") else "",
        )


def parse_cpuinfo(text: str) -> tuple[str, int, int, int, tuple[str, ...]]:
    """Vendor, family, model, stepping and sorted features of the first processor in the text."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()

    def number(name: str) -> int:
        found = re.match(r"\d+", fields.get(name, ""))
        return int(found.group()) if found else 0

    features = tuple(sorted(fields.get("flags", "").split()))
    vendor = fields.get("vendor_id", "unknown")
    return vendor, number("cpu family"), number("model"), number("stepping"), features


def read_caches(folder: Path) -> tuple[int, ...]:
    """Data cache sizes in bytes, innermost first; empty when the system does not say."""
    found: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = _size((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size:
            found[level] = size
    return tuple(found[level] for level in sorted(found))


def _size(text: str) -> int:
    """Bytes of ``48K``; ``ValueError`` for what is no size."""
    unit = _UNITS.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)


def usable_units() -> int:
    """Processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def tile_refusal() -> str:
    """Asks the system for the tile registers; why it refuses them, "" where it grants them.

    A processor may list them while the system withholds them (an old kernel, a sandbox, an
    alternate signal stack that is too small). What is granted holds for this process and its
    forks; other processes ask for themselves.
    """
    import ctypes

    if os.uname().machine != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return "only a 64-bit process on an x86-64 system can ask for the tile registers"
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError) as error:
        return f"the C library of this process makes no system calls: {error}"
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long,) * 3
    if call(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0:
        return ""
    return f"the system refuses the tile registers: {os.strerror(ctypes.get_errno())}"


@dataclass(frozen=True)
class Discovery:
    """The processor, and features that it lists but the system withholds, with the reason."""

    processor: Processor
    withheld: Mapping[str, str]


def processor() -> Processor:
    """The processor of this machine, with the features that this process may use."""
    return discovery().processor


@cache
def discovery() -> Discovery:
    """What this machine has; ``/proc`` and ``/sys`` are read once, and nothing is compiled."""
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    vendor, family, model, stepping, features = parse_cpuinfo(text)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    tiles = tuple(name for name in features if name.startswith(TILE_FEATURES))
    reason = tile_refusal() if tiles else ""
    if reason:
        features = tuple(name for name in features if name not in tiles)
    found = Processor(
        vendor,
        family,
        model,
        stepping,
        features,
        read_caches(CACHES) or FALLBACK_CACHES,
        usable_units(),
        memory,
    )
    return Discovery(found, dict.fromkeys(tiles, reason) if reason else {})


NOMINAL = Processor(
    "GenuineIntel",
    6,
    143,
    0,
    (
        "amx_bf16",
        "amx_int8",
        "amx_tile",
        "avx",
        "avx2",
        "avx512_bf16",
        "avx512_vnni",
        "avx512bw",
        "avx512dq",
        "avx512f",
        "avx512vl",
        "f16c",
        "fma",
    ),
    (48 << 10, 2 << 20, 32 << 20),
    8,
    64 << 30,
)
"""A processor with every feature that the target can use, to lower for when none is present."""


@cache
def documents() -> Sequence[Document]:
    """Every device document that ships with the target."""
    folder = Path(str(files("tfsearch.target.x86") / "documents"))
    return tuple(load(path) for path in sorted(folder.glob("*.toml")))


def document_of(cpu: Processor) -> Document:
    """The document of a processor's family and model, else the generic one."""
    for document in documents():
        settings = document.settings
        if (
            settings.get("vendor") == cpu.vendor
            and settings.get("family") == cpu.family
            and cpu.model in settings.get("models", ())
        ):
            return document
    return next(d for d in documents() if d.name == "generic")
