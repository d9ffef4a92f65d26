"""Records move between databases whole, once, and only as data."""

from __future__ import annotations

import gzip
import io
import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.db import make
from tests.db.conftest import postgres_database
from tests.db.contents import contents
from tfsearch.core import keys
from tfsearch.core.errors import NotRecordedError, RequestError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Refusal, Status
from tfsearch.db import (
    ProofRecord,
    Selection,
    SessionStatus,
    SourceRecord,
    Store,
    check_files,
    export_records,
    import_file,
    merge,
    open_store,
)

LAUNCH = LaunchSpec(EntrySpec("kernel", (), units=2, workspace_bytes=4096))
HEAD = '{"record":"header","format":"tfsearch-records","version":1}\n'
KINDS = ("sqlite", "postgres")
Write = Callable[[Store], Path]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Makes empty stores of a kind."""
    made: list[Any] = []
    stores: list[Store] = []

    def make_one(kind: str) -> Store:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/{len(stores)}.db"
        elif kind == "memory":
            url = "sqlite://"
        else:
            made.append(postgres_database())
            url = next(made[-1])
        stores.append(open_store(url))
        return stores[-1]

    yield make_one
    for store in stores:
        store.close()
    for one in made:
        next(one, None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Exports all of a store to a new file."""
    numbers = iter(range(100))

    def call(store: Store, **options: Any) -> Path:
        path = tmp_path / f"{next(numbers)}.jsonl"
        with path.open("w+b") as file:
            export_records(store, file, **options)
        return path

    return call


def filled(store: Store) -> Store:
    """A store with a row in every table, and the odd values that records can have."""
    first, second = make.begun(store), make.begun(store, 64, "s2", constant_inputs=("b",))
    one, two = (store.record_trial(make.trial(first, k)) for k in range(2))
    for index, status in enumerate((Status.WRONG, Status.COMPILE_ERROR, Status.TIMEOUT), 2):
        store.record_trial(make.failed(first, index, status))
    odd = make.trial(second, 0, name="s2", median=1 / 3, censored=True)
    assert odd.measurement is not None
    conditions = {"probe": math.nan, "list": [1, math.inf, {"x": -0.0}], "text": "µs\n"}
    odd = replace(odd, measurement=replace(odd.measurement, conditions=conditions))
    three = store.record_trial(odd)
    built = make.trial(second, 1, name="s2")
    store.record_trial(
        replace(built, status=Status.CRASH, measurement=None, verification=None, message="\u2028")
    )
    store.record_trial(
        replace(built, index=2, status=Status.CRASH, measurement=None, measurement_key=None)
    )
    store.record_final(make.final(first, two, one))
    store.record_final(make.final(second, three, name="s2", conditions={"drift": math.nan}))
    store.finish_session("s1", finished_at="2030-01-01T00:00:00+00:00")
    store.record_launch(LAUNCH)
    store.record_source(SourceRecord("schedule", "generator", "source", LAUNCH.digest))
    store.record_proof(ProofRecord("shape", "prover", False, (Refusal("a.b", "x", "y"),)))
    return store


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    """The file with other lines, and an end that fits them: what a forger would write."""
    found = lines(path)[:-1]
    change(found)
    text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in found)
    kinds = [one["record"] for one in found[1:]]
    count = len([kind for kind in kinds if kind not in ("toolchain", "device")])
    end = {"record": "end", "records": count, "sha256": keys.digest_bytes(text.encode())}
    path.write_text(text + json.dumps(end) + "\n")
    return path


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_leaves_every_table_equal(
    fresh: Callable[[str], Store], write: Write, kind: str, to: str
):
    source, target = filled(fresh(kind)), fresh(to)
    before = contents(source)
    assert all(before.values())
    path = write(source)
    check_files([path])
    counts = import_file(target, path, own=True)
    assert contents(target) == before
    assert sum(counts.known.values()) == 0
    assert counts.added["trials"] == 8
    again = import_file(target, path, own=True)
    assert contents(target) == before
    assert sum(again.added.values()) == 0
    assert write(target).read_bytes() == path.read_bytes()
    assert target.verify() == []


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_the_same_without_a_file(fresh: Callable[[str], Store], kind: str, to: str):
    source, target = filled(fresh(kind)), fresh(to)
    for _ in range(2):
        _, left_out = merge(target, source, own=True)
        assert left_out == ()
        assert contents(target) == contents(source)


def test_what_only_this_program_may_say_is_not_taken_from_others(
    fresh: Callable[[str], Store], write: Write
):
    target = fresh("sqlite")
    import_file(target, write(filled(fresh("sqlite"))))
    assert target.proof("shape", "prover") is None
    assert target.generator_source("schedule", "generator") is None
    assert len(target.trials()) == 8


