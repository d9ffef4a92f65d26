"""Files of workers/ parse, and the commands in them are commands of this program."""

from __future__ import annotations

import json
import plistlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from tfsearch.cli.worker import worker
from tfsearch.plugin import kinds

FOLDER = Path(__file__).parents[1] / "workers"
KINDS = kinds.names()
INSTRUCTIONS = ("FROM", "RUN", "COPY", "ENV", "VOLUME", "USER", "ENTRYPOINT")


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a ``tfsearch worker`` command; a usage error for wrong ones."""
    at = words.index("worker")
    assert Path(words[at - 1]).name == "tfsearch", words
    given = [word.replace("${HEAD}", "192.0.2.1:6379") for word in words[at + 1 :]]
    return worker.make_context("worker", given, obj=None).params


def unit(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Sections of a systemd unit."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = []
            continue
        name, equals, value = line.partition("=")
        assert equals, line
        assert name.isalnum(), line
        found[section].append((name, value))
    return found


def test_there_is_a_folder_for_each_kind() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == list(KINDS)
    for name in KINDS:
        assert f"({name}/README.md)" in (FOLDER / "README.md").read_text()
        assert "--kind " + name in (FOLDER / name / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.service")), ids=lambda p: p.parent.name)
def test_units_start_a_worker_of_their_kind(path: Path) -> None:
    sections = unit(path)
    assert list(sections) == ["Unit", "Service", "Install"]
    service = dict(sections["Service"])
    options = parsed(shlex.split(service["ExecStart"]))
    assert options["kind"] == path.parent.name
    assert options["join"]
    assert service["User"] == "tfsearch"
    assert "HEAD" in service["ExecStart"]
    assert service["EnvironmentFile"] == "/etc/tfsearch-worker"


def test_the_launchd_job_starts_a_worker() -> None:
    with (FOLDER / "m2" / "worker.plist").open("rb") as file:
        job = plistlib.load(file)
    assert parsed(job["ProgramArguments"])["kind"] == "m2"


@pytest.mark.parametrize("name", KINDS)
def test_cluster_files_are_what_ray_takes_and_start_the_head(name: str) -> None:
    yaml = pytest.importorskip("yaml", reason="ray is not installed: yaml comes with it")
    data = yaml.safe_load((FOLDER / name / "cluster.yaml").read_text())
    assert data["cluster_name"] == f"tfsearch-{name}"
    assert data["provider"]["type"] == "local"
    (start,) = data["head_start_ray_commands"]
    options = parsed(shlex.split(start))
    assert options["head"]
    assert options["host"] == data["provider"]["head_ip"]
    assert data["max_workers"] == len(data["provider"]["worker_ips"])
    schema = Path(pytest.importorskip("ray", reason="ray is not installed").__file__).parent
    jsonschema = pytest.importorskip("jsonschema", reason="ray is not installed")
    jsonschema.validate(data, json.loads((schema / "autoscaler/ray-schema.json").read_text()))


@pytest.mark.parametrize("name", [p.parent.name for p in sorted(FOLDER.glob("*/Containerfile"))])
def test_container_files_start_a_worker_of_their_kind(name: str) -> None:
    path = FOLDER / name / "Containerfile"
    rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pairs = [(line.partition(" ")[0], line.partition(" ")[2]) for line in rows]
    assert {one for one, _ in pairs} <= set(INSTRUCTIONS)
    assert pairs[0][0] == "FROM"
    assert re.fullmatch(r"[a-z0-9]+:[a-z0-9.-]+", pairs[0][1]), "an ordinary base image, no host"
    held = dict(pairs)
    assert held["USER"] == "tfsearch"
    entry = json.loads(held["ENTRYPOINT"])
    assert parsed([*entry, "--join", "192.0.2.1:6379"])["kind"] == path.parent.name


def test_a_wrong_option_would_be_told() -> None:
    with pytest.raises(click.UsageError):
        parsed(["tfsearch", "worker", "--sort", "x86"])
