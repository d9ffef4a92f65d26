"""Jobs of built points: everything that a measurement needs follows from the point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.cost.model import Prediction
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.plugin.jobs import bound_us, measure_job
from tfsearch.space import Point, Points
from tfsearch.target.null import target
from tfsearch.target.null.problem import NullProblem

WORKLOAD = build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})
LIMITS = Limits(budget_s=0.1)


class Bounded(NullProblem):
    """A bound that differs from point to point and between protocols."""

    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        found = super().predict(points)
        return replace(found, bound_us=points.column("block") * (10.0 if cold else 1.0))

    def probes(self, point: Point) -> tuple[str, ...]:
        return (f"lanes-{point.params['lanes']}",)


PROBLEM = Bounded(WORKLOAD, target.nominal())
POINT = Point("whole", {"block": 64, "lanes": 4, "unroll": 2, "stages": 2, "order": "forward"})


def job(tmp_path: Path, **options: object) -> MeasureJob:
    artifact = tmp_path / "artifact"
    artifact.write_text("built")
    launch = PROBLEM.emit(PROBLEM.lower(POINT), POINT).launch
    given = {"protocol": "warm", "limits": LIMITS, **options}
    return measure_job(PROBLEM, POINT, artifact, launch, **given)  # type: ignore[arg-type]


def test_a_job_says_what_the_point_and_its_workload_imply(tmp_path: Path) -> None:
    made = job(tmp_path)
    assert made.workload == WORKLOAD.record
    assert made.artifact == str(tmp_path / "artifact")
    assert made.lower_bound_us == 64.0
    assert made.probes == ("lanes-4",)
    assert made.limits == LIMITS
    assert made.sizes == {}
    assert MeasureJob.from_json(made.to_json()) == made


def test_the_bound_is_that_of_the_protocol(tmp_path: Path) -> None:
    assert job(tmp_path, protocol="cold").lower_bound_us == 640.0
    assert bound_us(PROBLEM, replace(POINT, params={**POINT.params, "block": 8}), "cold") == 80.0
    with pytest.raises(RequestError, match="unknown protocol 'tepid'"):
        job(tmp_path, protocol="tepid")


def test_the_artifact_is_the_one_recorded_or_the_one_that_is_there(tmp_path: Path) -> None:
    assert job(tmp_path).sha256 == keys.digest_bytes(b"built")
    assert job(tmp_path, sha256="0" * 64).sha256 == "0" * 64


def test_seeds_and_the_time_to_beat_are_handed_on(tmp_path: Path) -> None:
    made = job(tmp_path, seed=3, verification_seed=4, incumbent_us=5.0)
    assert (made.seed, made.verification_seed, made.incumbent_us) == (3, 4, 5.0)
