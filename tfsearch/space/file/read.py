"""Reading a space file of either form."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tfsearch.core import strict
from tfsearch.core.errors import RequestError
from tfsearch.space.file.model import KernelSpec, SpaceFile
from tfsearch.space.file.parts import Place
from tfsearch.space.file.t1 import T1File
from tfsearch.space.file.toml import TomlFile

MAX_BYTES = 4 << 20


def read_space_file(path: str | Path, given: Mapping[str, str] | None = None) -> SpaceFile:
    """Read a T1 definition (``.json``) or our TOML (any other name).

    ``given`` replaces constants of a TOML file. What is wrong is a ``RequestError`` that begins
    with the file and the place in it: ``kernel.file`` (cannot be read), ``kernel.file-syntax``,
    ``kernel.file-key``, ``kernel.file-value``, ``kernel.constant``, and those of spaces and
    expressions (``space.…``).
    """
    file = Path(path)
    document = _document(file, _text(file))
    form = T1File if _is_json(file) else TomlFile
    with Place(file):
        reader = form(file, document, given or {})
        recipe = reader.recipe()

    def kernel() -> KernelSpec:
        with Place(file):
            return reader.kernel()

    return SpaceFile(file, recipe, dict(reader.constants), kernel)


def _is_json(file: Path) -> bool:
    return file.suffix.lower() == ".json"


def _text(file: Path) -> str:
    try:
        if not file.is_file():
            raise RequestError("kernel.file", f"{file} is not a file")
        if file.stat().st_size > MAX_BYTES:
            raise RequestError(
                "kernel.file", f"{file} is larger than {MAX_BYTES} bytes; it is no space definition"
            )
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RequestError("kernel.file", f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError("kernel.file-syntax", f"{file} is not UTF-8 text") from error


def _document(file: Path, text: str) -> dict[str, Any]:
    try:
        found: object = strict.loads(text) if _is_json(file) else tomllib.loads(text)
    except ValueError as error:  # those of both readers, and of numbers with too many digits
        form = "JSON" if _is_json(file) else "TOML"
        raise RequestError("kernel.file-syntax", f"{file}: not {form}: {error}") from None
    except RecursionError:
        raise RequestError("kernel.file-syntax", f"{file}: nested too deeply") from None
    if not isinstance(found, dict):
        raise RequestError("kernel.file-value", f"{file}: must be a JSON object")
    return cast("dict[str, Any]", found)
