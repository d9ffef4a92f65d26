"""A built point as a job for the measuring process."""

from __future__ import annotations

from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.launch import LaunchSpec
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.measure.job import protocol as protocol_named
from tfsearch.plugin.kernel import ORACLE, KernelProblem
from tfsearch.plugin.target import Problem
from tfsearch.search.scan import points_of
from tfsearch.space import Point


def bound_us(problem: Problem, point: Point, protocol: str) -> float:
    """No correct kernel of this point is faster under the protocol; 0 where that is unknown."""
    ((_, batch),) = points_of(problem.space, [point])
    return float(problem.predict(batch, cold=protocol_named(protocol).cold).bound_us[0])


def measure_job(
    problem: Problem,
    point: Point,
    artifact: Path,
    launch: LaunchSpec,
    *,
    protocol: str,
    limits: Limits,
    sha256: str | None = None,
    seed: int = 0,
    verification_seed: int = 0,
    incumbent_us: float | None = None,
) -> MeasureJob:
    """The job that verifies and times ``artifact``, which was built from ``point``.

    ``sha256`` is what the artifact's content must hash to; None: to what it hashes to now.
    Dimensions that are ranges are measured at their largest. For the other fields see
    :class:`~tfsearch.measure.job.MeasureJob`. ``RequestError`` for an unknown protocol.
    """
    workload = problem.workload
    oracle, reference = "", ""
    if isinstance(problem, KernelProblem):
        oracle, reference = ORACLE, problem.kernel.reference.place
    return MeasureJob(
        workload=workload.record,
        artifact=str(artifact),
        sha256=keys.digest_bytes(artifact.read_bytes()) if sha256 is None else sha256,
        launch=launch,
        protocol=protocol,
        seed=seed,
        verification_seed=verification_seed,
        lower_bound_us=bound_us(problem, point, protocol),
        incumbent_us=incumbent_us,
        probes=problem.probes(point),
        limits=limits,
        sizes=workload.sizes,
        oracle=oracle,
        reference=reference,
    )
