"""Keys: named fields, encoded without ambiguity, equal in every process.

A key is the SHA-256 of a canonical JSON text of named fields. Floats are refused: a field
whose text depends on rounding is not an identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast


def canonical(value: object) -> str:
    """Canonical JSON text of nested mappings, sequences, strings, integers, booleans, None.

    Mapping keys are sorted; sequences keep their order; enums encode as their value.
    Raises ``TypeError`` for anything else (floats and bytes included).
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(kind: str, fields: Mapping[str, object]) -> str:
    """SHA-256 (64 hex digits) of a record of the given kind."""
    text = canonical({"kind": kind, "fields": fields})
    return hashlib.sha256(text.encode()).hexdigest()


def digest_bytes(data: bytes) -> str:
    """SHA-256 (64 hex digits) of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def differences(
    wanted: Mapping[str, object], found: Mapping[str, object], prefix: str = ""
) -> dict[str, tuple[object, object]]:
    """Fields that differ between two records, dotted path → (wanted, found)."""
    out: dict[str, tuple[object, object]] = {}
    for name in sorted(set(wanted) | set(found)):
        a, b = wanted.get(name), found.get(name)
        path = f"{prefix}{name}"
        plain_a, plain_b = _plain(a), _plain(b)
        if isinstance(plain_a, dict) and isinstance(plain_b, dict):
            inner = cast("Mapping[str, object]", plain_a), cast("Mapping[str, object]", plain_b)
            out.update(differences(*inner, f"{path}."))
        elif plain_a != plain_b:
            out[path] = (plain_a, plain_b)
    return out


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        out: dict[str, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"key field names are strings, not {key!r}")
            out[key] = _plain(item)
        return out
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    raise TypeError(f"a key field cannot hold {type(value).__name__}: {value!r}")
