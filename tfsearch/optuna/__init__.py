"""Records of tfsearch for studies of Optuna's; needs the extra ``optuna``.

    records = tfsearch.optuna.open_records("gemm", m=512, n=512, k=512, dtype="f32")
    study = optuna.create_study(sampler=records.sampler(optuna.samplers.TPESampler()))
    records.add_trials(study)       # everything recorded, failures too
    records.enqueue(study)          # the best known ones first
    study.optimize(records, n_trials=50)

The database decides: a trial whose schedule is recorded gets the recorded median, in microseconds;
one that is illegal, failed or is not recorded is pruned, with the reason in its user attribute
``tfsearch``. ``records.distributions`` and ``records.point`` translate between the two. A study
that is kept in a storage of Optuna's is what optuna-dashboard shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status, Trial
from tfsearch.db import open_store
from tfsearch.ir.hir.named import Op, named_workload
from tfsearch.plugin import identity
from tfsearch.search.problem import Result
from tfsearch.space import Point
from tfsearch.tune.measured import measured_of
from tfsearch.tune.request import Plan, TuneRequest, resolve

try:
    from tfsearch.search import studies
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "optuna":
        raise
    raise UnavailableError(
        "policy.optuna-missing", "tfsearch.optuna needs Optuna: pip install 'tfsearch[optuna]'"
    ) from None

if TYPE_CHECKING:
    from tfsearch.db import Store

Measure = Callable[[Point], float]


class Records:
    """What is recorded of one workload on one device, as an objective of a study.

    ``measure`` is called with a legal point that is not recorded and gives its time in
    microseconds; without it such trials are pruned.
    """

    def __init__(self, plan: Plan, store: Store, measure: Measure | None = None) -> None:
        self.plan = plan
        self._store = store
        self._measure = measure
        self._encoding = studies.Encoding(plan.space)
        self.distributions = dict(self._encoding.distributions)
        self._known: dict[Point, Result] = {}
        self.refresh()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._store.close()

    def refresh(self) -> None:
        """Read the record again. Only what holds for this device, compiler and flags counts."""
        self._known.clear()
        for stored in self._store.trials(workload=self.plan.workload.key):
            result = self._result(stored.trial)
            if result is None:
                continue
            before = self._known.get(result.point)
            if before is None or result.status is Status.OK or before.status is not Status.OK:
                self._known[result.point] = result

    def __len__(self) -> int:
        return len(self._known)

    def best(self, count: int = 3) -> list[Result]:
        """The fastest recorded results, the fastest first."""
        good = [r for r in self._known.values() if r.median_us is not None]
        return sorted(good, key=lambda result: result.median_us or 0.0)[:count]

    def point(self, trial: Any) -> Point:
        """The point of a finished trial's parameters (``trial.params``)."""
        return self._encoding.point(trial.params)

    def __call__(self, trial: Any) -> float:
        """The objective: the recorded or measured time in microseconds, or the trial is pruned."""
        point = self._encoding.suggest(trial)
        refusals = self.plan.space.check(point)
        if refusals:
            raise studies.pruned(trial, f"illegal {refusals[0].code}: {refusals[0].message}")
        known = self._known.get(point)
        if known is None and self._measure is not None:
            return self._measure(point)
        if known is None:
            raise studies.pruned(trial, "not recorded")
        if known.median_us is None:
            raise studies.pruned(trial, f"{known.status.value} {known.code}: {known.message}")
        return known.median_us

    def enqueue(self, study: Any, count: int = 3) -> int:
        """Have the study try the best known ones next; how many there are."""
        best = self.best(count)
        for result in best:
            study.enqueue_trial(self._encoding.params(result.point), skip_if_exists=True)
        return len(best)

    def add_trials(self, study: Any) -> int:
        """Add every recorded result that the study does not hold; how many were added."""
        return self._add(study, None)

    def _add(self, study: Any, second: studies.Second | None) -> int:
        held = {tuple(sorted(t.params.items())) for t in study.get_trials(deepcopy=False)}
        added = 0
        for result in self._known.values():
            trial = self._encoding.trial(result, second)
            if tuple(sorted(trial.params.items())) not in held:
                study.add_trial(trial)
                added += 1
        return added

    def export(self, storage: str, name: str = "", *, second: str = "") -> Any:
        """Every recorded result as a study in a storage of Optuna's, which optuna-dashboard shows.

        ``storage`` is a URL, ``name`` the study's, by default the op and the key's beginning.
        ``second`` names a second objective, as the policy's option does. Exporting again adds what
        is new. Returns the study. ``RequestError`` (``optuna.storage``, ``policy.objective``).
        """
        beside = studies.Second(second, self.plan) if second else None
        record = self.plan.workload
        study = studies.stored_study(
            storage, name or f"{record.op} {record.key[:12]}", 1 if beside is None else 2
        )
        self._add(study, beside)
        study.set_user_attr("workload", record.key)
        study.set_user_attr("objectives", ["time_us", *([second] if second else [])])
        return study

    def sampler(self, inner: Any) -> Any:
        """The sampler with every suggestion moved to the nearest legal point."""
        return studies.nearest_legal(inner, self.plan)

    def _result(self, trial: Trial) -> Result | None:
        plan = self.plan
        if trial.status is Status.CANCELLED or not self._matches(trial):
            return None
        try:
            point = identity.point_of(plan.problem, plan.target.name, trial.schedule)
        except RequestError:
            return None
        if plan.space.check(point):
            return None
        median = None if trial.measurement is None else trial.measurement.median_us
        return Result(
            point,
            trial.status,
            median,
            code=trial.code,
            where=trial.where,
            message=trial.message,
            measured=measured_of(trial),
        )

    def _matches(self, trial: Trial) -> bool:
        """Whether a trial was taken under what the plan asks for; refusals depend on nothing."""
        key, query = trial.measurement_key, self.plan.query
        if key is None:
            return trial.schedule.target == query.target
        compiler = query.toolchain
        return (
            key.device.key == query.device.key
            and key.protocol == query.protocol
            and key.build.target == query.target
            and key.build.flags == query.flags
            and key.build.macros == query.macros
            and (compiler is None or key.build.toolchain.digest == compiler.digest)
        )


def open_records(
    op: Op,
    *,
    db: str | None = None,
    target: str | None = None,
    device: str | None = None,
    toolchain: str | None = None,
    measure: Measure | None = None,
    **options: Any,
) -> Records:
    """The records of a workload, named as for ``tfsearch.tune``.

    ``db`` is a SQLAlchemy URL. Raises the errors of ``resolve`` and of opening a database.
    """
    workload = named_workload(op, options)
    request = TuneRequest(workload, target=target, device=device, toolchain=toolchain)
    return Records(resolve(request), open_store(core_settings.load(db).database_url), measure)
