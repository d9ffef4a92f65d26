"""What a space file says, as frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from tfsearch.core.records import NUMPY_ALIGNMENT, ParamValue
from tfsearch.ir.dtypes import DType
from tfsearch.space.expr import Expr
from tfsearch.space.recipe import RecipeSpace

RECIPE = "kernel"
"""Name of the one recipe of a user's kernel."""
CONDITION = "kernel.condition"
"""Codes of a file's conditions: this with ``-1`` for the first one, and so on."""


class Fill(Enum):
    """What an argument holds before a call.

    ``RANDOM``: what each verification pass takes; ``POSITIVE``: their magnitudes; ``RANGE``:
    uniform from ``low`` to ``high``, whole numbers where the type is an integer; ``VALUE``: ``low``
    everywhere.
    """

    RANDOM = "random"
    POSITIVE = "positive"
    RANGE = "range"
    VALUE = "value"


@dataclass(frozen=True)
class Init:
    """How an argument is filled; ``low`` and ``high`` are texts of numbers, or empty."""

    fill: Fill = Fill.RANDOM
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Argument:
    """One argument of the kernel, in call order.

    ``shape`` is () for a scalar, which is passed by value; other arguments are dense arrays that
    are passed by address. ``io`` is ``in``, ``out`` or ``inout``.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    io: str
    init: Init = Init()


@dataclass(frozen=True)
class Launch:
    """Launch geometry as expressions over parameters and constants; () and None: not stated."""

    grid: tuple[Expr, ...] = ()
    block: tuple[Expr, ...] = ()
    cluster: tuple[Expr, ...] = ()
    smem: Expr | None = None

    @property
    def stated(self) -> bool:
        """Whether anything is."""
        return bool(self.grid or self.block or self.cluster or self.smem)


@dataclass(frozen=True)
class KernelSpec:
    """What it takes to build, call and check a user's kernel.

    ``language``: ``c``, ``cuda``, ``opencl``, … or empty where the file does not say. ``file`` and
    the file of ``reference`` (``file.py:function``, or empty) are absolute. ``terms``: how many
    summands one output element has at most. ``flops``: useful operations of a call, None if
    unknown. ``exact``: whether small integers give exact results (None: found out by trying).
    ``reproducible``: the same bits twice are required. ``alignment``: of every array, in bytes.
    """

    entry: str
    language: str
    file: Path | None
    arguments: tuple[Argument, ...]
    launch: Launch = Launch()
    flags: tuple[str, ...] = ()
    reference: str = ""
    terms: int = 1
    flops: int | None = None
    exact: bool | None = None
    reproducible: bool = True
    alignment: int = NUMPY_ALIGNMENT


@dataclass(frozen=True, eq=False)
class SpaceFile:
    """A space file that was read.

    ``constants`` are sizes and other fixed values, defined for the compiler as parameters are.
    """

    path: Path
    space: RecipeSpace
    constants: Mapping[str, ParamValue]
    read_kernel: Callable[[], KernelSpec] = field(repr=False)

    @cached_property
    def kernel(self) -> KernelSpec:
        """The part about the kernel; ``RequestError`` when it is missing or wrong."""
        return self.read_kernel()
