"""What a wrong product looks like: which part of its computation would give it."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
SLICE = 16
"""Elements along the sum of one matrix instruction."""
CHUNK, PERIOD, BLOCK = 8, 8, 64
"""Elements of 16 bytes, rows after which a swizzle repeats, elements of a swizzled row."""
SAMPLES = 4096


def faults(got: Array, a: Array, b: Array, allowed: Array) -> list[str]:
    """Lines on a product that should be ``a @ b.T``; none when it is right.

    ``got`` is [m, n], ``a`` [m, k], ``b`` [n, k] in float64 as they were stored; ``allowed`` [m, n]
    is how far an element may be off. Elements that were not written are NaN.
    """
    wanted = a @ b.T
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - wanted) <= allowed)
    if not wrong.any():
        return []
    rows, columns = np.nonzero(wrong)
    first = (int(rows[0]), int(columns[0]))
    out = [
        f"{wrong.sum()} of {wrong.size} elements wrong, in rows {rows.min()}..{rows.max()} and "
        f"columns {columns.min()}..{columns.max()}; the first at {first}: {got[first]:.5g}, "
        f"wanted {wanted[first]:.5g}",
        "wrong by blocks of 64 rows (down) and 64 columns: " + _blocks(wrong),
    ]
    unwritten = np.isnan(got)
    if unwritten.any():
        return [*out, f"{unwritten.sum()} not written (or NaN): {_blocks(unwritten)}"]
    if not got[wrong].any():
        return [*out, "all of them are 0"]
    return [*out, *_explained(got, a, b, wanted, wrong)]


def _blocks(mask: Array) -> str:
    down, across = (-(-n // BLOCK) for n in mask.shape)
    counts = [
        [
            int(mask[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK].sum())
            for j in range(min(across, 6))
        ]
        for i in range(min(down, 6))
    ]
    return str(counts) + (" …" if down > 6 or across > 6 else "")


def _close(x: Array, y: Array) -> bool:
    """Whether two arrays are the same but for rounding."""
    scale = float(np.abs(y).max())
    return bool(scale > 0 and np.abs(x - y).max() <= 0.02 * scale)


def _explained(got: Array, a: Array, b: Array, wanted: Array, wrong: Array) -> list[str]:
    """The first explanations that hold for all elements, in the order of what is usual."""
    k = a.shape[1]
    slices = [slice(at, min(at + SLICE, k)) for at in range(0, k, SLICE)]
    rows, columns = (part[:SAMPLES] for part in np.nonzero(wrong))
    parts = np.stack([(a[rows, s] * b[columns, s]).sum(1) for s in slices], axis=1)
    if len(rows) >= len(slices):
        weights, *_ = np.linalg.lstsq(parts, got[rows, columns], rcond=None)
        if _close(parts @ weights, got[rows, columns]):
            numbers = " ".join(f"{round(float(w), 2) + 0.0:g}" for w in weights[:64])
            return [f"right but for the weights of slices of {SLICE} along the sum: {numbers}"]
    if got.shape[0] == got.shape[1] and _close(got, wanted.T):
        return ["the result is transposed"]
    names = {"the first": (True, False), "the second": (False, True), "both": (True, True)}
    for name, (first, second) in names.items():
        for what, change in (("read without its swizzle", _unswizzled), ("transposed", _turned)):
            left, right = change(a) if first else a, change(b) if second else b
            if left is not None and right is not None and _close(got, left @ right.T):
                return [f"as if {name} factor were {what}"]
    moved = _moved(got, wanted, "row") or _moved(got.T, wanted.T, "column")
    return [moved] if moved else ["no simple explanation holds for all of them"]


def _unswizzled(x: Array) -> Array:
    """Pieces of 16 bytes within rows of 128 where a reader without a swizzle finds them."""
    rows, k = x.shape
    whole = k // BLOCK * BLOCK
    out = x.copy()
    pieces = x[:, :whole].reshape(rows, -1, BLOCK // CHUNK, CHUNK)
    target = out[:, :whole].reshape(rows, -1, BLOCK // CHUNK, CHUNK)
    for row in range(rows):
        order = np.arange(BLOCK // CHUNK) ^ (row % PERIOD)
        target[row] = pieces[row][:, order]
    out[:, :whole] = target.reshape(rows, whole)
    return out


def _turned(x: Array) -> Array | None:
    """Square tiles of 64 transposed; None where they do not divide the factor."""
    rows, k = x.shape
    if rows % BLOCK or k % BLOCK:
        return None
    tiles = x.reshape(rows // BLOCK, BLOCK, k // BLOCK, BLOCK)
    return tiles.transpose(0, 3, 2, 1).reshape(rows, k)


def _moved(got: Array, wanted: Array, name: str) -> str:
    """Which rows hold other rows, where each holds one."""
    lengths = np.linalg.norm(wanted, axis=1), np.linalg.norm(got, axis=1)
    if not (lengths[0].all() and lengths[1].all()):
        return ""
    alike = (got / lengths[1][:, None]) @ (wanted / lengths[0][:, None]).T
    found = alike.argmax(axis=1)
    if alike.max(axis=1).min() < 0.99:
        return ""
    moves = [f"{i} holds {j}" for i, j in enumerate(found) if i != j]
    return f"{name}s change places: " + ", ".join(moves[:16]) + (" …" if len(moves) > 16 else "")
