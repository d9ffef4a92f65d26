"""Kernels that no record holds: built for the shape at hand, verified before they are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tfsearch.core.errors import (
    NoCandidateError,
    NotRecordedError,
    RequestError,
    TfsearchError,
    UnavailableError,
)
from tfsearch.core.records import ServedBy, Status
from tfsearch.ir.hir.types import Range
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits, MeasureOutcome
from tfsearch.plugin import identity
from tfsearch.plugin.jobs import measure_job
from tfsearch.plugin.target import Compiler, Problem, Source
from tfsearch.runtime.kernel import Kernel
from tfsearch.runtime.kernelrecord import KernelRecord
from tfsearch.runtime.serving import Place, build, load
from tfsearch.search.scan import scan
from tfsearch.space import Point

if TYPE_CHECKING:
    from tfsearch.db import Store

MODEL_TRIES = 4
"""Of the cost model's ranking, how many are built until one is correct."""

LIMITS = Limits(deadline_s=120.0, budget_s=0.2)


class Builder:
    """Builds and verifies points of one place; the measuring process is another one."""

    def __init__(self, place: Place) -> None:
        if place.compiler is None:
            raise UnavailableError("lookup.no-compiler", place.no_compiler)
        self.place = place
        self.compiler: Compiler = place.compiler
        self.problem: Problem = place.problem()

    def kernel(self, point: Point, served_by: ServedBy) -> Kernel:
        """The point as a kernel.

        ``NoCandidateError`` when it is refused or wrong, ``UnavailableError`` when it does not
        build.
        """
        place = self.place
        source = self.source(point)
        path = build(place, self.compiler, source)
        outcome = self.measured(point, source, path)
        if outcome.status is not Status.OK or outcome.measurement is None:
            raise NoCandidateError(
                "lookup.not-correct",
                f"the kernel built for this shape ended as {outcome.status.value}: "
                f"{outcome.message}",
            )
        loaded = load(place.target, place.device, path, source.launch)
        record = KernelRecord(
            workload=place.question.workload.record,
            target=place.target.name,
            schedule=identity.schedule_of(self.problem, place.target.name, point),
            median_us=outcome.measurement.median_us,
            ci_us=outcome.measurement.ci_us,
            max_error=None if outcome.verification is None else outcome.verification.max_error,
        )
        return Kernel(record, loaded, served_by)

    def source(self, point: Point) -> Source:
        """Lower, prove and emit; ``NoCandidateError`` with the first refusal."""
        from tfsearch.prove.verify import verify

        place, problem = self.place, self.problem
        refusals = problem.space.check(point)
        if not refusals:
            module = problem.lower(point)
            limits = place.target.limits(place.device)
            refusals = verify(module, place.target.atoms(place.device), limits)
            if not refusals:
                return problem.emit(module, point)
        raise NoCandidateError(refusals[0].code, f"{refusals[0].where}: {refusals[0].message}")

    def measured(self, point: Point, source: Source, path: Path) -> MeasureOutcome:
        """Verified, and timed briefly, in a process that may crash."""
        from tfsearch.measure.worker import Measurer

        place = self.place
        protocol = place.question.protocol
        job = measure_job(
            self.problem, point, path, source.launch, protocol=protocol, limits=LIMITS
        )
        locks = place.settings.home / "locks"
        with Measurer(place.target.runner, place.device.selector, lock_folder=locks) as measurer:
            return measurer.submit(job)


def from_bucket(place: Place, store: Store) -> Kernel:
    """The schedule of a recorded workload whose ranges contain this shape, built for the shape.

    ``NotRecordedError`` (``lookup.no-bucket``) when there is none.
    """
    wanted = place.question.workload
    if not isinstance(wanted, Workload):
        raise NotRecordedError("lookup.no-bucket", "a user's own kernel has no dimensions to range")
    for bucket in _buckets(wanted, store):
        stored = store.best(place.query(bucket))
        if stored is None:
            continue
        builder = Builder(place)
        schedule = stored.trial.schedule
        try:
            recipe = builder.problem.space.recipe(schedule.recipe)
            if recipe.version != schedule.recipe_version:
                continue
            return builder.kernel(Point(recipe.name, dict(schedule.params)), ServedBy.BUCKET)
        except (NoCandidateError, RequestError):
            continue  # a schedule of the range that this shape cannot take: the next bucket may
    raise NotRecordedError(
        "lookup.no-bucket", "no recorded range of dimensions contains this shape"
    )


def _buckets(wanted: Workload, store: Store) -> Iterator[Workload]:
    """Recorded workloads with ranges that become the wanted one when bound to its sizes."""
    for record in store.workloads(op=wanted.op):
        if not any(".." in str(value) for value in record.dims.values()):
            continue
        bucket = Workload.from_record(record)
        sizes: dict[str, int] = {}
        for name, span in bucket.program.ranges.items():
            size = wanted.options.get(name)
            if isinstance(size, int) and isinstance(span, Range) and span.holds(size):
                sizes[name] = size
        if len(sizes) == len(bucket.program.ranges) and bucket.bind(sizes).key == wanted.key:
            yield bucket


def from_model(place: Place) -> Kernel:
    """The cost model's best pick for this shape, built and verified now.

    ``NoCandidateError`` when none of the best few is correct; ``UnavailableError`` without a
    compiler.
    """
    builder = Builder(place)
    pool = scan(builder.problem, keep=MODEL_TRIES).pool
    problem: TfsearchError = NoCandidateError(
        "lookup.no-legal", "no schedule of this workload is legal on this target"
    )
    for row in range(len(pool)):
        try:
            return builder.kernel(pool.point(row), ServedBy.MODEL)
        except (NoCandidateError, UnavailableError) as error:
            problem = error
    raise problem
