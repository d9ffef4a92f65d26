"""What a worker does for a driver elsewhere, as text and bytes; nothing here knows the transport.

Requests and answers are JSON texts. Artifacts travel as bytes beside them and are kept by content
hash, so a job's path on the driver's machine means nothing here.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tfsearch.core import errors, keys, settings
from tfsearch.core.errors import InternalError, TfsearchError
from tfsearch.measure.compare import Baseline
from tfsearch.measure.job import MeasureJob
from tfsearch.measure.worker import Measurer


@cache
def version() -> str:
    """What driver and worker must agree on: the release, and the code that measures."""
    here = Path(__file__).parent
    files = {path.name: keys.digest_bytes(path.read_bytes()) for path in sorted(here.glob("*.py"))}
    return f"{metadata.version('tfsearch')}+{keys.digest('measuring-code', files)[:12]}"


def request_text(kind: str, jobs: Sequence[MeasureJob], baselines: Sequence[Baseline] = ()) -> str:
    """A request for :class:`DeviceServer`: ``measure``, ``final`` or ``benchmark``."""
    return json.dumps(
        {
            "kind": kind,
            "jobs": [job.to_json() for job in jobs],
            "baselines": [{"name": one.name, "factory": one.factory} for one in baselines],
        }
    )


def answer(work: Callable[[], Any]) -> str:
    """What ``work`` returns, or the coded error that it raises, as an answer's text."""
    try:
        return json.dumps({"result": work()})
    except TfsearchError as error:
        said = {"class": type(error).__name__, "code": error.code, "message": error.message}
        return json.dumps({"error": said})


def result_of(text: str) -> Any:
    """The result in an answer; raises the coded error that it carries, as the same class."""
    data = json.loads(text)
    if "error" in data:
        said = data["error"]
        raise getattr(errors, said["class"], InternalError)(said["code"], said["message"])
    return data["result"]


class DeviceServer:
    """Measures on one device of this machine, in a killable process; see ``Measurer``.

    ``config`` has the ``runner`` and the ``selector``.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        places = settings.load()
        self._folder = places.cache / "fleet"
        self._measurer = Measurer(
            config["runner"], config["selector"], lock_folder=places.home / "locks"
        )

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        """Answer a request; ``artifacts`` are the contents of its jobs' builds, in order."""
        return answer(lambda: self._serve(json.loads(text), artifacts))

    def close(self) -> None:
        """End the measuring process."""
        self._measurer.close()

    def _serve(self, data: Mapping[str, Any], artifacts: Sequence[bytes]) -> Any:
        paths: list[Path] = []
        try:
            jobs: list[MeasureJob] = []
            for fields, content in zip(data["jobs"], artifacts, strict=True):
                paths.append(self._place(content))
                jobs.append(MeasureJob.from_json({**fields, "artifact": str(paths[-1])}))
            if data["kind"] == "measure":
                return self._measurer.submit(jobs[0]).to_json()
            if data["kind"] == "final":
                return self._measurer.final(jobs).to_json()
            baselines = [Baseline(one["name"], one["factory"]) for one in data["baselines"]]
            return self._measurer.benchmark(jobs[0], baselines).to_json()
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _place(self, content: bytes) -> Path:
        """The content in a file of this process's own; its hash is checked before it is loaded."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(
                prefix=f"{keys.digest_bytes(content)[:16]}-", dir=self._folder
            )
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            raise errors.UnavailableError(
                "fleet.no-room", f"{self._folder} of a worker takes no artifact: {error.strerror}"
            ) from error
        return Path(name)
