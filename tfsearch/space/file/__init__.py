"""Space files: a user's own kernel described by T1 JSON or by our TOML, read without running it.

:func:`read_space_file` reads the parameters, conditions and constants as a space; what it takes to
build and check the kernel is read when asked for, so that any definition can be counted.
"""

from tfsearch.space.file.model import Argument, Fill, Init, KernelSpec, Launch, SpaceFile
from tfsearch.space.file.read import read_space_file

__all__ = [
    "Argument",
    "Fill",
    "Init",
    "KernelSpec",
    "Launch",
    "SpaceFile",
    "read_space_file",
]
