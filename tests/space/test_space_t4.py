"""T4 results read as recorded spaces, and lists as spaces."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfsearch.core.errors import RequestError
from tfsearch.space import Kind, Point
from tfsearch.space.file import is_results, read_results
from tfsearch.space.listed import ABSENT, ListedSpace


def row(value: Any = 2.0, invalidity: str = "correct", unit: str = "ms", **params: Any) -> Any:
    return {
        "configuration": params,
        "times": {"compilation": 100.0, "runtimes": [2.0, 3.0], "framework": 0},
        "invalidity": invalidity,
        "measurements": [{"name": "time", "value": value, "unit": unit}],
    }


ROWS = [
    row(2.0, tile=64, share=0.5, name="b", vector=True),
    row(1.0, tile=32, share=0.25, name="a", vector=False),
    row("RuntimeFailedConfig", "runtime", tile=64, share=0.25, name="b", vector=False),
    row(3000.0, unit="us", tile=32, share=0.5, name="b", vector=True),
]


def written(folder: Path, rows: Any, name: str = "A100_T4.json") -> Path:
    path = folder / name
    text = json.dumps({"schema_version": "1.0.0", "results": rows}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return path


@pytest.mark.parametrize("name", ["A100_T4.json", "A100_T4.json.gz"])
def test_results_are_a_space_with_times_and_costs(tmp_path: Path, name: str) -> None:
    found = read_results(written(tmp_path, ROWS, name))
    assert found.name == f"{tmp_path.name}/A100"
    kinds = {p.name: (p.kind, p.seen) for p in found.space.recipes[0].parameters}
    assert kinds == {
        "tile": (Kind.ORDINAL, (32, 64)),
        "share": (Kind.DECIMAL, (0.25, 0.5)),
        "name": (Kind.CATEGORICAL, ("b", "a")),
        "vector": (Kind.BOOLEAN, (False, True)),
    }
    np.testing.assert_array_equal(found.times_ms, [2.0, 1.0, np.nan, 3.0])
    np.testing.assert_allclose(found.seconds, 0.105)
    assert found.invalidity == ("correct", "correct", "runtime", "correct")
    counts = found.space.count()
    assert (counts.points, counts.legal, counts.rejected) == (16, 4, {ABSENT: 12})


def test_of_a_configuration_that_stands_twice_the_last_result_counts(tmp_path: Path) -> None:
    again = [*ROWS, row(9.0, tile=64, share=0.5, name="b", vector=True)]
    found = read_results(written(tmp_path, again))
    assert len(found.times_ms) == 4
    assert found.times_ms[-1] == 9.0


def broken(change: Any) -> Any:
    rows = copy.deepcopy(ROWS)
    change(rows)
    return rows


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "has no results"),
        (broken(lambda r: r[1]["configuration"].pop("tile")), "result 1: has other parameters"),
        (broken(lambda r: r[2].pop("invalidity")), "result 2: lacks 'invalidity'"),
        (broken(lambda r: r[0]["measurements"][0].update(value=-1)), "result 0: its time is -1"),
        (broken(lambda r: r[0]["measurements"][0].update(value="no")), "result 0"),
        (broken(lambda r: r[3]["measurements"][0].update(unit="h")), "result 3: lacks 'h'"),
        (broken(lambda r: r[0]["configuration"].update(tile=[1])), r"a parameter is \[1\]"),
        (broken(lambda r: r.insert(0, 7)), "result 0"),
    ],
)
def test_wrong_results_are_refused_with_their_number(tmp_path: Path, rows: Any, text: str) -> None:
    path = written(tmp_path, rows)
    with pytest.raises(RequestError, match=text) as caught:
        read_results(path)
    assert caught.value.code == "kernel.file-value"
    assert caught.value.message.startswith(str(path))


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not a file"):
        read_results(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(RequestError, match="not JSON"):
        read_results(tmp_path / "x.json")
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(RequestError, match="cannot read"):
        read_results(tmp_path / "x.json.gz")
    (tmp_path / "y.json").write_text("[1]")
    with pytest.raises(RequestError, match="must be a JSON object"):
        read_results(tmp_path / "y.json")
    assert [is_results(n) for n in ("a_T4.json", "a.json.gz", "a.json", "t4.toml")] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.fixture
def listed() -> ListedSpace:
    return ListedSpace.of(["x", "y"], [[1, 1, 2, 4], [10, 20, 10, 20]])


def test_a_list_behaves_as_a_space(listed: ListedSpace) -> None:
    points = [p.point(i) for p in listed.chunks(3) for i in range(len(p))]
    assert [listed.row(point) for point in points] == [0, 1, 2, 3]
    assert len({p.point(i) for p in listed.legal_set() for i in range(len(p))}) == 4
    drawn = listed.sample(3, np.random.default_rng(0))
    assert len(drawn.row) == 3
    absent = Point("recorded", {"x": 2, "y": 20})
    assert [refusal.code for refusal in listed.check(absent)] == [ABSENT]
    assert listed.check(points[0]) == ()
    assert set(listed.neighbours(points[0])) == {points[1], points[2]}
    assert listed.count_within(0.0).exact


def test_a_part_of_a_list_is_a_list(listed: ListedSpace) -> None:
    part = listed.fix({"y": 20})
    assert part.count().legal == 2
    with pytest.raises(RequestError, match="no point of the list"):
        listed.fix({"x": 2, "y": 20})
    with pytest.raises(RequestError, match="listed twice"):
        ListedSpace.of(["x"], [[1, 1]])


def test_a_list_crosses_processes(listed: ListedSpace) -> None:
    assert pickle.loads(pickle.dumps(listed)).count() == listed.count()
