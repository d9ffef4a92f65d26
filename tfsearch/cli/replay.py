"""``tfsearch replay``."""

from __future__ import annotations

import sys
from typing import Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output

CONTROL = "random"


@click.command()
@click.argument("results", metavar="FILE")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="Policy to run, repeatable [default: portfolio].",
)
@click.option("--seeds", type=click.IntRange(2, 100_000), default=32, help="Runs of each policy.")
@shared.json_option
@click.pass_obj
def replay(output: Output, results: str, policies: tuple[str, ...], seeds: int, **_: Any) -> int:
    """Run policies on a recorded space, and score them.

    FILE holds T4 results, perhaps compressed; `db export` writes such files. Time is simulated:
    every configuration takes what its record says. The score is 0 for random search and 1 for the
    optimum, over the time in which random search closes 1 % to 95 % of the gap between median and
    optimum. Random search runs under the same seeds as the control.
    """
    from tfsearch.search.replay import AFTER, RecordedProblem, Replayed, judged
    from tfsearch.space.file.t4 import read_results

    found = read_results(results)
    problem = RecordedProblem.of(found)
    recorded = problem.recorded
    document: dict[str, Any] = {
        "file": results,
        "space": {
            "points": found.space.points,
            "recorded": len(found.times_ms),
            "failed": sum(one != "correct" for one in found.invalidity),
            "optimum_us": 1e3 * recorded.optimum,
            "scored_evaluations": list(recorded.span),
        },
        "policies": [],
    }
    lines = [
        f"{problem.name}: {len(found.times_ms)} recorded, {document['space']['failed']} failed, "
        f"optimum {1e3 * recorded.optimum:.6g} us; scored over evaluations "
        f"{recorded.span[0]} to {recorded.span[1]}",
        f"{'policy':24s} score  95 % interval    best/optimum after "
        + "  ".join(f"{count:>6d}" for count in AFTER),
    ]
    for policy in dict.fromkeys([*(policies or ("portfolio",)), CONTROL]):
        runs: list[list[int]] = []
        for seed in range(seeds):
            runs.append(problem.run(policy, seed))
            if not output.as_json and sys.stderr.isatty():
                click.echo(f"\r{policy} {seed + 1}/{seeds}", nl=False, err=True)
        if not output.as_json and sys.stderr.isatty():
            click.echo("\r\033[K", nl=False, err=True)
        line: Replayed = judged(problem, policy, runs)
        document["policies"].append({**line.to_json(), "control": policy == CONTROL})
        after = "  ".join(f"{value:6.3f}" for value in line.after.values())
        lines.append(
            f"{policy:24s} {line.score.score:5.3f}  [{line.score.low:.3f}, {line.score.high:.3f}]"
            f"  {'':19s}{after}"
        )
    output.emit(document, lines)
    return 0