def test_compressed_files_are_equal_for_equal_records(fresh: Callable[[str], Store], write: Write):
    source, target = filled(fresh("sqlite")), fresh("sqlite")
    packed = write(source, packed=True)
    assert gzip.decompress(packed.read_bytes()) == write(source).read_bytes()
    assert packed.read_bytes() == write(source, packed=True).read_bytes()
    import_file(target, packed, own=True)
    assert contents(target) == contents(source)


def test_a_workload_or_a_session_moves_with_what_it_refers_to(
    fresh: Callable[[str], Store], write: Write
):
    source = filled(fresh("sqlite"))
    first, second = make.workload(), make.workload(64, constant_inputs=("b",))
    last = source.trials(workload=first.key)[-1].trial
    later = make.session(first, "s3")
    source.begin_session(later)
    fourth = source.record_trial(make.trial(first, 0, name="s3", tile=9))
    source.record_final(make.final(first, fourth, 1, name="s3"))

    target = fresh("sqlite")
    import_file(target, write(source, selection=Selection(second.key)))
    assert [one.key for one in target.workloads()] == [second.key]
    assert [one.id for one in target.sessions()] == ["s2"]
    assert len(target.trials()) == 3
    target = fresh("sqlite")
    import_file(target, write(source, selection=Selection(session="s3")))
    assert {one.trial.session for one in target.trials()} == {"s1", "s3"}
    assert len(target.trials()) == 2  # its own, and the one that its final names
    final = target.latest_final(first.key)
    assert final is not None
    assert len(final.final.entries) == 2
    assert last not in [one.trial for one in target.trials()]
    for selection in (Selection("f" * 64), Selection(session="no")):
        with pytest.raises(NotRecordedError):
            write(source, selection=selection)


def test_overlapping_parts_make_the_whole(fresh: Callable[[str], Store], write: Write):
    source, target = filled(fresh("sqlite")), fresh("sqlite")
    parts = [write(source, selection=Selection(one.key)) for one in source.workloads()]
    for path in (*parts, write(source), *parts):
        import_file(target, path, own=True)
    assert contents(target) == contents(source)


@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_final_is_served_whichever_way_databases_are_merged(
    fresh: Callable[[str], Store], kind: str
):
    stores = [fresh(kind), fresh(kind)]
    for number, store in enumerate(stores):
        record = make.begun(store, name=f"s{number}")
        for at, day in enumerate((1, 2)):
            trial = make.trial(record, at, name=f"s{number}", tile=10 * number + at)
            winner = store.record_trial(trial)
            when = f"20{30 + number}-01-0{day}"
            store.record_final(make.final(record, winner, name=f"s{number}", finished_at=when))
    query = make.query(make.workload())
    ours = [store.best(query) for store in stores]
    assert ours[1] is not None
    for target, source in (stores, reversed(stores), stores):
        merge(target, source)
    for store in stores:
        best = store.best(query)
        assert best is not None
        assert best.trial == ours[1].trial
        assert store.stats().finals == 4
        assert store.verify() == []


def test_a_session_that_went_on_elsewhere_goes_on_here_and_never_back(
    fresh: Callable[[str], Store], write: Write
):
    source, target = fresh("sqlite"), fresh("sqlite")
    record = make.begun(source)
    source.record_trial(make.trial(record, 0))
    early = write(source)
    import_file(target, early)
    source.record_trial(make.trial(record, 1))
    source.finish_session("s1", finished_at="2030-02-02")
    import_file(target, write(source))
    import_file(target, early)
    session = target.session("s1")
    assert session is not None
    assert session.status is SessionStatus.FINISHED
    assert session == source.session("s1")
    assert contents(target) == contents(source)


def test_a_session_that_went_on_in_both_is_a_conflict_and_nothing_is_changed(
    fresh: Callable[[str], Store], write: Write
):
    stores = [fresh("sqlite"), fresh("sqlite")]
    for number, store in enumerate(stores):
        record = make.begun(store)
        store.record_trial(make.trial(record, number + 5, tile=number))
        store.record_trial(make.trial(record, 0, tile=number, median=10.0 + number))
    before = contents(stores[0])
    for act in (
        lambda: import_file(stores[0], write(stores[1])),
        lambda: merge(stores[0], stores[1]),
    ):
        with pytest.raises(RequestError, match=r"trial s1/0 .*both databases") as caught:
            act()
        assert caught.value.code == "db.import-conflict"
        assert contents(stores[0]) == before
    other = fresh("sqlite")
    other.put_workload(make.workload())
    other.begin_session(make.session(make.workload(), seed=8))
    with pytest.raises(RequestError, match="another identity"):
        merge(other, stores[0])


