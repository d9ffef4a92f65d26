"""The bench: argument sets whose contents change, batches, probes around groups of samples."""

from __future__ import annotations

import errno
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Status, Verification
from tfsearch.ir.dtypes import DType
from tfsearch.measure.buffers import span_elements
from tfsearch.measure.host import timed_rounds
from tfsearch.measure.inputs import Pass
from tfsearch.measure.job import Limits, MeasureJob, Protocol
from tfsearch.measure.machine import preemptions
from tfsearch.measure.numerics import (
    Case,
    Finding,
    check_outputs,
    inout_names,
    read_outputs,
    write_inputs,
    write_poison,
)
from tfsearch.measure.protocols import Arguments, Loaded, Placing, Runner, bind_timed
from tfsearch.measure.statistics import is_slow
from tfsearch.measure.verifier import KEPT, LATE, Verdict, Verifier, checked, comes_late

Floats = NDArray[np.float64]
Report = Callable[[str], None]

GROUP_NS = 4_000_000
GROUP_ROUNDS = 10
SETTLED = 0.05
WARM_SHARE = 0.1
WARM_LIMIT_S = 0.2
LONG_CALL_S = 0.25
LARGEST_BATCH = 1 << 20
_KEPT_WORKLOADS = 2
_CONTENT_STEP = 1_000_003


def no_report(phase: str) -> None:
    """Take note of nothing."""
    del phase


