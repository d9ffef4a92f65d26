"""The valid sets of T1 definitions: how long it takes to make them, beside Kernel Tuner.

Every ``*.json`` of the folder is a T1 definition. Both sides make the set of all valid
configurations in memory, in turns and in this one run, each time anew, from lists of values and the
texts of the conditions: parsed, compiled, solved, kept (as columns here, as tuples there). What
reading the file takes on top of that here is printed beside it. The figure of a side is its fastest
run. The sets are compared exactly. Kernel Tuner (``pip install kernel-tuner==1.5.0``) runs in a
process of its own, with the Python that ``--peer`` names; without it only our times are printed and
the comparison's marks stay open. A definition that it fails on is not compared.

Marks: equal sets; at least 10 times faster where Kernel Tuner takes over 100 ms and 5 times below;
a space of more than 20 million points in under 0.3 s.

    python benchmarks/space_construction.py FOLDER --peer /path/to/python --assert
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from _program import begin, end, parser, say

from tfsearch.space import Constraint, Parameter, Points, RecipeSpace, Space
from tfsearch.space.file import SpaceFile, read_space_file

LONG_MS = 100.0
LONG_RATIO, SHORT_RATIO = 10.0, 5.0
SHORT_S, MOST_REPEATS = 1.0, 50
"""Short runs are repeated for so long, at most so often."""
HUGE_POINTS, HUGE_S = 20_000_000, 0.3

PEER = r"""
import contextlib, hashlib, importlib.metadata, json, sys, time
from kernel_tuner.searchspace import Searchspace

print(json.dumps({"peer": "kernel-tuner", "version": importlib.metadata.version("kernel-tuner")}))
sys.stdout.flush()
for line in sys.stdin:
    job = json.loads(line)
    parameters = {name: list(values) for name, values in job["parameters"]}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            start = time.perf_counter()
            found = Searchspace(parameters, list(job["conditions"]), 1024)
            spent = time.perf_counter() - start
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        continue
    digest = None
    if job["digest"]:
        rows = sorted(repr(tuple(row)) for row in found.list)
        digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    print(json.dumps({"seconds": spent, "legal": found.size, "digest": digest}))
    sys.stdout.flush()
"""


class Peer:
    """Kernel Tuner in a process of its own, asked line by line."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        first = self.process.stdout.readline() if self.process.stdout else ""
        self.about: dict[str, Any] | None = json.loads(first) if first else None

    def run(self, path: Path, *, digest: bool) -> dict[str, Any]:
        """Make the set of a definition once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({**_job(path), "digest": digest}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def _job(path: Path) -> dict[str, Any]:
    """Parameters and conditions of a definition, as Kernel Tuner takes them."""
    space = json.loads(path.read_text(encoding="utf-8"))["ConfigurationSpace"]
    return {
        "parameters": [[p.name, list(p.seen)] for p in read_space_file(path).space.parameters],
        "conditions": [item["Expression"] for item in space.get("Conditions", [])],
    }


def ours(found: SpaceFile) -> tuple[float, list[Points], int]:
    """Seconds, the set, and the size of the product; everything made anew."""
    parameters = [(p.name, p.values, p.kind) for p in found.space.parameters]
    conditions = [(c.code, c.expression.text, c.reason) for c in found.space.constraints]
    start = time.perf_counter()
    recipe = RecipeSpace(
        "kernel",
        1,
        tuple(Parameter(*item) for item in parameters),
        (),
        tuple(Constraint(*item) for item in conditions),
    )
    space = Space((recipe,))
    batches = space.legal_set()
    return time.perf_counter() - start, batches, space.points


def reading(path: Path) -> tuple[float, SpaceFile]:
    """Seconds to read a file into a space, and what was read."""
    start = time.perf_counter()
    found = read_space_file(path)
    return time.perf_counter() - start, found


def rows_of(batches: Iterable[Points]) -> Iterator[str]:
    """Every configuration as text, in the file's order of parameters."""
    for batch in batches:
        columns = []
        for parameter in batch.recipe.parameters:
            values = parameter.seen
            columns.append([values[code] for code in batch.codes[parameter.name].tolist()])
        yield from (repr(row) for row in zip(*columns, strict=True))


def compared(path: Path, peer: Peer | None, repeats: int) -> dict[str, Any]:
    """One definition: both sides in turns."""
    read: list[float] = []
    mine: list[float] = []
    theirs: list[float] = []
    answer: dict[str, Any] = {}
    batches: list[Points] = []
    points = 0
    deadline = time.monotonic() + SHORT_S if repeats > 1 else 0.0
    while len(mine) < repeats or (time.monotonic() < deadline and len(mine) < MOST_REPEATS):
        spent, found = reading(path)
        read.append(spent)
        spent, batches, points = ours(found)
        mine.append(spent)
        if peer is not None:
            answer = peer.run(path, digest=False)
            if "error" in answer:
                break
            theirs.append(answer["seconds"])
    row: dict[str, Any] = {
        "space": path.stem,
        "points": points,
        "legal": sum(len(batch) for batch in batches),
        "read_ms": min(read) * 1e3,
        "ms": min(mine) * 1e3,
    }
    if "error" in answer:
        return row | {"peer_error": answer["error"]}
    if peer is not None:
        digest = hashlib.sha256("\n".join(sorted(rows_of(batches))).encode()).hexdigest()
        row |= {
            "peer_legal": answer["legal"],
            "peer_ms": min(theirs) * 1e3,
            "ratio": min(theirs) / min(mine),
            "equal": peer.run(path, digest=True)["digest"] == digest,
        }
    return row


def main() -> int:
    """Compare every definition of the folder."""
    made = parser(__doc__)
    made.add_argument("folder", type=Path, help="holds T1 definitions, *.json")
    made.add_argument("--peer", default=sys.executable, help="a Python that has kernel-tuner")
    made.add_argument("--repeats", type=int, default=7)
    args: argparse.Namespace = made.parse_args()
    if args.quick:
        args.repeats = 1
    begin("space_construction", args)
    found = Peer(args.peer)
    say(found.about or {"peer": None, "why": f"{args.peer} has no kernel-tuner"})
    peer = found if found.about else None
    rows: list[dict[str, Any]] = []
    for path in sorted(args.folder.glob("*.json")):
        rows.append(compared(path, peer, args.repeats))
        say(rows[-1])
    found.close()
    huge = [row["ms"] < HUGE_S * 1e3 for row in rows if row["points"] > HUGE_POINTS]
    wanted = [
        row["ratio"] >= (LONG_RATIO if row["peer_ms"] > LONG_MS else SHORT_RATIO)
        for row in rows
        if "ratio" in row
    ]
    marks = {
        "equal_sets": all(row["equal"] for row in rows if "equal" in row) if wanted else None,
        "ratios": all(wanted) if wanted else None,
        "huge": all(huge) if huge else None,
    }
    return end(args, marks)


if __name__ == "__main__":
    raise SystemExit(main())
