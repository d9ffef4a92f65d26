"""A user's own C kernel on this processor.

The text is the user's file, followed by an entry that takes pointers as every kernel here does and
calls the user's function; scalars are passed by value. Constants and parameters are macros.
Quoted includes are looked for beside the user's file.
"""

from __future__ import annotations

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.plugin.kernel import KernelProblem
from tfsearch.plugin.target import Source
from tfsearch.space import Point
from tfsearch.space.file import KernelWorkload

ENTRY = "tfsearch_user_entry"
SCALARS = {DType.F32: "float", DType.F64: "double", DType.I32: "int", DType.I8: "signed char"}
UNDECLARED = "-Werror=implicit-function-declaration"
"""A misspelt entry is an error of the compiler, not of the loader."""


class X86Kernel(KernelProblem):
    """See :class:`tfsearch.plugin.kernel.KernelProblem`."""

    def __init__(self, workload: KernelWorkload) -> None:
        """``RequestError`` for another language than C, launch geometry, or a scalar's type."""
        super().__init__(workload)
        spec = workload.spec
        if workload.language != "c":
            raise RequestError(
                "x86.language",
                f"{workload.source.name} is {workload.language}; the x86 target builds C (*.c)",
            )
        if spec.launch.stated:
            raise RequestError(
                "x86.launch", f"{workload.file.path}: a C kernel has no launch geometry"
            )
        for argument in spec.arguments:
            if not argument.shape and argument.dtype not in SCALARS:
                raise RequestError(
                    "x86.scalar",
                    f"{workload.file.path}: scalar {argument.name} is {argument.dtype.value}; "
                    f"scalars are {', '.join(dtype.value for dtype in SCALARS)}",
                )

    def source(self, point: Point) -> Source:
        """The user's text with its entry; macros are among the flags."""
        defines = [f"-D{name}={value}" for name, value in self.macros(point).items()]
        return Source(
            text=self._text(),
            language="c",
            launch=LaunchSpec(self.entry(ENTRY)),
            features=(),
            flags=(UNDECLARED, *defines),
            folder=str(self.kernel.source.parent),
        )

    def probes(self, point: Point) -> tuple[str, ...]:
        """The vector units' speed."""
        del point
        return ("fma",)

    def _text(self) -> str:
        passed: list[str] = []
        for index, argument in enumerate(self.kernel.spec.arguments):
            if argument.shape:
                passed.append(f"arguments[{index}]")
            else:
                passed.append(f"*(const {SCALARS[argument.dtype]} *)arguments[{index}]")
        return "\n".join(
            [
                self.kernel.text,
                '#line 1 "entry.c"',
                f"int {ENTRY}(void **arguments) {{",
                f"  {self.kernel.spec.entry}({', '.join(passed)});",
                "  return 0;",
                "}",
                "",
            ]
        )
