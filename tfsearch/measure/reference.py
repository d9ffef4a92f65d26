"""References of users' kernels: a Python function on float64 arrays, and what may differ from it.

The function takes the arguments that the kernel reads, in their order: arrays of float64 (int64
where the kernel has integers), scalars as Python numbers. It returns the arguments that the kernel
writes, in their order; one array, or a tuple of them.

Nothing is known of what it computes, so the allowed error is found out by asking it: how much do
its results move when the inputs move by one rounding of the accumulator, every input array as a
whole, and every element on its own by a normally distributed share of it (equal steps of either
sign would leave some products of two inputs where they are)? A result that sums k terms may be
wrong by λ·k times that, and by λ·√k roundings of its own size (for k terms of one size both are
the bound λ·√k·u·Σ|terms| of :mod:`tfsearch.ir.hir.budgets`).
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tfsearch.core import keys
from tfsearch.core.errors import InternalError, RequestError
from tfsearch.core.records import WorkloadRecord
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.budgets import LAMBDA, floor_of
from tfsearch.ir.hir.load import brief_error, function_in_file
from tfsearch.ir.hir.rounding import integer_range, largest_finite, round_values
from tfsearch.ir.hir.types import TensorType
from tfsearch.measure.inputs import LARGEST_INTEGER, Pass, exchange, random_values
from tfsearch.measure.numerics import Case, Expected

Array = NDArray[Any]
DRAWS = 8
_HEADROOM = 0.25
_SCALES = tuple(2.0**-step for step in range(0, 64, 3))
_NARROW = {DType.BF16: 1, DType.I8: 1, DType.F16: 2}
_TAG = {Pass.INTEGERS: 1, Pass.NORMAL: 2, Pass.RANGE: 3}


class Slot:
    """One argument of the kernel, from the record."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.name = str(data["name"])
        self.dtype = DType(data["dtype"])
        self.shape = tuple(int(n) for n in data["shape"])
        self.io = str(data["io"])
        self.fill, self.low, self.high = (str(part) for part in data["init"])

    @property
    def free(self) -> bool:
        """Whether the passes decide the contents."""
        return self.fill in ("random", "positive")

    def values(
        self, which: Pass, generator: np.random.Generator, limit: int, scale: float
    ) -> Array:
        """Contents for a pass, in the argument's own type."""
        if self.free:
            type_ = TensorType(self.dtype, self.shape)
            found = np.asarray(random_values(type_, which, generator, limit, scale))
            return np.abs(found) if self.fill == "positive" else found
        low = float(self.low)
        if self.fill == "value":
            whole = int(self.low) if "." not in self.low and "e" not in self.low else low
            return np.full(self.shape, whole).astype(self.dtype.numpy)
        high = float(self.high)
        if self.dtype.is_integer or which is Pass.INTEGERS:
            ends = math.ceil(low), math.floor(high)
            if ends[0] <= ends[1]:
                drawn = generator.integers(*ends, size=self.shape, endpoint=True)
                return np.asarray(drawn).astype(self.dtype.numpy)
        return np.asarray(generator.uniform(low, high, size=self.shape)).astype(self.dtype.numpy)


