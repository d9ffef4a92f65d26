"""``tfsearch tune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output, error_json, microseconds, note, table

if TYPE_CHECKING:
    from tfsearch.tune import TuneReport


@click.command(epilog=shared.WORKLOAD_HELP)
@shared.optional_workload
@shared.kernel_options
@shared.target_options
@click.option("--trials", type=int, metavar="N", help="Candidates to try [default: 32].")
@click.option("--seconds", type=float, metavar="S", help="Time to spend.")
@click.option(
    "--policy",
    metavar="P",
    help="ranked, auto, portfolio, surrogate, evolutionary, local, random, exhaustive, "
    "optuna:SAMPLER or agent:CMD; name:key=value [default: ranked; portfolio with --space].",
)
@click.option(
    "--workers",
    metavar="W",
    help="Compilations at a time [default: cores]; or ray: a Ray cluster of this machine; or "
    "ray:HOST:PORT: the fleet there.",
)
@shared.build_options
@shared.fix_option
@click.option(
    "--prove", default="shape", metavar="HOW", help="Interpret each shape once, or full: each."
)
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the search.")
@click.option("--finalists", type=int, default=4, metavar="N", help="Candidates in the final.")
@click.option("--fresh", is_flag=True, help="Do not continue an unfinished session.")
@click.option("--no-baseline", is_flag=True, help="Do not time the target's baseline.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@shared.db_option
@shared.json_option
@click.pass_obj
def tune(output: Output, op: str | None, pairs: tuple[str, ...], **options: Any) -> int:
    """Search for the fastest correct kernel of a workload, prove, measure and record it.

    OP is gemm, softmax, rms_norm, layer_norm, or file.py:function; its dimensions and types
    follow as KEY=VALUE, for example: tfsearch tune gemm m=512 n=512 k=512 dtype=f32

    With --space FILE it is your own kernel: OP is its source (or the file names it), KEY=VALUE
    sets constants of the file: tfsearch tune kernel.c --space kernel.toml
    """
    from tfsearch.cli import progress
    from tfsearch.tune import TuneRequest, open_for_tuning
    from tfsearch.tune import tune as run_session

    workload, flags = shared.asked(op, pairs, options)
    workers, fleet = workers_of(options["workers"])
    request = TuneRequest(
        workload,
        target=options["target"],
        device=options["device"],
        trials=options["trials"],
        seconds=options["seconds"],
        policy=options["policy"],
        workers=workers,
        fleet=fleet,
        flags=flags,
        macros=tuple(options["macros"]),
        toolchain=options["toolchain"],
        fix=dict(shared.pairs_of(options["fixes"], "parameter")),
        prove=options["prove"],
        seed=options["seed"],
        protocol=options["protocol"],
        finalists=options["finalists"],
        resume=not options["fresh"],
        baseline=not options["no_baseline"],
    )
    places = shared.settings_of(options["db"])
    store, unsaved = open_for_tuning(places.database_url)
    try:
        with progress.observer(options["quiet"]) as observer:
            report = run_session(
                request, store=store, settings=places, observer=observer, unsaved=unsaved
            )
    finally:
        if store is not None:
            store.close()
    document, errors = report.to_json(), _errors(report)
    if errors:
        document["error"] = error_json(*errors[0], report.exit_code)
    output.emit(document, _lines(report))
    for code, message in errors:
        note(f"error[{code}]: {message}")
    return report.exit_code


def workers_of(text: str | None) -> tuple[int | None, str | None]:
    """(compilations at a time, fleet) of ``--workers``; usage errors for other texts."""
    if text is None:
        return None, None
    if text == "ray":
        return None, ""
    if text.startswith("ray:"):
        if text == "ray:":
            raise click.BadParameter("'ray:' names no HOST:PORT", param_hint="'--workers'")
        return None, text.removeprefix("ray:")
    try:
        return int(text), None
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a valid integer, ray, or ray:HOST:PORT", param_hint="'--workers'"
        ) from None


def _errors(report: TuneReport) -> list[tuple[str, str]]:
    """(code, message) of what kept the session from its end; the one of the exit code first."""
    found: list[tuple[str, str]] = []
    if report.interrupted:
        kept = "recorded" if report.unsaved is None else "above"
        found.append(("interrupted", f"stopped by Ctrl-C; what was measured is {kept}"))
    if report.lost is not None:
        found.append((report.lost.code, f"the session ended early: {report.lost.message}"))
    if report.unsaved is not None:
        text = f"measured but not saved: {report.unsaved.message}"
        found.append((report.unsaved.code, text))
    return found


def _lines(report: TuneReport) -> list[str]:
    space, trials = report.space, report.trials
    lines = [
        f"workload   {report.workload.label}",
        f"target     {report.target} on {report.device.name}, {report.toolchain.name} "
        f"{report.toolchain.version}",
        f"space      {space.legal} legal of {space.points} schedules, {space.pruned} pruned",
        f"trials     {trials.total}: {trials.ok} ok{_failed(report)}"
        + (f", {trials.reused} answered from the record" if trials.reused else ""),
    ]
    if report.proof:
        lines.append(f"proof      {report.proof}")
    best = report.best
    if best is None:
        return [*lines, "best       none yet"]
    lines.append(f"best       {time_text(best.median_us, best.ci_us)}{rate_text(best)}")
    lines.append(f"schedule   {best.schedule.recipe}")
    lines += table(((n, str(v)) for n, v in sorted(best.schedule.params.items())), "           ")
    if report.baseline is not None:
        base = report.baseline
        lines.append(
            f"baseline   {base.name} {microseconds(base.median_us)} beside "
            f"{microseconds(base.winner_us)} in one run: speedup {base.speedup:.3f} "
            f"[{base.speedup_ci[0]:.3f}, {base.speedup_ci[1]:.3f}]"
        )
    elif report.baseline_note:
        lines.append(f"baseline   none: {report.baseline_note}")
    if report.noise is not None and report.noise.message:
        lines.append(f"machine    {report.noise.message}")
    lines.append(f"elapsed    {report.elapsed_s:.1f} s")
    return lines


def _failed(report: TuneReport) -> str:
    parts = [f"{count} {status.value}" for status, count in report.trials.failed.items()]
    return f", {', '.join(parts)}" if parts else ""


def time_text(median_us: float | None, ci_us: tuple[float, float] | None) -> str:
    """A median with its 95 % interval."""
    if median_us is None or ci_us is None:
        return microseconds(median_us)
    return f"{microseconds(median_us)} [{microseconds(ci_us[0])}, {microseconds(ci_us[1])}]"


def rate_text(best: Any) -> str:
    """TFLOP/s and the share of the roofline, where known."""
    parts: list[str] = []
    if best.tflops is not None:
        parts.append(f"{best.tflops * 1e3:.4g} GFLOP/s")
    if best.roofline_fraction is not None:
        parts.append(f"{best.roofline_fraction:.0%} of the bound")
    return f" ({', '.join(parts)})" if parts else ""
