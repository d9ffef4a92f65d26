"""Runs a kernel on the passes' inputs and says what is wrong with it.

Each pass runs twice over differently poisoned outputs; the bits must be the same, the inputs
unchanged and nothing written outside of the buffers. In the first run the stack and the heap below
the kernel hold one byte, in the second run another, and the inputs are read-only. Normal inputs are
run once more at other addresses. What a wrong kernel did is named as far as it can be told.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tfsearch.core.records import Status, Verification
from tfsearch.measure.buffers import Guarded
from tfsearch.measure.clock import BACK, READ_ONLY, REFERENCE
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import (
    Case,
    Finding,
    Oracle,
    check_outputs,
    float_finding,
    read_outputs,
    same_bits,
    surroundings,
    write_inputs,
    write_poison,
)
from tfsearch.measure.protocols import Arguments, Loaded, Sealing, Soiling, bind_aligned

Array = NDArray[Any]

FILLS = (0xFE, 0x7F)
"""Contents of memory that nobody wrote: large or no numbers in every type, and not the same."""
LATE_S = 0.02
LATE_TRIES = 6
"""How long, and how often, what is written after the return is waited for, to be named."""
BUSY_WINDOW_S = 0.01
BUSY_WINDOWS = 40
BUSY_SHARE = 0.2
"""Threads that a kernel started are idle soon; a runtime's idle threads may spin for 0.2 s."""
_OUTPUT_CODES = frozenset({"verify.wrong", "verify.unwritten"})


@dataclass(frozen=True)
class Verdict:
    """Outcome of verifying a kernel. ``call_s``: the fastest of its calls, in seconds.

    ``guarded``: writes outside of the buffers would have been seen.
    """

    status: Status
    code: str
    verification: Verification
    call_s: float
    guarded: bool


def _nobody(phase: str) -> None:
    del phase


class Verifier:
    """Verifies kernels of one workload; keeps references between candidates.

    ``memory_bytes`` bounds the kept cases (the one in use stays in any case). ``report`` is told
    ``REFERENCE`` when the oracle begins to make a case and ``BACK`` when it has, and ``READ_ONLY``
    while the inputs are.
    """

    def __init__(self, oracle: Oracle, *, memory_bytes: int = 1 << 30) -> None:
        self.oracle = oracle
        self.report: Callable[[str], None] = _nobody
        self._memory = memory_bytes
        self._cases: OrderedDict[tuple[Pass, int, int | None, bool], Case] = OrderedDict()

    def case(
        self,
        which: Pass,
        seed: int,
        constant_seed: int | None = None,
        *,
        exchanged: bool = False,
    ) -> Case:
        """The oracle's case, from the cache when it is there."""
        key = (which, seed, constant_seed, exchanged)
        found = self._cases.pop(key, None)
        if found is None:
            # The reference's time is not the candidate's: whoever watches the clock is told.
            self.report(REFERENCE)
            found = self.oracle.case(which, seed, constant_seed, exchanged=exchanged)
            self.report(BACK)
        self._cases[key] = found
        while len(self._cases) > 1 and self.kept_bytes > self._memory:
            self._cases.popitem(last=False)
        return found

    @property
    def kept_bytes(self) -> int:
        """Memory of the kept cases."""
        return sum(case.nbytes for case in self._cases.values())

    def verify(self, loaded: Loaded, seed: int) -> Verdict:
        """Run the three passes. Errors that a call raises are the caller's to classify."""
        passes: dict[str, float] = {}
        calls: list[float] = []
        arguments: Arguments | None = None
        guarded = False
        before = thread_count()
        earlier: list[Case] = []
        for which in Pass:
            case = self.case(which, seed)
            if arguments is None or self.oracle.constant_inputs or loaded.launch.prepares:
                arguments = loaded.bind(case.inputs)
            else:
                # The same addresses with other contents: results kept by pointer are stale.
                write_inputs(arguments, case)
            guarded = isinstance(arguments, Guarded)
            status, finding = self._run_twice(loaded, arguments, case, earlier, calls)
            if not finding.message and which is Pass.NORMAL:
                arguments = None  # its memory is given back first
                finding = self._elsewhere(loaded, case, calls)
                status = Status.WRONG if finding.message else Status.OK
            if not finding.message and which is Pass.RANGE and thread_count() > before:
                status, finding = _of_threads(finding.max_error)
            passes[which.value] = finding.max_error
            if finding.message:
                message = f"pass {which.value}: {finding.message}"
                verification = Verification(False, max(passes.values()), passes, message)
                return Verdict(status, finding.code, verification, min(calls), guarded)
            earlier.append(case)
        verification = Verification(True, max(passes.values()), passes)
        return Verdict(Status.OK, "", verification, min(calls), guarded)

    def _run_twice(
        self,
        loaded: Loaded,
        arguments: Arguments,
        case: Case,
        earlier: Sequence[Case],
        calls: list[float],
    ) -> tuple[Status, Finding]:
        runs: list[dict[str, Array]] = []
        worst = 0.0
        for variant in (0, 1):
            write_poison(loaded, arguments, case, variant)
            start = time.perf_counter()
            with self._sealed(arguments) if variant else contextlib.nullcontext():
                call(loaded, arguments, FILLS[variant])
            calls.append(time.perf_counter() - start)
            finding, outputs = checked(loaded, arguments, case, variant)
            worst = max(worst, finding.max_error)
            if finding.message:
                found = named(loaded, arguments, case, variant, outputs, earlier, finding)
                return Status.WRONG, Finding(worst, found.message, found.code)
            runs.append(outputs)
        finding = same_bits(runs[0], runs[1]) if self.oracle.reproducible else Finding(0.0)
        if finding.message:
            if _steady_when_clean(loaded, arguments, case):
                return Status.WRONG, _uninitialised(Finding(worst, finding.message))
            return Status.NONDETERMINISTIC, Finding(worst, finding.message, finding.code)
        return Status.OK, Finding(worst)

    @contextlib.contextmanager
    def _sealed(self, arguments: Arguments) -> Any:
        if not isinstance(arguments, Sealing):
            yield
            return
        self.report(READ_ONLY)
        with arguments.sealed():
            yield
        self.report("verify")

    def _elsewhere(self, loaded: Loaded, case: Case, calls: list[float]) -> Finding:
        """One run at other addresses, aligned to more than the kernel may rely on."""
        arguments = bind_aligned(loaded, case.inputs)
        write_poison(loaded, arguments, case, 0)
        start = time.perf_counter()
        loaded.call(arguments)
        calls.append(time.perf_counter() - start)
        finding, outputs = checked(loaded, arguments, case, 0)
        if finding.code not in _OUTPUT_CODES:
            return finding
        found = named(loaded, arguments, case, 0, outputs, (), finding)
        if found.code not in _OUTPUT_CODES:
            return found
        text = f"right at some addresses of its arguments and wrong at others: {finding.message}"
        return Finding(finding.max_error, text, "verify.address")


