"""Workloads: a program with everything bound that its kernels may depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tfsearch.core.errors import RequestError
from tfsearch.core.records import NUMPY_ALIGNMENT, Accuracy, WorkloadRecord
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.program import Input, Program
from tfsearch.ir.hir.text import parse_program, print_program
from tfsearch.ir.hir.types import Range, TensorType, column_major, shape_text

MAX_BYTES = 2**46
MAX_ALIGNMENT = 4096
RECORD_NAME = "main"
COLUMNS = "col"
"""Strides of an array whose last two dimensions are stored transposed."""

OptionValue = int | str


@dataclass(frozen=True)
class Workload:
    """What is tuned. ``op`` and ``options`` are labels for people; the rest is identity.

    ``alignment`` is the guaranteed alignment of every argument in bytes (a power of two);
    ``constant_inputs`` names inputs whose contents stay the same from call to call.
    """

    program: Program
    op: str
    options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    accuracy: Accuracy = Accuracy.PRECISE
    reproducible: bool = True
    alignment: int = NUMPY_ALIGNMENT
    constant_inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        power_of_two = self.alignment > 0 and self.alignment & (self.alignment - 1) == 0
        if not power_of_two or self.alignment > MAX_ALIGNMENT:
            raise RequestError(
                "workload.alignment",
                f"alignment {self.alignment} B is not a power of two from 1 to {MAX_ALIGNMENT}",
            )
        names = self.program.input_names
        for name in self.constant_inputs:
            if name not in names:
                raise RequestError(
                    "workload.constant-input",
                    f"{self.op} has no input {name!r}; it has {', '.join(names)}",
                )
        ordered = tuple(n for n in names if n in self.constant_inputs)
        object.__setattr__(self, "constant_inputs", ordered)
        check_memory(self.op, self.program)

    @property
    def dtype(self) -> DType:
        """Element type of the first input (of the first output when there is no input)."""
        first = self.program.inputs
        return first[0].type.dtype if first else self.program.output_types[0].dtype

    @cached_property
    def record(self) -> WorkloadRecord:
        """The workload as the database knows it.

        The program's own name is a label too: the recorded text calls it ``main``.
        """
        return WorkloadRecord(
            op=self.op,
            dims={n: v for n, v in self.options.items() if n != "dtype"},
            dtype=self.dtype.value,
            program=print_program(self.program.renamed(RECORD_NAME)),
            accuracy=self.accuracy,
            reproducible=self.reproducible,
            alignment=self.alignment,
            constant_inputs=self.constant_inputs,
        )

    @staticmethod
    def from_record(record: WorkloadRecord) -> Workload:
        """The workload of a record; ``RequestError`` when its program text is damaged.

        A user's kernel cannot be made from its record, which has no source: ``kernel.record``.
        """
        if record.program.startswith("{"):
            raise RequestError(
                "kernel.record",
                f"{record.op} is a user's kernel; name its file and --space to work with it",
            )
        return Workload(
            program=parse_program(record.program),
            op=record.op,
            options={**record.dims, "dtype": record.dtype},
            accuracy=record.accuracy,
            reproducible=record.reproducible,
            alignment=record.alignment,
            constant_inputs=record.constant_inputs,
        )

    @property
    def key(self) -> str:
        """Digest of everything that is the workload's identity."""
        return self.record.key

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes at which dimensions that are ranges are measured: their largest."""
        return self.program.largest

    @property
    def flops(self) -> int:
        """Floating-point operations at the largest sizes."""
        from tfsearch.ir.hir.facts import facts_of

        return facts_of(self.program.bind(self.program.largest)).flops

    def check_memory(self, limit: int, holder: str) -> None:
        """``RequestError`` (``workload.too-large``) for arguments beyond ``limit`` bytes."""
        check_memory(self.op, self.program, limit, holder)

    def bind(self, dims: Mapping[str, int]) -> Workload:
        """The workload with named dimensions replaced by sizes (in ``options`` too)."""
        known = {n: v for n, v in dims.items() if n in self.program.ranges}
        return replace(self, program=self.program.bind(known), options={**self.options, **known})

    def with_inputs(self, types: Mapping[str, TensorType]) -> Workload:
        """The workload with other layouts of some inputs; element types and shapes stay."""
        inputs: list[Input] = []
        ops = list(self.program.ops)
        for index, item in enumerate(self.program.inputs):
            kind = types.get(item.name, item.type)
            inputs.append(Input(item.name, kind))
            ops[index] = replace(ops[index], type=kind)
        if tuple(inputs) == self.program.inputs:
            return self
        return replace(self, program=replace(self.program, inputs=tuple(inputs), ops=tuple(ops)))

    def with_strides(self, strides: Mapping[str, Sequence[int] | str]) -> Workload:
        """The workload with inputs stored otherwise than densely and row by row.

        ``strides`` has the strides of an input in elements, one a dimension, or ``"col"``: its last
        two dimensions stored transposed. Raises ``RequestError`` (``workload.strides``,
        ``hir.strides``) for an unknown input or strides that do not fit.
        """
        types = {item.name: item.type for item in self.program.inputs}
        out: dict[str, TensorType] = {}
        for name, given in strides.items():
            if name not in types:
                raise RequestError(
                    "workload.strides",
                    f"strides of {name!r}: {self.op} has no such input; it has {', '.join(types)}",
                )
            kind = types[name]
            found = column_major(kind.shape) if given == COLUMNS else given
            if found is None or isinstance(found, str):
                raise RequestError(
                    "workload.strides",
                    f"strides of {name!r} are {given!r}; write numbers of elements, one a "
                    f"dimension of {shape_text(kind.shape)}, or col for two or more dimensions",
                )
            out[name] = TensorType(kind.dtype, kind.shape, tuple(found))
        return self.with_inputs(out)


def check_memory(
    op: str, program: Program, limit: int = MAX_BYTES, holder: str = "any machine"
) -> None:
    """Refuse programs whose arguments exceed ``limit`` bytes at their largest sizes.

    ``holder`` is what has that much memory, for the message. Raises ``RequestError``
    (``workload.too-large``).
    """
    types = [i.type for i in program.inputs] + list(program.output_types)
    total = sum(t.bind(program.largest).bytes for t in types)
    if total > limit:
        raise RequestError(
            "workload.too-large",
            f"{op}: its arguments take {total} bytes, beyond the memory of {holder} "
            f"(limit {limit})",
        )


def parse_dimension(name: str, value: object) -> int | Range:
    """A dimension from an option: ``512``, ``"512"``, ``"1..64"`` or ``"1..64%8"``.

    Raises ``RequestError`` for what is not a positive whole number or a range of them.
    """
    text = str(value).strip()
    low, dots, rest = text.partition("..")
    if isinstance(value, bool) or not text:
        raise _bad_dimension(name, value)
    if not dots:
        if not _digits(text.removeprefix("-")):
            raise _bad_dimension(name, value)
        if int(text) < 1:
            raise RequestError("workload.dimension", f"{name}={text}: a dimension is at least 1")
        return int(text)
    high, percent, multiple = rest.partition("%")
    parts = [low.strip(), high.strip(), multiple.strip() if percent else "1"]
    if not all(_digits(p) for p in parts):
        raise _bad_dimension(name, value)
    return Range(name, *map(int, parts))


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _bad_dimension(name: str, value: object) -> RequestError:
    return RequestError(
        "workload.dimension",
        f"{name}={value}: need a positive whole number below 10**18, or a range such as 1..64 "
        "or 8..64%8",
    )
