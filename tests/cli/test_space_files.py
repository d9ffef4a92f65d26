"""``tfsearch space --space FILE``: counts and lists of T1 and TOML definitions."""

import json

import pytest

from tests.cli.conftest import Run

T1 = {
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "block_size_x", "Type": "int", "Values": "[16, 32, 512]"},
            {"Name": "block_size_y", "Type": "int", "Values": "[1, 2, 4]"},
            {"Name": "scale", "Type": "float", "Values": "[0.5, 1.0]"},
        ],
        "Conditions": [{"Expression": "block_size_x * block_size_y >= 32", "Parameters": []}],
    }
}
TOML = """
constraints = [{ expr = "tile * 4 <= limit", reason = "{tile} is more than {limit} holds" }]
[constants]
limit = 8
[parameters]
tile = [1, 2, 4]
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t1.json").write_text(json.dumps(T1))
    (tmp_path / "own.toml").write_text(TOML)
    return tmp_path


def test_a_t1_definition_is_counted_with_its_rejections(run: Run, files) -> None:
    answer = run("space", "--space", str(files / "t1.json"), "--json")
    assert answer.code == 0
    found = answer.json
    assert (found["points"], found["legal"], found["pruned"]) == (18, 14, 0)
    assert found["rejected"] == {"kernel.block-threads": 2, "kernel.condition-1": 2}
    assert found["reasons"]["kernel.condition-1"] == "block_size_x * block_size_y >= 32"
    assert found["parameters"]["scale"] == {"kind": "decimal", "values": [0.5, 1.0]}
    assert found["file"].endswith("t1.json")
    assert "configurations" not in found
    people = run("space", "--space", str(files / "t1.json"))
    assert people.code == 0
    assert people.out.splitlines()[1] == "legal      14"
    assert "kernel.condition-1    block_size_x * block_size_y >= 32" in people.out


def test_legal_configurations_are_listed(run: Run, files) -> None:
    found = run("space", "--space", str(files / "t1.json"), "--list", "100", "--json").json
    assert len(found["configurations"]) == 14
    first = found["configurations"][0]
    assert set(first["params"]) == {"block_size_x", "block_size_y", "scale"}
    assert first["params"]["scale"] == "0.5"
    lines = run("space", "--space", str(files / "t1.json"), "--list", "2").out.splitlines()
    assert len([line for line in lines if line.startswith("block_size_x=")]) == 2
    one = run("space", "--space", str(files / "t1.json"), "--fix", "scale=1", "--json").json
    assert one["legal"] == 7
    own = run("space", "gemm", "m=12", "n=10", "k=8", "dtype=f32", "--target", "null",
              "--list", "1", "--json").json  # fmt: skip
    assert own["configurations"][0]["recipe"] == own["recipes"][0]["name"]


def test_constants_and_parameters_can_be_set(run: Run, files) -> None:
    place = str(files / "own.toml")
    assert run("space", "--space", place, "--json").json["legal"] == 2
    assert run("space", "kernel.c", "limit=4", "--space", place, "--json").json["legal"] == 1
    assert run("space", "limit=16", "--space", place, "--json").json["constants"] == {"limit": 16}
    fixed = run("space", "--space", place, "--fix", "tile=4", "--json")
    assert fixed.code == 3
    assert fixed.json["rejected"] == {"kernel.condition-1": 1}
    assert fixed.json["error"]["code"] == "space.no-legal"
    assert "4 is more than" not in fixed.out
    assert fixed.json["reasons"] == {"kernel.condition-1": "{tile} is more than {limit} holds"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--space", "absent.json"), "kernel.file"),
        (("--space", "t1.json", "n=4"), "kernel.constant"),
        (("--space", "own.toml", "limit=x"), "kernel.file-value"),
        (("--space", "own.toml", "a.c", "b.c"), "request.kernel"),
        (("--space", "own.toml", "--fix", "tile=3"), "space.value-outside-domain"),
        (("--space", "own.toml", "--fix", "side=3"), "space.unknown-parameter"),
        ((), "usage"),
    ],
)
def test_wrong_requests_are_one_line_and_exit_code_2(run: Run, files, words, code) -> None:
    placed = [str(files / w) if w.endswith((".json", ".toml")) else w for w in words]
    answer = run("space", *placed)
    assert answer.code == 2
    assert answer.error.startswith(f"error[{code}]")
    if words and words[1].endswith("own.toml") and code == "kernel.file-value":
        assert "own.toml: constants.limit" in answer.error


def test_a_damaged_definition_names_its_place(run: Run, files) -> None:
    place = files / "own.toml"
    place.write_text(TOML.replace("tile * 4", "tile.real * 4"))
    answer = run("space", "--space", str(place), "--json")
    assert answer.code == 2
    assert "own.toml: constraints[1]: expression" in answer.json["error"]["message"]
