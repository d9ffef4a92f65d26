"""What runs inside a fleet under faults: a device with known times, its server, and a driver.

A point's true time is the null target's, and one in ``HANG_ONE_IN`` points hangs; both follow from
the point alone, so that every record can be judged afterwards. Faults that happen inside a
process are ordered by files: whoever removes ``orders/KIND-…`` carries the order out and says so in
``done``.

    python benchmarks/_chaos_target.py '{"home": …}'      one driver; see :func:`drive`
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfsearch.measure.remote import DeviceServer
from tfsearch.plugin import remote
from tfsearch.plugin.target import CompileOutcome, Compiler, Device, Problem, Source
from tfsearch.target.null import NullTarget
from tfsearch.target.null.compiler import NullCompiler
from tfsearch.target.null.problem import NullProblem
from tfsearch.target.null.runner import NullLoaded, NullRunner

NAME = "chaos"
HANG_ONE_IN = 30
DEADLINE_S = 3.0
STARTS_S = 8.0
LATE_S = 2 * (DEADLINE_S + 2 * STARTS_S) + 3.0
"""Longer than a driver waits for an answer, with what :func:`drive` makes of its bounds."""
FOLDER = "CHAOS_FOLDER"
SELECTOR = "CHAOS_DEVICE"


def hangs(params: Mapping[str, Any]) -> bool:
    """Whether a point's kernel never returns."""
    text = json.dumps(dict(params), sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HANG_ONE_IN == 0


def ordered(kind: str) -> bool:
    """Take an order of this kind, if there is one, and note that it was carried out."""
    folder = Path(os.environ[FOLDER])
    for path in sorted((folder / "orders").glob(f"{kind}-*")):
        try:
            path.rename(folder / "done" / path.name)
        except FileNotFoundError:
            continue  # another process was faster
        return True
    return False


class ChaosTarget(NullTarget):
    """The null target under another name, with the device that the node was given."""

    name = NAME
    runner = "_chaos_target:make"

    def devices(self) -> Sequence[Device]:
        """One device, or none on a node that has none."""
        (device,) = super().devices()
        selector = os.environ.get(SELECTOR, "")
        return (replace(device, selector=selector),) if selector else ()

    def nominal(self) -> Device:
        """The same hardware on every node."""
        return super().devices()[0]

    def compilers(self) -> Sequence[Compiler]:
        """One whose process may end in the middle."""
        return (ChaosCompiler(self.name),)

    def compiler(self, name: str | None) -> Compiler:
        """The same one."""
        super().compiler(name)
        return ChaosCompiler(self.name)

    def problem(self, workload: Any, device: Device) -> Problem:
        """The null target's."""
        return NullProblem(workload, device)


class ChaosCompiler(NullCompiler):
    """Ends its process when ordered to."""

    def compile(
        self,
        source: Source,
        flags: Sequence[str],
        macros: Sequence[str],
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        """Compile, or die."""
        if ordered("compile"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compile(
            source, flags, macros, out, timeout_s=timeout_s, memory_bytes=memory_bytes
        )


class ChaosLoaded(NullLoaded):
    """Never returns from a call where the point says so."""

    def call(self, arguments: Any) -> None:
        """Evaluate, or hang."""
        if hangs(self.document["params"]):
            time.sleep(600)
        super().call(arguments)


class ChaosRunner(NullRunner):
    """See :class:`ChaosLoaded`."""

    def load(self, artifact: Path, launch: Any) -> NullLoaded:
        """Read a document."""
        return ChaosLoaded(self.read(artifact), launch)


def make(selector: str) -> ChaosRunner:
    """The runner of any of the devices."""
    del selector
    return ChaosRunner()


class Server(DeviceServer):
    """Notes when its device is in use, and answers late when ordered to."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self._device = config["selector"]
        self._folder = Path(os.environ[FOLDER])

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        """Serve, between two notes."""
        begun = time.monotonic()
        said = super().serve(text, artifacts)
        note = f"{self._device} {os.getpid()} {begun:.6f} {time.monotonic():.6f}\n"
        _append(self._folder / "use.log", note)
        if ordered("late"):
            time.sleep(LATE_S)
        return said


class Told:
    """An observer that writes down every trial that the session has told of."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def trial(self, event: Any) -> None:
        """Note the trial, on the disk before the session goes on."""
        if not event.reused and event.status.value != "cancelled":
            line = {"status": event.status.value, "params": dict(event.params)}
            _append(self._path, json.dumps(line, sort_keys=True) + "\n")

    def warning(self, code: str, message: str) -> None:
        """Show it."""
        print(f"warning[{code}] {message}", file=sys.stderr, flush=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None


def _append(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, text.encode())
    os.close(handle)


def drive(options: Mapping[str, Any]) -> int:
    """One driver, from beginning to end, with bounds that fit small jobs.

    ``options``: ``database``, ``home``, ``address``, ``dims``, ``trials``, ``told`` (a file).
    """
    from tfsearch.core.errors import TfsearchError
    from tfsearch.core.settings import Settings
    from tfsearch.db import open_store
    from tfsearch.ir.hir.builtins import build_workload
    from tfsearch.measure import fleet
    from tfsearch.measure.job import Limits
    from tfsearch.tune import TuneRequest, recorder, tune

    fleet.LOCK_WAIT_S = fleet.START_S = STARTS_S
    fleet.REFERENCE_S = 0.0
    recorder.END_WAIT_S = 30.0
    fleet.RayExecutor.__init__.__kwdefaults__["server"] = "_chaos_target:Server"
    workload = build_workload("gemm", {**options["dims"], "dtype": "f32"})
    request = TuneRequest(
        workload,
        target=NAME,
        trials=options["trials"],
        fleet=options["address"],
        baseline=False,
        finalists=2,
        seed=options["seed"],
        limits=Limits(deadline_s=DEADLINE_S, budget_s=0.05, most=30),
    )
    places = Settings(Path(options["home"]), options["database"])
    code = 1
    try:
        store = open_store(places.database_url)
        report = tune(request, store=store, settings=places, observer=Told(Path(options["told"])))
        code = report.exit_code
        for error in (report.lost, report.unsaved):
            if error is not None:
                print(f"error[{error.code}] {error.message}", file=sys.stderr)
    except TfsearchError as error:
        print(f"error[{error.code}] {error.message}", file=sys.stderr)
        code = error.exit_code
    return code


def resources(selector: str, compilers: int) -> dict[str, float]:
    """What a node offers."""
    target = ChaosTarget()
    devices = [replace(target.nominal(), selector=selector)] if selector else []
    return remote.offers(target, devices, compilers)


target = ChaosTarget()

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    CODE = drive(json.loads(sys.argv[1]))
    sys.stderr.flush()
    os._exit(CODE)  # Ray's own end may wait for a head that is gone
