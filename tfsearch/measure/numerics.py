"""Is what a kernel computes right? Three passes, every element, poison and guard bands.

Pass A takes small integers whose partial sums are exact: the output must be the correctly
rounded result, so a single missing or doubled element shows. Pass B takes normal inputs and
pass C large offsets and a wide range of exponents: every element must lie within bounds that
the program itself gives. Each pass runs twice over differently poisoned outputs; the bits must
be the same, the inputs unchanged and nothing written outside of the buffers.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.records import Status, Verification
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.rounding import round_values
from tfsearch.measure.buffers import Guarded, bits, poison, poison_bits
from tfsearch.measure.clock import BACK, REFERENCE
from tfsearch.measure.inputs import Pass
from tfsearch.measure.protocols import Arguments, Filling, Loaded

Array = NDArray[Any]

_CHUNK = 1 << 20
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Expected:
    """What one output must be: float64 ``ref`` and the closed interval [``lo``, ``hi``].

    ``exact``: ``ref`` is rounded to the output's type already and is the only right value.
    """

    ref: NDArray[np.float64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    exact: bool

    @property
    def nbytes(self) -> int:
        """Memory of the arrays; an exact one counts its only array once."""
        return self.ref.nbytes if self.exact else self.ref.nbytes + self.lo.nbytes + self.hi.nbytes


@dataclass(frozen=True)
class Case:
    """Inputs by name and what each output must be."""

    inputs: Mapping[str, Array]
    expected: Mapping[str, Expected]

    @property
    def place(self) -> str:
        """Where the reference was computed: ``host`` or ``device``."""
        on_host = all(isinstance(e.ref, np.ndarray) for e in self.expected.values())
        return "host" if on_host else "device"

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(a.nbytes for a in self.inputs.values()) + sum(
            e.nbytes for e in self.expected.values()
        )


class Oracle(Protocol):
    """Knows what a workload must compute."""

    @property
    def reproducible(self) -> bool:
        """True when the same bits twice are required."""
        ...

    @property
    def constant_inputs(self) -> Sequence[str]:
        """Inputs whose contents stay the same from call to call."""
        ...

    def case(self, which: Pass, seed: int, constant_seed: int | None = None) -> Case:
        """Inputs of a pass and what they must give; equal arguments give equal cases.

        With ``constant_seed`` the constant inputs are those of that seed.
        """
        ...


@dataclass(frozen=True)
class Finding:
    """Outcome of comparing outputs: the largest error / allowed error, and what is wrong."""

    max_error: float
    message: str = ""
    code: str = ""


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
    ``REFERENCE`` when the oracle begins to make a case and ``BACK`` when it has.
    """

    def __init__(self, oracle: Oracle, *, memory_bytes: int = 1 << 30) -> None:
        self.oracle = oracle
        self.report: Callable[[str], None] = _nobody
        self._memory = memory_bytes
        self._cases: OrderedDict[tuple[Pass, int, int | None], Case] = OrderedDict()

    def case(self, which: Pass, seed: int, constant_seed: int | None = None) -> Case:
        """The oracle's case, from the cache when it is there."""
        key = (which, seed, constant_seed)
        found = self._cases.pop(key, None)
        if found is None:
            # The reference's time is not the candidate's: whoever watches the clock is told.
            self.report(REFERENCE)
            found = self.oracle.case(which, seed, constant_seed)
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
        for which in Pass:
            case = self.case(which, seed)
            if arguments is None or self.oracle.constant_inputs or loaded.launch.prepares:
                arguments = loaded.bind(case.inputs)
            else:
                # The same addresses with other contents: results kept by pointer are stale.
                write_inputs(arguments, case)
            guarded = isinstance(arguments, Guarded)
            status, finding = self._run_twice(loaded, arguments, case, calls)
            passes[which.value] = finding.max_error
            if finding.message:
                message = f"pass {which.value}: {finding.message}"
                verification = Verification(False, max(passes.values()), passes, message)
                return Verdict(status, finding.code, verification, min(calls), guarded)
        verification = Verification(True, max(passes.values()), passes)
        return Verdict(Status.OK, "", verification, min(calls), guarded)

    def _run_twice(
        self, loaded: Loaded, arguments: Arguments, case: Case, calls: list[float]
    ) -> tuple[Status, Finding]:
        runs: list[dict[str, Array]] = []
        worst = 0.0
        for variant in (0, 1):
            write_poison(loaded, arguments, case, variant)
            start = time.perf_counter()
            loaded.call(arguments)
            calls.append(time.perf_counter() - start)
            outputs = read_outputs(arguments, case)
            finding = float_finding()
            if not finding.message:
                finding = surroundings(loaded, arguments, case)
            if not finding.message:
                finding = check_outputs(outputs, case, variant)
            worst = max(worst, finding.max_error)
            if finding.message:
                return Status.WRONG, Finding(worst, finding.message, finding.code)
            runs.append(outputs)
        finding = _same_bits(runs[0], runs[1]) if self.oracle.reproducible else Finding(0.0)
        if finding.message:
            return Status.NONDETERMINISTIC, Finding(worst, finding.message, finding.code)
        return Status.OK, Finding(worst)