def call(loaded: Loaded, arguments: Arguments, fill: int | None) -> None:
    """One call, with known bytes in memory that it did not write where the target can do that."""
    if fill is not None and isinstance(loaded, Soiling):
        loaded.call_soiled(arguments, fill)
    else:
        loaded.call(arguments)


def checked(
    loaded: Loaded, arguments: Arguments, case: Case, variant: int
) -> tuple[Finding, dict[str, Array]]:
    """What is wrong after a call, and its outputs."""
    outputs = read_outputs(arguments, case)
    finding = float_finding()
    if not finding.message:
        finding = surroundings(loaded, arguments, case)
    if not finding.message:
        finding = check_outputs(outputs, case, variant)
    return finding, outputs


def named(
    loaded: Loaded,
    arguments: Arguments,
    case: Case,
    variant: int,
    outputs: dict[str, Array],
    earlier: Sequence[Case],
    finding: Finding,
) -> Finding:
    """The finding with the code and the words of what the kernel does, as far as it can be told.

    ``earlier``: contents that it was called with before; ``outputs``: what it left at its return.
    """
    if finding.code not in _OUTPUT_CODES:
        return finding
    worst, text = finding.max_error, finding.message
    if comes_late(arguments, case, variant):
        return Finding(worst, f"its outputs are written after it has returned: {text}", LATE)
    for other in earlier:
        if not check_outputs(outputs, other, variant).message:
            return Finding(
                worst, f"its results are those of inputs of an earlier call: {text}", KEPT
            )
    if _right_when_clean(loaded, arguments, case, variant):
        return _uninitialised(finding)
    return finding


def comes_late(arguments: Arguments, case: Case, variant: int) -> bool:
    """Whether outputs that are wrong now become right without another call."""
    for _ in range(LATE_TRIES):
        time.sleep(LATE_S)
        if not check_outputs(read_outputs(arguments, case), case, variant).message:
            return True
    return False


LATE = "verify.late"
KEPT = "verify.kept"


def _uninitialised(finding: Finding) -> Finding:
    text = f"it reads memory that it did not write (stack or heap): {finding.message}"
    return Finding(finding.max_error, text, "verify.uninitialised")


def _right_when_clean(loaded: Loaded, arguments: Arguments, case: Case, variant: int) -> bool:
    """Whether it is right, time and again, while memory that it did not write holds zeros or what
    its own last call left, and wrong while it holds other bytes.
    """
    if not isinstance(loaded, Soiling):
        return False

    def right(fill: int | None) -> bool:
        write_poison(loaded, arguments, case, variant)
        call(loaded, arguments, fill)
        return not checked(loaded, arguments, case, variant)[0].message

    clean = right(0) and right(0)
    if not clean:
        right(None)
        clean = right(None) and right(None)
    return clean and not right(FILLS[0]) and not right(FILLS[1])


def _steady_when_clean(loaded: Loaded, arguments: Arguments, case: Case) -> bool:
    """Whether it gives the same bits, time and again, while that memory holds zeros."""
    if not isinstance(loaded, Soiling):
        return False
    runs: list[dict[str, Array]] = []
    for fill in (0, 0, 0, *FILLS):
        write_poison(loaded, arguments, case, 0)
        call(loaded, arguments, fill)
        runs.append(read_outputs(arguments, case))
    steady = not any(same_bits(runs[0], run).message for run in runs[1:3])
    return steady and bool(same_bits(runs[3], runs[4]).message)


def thread_count() -> int:
    """Threads of this process now; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _of_threads(worst: float) -> tuple[Status, Finding]:
    """A finding when what a call started goes on using the processor."""
    for _ in range(BUSY_WINDOWS):
        before = time.process_time()
        time.sleep(BUSY_WINDOW_S)
        if time.process_time() - before < BUSY_SHARE * BUSY_WINDOW_S:
            return Status.OK, Finding(worst)
    text = f"threads that it started are still running {BUSY_WINDOW_S * BUSY_WINDOWS:.3g} s later"
    return Status.WRONG, Finding(worst, text, "verify.threads")
