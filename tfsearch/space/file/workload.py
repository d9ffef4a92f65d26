"""A user's kernel as a workload: its source and what it must compute, bound to sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import WorkloadRecord
from tfsearch.ir.dtypes import DType
from tfsearch.space.file.model import KernelSpec, Launch, SpaceFile
from tfsearch.space.file.read import read_space_file

FORMAT = 1
MAX_SOURCE_BYTES = 4 << 20
LANGUAGES = {
    ".c": "c",
    ".cc": "c++",
    ".cl": "opencl",
    ".cpp": "c++",
    ".cu": "cuda",
    ".hip": "hip",
}
"""Language of a source by the end of its name."""


@dataclass(frozen=True)
class Reference:
    """The function that says what is right: in ``file``, whose content is ``digest``."""

    file: Path
    function: str
    digest: str

    @property
    def place(self) -> str:
        """``file:function``, for whoever loads it."""
        return f"{self.file}:{self.function}"


@dataclass(frozen=True, eq=False)
class KernelWorkload:
    """A user's kernel with everything bound; what :class:`~tfsearch.ir.workload.Workload` is to
    programs.

    ``text`` is the source file as it is, ``language`` what it is written in. Its identity is the
    text, the entry, the arguments, the constants, the reference's content and how it is compared;
    headers, flags and parameters belong to builds and schedules.
    """

    file: SpaceFile
    source: Path
    text: str
    language: str
    spec: KernelSpec
    reference: Reference

    @property
    def op(self) -> str:
        """A label for people."""
        return f"{self.source.name}:{self.spec.entry}"

    @property
    def dtype(self) -> DType:
        """Element type of the first array."""
        arrays = [argument for argument in self.spec.arguments if argument.shape]
        return arrays[0].dtype

    @cached_property
    def record(self) -> WorkloadRecord:
        """The workload as the database knows it."""
        dims = {n: v if isinstance(v, str) else int(v) for n, v in self.file.constants.items()}
        return WorkloadRecord(
            op=self.op,
            dims=dims,
            dtype=self.dtype.value,
            program=keys.canonical(self._fields()),
            reproducible=self.spec.reproducible,
            alignment=self.spec.alignment,
        )

    @property
    def key(self) -> str:
        """Digest of everything that is the workload's identity."""
        return self.record.key

    @property
    def sizes(self) -> Mapping[str, int]:
        """Nothing is left open."""
        return {}

    @property
    def flops(self) -> int | None:
        """Useful operations of a call, where the file says so."""
        return self.spec.flops

    def check_memory(self, limit: int, holder: str) -> None:
        """``RequestError`` (``workload.too-large``) for arguments beyond ``limit`` bytes."""
        total = sum(math.prod(a.shape) * a.dtype.bytes for a in self.spec.arguments)
        if total > limit:
            raise RequestError(
                "workload.too-large",
                f"{self.op}: its arguments take {total} bytes, beyond the memory of {holder} "
                f"(limit {limit})",
            )

    def _fields(self) -> dict[str, object]:
        spec = self.spec
        return {
            "kernel": FORMAT,
            "language": self.language,
            "source": keys.digest_bytes(self.text.encode()),
            "entry": spec.entry,
            "arguments": [
                {
                    "name": a.name,
                    "dtype": a.dtype,
                    "shape": list(a.shape),
                    "io": a.io,
                    "init": [a.init.fill, a.init.low, a.init.high],
                }
                for a in spec.arguments
            ],
            "constants": dict(self.file.constants),
            "reference": self.reference.digest,
            "function": self.reference.function,
            "terms": spec.terms,
            "exact": spec.exact,
        }


def kernel_workload(
    source: str | Path | None,
    space_file: str | Path,
    constants: Mapping[str, str] | None = None,
    reference: str | None = None,
) -> KernelWorkload:
    """The workload of a kernel's source and its space file.

    ``source`` None takes the file that the space file names; ``reference`` (``file.py:function``)
    wins over the space file's, which is relative to its folder. Raises ``RequestError``: those of
    :func:`~tfsearch.space.file.read.read_space_file`, ``kernel.source``, ``kernel.language``,
    ``kernel.reference``, ``kernel.arguments``.
    """
    file = read_space_file(space_file, constants)
    spec = file.kernel
    path = Path(source) if source is not None else spec.file
    if path is None:
        raise RequestError(
            "kernel.source",
            f"{file.path} names no source; write: KERNEL --space {file.path}",
        )
    text = _source(path)
    language = LANGUAGES.get(path.suffix.lower(), spec.language)
    if not language:
        raise RequestError(
            "kernel.language",
            f"{path}: the language of {path.suffix or 'a name without an end'} is not known; "
            f"known ends: {', '.join(LANGUAGES)}",
        )
    if language in ("c", "c++") and file.path.suffix.lower() == ".json":
        spec = replace(spec, launch=Launch())  # T1 cannot leave it out
    if not any(argument.shape for argument in spec.arguments):
        raise RequestError("kernel.arguments", f"{file.path}: the kernel has no array argument")
    if all(argument.io == "in" for argument in spec.arguments):
        raise RequestError(
            "kernel.arguments",
            f"{file.path}: no argument is out or inout, so nothing tells a right kernel",
        )
    return KernelWorkload(file, path.resolve(), text, language, spec, _reference(file, reference))


def _source(path: Path) -> str:
    try:
        if not path.is_file():
            raise RequestError("kernel.source", f"{path} is not a file")
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise RequestError("kernel.source", f"{path} is larger than {MAX_SOURCE_BYTES} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError("kernel.source", f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise RequestError("kernel.source", f"cannot read {path}: {error.strerror}") from error


def _reference(file: SpaceFile, given: str | None) -> Reference:
    place = given or file.kernel.reference
    folder = Path.cwd() if given else file.path.parent
    if not place:
        raise RequestError(
            "kernel.reference",
            f"{file.path} names no reference, and an unchecked kernel is not tuned; give "
            'reference = "file.py:function" or --reference file.py:function',
        )
    name, colon, function = place.rpartition(":")
    if not colon or not name.endswith(".py") or not function.isidentifier():
        raise RequestError("kernel.reference", f"reference {place!r} is not file.py:function")
    path = (folder / name).resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(
            "kernel.reference", f"cannot read the reference {path}: {error.strerror}"
        ) from error
    _refuse_unnamed(path, function, content)
    return Reference(path, function, keys.digest_bytes(content))


def _refuse_unnamed(path: Path, function: str, content: bytes) -> None:
    """``RequestError`` (``program.no-function``) when the file can't have such a function.

    The text alone is looked at, no code of the user's is run: what imports everything of a module,
    or says the name anywhere, is left to the process that calls the function.
    """
    text = content.decode("utf-8", "replace")
    if re.search(rf"\b{function}\b|\bimport\s*\(?\s*\*", text):
        return
    known = ", ".join(re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)) or "none"
    raise RequestError(
        "program.no-function", f"{path} has no function {function!r}; it has {known}"
    )