class Fault(Exception):
    """The candidate failed; carries what its outcome says."""

    def __init__(
        self,
        status: Status,
        code: str,
        message: str,
        *,
        where: str = "",
        verification: Verification | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.where = where
        self.verification = verification


@contextmanager
def phase(where: str, report: Report) -> Iterator[None]:
    """Name the phase, and turn what loaders and devices raise in it into a :class:`Fault`."""
    report(where)
    try:
        yield
    except Fault as fault:
        fault.where = fault.where or where
        raise
    except MemoryError as error:
        text = f"out of memory: {error}" if str(error) else "out of memory"
        raise Fault(Status.OUT_OF_MEMORY, "measure.memory", text, where=where) from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise Fault(Status.OUT_OF_MEMORY, "measure.memory", str(error), where=where) from error
        if where == "load":
            raise Fault(Status.LOAD_ERROR, "measure.load", str(error), where=where) from error
        raise Fault(Status.DEVICE_ERROR, "measure.device", str(error), where=where) from error


def import_factory(path: str) -> Callable[..., Any]:
    """The object that ``package.module:name`` names; ``RequestError`` when it is not there."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RequestError("measure.import", f"cannot import {path!r}: {error}") from error


class Context:
    """What a measuring process keeps between jobs: references, the fastest probes seen.

    References are computed where ``runner`` places them.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self._placement = runner.placement if isinstance(runner, Placing) else lambda _: None
        self._verifiers: OrderedDict[str, Verifier] = OrderedDict()
        self.fastest: dict[str, float] = {}

    def verifier(self, job: MeasureJob) -> Verifier:
        """The verifier of a job's workload, with the references it has computed so far."""
        fields = {
            "workload": job.workload.key,
            "sizes": dict(job.sizes),
            "oracle": job.oracle,
            "reference": job.reference,
        }
        key = keys.digest("verifier", fields)
        found = self._verifiers.pop(key, None)
        if found is None:
            if job.oracle:
                more = (job.reference,) if job.reference else ()
                oracle = import_factory(job.oracle)(job.workload, job.sizes, *more)
            else:
                from tfsearch.measure.oracle import HirOracle

                oracle = HirOracle(job.workload, job.sizes, self._placement)
            found = Verifier(oracle, memory_bytes=job.limits.reference_bytes)
        self._verifiers[key] = found
        while len(self._verifiers) > _KEPT_WORKLOADS:
            self._verifiers.popitem(last=False)
        return found


@dataclass
class Watch:
    """Probes of the machine's speed around groups of samples.

    The reference of a probe is the larger of what the job knows and the fastest seen by this
    process; a speed far below it is the unit's slow mode.
    """

    runner: Runner
    names: tuple[str, ...]
    known: Mapping[str, float]
    fastest: dict[str, float]
    taken: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    waits: int = 0

    def take(self) -> dict[str, float]:
        """Probe now."""
        if not self.names:
            return {}
        speeds = dict(self.runner.probe(self.names))
        for name, speed in speeds.items():
            self.taken.setdefault(name, []).append(speed)
            self.fastest[name] = max(speed, self.fastest.get(name, 0.0), self.known.get(name, 0.0))
        return speeds

    def settle(self, limit_s: float) -> dict[str, float]:
        """Probe until no unit is in its slow mode, at most ``limit_s``; the last speeds."""
        deadline = time.monotonic() + limit_s
        speeds = self.take()
        while is_slow(speeds, self.fastest) and time.monotonic() < deadline:
            self.waits += 1
            time.sleep(0.002)
            speeds = self.take()
        return speeds

    def conditions(self) -> dict[str, Any]:
        """Speeds seen, by probe: reference, median, least and largest, count."""
        return {
            name: {
                "reference": self.fastest[name],
                "median": float(np.median(speeds)),
                "min": min(speeds),
                "max": max(speeds),
                "count": len(speeds),
            }
            for name, speeds in self.taken.items()
        }


@dataclass
class Contestant:
    """A loaded and verified build on the bench."""

    name: str
    loaded: Loaded
    verifier: Verifier
    verdict: Verdict
    lower_bound_us: float = 0.0
    sets: list[Arguments] = field(default_factory=list[Arguments])
    batch: int = 1


@dataclass(frozen=True)
class Group:
    """Samples [rounds, contestants] in µs a call (NaN where one sat out), probes around them.

    ``disturbed``: the timing thread had to give up its processor meanwhile.
    """

    times_us: Floats
    before: Mapping[str, float]
    after: Mapping[str, float]
    disturbed: bool = False


class Bench:
    """Contestants of one workload, timed in interleaved groups.

    Before every group the inputs of every set are replaced by other contents and the outputs are
    poisoned, so that neither kept results nor stale memory can pass for work.
    """

    def __init__(
        self,
        runner: Runner,
        contestants: Sequence[Contestant],
        protocol: Protocol,
        limits: Limits,
        watch: Watch,
        *,
        seed: int,
        verification_seed: int,
    ) -> None:
        self.runner = runner
        self.contestants = list(contestants)
        self.protocol = protocol
        self.limits = limits
        self.watch = watch
        self.groups = 0
        self._seed = seed
        self._first_seed = verification_seed
        self.verifier = self.contestants[0].verifier
        self.set_count = self._count_sets()
        self._contents = self._count_contents()
        self._batch_ns = [protocol.sample_us * 1000.0] * len(self.contestants)

    def content(self, index: int) -> Case:
        """Contents ``index``: normal inputs, the constant ones the same in all contents.

        The last contents are those before with two elements of each input exchanged: who looks at
        part of the inputs only does not tell them apart.
        """
        number = index % self._contents
        exchanged = number == self._contents - 1
        number -= exchanged
        if number == 0:
            return self.verifier.case(Pass.NORMAL, self._first_seed, exchanged=exchanged)
        constant = self.verifier.oracle.constant_inputs
        seed = self._first_seed + number * _CONTENT_STEP
        kept = self._first_seed if constant else None
        return self.verifier.case(Pass.NORMAL, seed, kept, exchanged=exchanged)

    def bind(self) -> None:
        """Bind every argument set of every contestant, and make all contents and references."""
        for index in range(self._contents):
            self.content(index)
        for contestant in self.contestants:
            contestant.sets = [
                bind_timed(contestant.loaded, self.content(s).inputs) for s in range(self.set_count)
            ]

    def calibrate(self) -> None:
        """Choose batches that last long enough, and run until batch times have settled."""
        for index, contestant in enumerate(self.contestants):
            contestant.batch = self.set_count
            target = self.protocol.sample_us * 1000
            spent = self._run([index], 1)[0, 0]
            while spent < target and contestant.batch < LARGEST_BATCH:
                factor = min(16.0, max(2.0, 1.1 * target / max(1.0, float(spent))))
                contestant.batch = self._whole(contestant.batch * factor)
                spent = self._run([index], 1)[0, 0]
            self._warm_up(index, float(spent))
            per_call = max(0.01, self._batch_ns[index] / contestant.batch)
            contestant.batch = self._whole(target / per_call)

    def group(self, active: Sequence[int]) -> Group:
        """One group of interleaved samples of the active contestants."""
        self.groups += 1
        self.refresh(active)
        longest = sum(self._batch_ns[k] for k in active)
        rounds = int(min(GROUP_ROUNDS, max(1.0, GROUP_NS // max(1.0, longest))))
        if longest < GROUP_NS // 2:
            # The first calls after the refresh find other cache contents; not a sample.
            self._run(active, 1)
        before = self.watch.settle(self.limits.budget_s * 0.05)
        lost = preemptions()
        spent = self._run(active, rounds)
        disturbed = preemptions() > lost
        after = self.watch.take()
        times = np.full((rounds, len(self.contestants)), np.nan)
        for column, k in enumerate(active):
            times[:, k] = spent[:, column] / (1000.0 * self.contestants[k].batch)
        return Group(times, before, after, disturbed)

    def refresh(self, active: Sequence[int]) -> None:
        """Other contents into every set, poison into every output."""
        constant = self.verifier.oracle.constant_inputs
        for k in active:
            contestant = self.contestants[k]
            for s, arguments in enumerate(contestant.sets):
                case = self.content(s + self.groups)
                write_inputs(arguments, case, keep=constant)
                write_poison(contestant.loaded, arguments, case, self.groups % 2)

    def check(self, index: int) -> Finding:
        """Outputs of every set against the inputs in place now; call after :meth:`group`."""
        contestant = self.contestants[index]
        worst = 0.0
        for s, arguments in enumerate(contestant.sets):
            case = self.content(s + self.groups)
            if inout_names(contestant.loaded):
                write_poison(contestant.loaded, arguments, case, self.groups % 2)
                contestant.loaded.call(arguments)
            variant = self.groups % 2
            finding, outputs = checked(contestant.loaded, arguments, case, variant)
            worst = max(worst, finding.max_error)
            if finding.message:
                found = self._named(contestant, arguments, s, outputs, finding)
                return Finding(worst, f"after timing: {found.message}", found.code)
        return Finding(worst)

    def _named(
        self,
        contestant: Contestant,
        arguments: Arguments,
        at: int,
        outputs: Mapping[str, Any],
        finding: Finding,
    ) -> Finding:
        """What a kernel does that was right when it was verified, as far as it can be told."""
        if finding.code not in ("verify.wrong", "verify.unwritten"):
            return finding
        variant, worst, text = self.groups % 2, finding.max_error, finding.message
        case = self.content(at + self.groups)
        if comes_late(arguments, case, variant):
            return Finding(worst, f"its outputs are written after it has returned: {text}", LATE)
        for index in range(self._contents):
            other = self.content(index)
            if other is not case and not check_outputs(outputs, other, variant).message:
                text = f"its results are those of inputs of an earlier call: {text}"
                return Finding(worst, text, KEPT)
        write_poison(contestant.loaded, arguments, case, variant)
        contestant.loaded.call(arguments)
        if check_outputs(read_outputs(arguments, case), case, variant).message:
            text = f"right in its first calls and wrong in later ones: {text}"
            return Finding(worst, text, "verify.later-calls")
        text = f"right when it is called alone and wrong in a row of calls: {text}"
        return Finding(worst, text, "verify.skipped")

    def _warm_up(self, index: int, spent: float) -> None:
        limit = min(WARM_LIMIT_S, self.limits.budget_s * WARM_SHARE)
        deadline = time.monotonic() + limit
        recent = [spent]
        while time.monotonic() < deadline:
            last = recent[-3:]
            if len(last) == 3 and max(last) <= min(last) * (1 + SETTLED):
                break
            recent.append(float(self._run([index], 1)[0, 0]))

    def _run(self, active: Sequence[int], rounds: int) -> NDArray[np.int64]:
        self._seed += 1
        chosen = [self.contestants[k] for k in active]
        spent = timed_rounds(
            self.runner,
            [c.loaded for c in chosen],
            [c.sets for c in chosen],
            [c.batch for c in chosen],
            rounds,
            cold=self.protocol.cold,
            seed=self._seed,
        )
        for column, k in enumerate(active):
            self._batch_ns[k] = float(np.median(spent[:, column]))
        return spent

    def _whole(self, batch: float) -> int:
        sets = self.set_count
        return min(LARGEST_BATCH // sets, max(1, math.ceil(batch / sets))) * sets

    def _count_sets(self) -> int:
        slowest = max(c.verdict.call_s for c in self.contestants)
        if slowest > LONG_CALL_S:
            return 1
        one_set = sum(_argument_bytes(c.loaded) for c in self.contestants)
        return max(1, min(self.protocol.sets, self.limits.argument_bytes // max(1, one_set)))

    def _count_contents(self) -> int:
        """One more than sets, so that every group changes every set; two at least."""
        case = self.verifier.case(Pass.NORMAL, self._first_seed)
        room = self.limits.reference_bytes // max(1, case.nbytes)
        return max(2, min(self.set_count + 1, int(room) - 2))


def _argument_bytes(loaded: Loaded) -> int:
    specs = {a.name: a for e in (loaded.launch.main, *loaded.launch.prepares) for a in e.arguments}
    return sum(span_elements(a.shape, a.strides) * DType(a.dtype).bytes for a in specs.values())
