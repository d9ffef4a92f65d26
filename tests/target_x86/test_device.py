"""Processors as /proc and /sys describe them, and the documents that belong to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tfsearch.target.x86 import device as device_module
from tfsearch.target.x86 import target
from tfsearch.target.x86.atoms import vector_atoms
from tfsearch.target.x86.device import (
    FALLBACK_CACHES,
    NOMINAL,
    Processor,
    document_of,
    documents,
    parse_cpuinfo,
    read_caches,
)
from tfsearch.target.x86.machine import kit_of, machine_of

EMERALD = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 2
flags\t\t: fpu sse2 fma avx f16c avx2 avx512f avx512dq avx512bw avx512vl amx_tile amx_bf16

processor\t: 1
vendor_id\t: SomebodyElse
cpu family\t: 99
"""
HASWELL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 60
stepping\t: 3
flags\t\t: fpu sse2 fma avx f16c avx2
"""
GENOA = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
stepping\t: 1
flags\t\t: sse2 avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16
"""
ATOM = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 55
stepping\t: unknown
flags\t\t: fpu sse sse2 ssse3
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd
CPU implementer\t: 0x41
"""


def cpu(text: str) -> Processor:
    return Processor(*parse_cpuinfo(text), FALLBACK_CACHES, 4, (16 << 30) - 12345)


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        (EMERALD, ("GenuineIntel", 6, 207, 2)),
        (HASWELL, ("GenuineIntel", 6, 60, 3)),
        (GENOA, ("AuthenticAMD", 25, 17, 1)),
        (ATOM, ("GenuineIntel", 6, 55, 0)),
        (ARM, ("unknown", 0, 0, 0)),
        ("", ("unknown", 0, 0, 0)),
    ],
)
def test_the_first_processor_is_read(text: str, identity: tuple[str, int, int, int]) -> None:
    *found, features = parse_cpuinfo(text)
    assert tuple(found) == identity
    assert list(features) == sorted(features)


def test_a_processor_is_named_by_what_tells_it_apart() -> None:
    record = cpu(EMERALD).record
    assert record.name == "GenuineIntel-6-207-2"
    assert "model 207" in record.model
    assert "amx_tile" in record.features
    assert record.memory_bytes == 16 << 30, "rounded up: a few pages come and go"
    keys = {cpu(text).record.key for text in (EMERALD, HASWELL, GENOA, ATOM)}
    assert len(keys) == 4


@pytest.mark.parametrize("field", [f.name for f in fields(Processor)])
def test_everything_known_of_a_processor_is_in_its_key(field: str) -> None:
    one = cpu(GENOA)
    value = getattr(one, field)
    changed: object = f"{value}x" if isinstance(value, str) else None
    if isinstance(value, int):
        changed = value + (1 << 30)
    if isinstance(value, tuple):
        changed = value[:-1]
    assert replace(one, **{field: changed}).record.key != one.record.key


@pytest.mark.parametrize(
    ("text", "lanes", "tiles"),
    [(EMERALD, (16, 8), 8), (GENOA, (16, 8), 0), (HASWELL, (8, 4), 0), (ATOM, (1,), 0)],
)
def test_the_kit_follows_the_features(text: str, lanes: tuple[int, ...], tiles: int) -> None:
    one = cpu(text)
    kit = kit_of(one, target.atoms(target.nominal()), document_of(one))
    assert (kit.lanes, kit.tiles) == (lanes, tiles)
    assert kit.units == (1, 2, 4)
    assert len(kit.caches) == 3


def test_processors_find_their_document_and_others_the_generic_one() -> None:
    assert document_of(cpu(EMERALD)).name == "sapphire-rapids"
    assert document_of(cpu(GENOA)).name == "zen4"
    assert document_of(cpu(HASWELL)).name == "generic"
    assert document_of(NOMINAL).name == "sapphire-rapids"


def test_documents_agree_on_what_a_fact_is_measured_in() -> None:
    units: dict[str, set[str]] = {}
    for document in documents():
        for name, fact in document.facts.items():
            units.setdefault(name, set()).add(fact.unit)
            assert fact.source
            assert (fact.value is None) == (fact.origin is None)
    assert {name: found for name, found in units.items() if len(found) > 1} == {}
    names = [set(document.facts) for document in documents()]
    assert len(names) >= 3
    generic = next(set(d.facts) for d in documents() if d.name == "generic")
    assert all(generic <= found for found in names)


def test_an_unknown_processor_has_no_bound_and_says_that_it_is_uncalibrated() -> None:
    generic = machine_of(document_of(cpu(HASWELL)))
    assert generic.peak_flops == {}
    assert not generic.calibrated
    known = machine_of(document_of(cpu(EMERALD)))
    assert known.peak_flops["f32"] == pytest.approx(2 * 32 * 4.8e9)
    assert known.peak_flops["bf16"] > known.peak_flops["f32"]


def test_peaks_are_at_the_highest_clock_of_the_vendor() -> None:
    for document in documents():
        top, clock = document.get("clock_max"), document.number("clock")
        assert top is None or top >= clock


def test_every_feature_of_an_atom_is_one_of_the_nominal_processor() -> None:
    assert {f for atom in vector_atoms() for f in atom.features} <= set(NOMINAL.features)
    assert set(target.atoms(target.nominal()).features) == set(NOMINAL.features)


# Caches ----------------------------------------------------------------------------------------


def cache(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    place = folder / f"index{index}"
    place.mkdir()
    for name, text in (("level", level), ("type", kind), ("size", size)):
        (place / name).write_text(text + "\n")


def test_data_caches_are_read_innermost_first(tmp_path: Path) -> None:
    cache(tmp_path, 0, "1", "Data", "48K")
    cache(tmp_path, 1, "1", "Instruction", "32K")
    cache(tmp_path, 2, "2", "Unified", "2048K")
    cache(tmp_path, 3, "3", "Unified", "1G")
    assert read_caches(tmp_path) == (48 << 10, 2 << 20, 1 << 30)


def test_what_the_system_does_not_say_is_left_out(tmp_path: Path) -> None:
    cache(tmp_path, 0, "1", "Data", "unknown")
    cache(tmp_path, 1, "x", "Data", "48K")
    cache(tmp_path, 2, "2", "Unified", "")
    (tmp_path / "index3").mkdir()
    cache(tmp_path, 4, "3", "Unified", "1000")
    assert read_caches(tmp_path) == (1000,)
    assert read_caches(tmp_path / "missing") == ()


def test_a_machine_that_is_no_x86_has_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(ARM)
    monkeypatch.setattr(device_module, "CPUINFO", tmp_path / "cpuinfo")
    device_module.discovery.cache_clear()
    try:
        assert target.devices() == ()
        assert "x86-64" in target.absence()
    finally:
        monkeypatch.undo()
        device_module.discovery.cache_clear()


# The tile registers ------------------------------------------------------------------------------


@pytest.fixture
def emerald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine whose /proc/cpuinfo lists tile features."""
    (tmp_path / "cpuinfo").write_text(EMERALD)
    monkeypatch.setattr(device_module, "CPUINFO", tmp_path / "cpuinfo")
    device_module.discovery.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    device_module.discovery.cache_clear()


