"""Is what a kernel computes right? Bounds of every element, poison and guard bands.

Pass A takes small integers whose partial sums are exact: the output must be the correctly
rounded result, so a single missing or doubled element shows. Pass B takes normal inputs and
pass C large offsets and a wide range of exponents: every element must lie within bounds that
the program itself gives. What runs the passes is :mod:`tfsearch.measure.verifier`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.rounding import round_values
from tfsearch.measure.buffers import Guarded, bits, poison, poison_bits
from tfsearch.measure.inputs import Pass
from tfsearch.measure.protocols import Arguments, Filling, Loaded

Array = NDArray[Any]

_CHUNK = 1 << 20
LARGEST = sys.float_info.max


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

    def case(
        self,
        which: Pass,
        seed: int,
        constant_seed: int | None = None,
        *,
        exchanged: bool = False,
    ) -> Case:
        """Inputs of a pass and what they must give; equal arguments give equal cases.

        With ``constant_seed`` the constant inputs are those of that seed. With ``exchanged`` two
        unequal elements of every other input have changed places.
        """
        ...


@dataclass(frozen=True)
class Finding:
    """Outcome of comparing outputs: the largest error / allowed error, and what is wrong."""

    max_error: float
    message: str = ""
    code: str = ""


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
            return Finding(LARGEST, "; ".join(damage), "verify.out-of-bounds")
    shared = inout_names(loaded)
    for name, value in case.inputs.items():
        if name in shared:
            continue
        after = bits(arguments.read(name))
        changed = np.flatnonzero(after != bits(value))
        if changed.size:
            place = _place(changed[0], value.shape)
            message = f"input {name} changed at {place}, {changed.size} of {value.size} elements"
            return Finding(LARGEST, message, "verify.input-changed")
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
        return Finding(LARGEST, message, "verify.shape")
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
    worst = min(worst, LARGEST)
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


def same_bits(first: Mapping[str, Array], second: Mapping[str, Array]) -> Finding:
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
