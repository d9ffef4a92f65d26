"""Space files: a user's own kernel described by T1 JSON or by our TOML, read without running it.

:func:`read_space_file` reads the parameters, conditions and constants as a space; what it takes to
build and check the kernel is read when asked for, so that any definition can be counted.
"""

from tfsearch.space.file.model import Argument, Fill, Init, KernelSpec, Launch, SpaceFile
from tfsearch.space.file.read import read_space_file
from tfsearch.space.file.t4 import Results, is_results, read_results
from tfsearch.space.file.workload import KernelWorkload, kernel_workload

__all__ = [
    "Argument",
    "Fill",
    "Init",
    "KernelSpec",
    "KernelWorkload",
    "Launch",
    "Results",
    "SpaceFile",
    "is_results",
    "kernel_workload",
    "read_results",
    "read_space_file",
]