class KernelOracle:
    """Cases of a user's kernel. ``place`` is ``file.py:function``, absolute.

    Raises ``RequestError`` (``kernel.reference``) when the file is not the one of the record, or
    the function fails or returns something else than the outputs.
    """

    def __init__(self, workload: WorkloadRecord, sizes: Mapping[str, int], place: str) -> None:
        del sizes
        try:
            fields = json.loads(workload.program)
            self.slots = [Slot(item) for item in fields["arguments"]]
            self.terms, self.exact = int(fields["terms"]), fields["exact"]
            wanted = fields["reference"]
        except (ValueError, KeyError, TypeError) as error:
            raise InternalError(
                "measure.kernel", f"a damaged record of a kernel: {error}"
            ) from error
        self.label = workload.op
        self.reproducible = workload.reproducible
        self.constant_inputs: tuple[str, ...] = ()
        self.inputs = [slot for slot in self.slots if slot.io != "out"]
        self.outputs = [slot for slot in self.slots if slot.io != "in"]
        file, _, name = place.rpartition(":")
        self.place = f"{Path(file).name}:{name}"
        if keys.digest_bytes(Path(file).read_bytes()) != wanted:
            raise RequestError("kernel.reference", f"{file} changed while its kernel was tuned")
        self.function = function_in_file(file, name).fn

    def case(
        self,
        which: Pass,
        seed: int,
        constant_seed: int | None = None,
        *,
        exchanged: bool = False,
    ) -> Case:
        """See :class:`tfsearch.measure.numerics.Oracle`."""
        del constant_seed
        if which is Pass.INTEGERS and self.exact is not False:
            found = self._exact(seed, exchanged)
            if found is not None:
                return found
        for scale in _SCALES:
            inputs = self._contents(which, seed, LARGEST_INTEGER, scale, exchanged)
            expected = self._bounded(inputs, seed, which)
            if self._fits(expected, roomy=which is Pass.RANGE) or not self._scalable:
                return Case(inputs, expected)
        raise RequestError(
            "measure.inputs",
            f"every input of pass {which.value} drives an output of {self.label} beyond its type, "
            "however small it is; give its arguments an init",
        )

    @property
    def _scalable(self) -> bool:
        return any(slot.free for slot in self.inputs)

    def _contents(
        self, which: Pass, seed: int, limit: int, scale: float, exchanged: bool
    ) -> dict[str, Array]:
        out: dict[str, Array] = {}
        for index, slot in enumerate(self.inputs):
            place = [seed & (2**63 - 1), index, _TAG[which]]
            generator = np.random.Generator(np.random.SFC64(place))
            out[slot.name] = slot.values(which, generator, limit, scale)
        if exchanged:
            exchange(out, self.constant_inputs, seed)
        return out

    def _exact(self, seed: int, exchanged: bool) -> Case | None:
        """Small integers whose results are exact; None when they are not.

        Results are taken to be exact when those of the inputs and of their magnitudes are whole
        numbers that every accumulator holds.
        """
        widest = min([LARGEST_INTEGER, *(_NARROW.get(s.dtype, 8) for s in self.outputs)])
        for limit in dict.fromkeys((widest, 2, 1)):
            inputs = self._contents(Pass.INTEGERS, seed, limit, 1.0, exchanged)
            wide = self._widened(inputs)
            refs = self._call(wide)
            sizes = self._call({name: np.abs(value) for name, value in wide.items()})
            if self.exact or all(
                self._whole(slot, ref) and self._whole(slot, size)
                for slot, ref, size in zip(self.outputs, refs, sizes, strict=True)
            ):
                rounded = [
                    round_values(slot.dtype, ref)
                    for slot, ref in zip(self.outputs, refs, strict=True)
                ]
                return Case(
                    inputs,
                    {
                        slot.name: Expected(ref, ref, ref, exact=True)
                        for slot, ref in zip(self.outputs, rounded, strict=True)
                    },
                )
        return None

    @staticmethod
    def _whole(slot: Slot, ref: Array) -> bool:
        if slot.dtype.is_integer:
            low, high = integer_range(slot.dtype)
            return bool(np.all((ref >= low) & (ref <= high)))
        most = 2.0**53 if slot.dtype is DType.F64 else 2.0**24
        with np.errstate(invalid="ignore"):
            return bool(np.all((np.abs(ref) <= most) & (ref == np.rint(ref))))

    def _bounded(self, inputs: Mapping[str, Array], seed: int, which: Pass) -> dict[str, Expected]:
        wide = self._widened(inputs)
        refs = self._call(wide)
        moved = self._sensitivity(wide, refs, seed, which)
        expected: dict[str, Expected] = {}
        for slot, ref, delta in zip(self.outputs, refs, moved, strict=True):
            unit = accumulator(slot.dtype)
            own = slot.dtype.unit_roundoff
            with np.errstate(all="ignore"):
                room = (own + LAMBDA * math.sqrt(self.terms) * unit) * np.abs(ref)
                room = room + LAMBDA * self.terms * delta
                # An integer differs only where the reference's own does when its inputs move.
                room = room + floor_of(slot.dtype) if slot.dtype.is_float else np.ceil(delta)
                room = np.where(np.isfinite(room), room, 0.0)
                expected[slot.name] = Expected(ref, ref - room, ref + room, exact=False)
        return expected

    def _sensitivity(
        self, wide: Mapping[str, Array], refs: Sequence[Array], seed: int, which: Pass
    ) -> list[Array]:
        """How far the outputs move when inputs move by one rounding, element by element."""
        unit = max(accumulator(slot.dtype) for slot in self.outputs)
        floats = [slot for slot in self.inputs if slot.dtype.is_float]
        arrays = [slot for slot in floats if slot.shape]
        total = [np.zeros(ref.shape) for ref in refs]
        squares = [np.zeros(ref.shape) for ref in refs]
        generator = np.random.Generator(np.random.SFC64([seed & (2**63 - 1), 99, _TAG[which]]))
        with np.errstate(all="ignore"):
            for slot in floats:
                moved = {**wide, slot.name: wide[slot.name] * (1.0 + unit)}
                for position, value in enumerate(self._call(moved)):
                    total[position] += _finite(np.abs(value - refs[position]))
            for _ in range(DRAWS if arrays else 0):
                moved = dict(wide)
                for slot in arrays:
                    share = generator.standard_normal(slot.shape)
                    moved[slot.name] = wide[slot.name] * (1.0 + unit * share)
                for position, value in enumerate(self._call(moved)):
                    squares[position] += _finite((value - refs[position]) ** 2)
            return [
                whole + np.sqrt(square / DRAWS)
                for whole, square in zip(total, squares, strict=True)
            ]

    def _widened(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {
            slot.name: np.asarray(
                inputs[slot.name].astype(np.float64 if slot.dtype.is_float else np.int64)
            )
            for slot in self.inputs
        }

    def _call(self, wide: Mapping[str, Array]) -> list[Array]:
        """The reference's outputs in float64, each in its argument's shape."""
        given: list[Any] = []
        for slot in self.inputs:
            value = wide[slot.name]
            given.append(value.copy() if slot.shape else value.item())
        try:
            with contextlib.redirect_stdout(sys.stderr), np.errstate(all="ignore"):
                found = cast("Callable[..., Any]", self.function)(*given)
        except (Exception, SystemExit) as error:
            raise RequestError(
                "kernel.reference", f"{self.place} failed: {brief_error(error)}"
            ) from error
        several = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(several) != len(self.outputs):
            names = ", ".join(slot.name for slot in self.outputs)
            raise RequestError(
                "kernel.reference",
                f"{self.place} returned {len(several)} results; the kernel writes {names}",
            )
        return [
            self._output(slot, value) for slot, value in zip(self.outputs, several, strict=True)
        ]

    def _output(self, slot: Slot, value: object) -> Array:
        try:
            if value is None:
                raise TypeError("it is None")
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise RequestError(
                "kernel.reference", f"{self.place} returned no numbers for {slot.name}: {error}"
            ) from error
        if array.shape != slot.shape:
            raise RequestError(
                "kernel.reference",
                f"{self.place} returned shape {list(array.shape)} for {slot.name}, "
                f"which has {list(slot.shape)}",
            )
        return array

    def _fits(self, expected: Mapping[str, Expected], *, roomy: bool) -> bool:
        """Whether finite outputs stay inside of their types, well inside under ``roomy``."""
        share = _HEADROOM if roomy else 1.0
        for slot in self.outputs:
            ref = expected[slot.name].ref
            most = (
                largest_finite(slot.dtype)
                if slot.dtype.is_float
                else float(integer_range(slot.dtype)[1])
            )
            if bool(np.any(np.isfinite(ref) & (np.abs(ref) > share * most))):
                return False
            if not slot.dtype.is_float and not bool(np.all(np.isfinite(ref))):
                return False
        return True


def _finite(values: Array) -> Array:
    return np.nan_to_num(values, nan=0.0, posinf=0.0)


def accumulator(dtype: DType) -> float:
    """Unit roundoff of what an output of this type is summed in: f64 for f64, f32 for others."""
    return 2.0**-53 if dtype is DType.F64 else 2.0**-24