def float_finding() -> Finding:
    """What is wrong when a call left this thread's floating-point mode changed.

    Kernels after it, references and the caller's own arithmetic would all go by that mode.
    """
    tiny, half, one = sys.float_info.min, 0.5, float(len("1"))
    if not tiny * half or not 5e-324 * one:
        return Finding(
            0.0, "the call leaves subnormal numbers flushed to zero", "verify.float-mode"
        )
    sums = one + 2.0**-60, -one - 2.0**-60, one - 2.0**-60
    if sums != (1.0, -1.0, 1.0):
        return Finding(0.0, "the call leaves another rounding mode set", "verify.float-mode")
    return Finding(0.0)


def inout_names(loaded: Loaded) -> frozenset[str]:
    """Arguments that a call both reads and writes."""
    return frozenset(a.name for a in loaded.launch.main.arguments if a.io == "inout")


def write_inputs(arguments: Arguments, case: Case, keep: Sequence[str] = ()) -> None:
    """Overwrite the inputs, all but the constant ones in ``keep``."""
    for name, value in case.inputs.items():
        if name not in keep:
            arguments.write(name, value)


def write_poison(loaded: Loaded, arguments: Arguments, case: Case, variant: int) -> None:
    """Poison the outputs, and restore arguments that the last call changed as it should."""
    shared = inout_names(loaded)
    for spec in loaded.launch.main.arguments:
        if spec.name in shared:
            arguments.write(spec.name, case.inputs[spec.name])
        elif spec.name in case.expected:
            kind = DType(spec.dtype).numpy
            if isinstance(arguments, Filling):
                arguments.fill(spec.name, poison_bits(kind, variant))
            else:
                arguments.write(spec.name, poison(spec.shape, kind, variant))


def read_outputs(arguments: Arguments, case: Case) -> dict[str, Array]:
    """Copies of the outputs."""
    return {name: arguments.read(name) for name in case.expected}


def surroundings(loaded: Loaded, arguments: Arguments, case: Case) -> Finding:
    """Inputs that changed, or bytes written outside of the buffers; no message if neither."""
    if isinstance(arguments, Guarded):
        damage = arguments.damage()
        if damage:
            return Finding(_LARGEST, "; ".join(damage), "verify.out-of-bounds")
    shared = inout_names(loaded)
    for name, value in case.inputs.items():
        if name in shared:
            continue
        after = bits(arguments.read(name))
        changed = np.flatnonzero(after != bits(value))
        if changed.size:
            place = _place(changed[0], value.shape)
            message = f"input {name} changed at {place}, {changed.size} of {value.size} elements"
            return Finding(_LARGEST, message, "verify.input-changed")
    return Finding(0.0)


def check_outputs(outputs: Mapping[str, Array], case: Case, variant: int = 0) -> Finding:
    """Compare every element of every output; ``variant`` is the poison they held before."""
    worst = 0.0
    for name, expected in case.expected.items():
        finding = _check_output(name, outputs[name], expected, variant)
        worst = max(worst, finding.max_error)
        if finding.message:
            return Finding(worst, finding.message, finding.code)
    return Finding(worst)


