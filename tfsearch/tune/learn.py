"""Learned corrections: made from a target's records, judged, kept, and found again.

One model belongs to a target, a device, a protocol of timing and a recipe, under one version of
everything that a prediction is made by. All of that is its key, so a model is found exactly while
it is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.errors import NotRecordedError, RequestError
from tfsearch.cost import learned as learner
from tfsearch.cost.learned import Correction, Examples, Verdict, fit, judge
from tfsearch.db import ModelRecord, Store, Timing
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import PROTOCOLS, Protocol
from tfsearch.measure.job import protocol as protocol_named
from tfsearch.plugin import identity
from tfsearch.plugin.kernel import KernelProblem
from tfsearch.plugin.target import Device, Problem, Target
from tfsearch.search.learned import FEATURES, Learned, features
from tfsearch.search.scan import points_of
from tfsearch.space import Point
from tfsearch.tune.observer import Observer
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.request import Plan

MOST = 20_000
"""Times that are learned from: the latest of a target."""
COST = ("tfsearch.cost", "tfsearch.recipes", "tfsearch.space", "tfsearch.search.learned")
"""What predictions are made by, beside the target itself."""


@dataclass(frozen=True)
class Model:
    """A correction of one recipe with the verdict on it."""

    fields: Mapping[str, Any]
    correction: Correction
    verdict: Verdict

    @property
    def record(self) -> ModelRecord:
        """As the database keeps it."""
        document = {"correction": self.correction.to_json(), "verdict": self.verdict.to_json()}
        return ModelRecord(self.fields, document)

    def to_json(self) -> dict[str, Any]:
        """The fields and the verdict, without the numbers that were learned."""
        return {
            "key": self.record.key,
            "fields": dict(self.fields),
            "features": len(self.correction.names),
            **self.verdict.to_json(),
        }

    @staticmethod
    def of(record: ModelRecord) -> Model:
        """Inverse of :attr:`record`; ``NotRecordedError`` (``model.damaged``) for anything else."""
        try:
            correction = Correction.from_json(record.document["correction"])
            verdict = Verdict.from_json(record.document["verdict"])
        except (KeyError, TypeError, ValueError) as error:
            raise NotRecordedError(
                "model.damaged",
                f"the learned model {record.key[:12]}… cannot be read ({error}); train it again "
                "with tfsearch db model --train",
            ) from error
        return Model(record.fields, correction, verdict)


def model_fields(
    target: Target, device: Device, protocol: Protocol, recipe: str, version: int, document: str
) -> dict[str, Any]:
    """What a model is valid for; ``document`` is the digest of the hardware documents."""
    return {
        **_release(target),
        "device": device.record.key,
        "protocol": protocol.key,
        "recipe": recipe,
        "recipe_version": version,
        "document": document,
    }


def _release(target: Target) -> dict[str, Any]:
    """What a model's validity owes to the program itself."""
    return {
        "target": target.name,
        "generator": target.generator_digest(),
        "cost": identity.generator_digest(*COST),
        "features": FEATURES,
        "learner": learner.VERSION,
    }


def find(
    store: Store, target: Target, device: Device, problem: Problem, protocol: Protocol
) -> dict[str, Model]:
    """The models of a problem's recipes that the database has, used or not, by recipe."""
    out: dict[str, Model] = {}
    for recipe in problem.space.recipes:
        document = _document(problem, recipe.name)
        if document is None:
            continue
        fields = model_fields(target, device, protocol, recipe.name, recipe.version, document)
        record = store.model(ModelRecord(fields, {}).key)
        if record is not None:
            out[recipe.name] = Model.of(record)
    return out


def recorded(store: Store, target: Target) -> list[Model]:
    """The models of a target that the database has and that are of this release and machine.

    Whether the hardware documents are still the same is only known for a workload's predictions.
    """
    now = _release(target)
    devices = {device.record.key for device in target.devices()}
    return [
        Model.of(record)
        for record in store.models()
        if record.fields.get("device") in devices
        and {name: record.fields.get(name) for name in now} == now
    ]


def learned_for(plan: Plan, recorder: Recorder, observer: Observer) -> Learned | None:
    """What corrects a plan's estimates; a model that cannot be read is told and not used."""
    if isinstance(plan.problem, KernelProblem):
        return None
    protocol = protocol_named(plan.request.protocol)
    try:
        models = recorder.read(
            lambda store: find(store, plan.target, plan.device, plan.problem, protocol)
        )
    except NotRecordedError as error:
        observer.warning(error.code, error.message)
        return None
    return learned_of(models or {})


def learned_of(models: Mapping[str, Model]) -> Learned | None:
    """The corrections among these that have been shown to help; None when there is none."""
    used = {name: model.correction for name, model in models.items() if model.verdict.used}
    return Learned(used) if used else None


