"""Workloads on a GPU: what recipes offer is legal, right in the interpreter, and compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recipes.rowwise_and_map import counted
from tests.target_cuda.support import built, compiler_named, disassembled
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import lang as tf
from tfsearch.ir.hir.named import named_workload
from tfsearch.plugin.target import Device, Problem
from tfsearch.prove.verify import verify
from tfsearch.search.scan import points_of
from tfsearch.space import Point
from tfsearch.target.cuda import device as devices
from tfsearch.target.cuda import target
from tfsearch.target.cuda.device import Gpu
from tfsearch.target.cuda.hardware import ARCHITECTURES, document
from tfsearch.tune.proof import FULL, prove_reduced


def ffn(x: kind[m, n], y: kind[m, n]) -> Any:  # noqa: F821
    return tf.maximum(x * 2.0 + y, 0.0)


def quantize(x: f32[rows, cols]) -> Any:  # noqa: F821
    scale = tf.abs(x).max(axis=-1, keepdims=True) / 127.0
    return tf.round(x / scale).cast("i8"), scale


WORKLOADS: dict[str, tuple[Any, dict[str, str]]] = {
    "map": (ffn, {"m": "512", "n": "768", "kind": "bf16"}),
    "map odd": (ffn, {"m": "5", "n": "4097", "kind": "f32"}),
    "softmax": ("softmax", {"rows": "4096", "cols": "2048", "dtype": "bf16"}),
    "softmax odd": ("softmax", {"rows": "37", "cols": "1001", "dtype": "f32"}),
    "rms_norm": ("rms_norm", {"rows": "512", "cols": "768", "dtype": "f16"}),
    "layer_norm": ("layer_norm", {"rows": "96", "cols": "512", "dtype": "f32"}),
    "quantize": (quantize, {"rows": "64", "cols": "768"}),
}


def problem(name: str, on: Device | None = None) -> Problem:
    op, options = WORKLOADS[name]
    return target.problem(named_workload(op, options), on or target.nominal())


def sample(one: Problem, count: int, seed: int = 3) -> list[Point]:
    return list(one.space.sample(count, np.random.default_rng(seed)))


def on(architecture: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A pretended device of an architecture."""
    major, minor = document(architecture).settings["capability"]
    gpu = Gpu(0, f"some {architecture}", "", (major, minor), 100, 1 << 34, "")
    monkeypatch.setattr(devices, "nominal", lambda: gpu)
    return Device(gpu.record, "nominal")


@pytest.mark.parametrize("name", WORKLOADS)
def test_points_are_legal_and_their_shapes_right(name: str) -> None:
    one = problem(name)
    atoms, limits = target.atoms(target.nominal()), target.limits(target.nominal())
    assert one.space.count().legal > 20
    for number, point in enumerate(sample(one, 6)):
        assert verify(one.lower(point), atoms, limits) == ()
        if number < 3:
            workload, module = one.reduced(point)
            assert prove_reduced(workload, module, atoms, limits, FULL) == ()


