"""A simulated device: every trial takes as long as the selector says, in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tfsearch.core.records import Status
from tfsearch.measure.job import MeasureOutcome
from tfsearch.measure.remote import answer


class Sleeper:
    """See the module; the selector is ``MILLISECONDS-NUMBER``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._seconds = float(config["selector"].partition("-")[0]) / 1000.0

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        """Sleep; load errors need no samples."""
        del text, artifacts
        time.sleep(self._seconds)
        return answer(lambda: MeasureOutcome(Status.LOAD_ERROR, seconds=self._seconds).to_json())
