"""From a point to a proved candidate with a key, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfsearch.core.errors import TfsearchError, UnavailableError
from tfsearch.core.records import MeasurementKey, Refusal, ScheduleRecord, Status
from tfsearch.db.records import ProofRecord, SourceRecord
from tfsearch.plugin import identity
from tfsearch.plugin.kernel import KernelProblem
from tfsearch.plugin.target import Source
from tfsearch.prove.verify import verify
from tfsearch.search.scan import predict_points
from tfsearch.space import Point
from tfsearch.tune.proof import FULL, prove_reduced, prover_digest, shape_of
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.request import Plan

MESSAGE_LIMIT = 2000


@dataclass(frozen=True)
class Failure:
    """Why an attempt ended without a time; ``where`` is a place or a phase."""

    status: Status
    code: str
    where: str
    message: str


@dataclass(frozen=True)
class Candidate:
    """A point on its way. ``source`` and ``key`` are None exactly when ``failure`` is not.

    ``predicted_us`` is the estimate, in microseconds; None where there is none.
    """

    point: Point
    schedule: ScheduleRecord
    predicted_us: float | None
    source: Source | None = None
    key: MeasurementKey | None = None
    failure: Failure | None = None


class Preparer:
    """Lowers, proves and emits candidates of one plan."""

    def __init__(self, plan: Plan, recorder: Recorder) -> None:
        self._plan = plan
        self._recorder = recorder
        self._atoms = plan.target.atoms(plan.device)
        self._limits = plan.target.limits(plan.device)
        self._prover = prover_digest(plan.generator)
        self._proved: dict[str, tuple[Refusal, ...]] = {}

    def prepare(self, point: Point) -> Candidate:
        """Everything before the compiler. A fault of the candidate is its ``failure``.

        ``UnavailableError`` when the compiler is gone or has no room to work in.
        """
        plan = self._plan
        schedule = identity.schedule_of(plan.problem, plan.target.name, point)
        estimate, _ = predict_points(plan, [point])
        predicted = None if np.isnan(estimate[0]) else float(estimate[0])
        try:
            source, key = self._source(point, schedule)
        except _Refused as refused:
            failure = Failure(Status.REFUSED, *refused.reason)
        except UnavailableError:
            raise
        except TfsearchError as error:
            failure = Failure(Status.REFUSED, error.code, "prepare", error.message)
        except Exception as error:  # noqa: BLE001 - a target's bug in one candidate is its status
            text = f"{type(error).__name__}: {error}"
            failure = Failure(Status.REFUSED, "prepare.exception", "prepare", text)
        else:
            return Candidate(point, schedule, predicted, source, key)
        return Candidate(point, schedule, predicted, failure=failure)

    def source_of(self, schedule: ScheduleRecord) -> Source:
        """The source of a schedule that was proved before."""
        return identity.lowered_source(self._plan.problem, self._plan.target.name, schedule)

    def _source(self, point: Point, schedule: ScheduleRecord) -> tuple[Source, MeasurementKey]:
        plan = self._plan
        problem = plan.problem
        _require(problem.space.check(point))
        if isinstance(problem, KernelProblem):
            source = problem.source(point)  # nothing to prove: see NO_PROOF
        else:
            module = problem.lower(point)
            _require(verify(module, self._atoms, self._limits))
            _require(self._proof(point))
            source = problem.emit(module, point)
        request = plan.request
        build = plan.compiler.key(source, request.flags, request.macros)
        self._recorder.source(
            SourceRecord(schedule.key, plan.generator, build.source, build.launch)
        )
        return source, identity.measurement_key(build, plan.device, request.protocol)

    def _proof(self, point: Point) -> Sequence[Refusal]:
        """The interpreter's verdict on the reduced form: run once a shape, then remembered."""
        workload, module = self._plan.problem.reduced(point)
        shape = shape_of(workload, module)
        if self._plan.request.prove == "full":
            return prove_reduced(workload, module, self._atoms, self._limits, FULL)
        if shape not in self._proved:
            known = self._recorder.proof_of(shape, self._prover)
            if known is None:
                refusals = tuple(prove_reduced(workload, module, self._atoms, self._limits))
                known = ProofRecord(shape, self._prover, not refusals, refusals)
                self._recorder.proof(known)
            self._proved[shape] = known.refusals
        return self._proved[shape]


class _Refused(Exception):
    """A refusal on its way up: code, where, message."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.reason = (refusal.code, refusal.where, refusal.message)


def _require(refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise _Refused(refusals[0])


def shortened(text: str) -> str:
    """A message fit for a record: at most ``MESSAGE_LIMIT`` characters."""
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