def _check_output(name: str, got: Array, expected: Expected, variant: int) -> Finding:
    if got.shape != expected.ref.shape:
        message = f"output {name} has shape {list(got.shape)}, not {list(expected.ref.shape)}"
        return Finding(_LARGEST, message, "verify.shape")
    flat = got.reshape(-1)
    ref, lo, hi = (a.reshape(-1) for a in (expected.ref, expected.lo, expected.hi))
    worst, wrong, first = 0.0, 0, -1
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        unwritten = bits(flat[part]) == poison_bits(flat.dtype, variant)
        error = _errors(flat[part], ref[part], lo[part], hi[part], expected.exact, unwritten)
        bad = error > 1.0
        count = int(np.count_nonzero(bad))
        if count and first < 0:
            first = start + int(np.argmax(bad))
        wrong += count
        worst = max(worst, float(error.max(initial=0.0)))
    worst = min(worst, _LARGEST)
    if not wrong:
        return Finding(worst)
    allowed = "exactly that" if expected.exact else f"{lo[first]:.9g} to {hi[first]:.9g}"
    holds_poison = int(bits(flat[first : first + 1])[0]) == poison_bits(flat.dtype, variant)
    found = "nothing (still the poison)" if holds_poison else f"{float(flat[first]):.9g}"
    message = (
        f"output {name} at {_place(first, got.shape)}: got {found}, expected {ref[first]:.9g}, "
        f"allowed {allowed}; {wrong} of {flat.size} elements wrong"
    )
    return Finding(worst, message, "verify.unwritten" if holds_poison else "verify.wrong")


def _errors(
    got: Array, ref: Array, lo: Array, hi: Array, exact: bool, unwritten: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """|error| / allowed error per element; anything above 1 (infinity included) is wrong.

    ``unwritten``: elements that hold the poison, which is no NaN that a kernel computed.
    """
    with np.errstate(all="ignore"):
        value = got.astype(np.float64)
        if exact:
            error = np.where(value == ref, 0.0, np.inf)
        else:
            over = value - ref
            room = np.where(over > 0, hi - ref, ref - lo)
            error = np.where(value == ref, 0.0, np.abs(over) / room)
            # The division may round a value on the boundary to either side of 1.
            inside = (value >= lo) & (value <= hi)
            error = np.where(inside, np.minimum(error, 1.0), np.maximum(error, 1.0 + 2.0**-50))
            error[inside & np.isnan(error)] = 0.0
    odd = np.flatnonzero(~(error <= 1.0))
    if odd.size:
        right = _odd_right(value[odd], ref[odd], lo[odd], hi[odd], DType.of_numpy(got.dtype))
        right &= ~(unwritten[odd] & np.isnan(value[odd]))
        error[odd] = np.where(right, 0.0, np.where(np.isnan(error[odd]), np.inf, error[odd]))
    return error


def _odd_right(value: Array, ref: Array, lo: Array, hi: Array, kind: DType) -> NDArray[np.bool_]:
    """Elements outside of their interval that are right all the same.

    NaN where NaN is expected or nothing is known, and infinity where the bound rounds to it.
    """
    unknown = np.isneginf(lo) & np.isposinf(hi)
    right = (np.isnan(value) & (np.isnan(ref) | unknown)) | (value == ref)
    if kind.is_float:
        with np.errstate(all="ignore"):
            right |= (value == np.inf) & (round_values(kind, hi) == np.inf)
            right |= (value == -np.inf) & (round_values(kind, lo) == -np.inf)
    return right


def _same_bits(first: Mapping[str, Array], second: Mapping[str, Array]) -> Finding:
    for name, a in first.items():
        different = np.flatnonzero(bits(a) != bits(second[name]))
        if different.size:
            at = different[0]
            message = (
                f"output {name} at {_place(at, a.shape)}: {float(a.flat[at]):.9g} in one run, "
                f"{float(second[name].flat[at]):.9g} in the next with the same inputs; "
                f"{different.size} of {a.size} elements differ"
            )
            return Finding(0.0, message, "verify.nondeterministic")
    return Finding(0.0)


def _place(index: int | np.integer[Any], shape: tuple[int, ...]) -> str:
    return "[" + ",".join(str(int(i)) for i in np.unravel_index(int(index), shape)) + "]"
