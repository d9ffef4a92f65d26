"""Single schedules as text: lowered, verified, emitted, predicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfsearch.cli.output import microseconds, table
from tfsearch.core.errors import NoCandidateError, NotSavedError

if TYPE_CHECKING:
    from tfsearch.cli.bound import Bound
    from tfsearch.core.records import Refusal
    from tfsearch.ir.tir.nodes import Module
    from tfsearch.space import Point


def verify_point(bound: Bound, point: Point) -> tuple[Refusal, ...]:
    """What the verifier has against the lowered point."""
    return verify_module(bound, bound.problem.lower(point))


def verify_module(bound: Bound, module: Module) -> tuple[Refusal, ...]:
    """What the verifier has against a lowered program."""
    from tfsearch.prove.verify import verify

    target = bound.target
    return verify(module, target.atoms(bound.device), target.limits(bound.device))


def prove_shape(bound: Bound, point: Point) -> tuple[Refusal, ...]:
    """What the interpreter finds at reduced sizes."""
    from tfsearch.tune.proof import prove_reduced

    workload, module = bound.problem.reduced(point)
    target = bound.target
    return tuple(
        prove_reduced(workload, module, target.atoms(bound.device), target.limits(bound.device))
    )


def explain(bound: Bound, point: Point) -> dict[str, Any]:
    """TIR, analysis, and the prediction; ``phases`` is empty where a target does not give it."""
    from tfsearch.cli.schedule import facts_json
    from tfsearch.ir.tir.text import print_module
    from tfsearch.search.scan import points_of

    module = bound.problem.lower(point)
    (_, batch), *_ = points_of(bound.problem.space, [point])
    predicted = bound.predict(batch)
    # Not every model knows phases: a target may offer them beside the protocol.
    phases = getattr(bound.problem, "phases", None)
    return {
        "tir": print_module(module),
        "analysis": analysis(module),
        "facts": facts_json(bound, point),
        "predicted": {
            "total_us": float(predicted.estimate_us[0]),
            "bound_us": float(predicted.bound_us[0]),
            "calibrated": predicted.calibrated,
            "document": predicted.document,
            "phases": {} if phases is None else dict(phases(batch)),
        },
    }


def analysis(module: Module) -> dict[str, Any]:
    """Per kernel: units, statements, atoms and how often each is written, bytes per space."""
    from tfsearch.ir.tir.nodes import Alloc, Call
    from tfsearch.ir.tir.walk import walk

    kernels: list[dict[str, Any]] = []
    for kernel in module.kernels:
        atoms: Counter[str] = Counter()
        spaces: Counter[str] = Counter()
        statements = 0
        for _, statement in walk(kernel.body):
            statements += 1
            if isinstance(statement, Call):
                atoms[statement.atom] += 1
            elif isinstance(statement, Alloc):
                spaces[statement.buffer.space.value] += statement.buffer.bytes
        kernels.append(
            {
                "name": kernel.name,
                "units": kernel.units,
                "statements": statements,
                "atoms": dict(sorted(atoms.items())),
                "allocated_bytes": dict(sorted(spaces.items())),
                "argument_bytes": sum(
                    math.prod(p.buffer.shape) * p.buffer.dtype.bytes for p in kernel.params
                ),
            }
        )
    return {"kernels": kernels}


def lines(document: Mapping[str, Any]) -> list[str]:
    """An explanation for people."""
    predicted = document["predicted"]
    out = [document["tir"].rstrip(), ""]
    for kernel in document["analysis"]["kernels"]:
        out.append(f"kernel {kernel['name']}: {kernel['units']} units")
        out += table(((f"{n}×", name) for name, n in kernel["atoms"].items()), "  ")
        for space, size in kernel["allocated_bytes"].items():
            out.append(f"  {size} B in {space}")
    out += ["facts", *table(((n, str(v)) for n, v in document["facts"].items()), "  ")]
    label = "" if predicted["calibrated"] else " (uncalibrated)"
    out.append(f"predicted {microseconds(predicted['total_us'])}{label}")
    out += table(((n, microseconds(t)) for n, t in predicted["phases"].items()), "  ")
    if predicted["bound_us"]:
        out.append(f"never below {microseconds(predicted['bound_us'])}")
    return out


def finalize(bound: Bound, point: Point, folder: str | None) -> dict[str, Any]:
    """The finished kernel; ``NoCandidateError`` when the verifier refuses it."""
    from tfsearch.ir.tir.text import print_module

    trace: dict[str, str] = {}
    module = bound.problem.lower(point, trace)
    refused = verify_module(bound, module)
    if refused:
        raise NoCandidateError(refused[0].code, f"{refused[0].where}: {refused[0].message}")
    source = bound.problem.emit(module, point)
    text = print_module(module)
    files: list[str] = []
    if folder is not None:
        files = _write_trace(Path(folder), {**trace, "tir": text, "source": source.text})
    launch = source.launch
    return {
        "tir": text,
        "source": source.text,
        "language": source.language,
        "flags": list(source.flags),
        "features": list(source.features),
        "launch": launch.to_json(),
        "resources": {
            "units": launch.main.units,
            "workspace_bytes": launch.main.workspace_bytes,
            "argument_bytes": sum(
                math.prod(a.shape) * bound_bytes(a.dtype) for a in launch.main.arguments
            ),
            "prepare_entries": len(launch.prepares),
            "source_bytes": len(source.text.encode()),
        },
        "trace": files,
    }


def bound_bytes(dtype: str) -> int:
    """Bytes of one element."""
    from tfsearch.ir.dtypes import DType

    return DType(dtype).bytes


def launch_rows(launch: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Entries and their arguments for people."""
    for entry in (*launch["prepares"], launch["main"]):
        yield entry["symbol"], f"{entry['units']} units", f"{entry['workspace_bytes']} B workspace"
        for argument in entry["arguments"]:
            shape = ",".join(map(str, argument["shape"]))
            kind = f"{argument['dtype']}[{shape}]"
            yield f"  {argument['name']}", kind, f"{argument['io']}, {argument['alignment']} B"


def _write_trace(folder: Path, stages: Mapping[str, str]) -> list[str]:
    """One numbered file a stage; ``NotSavedError`` when they cannot be written."""
    out: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (name, text) in enumerate(stages.items()):
            safe = "".join(c if c.isalnum() else "-" for c in name)
            path = folder / f"{number:02d}-{safe}.txt"
            path.write_text(text, encoding="utf-8")
            out.append(str(path))
    except OSError as error:
        raise NotSavedError(
            "trace.not-saved", f"the trace cannot be written to {folder}: {error.strerror}"
        ) from error
    return out
