"""What every backend of the store has to do."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest

from tests.db import make
from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import VERIFIER_VERSION, Accuracy, Measurement, Refusal, Status
from tfsearch.db import (
    ProofRecord,
    SessionStatus,
    SourceRecord,
    Store,
    StoredFinal,
    StoredTrial,
    schema,
)


def test_a_workload_comes_back_as_it_was_put(store: Store):
    record = make.workload(
        64, accuracy=Accuracy.FAST, reproducible=False, alignment=16, constant_inputs=("b",)
    )
    assert store.put_workload(record) == record.key
    assert store.put_workload(record) == record.key
    assert store.workload(record.key) == record
    assert store.workload("absent") is None
    assert store.workloads(op="gemm") == [record]
    assert store.workloads(op="softmax") == []


def test_a_trial_comes_back_as_it_was_recorded(store: Store):
    record = make.begun(store)
    trial = make.trial(record, 3)
    number = store.record_trial(trial)
    assert store.trial(number) == StoredTrial(number, trial)
    assert store.trial(number + 1) is None


def test_every_kind_of_failure_is_kept_with_its_message(store: Store):
    record = make.begun(store)
    for index, status in enumerate(one for one in Status if one is not Status.OK):
        trial = make.failed(record, index, status)
        stored = store.trial(store.record_trial(trial))
        assert stored is not None
        assert replace(stored.trial, verification=None) == replace(trial, verification=None)


def test_a_verification_keeps_what_is_not_finite(store: Store):
    record = make.begun(store)
    stored = store.trial(store.record_trial(make.failed(record, 0, Status.WRONG)))
    assert stored is not None
    check = stored.trial.verification
    assert check is not None
    assert math.isnan(check.max_error)
    assert check.passes == {"exact": math.inf}
    assert check.message == "3 wrong"


def test_samples_are_kept_bit_for_bit(store: Store):
    record = make.begun(store)
    samples = tuple(10.0 + k / 7 for k in range(1000))
    measured = Measurement(samples, 10.5, (10.4, 10.6), make.PROTOCOL)
    number = store.record_trial(replace(make.trial(record), measurement=measured))
    stored = store.trial(number)
    assert stored is not None
    assert stored.trial.measurement == measured


def test_a_second_delivery_changes_nothing(store: Store):
    record = make.begun(store)
    trial = make.trial(record)
    assert store.record_trial(trial) == store.record_trial(trial)
    assert len(store.trials()) == 1
    assert store.stats().builds == 1


def test_another_trial_under_the_same_index_is_an_error(store: Store):
    record = make.begun(store)
    store.record_trial(make.trial(record, median=10.0))
    with pytest.raises(InternalError) as caught:
        store.record_trial(make.trial(record, median=11.0))
    assert caught.value.code == "db.different-trial"
    assert [one.trial.measurement.median_us for one in store.trials()] == [10.0]


def test_a_trial_needs_its_session_and_its_workload(store: Store):
    record = make.workload()
    with pytest.raises(InternalError, match="begun") as caught:
        store.record_trial(make.trial(record))
    assert caught.value.code == "db.unknown-session"
    make.begun(store, 64)
    with pytest.raises(InternalError, match="put") as caught:
        store.record_trial(make.trial(record))
    assert caught.value.code == "db.unknown-workload"


def test_a_time_that_is_none_is_refused(store: Store):
    record = make.begun(store)
    trial = make.trial(record)
    assert trial.measurement is not None
    for change in (
        {"median_us": math.nan},
        {"median_us": 0.0},
        {"samples_us": ()},
        {"samples_us": (1.0, math.inf)},
        {"ci_us": (math.nan, 1.0)},
    ):
        with pytest.raises(InternalError) as caught:
            store.record_trial(replace(trial, measurement=replace(trial.measurement, **change)))
        assert caught.value.code == "db.inconsistent-trial"
    assert store.trials() == []


def test_a_measurement_key_of_another_build_is_refused(store: Store):
    record = make.begun(store)
    trial = make.trial(record)
    assert trial.build is not None
    other = replace(trial.build, key=make.build_key(99))
    with pytest.raises(InternalError) as caught:
        store.record_trial(replace(trial, build=other))
    assert caught.value.code == "db.inconsistent-trial"


def test_trials_are_filtered_and_paged_in_order(store: Store):
    one, two = make.begun(store, 64, "s1"), make.begun(store, 65, "s2")
    first = [store.record_trial(make.trial(one, k)) for k in range(4)]
    store.record_trial(make.failed(one, 4, Status.TIMEOUT))
    other = store.record_trial(make.trial(two, 0, name="s2"))
    ids = [stored.id for stored in store.trials(session="s1", status=Status.OK)]
    assert ids == first
    assert [stored.id for stored in store.trials(workload=two.key)] == [other]
    assert [stored.id for stored in store.trials(session="s1", limit=2, offset=1)] == first[1:3]
    assert [one.trial.index for one in store.trials(status=Status.TIMEOUT)] == [4]


def test_a_session_resumes_only_for_equal_fields(store: Store):
    record = make.begun(store)
    fields = make.session(record).fields
    found = store.resumable_session(fields)
    assert found == make.session(record)
    assert found == store.session("s1")
    other = make.workload(77)
    flips = {
        "workload": other.key,
        "target": "cuda",
        "device": "d",
        "toolchain": "t",
        "flags": ("-O2",),
        "policy": "random",
        "seed": 8,
        "space": "0" * 64,
    }
    assert set(flips) == set(vars(fields))
    for name, value in flips.items():
        assert store.resumable_session(replace(fields, **{name: value})) is None, name


@pytest.mark.parametrize(
    ("status", "resumes"),
    [
        (SessionStatus.INTERRUPTED, True),
        (SessionStatus.RUNNING, True),
        (SessionStatus.FINISHED, False),
        (SessionStatus.FAILED, False),
    ],
)
def test_a_finished_session_does_not_resume(store: Store, status: SessionStatus, resumes: bool):
    record = make.begun(store)
    store.finish_session("s1", status, finished_at="later")
    found = store.session("s1")
    assert found is not None
    assert (found.status, found.finished_at) == (status, "later")
    assert (store.resumable_session(found.fields) is not None) is resumes
    assert store.sessions() == [found]
    assert record.key == found.fields.workload


def test_one_of_two_claims_of_a_session_wins(store: Store):
    make.begun(store)
    won: list[bool] = []
    barrier = threading.Barrier(4)

    def claim(me: str):
        barrier.wait()
        won.append(store.claim_session("s1", expected_owner="host:1", owner=me))

    threads = [threading.Thread(target=claim, args=(f"host:{k + 2}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, False, True]


def test_a_session_is_begun_once(store: Store):
    record = make.begun(store)
    store.begin_session(make.session(record))
    with pytest.raises(InternalError) as caught:
        store.begin_session(make.session(record, seed=8))
    assert caught.value.code == "db.different-session"
    with pytest.raises(InternalError):
        store.finish_session("absent")


def test_the_best_is_the_winner_of_the_latest_final(store: Store):
    record = make.begun(store)
    one, two, three = (
        store.record_trial(make.trial(record, k, median=m)) for k, m in enumerate((10.0, 9.0, 8.0))
    )
    assert store.best(make.query(record)) is None
    store.record_final(make.final(record, one, two))
    store.record_final(make.final(record, two, one, three))
    best = store.best(make.query(record))
    assert best is not None
    assert best.id == two
    assert best.trial == make.trial(record, 1, median=9.0)


def test_a_final_comes_back_as_it_was_recorded(store: Store):
    record = make.begun(store)
    one, two = (store.record_trial(make.trial(record, k)) for k in range(2))
    final = make.final(record, one, two)
    number = store.record_final(final)
    expected = StoredFinal(number, final)
    assert store.latest_final(record.key) == expected
    full = {
        "target": "x86",
        "device_key": make.DEVICE.key,
        "toolchain": make.TOOLCHAIN.digest,
        "flags": ("-O3", "-march=native"),
        "protocol": make.PROTOCOL,
        "verifier": VERIFIER_VERSION,
    }
    assert store.latest_final(record.key, **full) == expected
    for name in full:
        wrong = VERIFIER_VERSION + 1 if name == "verifier" else ("x",) if name == "flags" else "x"
        assert store.latest_final(record.key, **{**full, name: wrong}) is None, name


FLIPS = {
    "workload": make.workload(513),
    "target": "cuda",
    "device": replace(make.DEVICE, features=("avx2",)),
    "toolchain": replace(make.TOOLCHAIN, programs={"driver": "a" * 64, "cc1": "d" * 64}),
    "flags": ("-march=native", "-O3"),
    "protocol": "warm/1",
    "verifier": VERIFIER_VERSION + 1,
    "features": ("avx512f",),
    "macros": ("-DX=1",),
    "headers": "other",
}


def test_every_field_of_a_query_counts(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record))
    store.record_final(make.final(record, number))
    exact = make.query(record, features=("avx2",), macros=(), headers="headers")
    assert set(FLIPS) == set(vars(exact))
    assert store.nearest(exact) == []
    paths = {"workload": "workload.dims.m", "toolchain": "toolchain.programs.cc1"}
    paths["device"] = "device.features"
    for look in (store.best, store.fastest_verified):
        found = look(exact)
        assert found is not None
        assert found.id == number
        for name, value in FLIPS.items():
            assert look(replace(exact, **{name: value})) is None, name
    for name, value in FLIPS.items():
        (near,) = store.nearest(replace(exact, **{name: value}))
        assert (near.trial, near.median_us) == (number, 10.0)
        assert list(near.differs) == [paths.get(name, name)]


def test_a_lookup_without_a_compiler_takes_any_toolchain(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record))
    store.record_final(make.final(record, number))
    found = store.best(make.query(record, toolchain=None))
    assert found is not None
    assert found.id == number


@pytest.mark.parametrize("kind", ["unverified", "wrong", "no-verification"])
def test_only_a_verified_trial_wins_or_is_fastest(store: Store, kind: str):
    record = make.begun(store)
    good = store.record_trial(make.trial(record, 0, median=10.0))
    trial = make.trial(record, 1, median=1.0, passed=False)
    if kind == "no-verification":
        trial = replace(trial, verification=None)
    if kind == "wrong":
        trial = make.failed(record, 1, Status.WRONG)
    bad = store.record_trial(trial)
    with pytest.raises(InternalError) as caught:
        store.record_final(make.final(record, bad, good))
    assert caught.value.code == "db.inconsistent-final"
    assert store.best(make.query(record)) is None
    fastest = store.fastest_verified(make.query(record))
    assert fastest is not None
    assert fastest.id == good


def test_a_censored_trial_is_not_the_fastest(store: Store):
    record = make.begun(store)
    full = store.record_trial(make.trial(record, 0, median=10.0))
    store.record_trial(make.trial(record, 1, median=9.0, censored=True))
    found = store.fastest_verified(make.query(record))
    assert found is not None
    assert found.id == full


def test_a_final_names_ok_trials_of_its_workload(store: Store):
    one, two = make.begun(store, 64, "s1"), make.begun(store, 65, "s2")
    here = store.record_trial(make.trial(one, 0))
    there = store.record_trial(make.trial(two, 0, name="s2"))
    for final in (
        make.final(one, here, there),
        make.final(one, here, 999),
        replace(make.final(one, here), winner=there),
    ):
        with pytest.raises(InternalError) as caught:
            store.record_final(final)
        assert caught.value.code == "db.inconsistent-final"
    assert store.latest_final(one.key) is None


def test_nearest_orders_by_how_much_differs(store: Store):
    record = make.begun(store, 512, "s1")
    flags = make.build_key(0, flags=("-O2",))
    both = make.build_key(1, flags=("-O2",))
    device = replace(make.DEVICE, driver="6.2")
    one = store.record_trial(make.trial(record, 0, key=flags))
    two = store.record_trial(make.trial(record, 1, key=both, device=device))
    other = make.begun(store, 513, "s2")
    three = store.record_trial(make.trial(other, 0, name="s2", median=5.0))
    for work, number, name in ((record, one, "s1"), (record, two, "s1"), (other, three, "s2")):
        store.record_final(make.final(work, number, name=name))
    found = store.nearest(make.query(record))
    assert [near.trial for near in found] == [three, one, two]
    assert found[0].differs == {"workload.dims.m": (512, 513)}
    assert found[1].differs == {"flags": (["-O3", "-march=native"], ["-O2"])}
    assert set(found[2].differs) == {"flags", "device.driver"}
    assert len(store.nearest(make.query(record), limit=1)) == 1


def test_nearest_without_a_final_shows_verified_trials(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record))
    (near,) = store.nearest(make.query(record, protocol="warm/1"))
    assert (near.trial, dict(near.differs)) == (number, {"protocol": ("warm/1", make.PROTOCOL)})


def test_a_program_that_alone_differs_is_named(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record))
    store.record_final(make.final(record, number))
    (near,) = store.nearest(make.query(replace(record, program="another", alignment=128)))
    assert set(near.differs) == {"workload.program", "workload.alignment"}


def test_the_same_sizes_of_another_layout_are_nearer_than_other_sizes(store: Store):
    record = make.begun(store, 512, "s1")
    same = store.record_trial(make.trial(record, 0, median=9.0))
    store.record_final(make.final(record, same, name="s1"))
    other = make.begun(store, 513, "s2")
    faster = store.record_trial(make.trial(other, 0, name="s2", median=5.0))
    store.record_final(make.final(other, faster, name="s2"))
    found = store.nearest(make.query(replace(record, program="another")))
    assert [near.trial for near in found] == [same, faster]


def test_labels_of_a_workload_are_no_difference(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record))
    store.record_final(make.final(record, number))
    renamed = replace(record, op="ffn_up", dims={"rows": 512})
    found = store.best(make.query(renamed))
    assert found is not None
    assert found.id == number
    (near,) = store.nearest(make.query(renamed, protocol="warm/1"))
    assert set(near.differs) == {"protocol"}


def test_a_build_is_found_by_its_key(store: Store):
    record = make.begun(store)
    trial = make.trial(record)
    store.record_trial(trial)
    assert trial.build is not None
    assert store.find_build(trial.build.key.key) == trial.build
    assert store.find_build("absent") is None
    again = replace(trial.build, artifact="d" * 64)
    store.record_trial(replace(trial, index=1, build=again))
    assert store.find_build(trial.build.key.key) == again


def test_a_measured_candidate_is_a_duplicate(store: Store):
    record = make.begun(store)
    trial = make.trial(record)
    number = store.record_trial(trial)
    key = trial.measurement_key
    assert key is not None
    found = store.duplicate(record.key, trial.schedule.key, key)
    assert found == StoredTrial(number, trial)
    assert store.duplicate(record.key, trial.schedule.key, key.key) == found
    warm = replace(key, protocol="warm/1")
    assert store.duplicate(record.key, trial.schedule.key, warm) is None
    assert store.duplicate("other", trial.schedule.key, key) is None
    assert store.duplicate(record.key, "other", key) is None
    crash = replace(
        trial, index=1, status=Status.CRASH, measurement=None, verification=None, build=None
    )
    store.record_trial(crash)
    assert store.duplicate(record.key, trial.schedule.key, key) == found
    other = store.duplicate(record.key, trial.schedule.key, key, statuses=[Status.CRASH])
    assert other is not None
    assert other.trial == crash


def test_a_source_is_remembered_per_generator(store: Store):
    record = SourceRecord("schedule", "generator", "source", "launch")
    store.record_source(record)
    store.record_source(record)
    assert store.generator_source("schedule", "generator") == record
    assert store.generator_source("schedule", "newer") is None
    with pytest.raises(InternalError) as caught:
        store.record_source(replace(record, source="other"))
    assert caught.value.code == "db.different-source"


def test_a_launch_comes_back_by_its_digest(store: Store):
    entry = EntrySpec("main", (ArgumentSpec("a", "f32", (4, 4), (4, 1), "in", 64),), 2, 128)
    spec = LaunchSpec(entry, attributes={"grid": [1, 2]})
    assert store.record_launch(spec) == spec.digest
    assert store.launch(spec.digest) == spec
    assert store.launch("absent") is None


def test_a_proof_is_remembered_per_prover(store: Store):
    bad = ProofRecord("shape", "1", False, (Refusal("prove.race", "line 3", "two writers"),))
    store.record_proof(bad)
    assert store.proof("shape", "1") == bad
    assert store.proof("shape", "2") is None
    store.record_proof(replace(bad, ok=True, refusals=()))
    assert store.proof("shape", "1") == ProofRecord("shape", "1", True)


def test_stats_count(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record, 0))
    store.record_trial(make.failed(record, 1, Status.COMPILE_ERROR))
    store.record_final(make.final(record, number))
    stats = store.stats()
    assert stats.trials_by_status == {"compile_error": 1, "ok": 1}
    assert (stats.trials, stats.workloads, stats.sessions, stats.finals) == (2, 1, 1, 1)
    assert (stats.devices, stats.toolchains, stats.builds) == (1, 1, 1)
    assert stats.to_json()["revision"] == schema.HEAD


def test_a_sound_store_verifies(store: Store):
    record = make.begun(store)
    number = store.record_trial(make.trial(record, 0))
    for index, status in enumerate(Status):
        if status is not Status.OK:
            store.record_trial(make.failed(record, index + 1, status))
    store.record_final(make.final(record, number))
    assert store.verify() == []


def test_threads_lose_no_trial(store: Store):
    record = make.begun(store)
    errors: list[BaseException] = []

    def write(start: int):
        try:
            for index in range(start, 40, 4):
                store.record_trial(make.trial(record, index))
                assert store.fastest_verified(make.query(record)) is not None
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(one.trial.index for one in store.trials()) == list(range(40))
