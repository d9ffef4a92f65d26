"""A tuning process to be killed or interrupted: ``python -m tests.tune.driver '{…}'``.

Options: ``home``, ``target``, ``request`` (of TuneRequest), ``die`` = [place, count]: the
process kills itself with SIGKILL when it gets to a place for the count-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.tune.faulty import FaultyTarget
from tests.tune.helpers import Watcher, run
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.job import Limits
from tfsearch.plugin import registry
from tfsearch.tune import TrialEnded

GEMM = {"m": 5, "n": 6, "k": 7, "dtype": "f32"}
PLACES = ("prepare", "compile", "measure", "record", "recorded", "final", "record_final", "finish")


def _die_at(place: str, count: int) -> None:
    """Patch the place so that getting there ``count`` times ends the process."""
    from tfsearch.db.store import Store
    from tfsearch.measure.worker import Measurer
    from tfsearch.tune.building import Builder
    from tfsearch.tune.prepare import Preparer

    owners: dict[str, tuple[Any, str]] = {
        "prepare": (Preparer, "prepare"),
        "compile": (Builder, "start"),
        "measure": (Measurer, "submit"),
        "record": (Store, "record_trial"),
        "recorded": (Store, "record_trial"),
        "final": (Measurer, "final"),
        "record_final": (Store, "record_final"),
        "finish": (Store, "finish_session"),
    }
    owner, name = owners[place]
    real = getattr(owner, name)
    left = [count]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and place != "recorded":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def _say(event: TrialEnded) -> None:
    print(f"trial {event.index} {event.status.value}", flush=True)


def main() -> int:
    options = json.loads(sys.argv[1])
    registry.register("faulty", FaultyTarget)
    if "die" in options:
        _die_at(*options["die"])
    folder = Path(options["home"])
    home = Settings(folder, f"sqlite:///{folder / 'tfsearch.db'}")
    store = open_store(home.database_url)
    print("ready", flush=True)
    report = run(
        build_workload("gemm", GEMM),
        store,
        home,
        target=options["target"],
        observer=Watcher(_say),
        limits=Limits(budget_s=0.3),
        **options["request"],
    )
    print(json.dumps({"exit": report.exit_code, "report": report.to_json()}), flush=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
