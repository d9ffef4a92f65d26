"""Numbers of a GPU: the documents of its architecture, of its model, and of the card itself.

What was measured on the card counts before what is known of its model, and that before what
holds for every device of the architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from tfsearch.atoms.documents import Document, Fact, Origin, load
from tfsearch.core import keys, settings
from tfsearch.core.errors import RequestError

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")
"""Architectures that code is generated for, oldest first."""
MEASURED = "measured"
"""Folder of the user's home that holds the documents of measured devices."""


@dataclass(frozen=True)
class Hardware:
    """Documents of one device, the most specific first; the last one is its architecture's."""

    documents: tuple[Document, ...]

    @property
    def architecture(self) -> str:
        """Such as ``sm_90a``."""
        return self.documents[-1].name

    @property
    def digest(self) -> str:
        """Digest over the texts of all documents."""
        return keys.digest("hardware", {"documents": [d.digest for d in self.documents]})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the documents, the most specific first."""
        return tuple(document.name for document in self.documents)

    def fact(self, name: str) -> Fact | None:
        """The fact of the most specific document that has a value for it.

        Where none has, what the most specific one says of its absence.
        """
        found = [d.facts[name] for d in self.documents if name in d.facts]
        known = [fact for fact in found if fact.value is not None]
        return (known or found or [None])[0]

    def get(self, name: str) -> float | None:
        """The value of a fact, or None when it is unavailable."""
        fact = self.fact(name)
        return None if fact is None else fact.value

    def number(self, name: str) -> float:
        """The value of a fact; ``RequestError`` (``document.unavailable``) when there is none."""
        fact = self.fact(name)
        if fact is None or fact.value is None:
            why = fact.source if fact else "it is in none of its documents"
            place = ", ".join(self.names)
            raise RequestError("document.unavailable", f"{place} has no {name}: {why}")
        return fact.value

    def whole(self, name: str) -> int:
        """The value of a fact that is a count or a size in bytes."""
        return int(self.number(name))

    def measured(self, name: str) -> bool:
        """Whether the value was measured on the device itself."""
        fact = self.fact(name)
        return fact is not None and fact.origin is Origin.MEASURED


def folder() -> Path:
    """Where the documents lie that ship with the target."""
    return Path(str(files("tfsearch.target.cuda") / "documents"))


@cache
def documents() -> Sequence[Document]:
    """Every document that ships with the target."""
    return tuple(load(path) for path in sorted(folder().glob("*.toml")))


def architecture_of(capability: tuple[int, int]) -> str | None:
    """The architecture to generate code for on a device of this compute capability.

    Machine code runs on later devices of the same major version, except that of an architecture
    whose name ends with a letter. None when there is no such architecture.
    """
    best: str | None = None
    for name in ARCHITECTURES:
        major, minor = document(name).settings["capability"]
        if major != capability[0] or minor > capability[1]:
            continue
        if name[-1].isalpha() and minor != capability[1]:
            continue
        best = name
    return best


def document(name: str) -> Document:
    """A document that ships with the target, by name."""
    return next(d for d in documents() if d.name == name)


def measured_path(uuid: str) -> Path:
    """Where the measurements of a card are kept."""
    return settings.load().home / MEASURED / f"{uuid}.toml"


def _own(uuid: str) -> Iterator[Document]:
    if uuid and (path := measured_path(uuid)).exists():
        yield load(path)


def hardware_of(architecture: str, name: str, uuid: str = "") -> Hardware:
    """Documents of a device by architecture, name of the model, and UUID of the card."""
    models = [d for d in documents() if name in d.settings.get("names", ())]
    return Hardware((*_own(uuid), *models, document(architecture)))
