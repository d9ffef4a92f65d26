"""Servers of simulated devices: they answer, sleep, or take their worker down with them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfsearch.core import errors
from tfsearch.core.records import Status
from tfsearch.measure.job import MeasureOutcome
from tfsearch.measure.remote import answer


class Simulated:
    """A job's artifact says what happens; a line in ``log`` says that it did."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._name = config["selector"]

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        del text
        said = json.loads(artifacts[0])
        with Path(said["log"]).open("a") as log:
            log.write(f"{said['number']} {self._name} {os.getpid()}\n")
        return answer(lambda: self._act(said))

    def _act(self, said: Mapping[str, object]) -> object:
        time.sleep(float(str(said.get("sleep", 0.0))))
        refused = said.get("busy_once")
        if refused is not None and not Path(str(refused)).exists():
            Path(str(refused)).touch()
            raise errors.UnavailableError("device.busy", "somebody else has it")
        once = said.get("dies_once")
        first = once is not None and not Path(str(once)).exists()
        if first:
            Path(str(once)).touch()
        if said.get("dies") or first:
            os.kill(os.getpid(), signal.SIGKILL)
        if said.get("busy"):
            raise errors.UnavailableError("device.busy", "somebody else has it")
        return MeasureOutcome(Status.LOAD_ERROR, "simulated", "load", self._name).to_json()


class Broken:
    """A device that is not there any more."""

    def __init__(self, config: Mapping[str, str]) -> None:
        del config

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        del text, artifacts

        def gone() -> object:
            raise errors.UnavailableError("device.unavailable", "unplugged")

        return answer(gone)
