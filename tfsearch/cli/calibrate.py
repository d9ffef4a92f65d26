"""``tfsearch calibrate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output
from tfsearch.core.errors import RequestError


@click.command()
@shared.target_options
@shared.db_option
@shared.json_option
@click.pass_obj
def calibrate(
    output: Output, target: str | None, device: str | None, db: str | None, **_: Any
) -> int:
    """Measure a device and write its hardware document, which later predictions rest on.

    Takes the device for some seconds. What was measured before is replaced.
    """
    from tfsearch.atoms.documents import Fact, Origin, render, write
    from tfsearch.measure.worker import Measurer
    from tfsearch.plugin import registry
    from tfsearch.plugin.target import Measurable

    chosen = registry.get(target) if target else registry.best_present()
    if not isinstance(chosen, Measurable):
        raise RequestError(
            "calibrate.unsupported", f"devices of target {chosen.name} are not measured"
        )
    found = registry.device(chosen, device)
    places = shared.settings_of(db)
    with Measurer(chosen.runner, found.selector, lock_folder=places.home / "locks") as measurer:
        measured = measurer.calibrate()
    facts = {
        name: Fact(
            item["value"], item["unit"], Origin.MEASURED, "tfsearch calibrate", item["conditions"]
        )
        for name, item in measured.items()
    }
    path = chosen.document_path(found)
    write(path, render(facts, {"device": found.record.name, "driver": found.record.driver}))
    document = {
        "target": chosen.name,
        "device": {"name": found.record.name, "selector": found.selector},
        "document": str(path),
        "facts": measured,
    }
    output.emit(document, _lines(document))
    return 0


def _lines(document: Mapping[str, Any]) -> list[str]:
    lines = [f"device     {document['device']['name']} ({document['device']['selector']})"]
    for name, item in document["facts"].items():
        lines.append(f"{name:22s} {item['value']:.4g} {item['unit']}  {item['conditions']}")
    return [*lines, f"document   {document['document']}"]