def test_altered_records_are_left_out_and_told(fresh: Callable[[str], Store], write: Write):
    source = filled(fresh("sqlite"))
    path = source.database.url.database
    source.close()
    with sqlite3.connect(str(path)) as connection:
        connection.execute("UPDATE trials SET median_us = 1 WHERE id = 1")
        connection.execute("UPDATE launches SET spec = replace(spec, '4096', '64')")
    with io.BytesIO() as stream:
        done = export_records(source, stream)
    assert done.left_out == ("trial 1", "final 1", f"launch {LAUNCH.digest}")
    target = fresh("sqlite")
    counts, left_out = merge(target, source)
    assert left_out == done.left_out
    assert counts.added["trials"] == 7
    assert target.verify() == []
    with sqlite3.connect(str(path)) as connection:
        connection.execute("UPDATE workloads SET program = 'other'")
    with pytest.raises(RequestError) as caught:
        merge(fresh("sqlite"), source)
    assert caught.value.code == "db.altered-row"


def _first(kind: str, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(found: list[dict[str, Any]]) -> None:
        next(one for one in found if one["record"] == kind).update(values)

    return change


def _drop(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(found: list[dict[str, Any]]) -> None:
        found[:] = [one for one in found if one["record"] != kind]

    return change


FORGED = {
    "a time": (_first("trial", median_us=1.0), "unknown field 'median_us'"),
    "a status": (_first("trial", status="fine"), "'fine' is not a valid Status"),
    "a message": (_first("trial", message="x"), "was altered"),
    "a digest": (_first("trial", content="0" * 64), "was altered"),
    "no message": (lambda found: found[-6].pop("finished_at", None), "lacks"),
    "a toolchain": (_first("toolchain", programs={}), "toolchain was altered"),
    "a device": (_first("device", driver="x"), "device was altered"),
    "a workload": (_first("workload", program="x"), "workload was altered"),
    "a launch": (_first("launch", digest="0" * 64), "launch was altered"),
    "a launch's form": (_first("launch", spec={}), "malformed launch spec"),
    "no toolchain": (_drop("toolchain"), "is not described before"),
    "no device": (_drop("device"), "is not described before"),
    "no workload": (_drop("workload"), "was not put into the store"),
    "no session": (_drop("session"), "was not begun"),
    "no trial": (_drop("trial"), "which is not there"),
    "a kind": (_first("proof", record="pickle"), "unknown record 'pickle'"),
    "a field": (_first("proof", extra=1), "unknown field 'extra'"),
    "a type": (_first("proof", ok=1), "it must be true or false"),
    "a place": (_first("final", winner=["s1"]), "a session and an index"),
    "a winner": (_first("final", winner=["s1", 2]), "one of its entries"),
    "a large number": (_first("session", fields={"workload": "x"}), "lacks 'target'"),
    "an infinite ratio": (_first("final", entries=[{"trial": ["s1", 0], "median_us": 10**999}]),
                          "it must be a number"),
    "half a character": (_first("source", source="\ud800"), "half a surrogate pair"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_file_is_refused_as_a_whole(
    fresh: Callable[[str], Store], write: Write, what: str
):
    change, text = FORGED[what]
    path = rewritten(write(filled(fresh("sqlite"))), change)
    target = fresh("sqlite")
    with pytest.raises(RequestError, match=text) as caught:
        import_file(target, path, own=True)
    assert str(path) in caught.value.message or caught.value.code == "db.import-reference"
    assert "\n" not in caught.value.message
    assert not any(contents(target)[name] for name in ("workloads", "sessions", "trials"))


def test_text_that_a_server_cannot_hold_is_refused_in_one_line(
    fresh: Callable[[str], Store], write: Write
):
    path = rewritten(write(filled(fresh("sqlite"))), _first("session", owner="a\0b"))
    target = fresh("postgres")
    with pytest.raises(RequestError, match="NUL") as caught:
        import_file(target, path)
    assert caught.value.code == "db.import-refused"
    assert target.stats().workloads == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "db.import-format"),
        ("hello\n", "db.import-format"),
        ('{"record":"header","format":"other","version":1}\n', "db.import-format"),
        ("[" * 100_000 + "\n", "db.import-format"),
        ('{"record":"header","format":"tfsearch-records","version":2}\n', "db.import-version"),
        ('{"record":"header","format":"tfsearch-records"}\n', "db.import-malformed"),
        (HEAD, "db.import-malformed"),
        (
            '{"record":"header","format":"tfsearch-records","version":1}\n[]\n',
            "db.import-malformed",
        ),
        ("\x1f\ufffd", "db.import-format"),
    ],
)
def test_what_is_no_file_of_records_is_refused(tmp_path: Path, text: str, code: str):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        check_files([path])
    assert caught.value.code == code


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    (tmp_path / "not.gz").write_bytes(b"\x1f\x8b rest")
    for path in (tmp_path, tmp_path / "none", tmp_path / "not.gz", Path("/dev/zero")):
        with pytest.raises(RequestError) as caught:
            check_files([path])
        assert caught.value.code in ("db.import-file", "db.import-malformed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with io.BytesIO() as stream:
        export_records(filled(open_store("sqlite://")), stream)
        return stream.getvalue()


def _refused(data: bytes, folder: Path) -> None:
    path = folder / "changed"
    path.write_bytes(data)
    target = open_store("sqlite://")
    with pytest.raises(RequestError, match=r"changed") as caught:
        import_file(target, path, own=True)
    assert caught.value.code.startswith("db.import-")
    assert target.stats().workloads == target.stats().proofs == 0


@settings(max_examples=60)
@given(data=st.data())
def test_no_byte_can_be_changed_removed_or_cut_off(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = tmp_path_factory.getbasetemp()
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    _refused(whole[:at] + bytes([other]) + whole[at + 1 :], folder)
    _refused(whole[:at], folder)
    _refused(whole[:at] + whole[at + 1 :], folder)
    packed = gzip.compress(whole, 1)
    _refused(packed[: 1 + at * (len(packed) - 2) // len(whole)], folder)


@settings(max_examples=30)
@given(data=st.data())
def test_no_line_can_be_left_out_doubled_or_moved(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = tmp_path_factory.getbasetemp()
    held = whole.splitlines(keepends=True)
    at, to = (data.draw(st.integers(0, len(held) - 1)) for _ in range(2))
    _refused(b"".join([*held[:at], *held[at + 1 :]]), folder)
    _refused(b"".join([*held[:at], held[at], *held[at:]]), folder)
    if at != to and held[at] != held[to]:
        held[at], held[to] = held[to], held[at]
        _refused(b"".join(held), folder)


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
FLOATS = st.floats(allow_nan=True)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TIMES = st.floats(1e-6, 1e9)


@st.composite
def stores(draw: st.DrawFn, prefix: str = "s") -> Store:
    """An in-memory store with a few sessions of odd content."""
    store = open_store("sqlite://")
    for number in range(draw(st.integers(1, 3))):
        name = f"{prefix}{number}"
        record = make.begun(store, draw(st.sampled_from((8, 64))), name)
        winners: list[int] = []
        for index in range(draw(st.integers(0, 4))):
            if draw(st.booleans()):
                status = draw(st.sampled_from([s for s in Status if s is not Status.OK]))
                failed = make.failed(record, index, status, name=name)
                store.record_trial(replace(failed, message=draw(TEXTS), predicted_us=draw(TIMES)))
                continue
            trial = make.trial(
                record, index, name=name, tile=draw(st.integers(0, 3)), median=draw(TIMES)
            )
            assert trial.measurement is not None
            conditions = draw(st.dictionaries(TEXTS, JSONS, max_size=3))
            trial = replace(trial, measurement=replace(trial.measurement, conditions=conditions))
            winners.append(store.record_trial(trial))
        if winners and draw(st.booleans()):
            when = f"2030-01-0{draw(st.integers(1, 9))}"
            store.record_final(make.final(record, *winners, name=name, finished_at=when))
    return store


def copied(source: Store, *parts: Selection, target: Store | None = None) -> Store:
    target = target or open_store("sqlite://")
    for part in parts or (Selection(),):
        merge(target, source, part, own=True)
    return target


@settings(max_examples=40)
@given(source=stores())
def test_any_database_survives_the_way_through_a_file(
    source: Store, tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    with path.open("w+b") as file:
        export_records(source, file)
    assert b"NaN" not in path.read_bytes().replace(b'{"$number":"NaN"}', b"")
    target = open_store("sqlite://")
    import_file(target, path)
    assert contents(target) == contents(source)
    assert target.verify() == []


@settings(max_examples=30)
@given(one=stores("a"), two=stores("b"))
def test_merging_twice_or_in_parts_changes_nothing_and_either_order_gives_the_same(
    one: Store, two: Store
):
    parts = [Selection(record.key) for record in one.workloads()]
    assert contents(copied(one, *parts, Selection(), *parts)) == contents(one)
    forth = copied(two, target=copied(one))
    back = copied(one, target=copied(two))
    assert contents(forth) == contents(back)


def test_the_page_lists_every_kind_with_its_fields(fresh: Callable[[str], Store], write: Write):
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    table = page.partition("<!-- kinds -->\n")[2].splitlines()[2:]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table if row[:1] == "|"]
    listed = {kind.strip("`"): fields.split(", ") for kind, fields in rows}
    written = {line.pop("record"): list(line) for line in lines(write(filled(fresh("sqlite"))))}
    del written["header"], written["end"]
    assert listed == written
