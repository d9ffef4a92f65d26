"""Studies of Optuna's over the records of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.tune.helpers import run
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import Store
from tfsearch.ir.workload import Workload

optuna = pytest.importorskip("optuna")
from tfsearch.optuna import Records, open_records  # noqa: E402

GEMM = {"m": 5, "n": 6, "k": 7, "dtype": "f32"}


@pytest.fixture
def records(gemm: Workload, store: Store, home: Settings) -> Iterator[Records]:
    run(gemm, store, home, policy="random", trials=12)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with open_records("gemm", db=home.database_url, target="null", **GEMM) as opened:
        yield opened


def test_every_recorded_result_is_added_once(records: Records, store: Store) -> None:
    study = optuna.create_study()
    assert records.add_trials(study) == len(records) == 12
    assert records.add_trials(study) == 0
    best = min(t.trial.measurement.median_us for t in store.trials(status=Status.OK))
    assert study.best_value == best
    assert records.point(study.best_trial) == records.best(1)[0].point


def test_known_bests_are_tried_first_and_answered_from_the_record(records: Records) -> None:
    study = optuna.create_study()
    assert records.enqueue(study, 3) == 3
    study.optimize(records, n_trials=3)
    assert [t.value for t in study.trials] == [r.median_us for r in records.best(3)]


def test_what_is_not_recorded_is_pruned_with_the_reason_or_measured(records: Records) -> None:
    study = optuna.create_study(sampler=records.sampler(optuna.samplers.RandomSampler(seed=1)))
    study.optimize(records, n_trials=20)
    reasons = {t.user_attrs["tfsearch"] for t in study.get_trials() if t.value is None}
    assert reasons == {"not recorded"}

    asked: list[Any] = []
    measuring = Records(records.plan, records._store, lambda point: asked.append(point) or 7.5)
    study = optuna.create_study(sampler=records.sampler(optuna.samplers.RandomSampler(seed=1)))
    study.optimize(measuring, n_trials=20)
    assert asked
    assert all(t.value is not None for t in study.get_trials())


def test_the_sampler_suggests_legal_schedules_only(records: Records) -> None:
    space = records.plan.space
    plain = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    plain.optimize(records, n_trials=40)
    illegal = [
        t for t in plain.get_trials() if t.user_attrs.get("tfsearch", "").startswith("illegal")
    ]
    assert len(illegal) == sum(bool(space.check(records.point(t))) for t in plain.get_trials())
    legal = optuna.create_study(sampler=records.sampler(optuna.samplers.TPESampler(seed=2)))
    legal.optimize(records, n_trials=40)
    assert not any(space.check(records.point(t)) for t in legal.get_trials())


def test_records_of_other_flags_are_not_these_records(records: Records, home: Settings) -> None:
    with open_records("gemm", db=home.database_url, target="null", **{**GEMM, "m": 9}) as other:
        assert len(other) == 0
        assert other.enqueue(optuna.create_study()) == 0


def test_records_are_exported_as_a_study_that_others_open(records: Records, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for _ in range(2):  # once more adds nothing
        study = records.export(url, "ours")
    opened = optuna.load_study(study_name="ours", storage=url)
    assert len(opened.trials) == len(records) == 12
    assert opened.best_value == study.best_value == records.best(1)[0].median_us
    assert opened.user_attrs["workload"] == records.plan.workload.key
    with pytest.raises(RequestError, match="1 objectives, not 2"):
        records.export(url, "ours", second="work")


def test_a_second_objective_is_exported_beside_the_time(records: Records, tmp_path: Any) -> None:
    study = records.export(f"sqlite:///{tmp_path / 'study.db'}", second="work")
    assert len(study.directions) == 2
    done = [t for t in study.trials if t.values is not None]
    assert done
    assert {t.values[1] for t in done} == {5.0 * 6 * 7}
    with pytest.raises(RequestError, match="known: bytes, work"):
        records.export(f"sqlite:///{tmp_path / 'other.db'}", second="nonsense")


def test_a_storage_that_does_not_open_is_one_line(records: Records, tmp_path: Any) -> None:
    with pytest.raises(RequestError) as caught:
        records.export(f"sqlite:///{tmp_path / 'no' / 'folder' / 'study.db'}")
    assert caught.value.code == "optuna.storage"
    assert "\n" not in caught.value.message