def test_tile_features_that_the_system_withholds_are_dropped_with_the_reason(
    emerald: pytest.MonkeyPatch,
) -> None:
    emerald.setattr(device_module, "tile_refusal", lambda: "refused: Operation not permitted")
    (device,) = target.devices()
    assert not [name for name in device.record.features if name.startswith("amx")]
    assert "avx512f" in device.record.features
    assert device.facts["without amx_bf16 amx_tile"] == "refused: Operation not permitted"
    assert kit_of(device_module.processor(), target.atoms(device), documents()[0]).tiles == 0


def test_tile_features_that_the_system_grants_stay(emerald: pytest.MonkeyPatch) -> None:
    emerald.setattr(device_module, "tile_refusal", lambda: "")
    (device,) = target.devices()
    assert {"amx_bf16", "amx_tile"} <= set(device.record.features)
    assert not [name for name in device.facts if name.startswith("without")]


def test_a_refused_request_for_tile_registers_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("x86-64: the request is a system call of x86-64")
    monkeypatch.setattr(device_module, "XFEATURE_XTILEDATA", 1 << 20)  # no such state: refused
    reason = device_module.tile_refusal()
    assert reason.startswith("the system refuses the tile registers: ")


def test_other_machines_are_not_asked_for_tile_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    system = os.uname()
    other = os.uname_result((*system[:4], "aarch64"))
    monkeypatch.setattr(device_module.os, "uname", lambda: other)
    assert "x86-64" in device_module.tile_refusal()
