"""References of HIR workloads: the program in float64, with bounds of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.records import WorkloadRecord
from tfsearch.ir.hir.bounds import evaluate_bounds
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.exact import exact_integer_limit
from tfsearch.ir.hir.rounding import largest_finite, round_values
from tfsearch.ir.hir.text import parse_program
from tfsearch.measure.inputs import (
    LARGEST_INTEGER,
    Array,
    Pass,
    exchange,
    make_inputs,
    pass_a_limit,
    signature,
)
from tfsearch.measure.numerics import Case, Expected
from tfsearch.measure.protocols import Place

_HEADROOM = 0.25
"""Outputs of pass C stay below this share of their type's largest value: other orders of
summation and wider intermediate results must not overflow either."""
_SCALES = tuple(2.0**-step for step in range(0, 64, 3))


class HirOracle:
    """Cases of a workload whose program is canonical HIR text.

    ``sizes`` binds dimensions that the text leaves as ranges. ``placement`` says for so many bytes
    of arguments how inputs get to where the reference is computed. Raises ``RequestError`` for a
    program that cannot be parsed or keeps an unbound dimension.
    """

    def __init__(
        self,
        workload: WorkloadRecord,
        sizes: Mapping[str, int] | None = None,
        placement: Callable[[int], Place | None] = lambda _: None,
    ) -> None:
        self.program = parse_program(workload.program).bind(sizes or {})
        for item in self.program.inputs:
            _ = item.type.sizes
        self.accuracy = workload.accuracy
        self.reproducible = workload.reproducible
        self.constant_inputs = workload.constant_inputs
        kinds = [*(item.type for item in self.program.inputs), *self.program.output_types]
        self._place = placement(sum(kind.bytes for kind in kinds))

    def case(
        self,
        which: Pass,
        seed: int,
        constant_seed: int | None = None,
        *,
        exchanged: bool = False,
    ) -> Case:
        """See :class:`tfsearch.measure.numerics.Oracle`.

        Inputs of pass C, and integers of any pass, are scaled down until no value that the
        program computes leaves its type.
        """
        exact_limit = exact_integer_limit(self.program) if which is Pass.INTEGERS else 0
        if exact_limit:
            limit = pass_a_limit(self.program, exact_limit)
            inputs = self._inputs(which, seed, constant_seed, limit, 1.0, exchanged)
            return Case(inputs, self._exact(inputs))
        for scale in _SCALES:
            case = self._scaled(which, seed, constant_seed, scale, exchanged)
            if case is not None and (which is not Pass.RANGE or self._has_room(case)):
                return case
        # Constants of the program may make an output infinite or NaN whatever the inputs are.
        least = self._scaled(which, seed, constant_seed, _SCALES[-1], exchanged)
        for scale in _SCALES if least is not None else ():
            case = self._scaled(which, seed, constant_seed, scale, exchanged)
            if case is not None and self._has_room(case, least):
                return case
        raise RequestError(
            "measure.inputs",
            f"every input of pass {which.value} drives a value of {self.program.name} beyond its "
            "type, however small it is; use a wider type",
        )

    def _scaled(
        self, which: Pass, seed: int, constant_seed: int | None, scale: float, exchanged: bool
    ) -> Case | None:
        limit = max(1, int(pass_a_limit(self.program, LARGEST_INTEGER) * scale))
        inputs = self._inputs(which, seed, constant_seed, limit, scale, exchanged)
        expected = self._bounded(inputs)
        return None if expected is None else Case(inputs, expected)

    def _inputs(
        self,
        which: Pass,
        seed: int,
        constant_seed: int | None,
        limit: int,
        scale: float,
        exchanged: bool,
    ) -> dict[str, Array]:
        inputs = make_inputs(self.program, which, seed, limit=limit, scale=scale)
        if constant_seed is not None and constant_seed != seed:
            kept = make_inputs(self.program, which, constant_seed, limit=limit, scale=scale)
            inputs.update({name: kept[name] for name in self.constant_inputs})
        if exchanged:
            exchange(inputs, self.constant_inputs, seed)
        if self._place is None:
            return inputs
        return {name: self._place(array) for name, array in inputs.items()}

    def _exact(self, inputs: Mapping[str, Array]) -> dict[str, Expected]:
        found = evaluate(self.program, inputs, round_casts=True)
        expected: dict[str, Expected] = {}
        for (name, type_), value in zip(signature(self.program).items(), found, strict=True):
            ref = round_values(type_.dtype, value.astype(np.float64))
            expected[name] = Expected(ref, ref, ref, exact=True)
        return expected

    def _bounded(self, inputs: Mapping[str, Array]) -> dict[str, Expected] | None:
        """Bounds of the outputs; None when an integer leaves its type on the way to them."""
        computed = self.program.ops[len(self.program.inputs) :]
        if any(op.type.dtype.is_integer for op in computed):
            try:
                evaluate(self.program, inputs)
            except RequestError as error:
                if error.code == "hir.integer-overflow":
                    return None
                raise
        found = evaluate_bounds(self.program, inputs, self.accuracy)
        names = signature(self.program)
        return {
            name: Expected(b.ref, b.lo, b.hi, exact=False)
            for name, b in zip(names, found, strict=True)
        }

    def _has_room(self, case: Case, least: Case | None = None) -> bool:
        """Whether outputs stay well inside of their types; those that are infinite or NaN in
        ``least`` too need not.
        """
        types = signature(self.program)
        for name, item in case.expected.items():
            if not types[name].dtype.is_float:
                continue
            fits = np.abs(item.ref) <= _HEADROOM * largest_finite(types[name].dtype)
            if least is not None:
                other = least.expected[name].ref
                fits |= ~np.isfinite(other) & np.isclose(item.ref, other, equal_nan=True)
            if not fits.all():
                return False
        return True