@pytest.mark.parametrize("name", ["map odd", "softmax odd", "layer_norm"])
def test_counted_facts_are_those_of_a_walk_over_the_lowered_kernel(name: str) -> None:
    one = problem(name)
    atoms = target.atoms(target.nominal())
    ((_, batch),) = points_of(one.space, sample(one, 6))
    facts = one.facts(batch)
    for row in range(len(batch)):
        module = one.lower(Point(batch.recipe.name, batch.params(row)))
        expected = counted(module, atoms)
        assert {name: int(facts[name][row]) for name in expected} == expected


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sampled_candidates_compile_for_every_architecture(
    name: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiler_named("nvrtc")
    one = problem(name, on(architecture, monkeypatch))
    for number, point in enumerate(sample(one, 2, seed=5)):
        code = one.emit(one.lower(point), point)
        assert code.features == (architecture,)
        done = built(compiler, code, tmp_path / f"{number}")
        assert 0 < done.resources["registers"] <= 255
        assert done.resources["stack_bytes"] == 0
        assert not done.resources["spilled"]
        threads = code.launch.attributes[code.launch.main.symbol]["block"][0]
        assert threads * done.resources["registers"] <= 65536


def chosen(one: Problem, **wanted: Any) -> Point:
    for recipe in one.space.recipes:
        params = {p.name: p.values[0] for p in recipe.parameters}
        return Point(recipe.name, {**params, **wanted})
    raise AssertionError("no recipe")


def test_wide_fragments_are_accessed_in_words_of_16_bytes(tmp_path: Path) -> None:
    one = problem("map")
    point = chosen(one, lanes=1024, units=132)
    code = one.emit(one.lower(point), point)
    assert code.launch.attributes["tfsearch_main"] == {"grid": [132, 1, 1], "block": [128, 1, 1]}
    built(compiler_named("nvrtc"), code, tmp_path / "a")
    machine = disassembled(tmp_path / "a")
    assert machine.count("LDG.E.128") >= 2
    assert machine.count("STG.E.128") >= 1
    assert "LDG.E.U16" not in machine


def test_rows_that_no_word_fits_are_accessed_element_by_element(tmp_path: Path) -> None:
    one = problem("softmax odd")
    point = chosen(one, lanes=128)
    code = one.emit(one.lower(point), point)
    assert "tfs_load_aligned(" not in code.text
    built(compiler_named("nvrtc"), code, tmp_path / "a")
    machine = disassembled(tmp_path / "a")
    assert "LDG.E.128" not in machine
    assert "SHFL.BFLY" in machine


def test_blocks_of_several_warps_reduce_through_shared_memory(tmp_path: Path) -> None:
    one = problem("softmax")
    point = chosen(one, lanes=2048, units=132)
    code = one.emit(one.lower(point), point)
    done = built(compiler_named("nvrtc"), code, tmp_path / "a")
    assert done.resources["shared_bytes"] > 0
    assert "BAR.SYNC" in disassembled(tmp_path / "a")


def test_two_compilers_take_the_same_source(tmp_path: Path) -> None:
    one = problem("rms_norm")
    point = chosen(one, lanes=256, units=132)
    code = one.emit(one.lower(point), point)
    for name in ("nvrtc", "nvcc"):
        built(compiler_named(name), code, tmp_path / name)


def test_predictions_name_documents_and_are_not_calibrated_before_a_card_was_measured() -> None:
    one = problem("softmax")
    machine = one.machine  # type: ignore[attr-defined]
    assert not machine.calibrated
    assert machine.cores == 132
    assert machine.peak_bytes == 4.8e12
    assert len(machine.document) == 64
    ((_, batch),) = points_of(one.space, sample(one, 20))
    prediction = one.predict(batch, cold=True)
    assert (prediction.bound_us <= prediction.estimate_us).all()
    assert (prediction.bound_us > 0).all()
    assert not prediction.calibrated


def test_what_is_larger_than_l2_is_predicted_to_take_the_copy_rate() -> None:
    one = target.problem(
        named_workload("softmax", {"rows": "8192", "cols": "8192", "dtype": "bf16"}),
        target.nominal(),
    )
    moved = 2 * 8192 * 8192 * 2
    points = [chosen(one, lanes=1024, staging="registers", units=n) for n in (132, 2112, 8448)]
    ((_, batch),) = points_of(one.space, points)
    estimates = one.predict(batch).estimate_us
    assert (estimates >= moved / 4.27e12 * 1e6).all()
    assert (estimates[1:] <= 1.5 * moved / 4.27e12 * 1e6).all()


def test_more_units_than_cores_take_turns() -> None:
    machine = problem("map").machine  # type: ignore[attr-defined]
    np.testing.assert_array_equal(machine.sharing(np.array([1, 132, 133, 264])), [1, 1, 2, 2])
    np.testing.assert_array_equal(machine.at_once(np.array([1, 132, 264])), [1, 132, 132])


def test_what_no_recipe_takes_says_why() -> None:
    workload = named_workload("gemm", {"m": "64", "n": "64", "k": "64", "dtype": "i8"})
    with pytest.raises(RequestError, match="no recipe takes the program") as caught:
        target.problem(workload, target.nominal())
    assert caught.value.code == "cuda.no-recipe"


def test_a_device_of_another_architecture_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    small = on("sm_89", monkeypatch)
    limits = target.limits(small)
    assert limits.capacity[next(s for s in limits.capacity if s.value == "shared")] == 99 << 10
    assert limits.max_cluster == 1
