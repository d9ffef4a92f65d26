"""Learned models in the database, and the times that they are made of."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.db import make
from tfsearch.core.errors import NotRecordedError
from tfsearch.core.records import Status
from tfsearch.db import ModelRecord, Store, open_store

FIELDS = {"target": "x86", "recipe": "r", "recipe_version": 1}
MODEL = ModelRecord(FIELDS, {"weights": [0.5, -1e-9], "used": True})


def test_a_model_is_found_by_its_fields_and_replaced_by_a_later_one(store: Store) -> None:
    assert store.model(MODEL.key) is None
    store.put_model(MODEL)
    other = ModelRecord({**FIELDS, "recipe_version": 2}, {"weights": []})
    store.put_model(other)
    assert store.model(MODEL.key) == MODEL
    later = ModelRecord(FIELDS, {"weights": [1.0]})
    store.put_model(later)
    assert store.model(MODEL.key) == later
    assert sorted(m.key for m in store.models()) == sorted((MODEL.key, other.key))
    assert store.verify() == []


@pytest.mark.parametrize(
    "change",
    [
        "value = replace(value, '0.5', '0.7')",
        "value = replace(value, '\"r\"', '\"q\"')",
        "value = replace(value, '\"recipe_version\":1', '\"recipe_version\":1.5')",
        "value = '{'",
        "value = '[]'",
        "value = '{}'",
        "name = 'model ' || substr('0123456789', 1, 5)",
    ],
)
def test_an_altered_model_is_never_given_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    store.put_model(MODEL)
    with sqlite3.connect(path) as connection:
        statement = f"UPDATE meta SET {change} WHERE name LIKE 'model %'"
        assert connection.execute(statement).rowcount == 1
    if change.startswith("name"):
        assert store.model(MODEL.key) is None
    else:
        with pytest.raises(NotRecordedError, match="--train") as caught:
            store.model(MODEL.key)
        assert caught.value.code == "model.damaged"
    assert store.models() == []
    (problem,) = store.verify()
    assert problem.code == "verify.model"
    store.put_model(MODEL)
    assert store.model(MODEL.key) == MODEL


def test_times_are_the_latest_verified_ones_of_a_target(store: Store) -> None:
    record = make.begun(store)
    for index, median in enumerate((3.0, 2.0, 5.0)):
        store.record_trial(make.trial(record, index, median=median, censored=index == 2))
    store.record_trial(make.trial(record, 3, passed=False))
    store.record_trial(make.failed(record, 4, Status.WRONG))
    found = store.timings("x86", most=10)
    assert [one.median_us for one in found] == [3.0, 2.0, 5.0]
    assert [one.censored for one in found] == [False, False, True]
    trial = make.trial(record, 1)
    assert found[1].schedule == trial.schedule
    assert (found[1].workload, found[1].device) == (record.key, make.DEVICE.key)
    assert (found[1].protocol, found[1].generator) == (make.PROTOCOL, trial.generator)
    assert store.timings("x86", most=2) == found[1:]
    assert store.timings("cuda", most=10) == []