def _document(problem: Problem, recipe: str) -> str | None:
    """The digest of what a recipe's predictions rest on; None where it has no legal point."""
    space = problem.space.only(recipe)
    for points in space.chunks(1):
        return problem.predict(points).document
    return None


def train(store: Store, target: Target) -> list[Model]:
    """Models of a target from the database's records, one for each device here, protocol, recipe.

    Only times of the generator as it is now are learned from.
    """
    timings = store.timings(target.name, most=MOST)
    current = target.generator_digest()
    devices = {device.record.key: device for device in target.devices()}
    out: list[Model] = []
    for key, device in devices.items():
        for protocol in PROTOCOLS.values():
            own = [
                timing
                for timing in timings
                if (timing.device, timing.protocol, timing.generator)
                == (key, protocol.key, current)
            ]
            out.extend(_train(store, target, device, protocol, own))
    return out


def _train(
    store: Store, target: Target, device: Device, protocol: Protocol, timings: Sequence[Timing]
) -> Iterator[Model]:
    by_recipe: dict[tuple[str, int, str], list[_Batch]] = {}
    for batch in _batches(store, target, device, protocol, timings):
        by_recipe.setdefault(batch.recipe, []).append(batch)
    for (recipe, version, document), batches in sorted(by_recipe.items(), key=lambda p: p[0]):
        examples = _examples(batches)
        fields = model_fields(target, device, protocol, recipe, version, document)
        yield Model(fields, fit(examples), judge(examples))


@dataclass(frozen=True, eq=False)
class _Batch:
    """Candidates of one recipe and workload under one environment, with their times."""

    recipe: tuple[str, int, str]
    workload: str
    environment: str
    columns: Mapping[str, Any]
    estimate: Any
    measured: Any


def _batches(
    store: Store, target: Target, device: Device, protocol: Protocol, timings: Sequence[Timing]
) -> Iterator[_Batch]:
    groups: dict[str, dict[tuple[str, str], list[Timing]]] = {}
    for timing in timings:
        kind = (timing.environment, timing.schedule.recipe)
        groups.setdefault(timing.workload, {}).setdefault(kind, []).append(timing)
    for workload, kinds in sorted(groups.items()):
        problem = _problem(store, target, device, workload)
        if problem is None:
            continue
        for (environment, recipe), own in sorted(kinds.items()):
            known = _distinct(problem, target.name, own)
            if not known:
                continue
            version = problem.space.recipe(recipe).version
            ((_, points),) = points_of(problem.space, list(known))
            predicted = problem.predict(points, cold=protocol.cold)
            times = np.array([known[point] for point in known])
            good = np.isfinite(predicted.estimate_us) & (predicted.estimate_us > 0)
            yield _Batch(
                (recipe, version, predicted.document),
                workload,
                environment,
                {n: c[good] for n, c in features(points, problem.facts(points)).items()},
                np.log(predicted.estimate_us[good]),
                np.log(times[good]),
            )


def _problem(store: Store, target: Target, device: Device, workload: str) -> Problem | None:
    """A recorded workload bound again; None for what cannot be, such as a user's own kernel."""
    record = store.workload(workload)
    if record is None:
        return None
    try:
        return target.problem(Workload.from_record(record), device)
    except RequestError:
        return None


def _distinct(problem: Problem, target: str, timings: Sequence[Timing]) -> dict[Point, float]:
    """Legal points with their latest times; schedules of other versions are passed over."""
    out: dict[Point, float] = {}
    for timing in timings:
        try:
            point = identity.point_of(problem, target, timing.schedule)
        except RequestError:
            continue
        if not problem.space.check(point):
            out[point] = timing.median_us
    return out


def _examples(batches: Sequence[_Batch]) -> Examples:
    # A value that a domain lacks is one no point has; another column may be missing altogether.
    names = tuple(
        sorted(
            name
            for name in {name for batch in batches for name in batch.columns}
            if "=" in name or all(name in batch.columns for batch in batches)
        )
    )
    workloads = {key: i for i, key in enumerate(sorted({b.workload for b in batches}))}
    parts: list[Any] = []
    for batch in batches:
        part = np.zeros((len(batch.estimate), len(names)))
        for place, name in enumerate(names):
            if name in batch.columns:
                part[:, place] = batch.columns[name]
        parts.append(part)
    counts = [len(batch.estimate) for batch in batches]
    return Examples(
        names,
        np.concatenate(parts),
        np.concatenate([batch.estimate for batch in batches]),
        np.concatenate([batch.measured for batch in batches]),
        np.repeat(np.arange(len(batches)), counts),
        np.repeat([workloads[batch.workload] for batch in batches], counts),
    )
