"""Landscapes that nobody recorded, for judging policies without tuning to recorded spaces.

``tiles-N``: a blocked matrix product on a made-up device: waves, occupancy, bank conflicts, partial
warps. ``effects-N``: random main effects and interactions of log time with jumps between
neighbouring values; ``rough-N`` with larger jumps. A corner of the latter two fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _recorded import ListedSpace, RecordedProblem

SYNTHETIC = (
    *(f"tiles-{seed}" for seed in range(4)),
    *(f"effects-{seed}" for seed in range(6)),
    *(f"rough-{seed}" for seed in range(4)),
)


def make(name: str) -> RecordedProblem:
    """The landscape of that name, the same every time."""
    kind, _, seed = name.partition("-")
    rng = np.random.default_rng([len(kind), int(seed)])
    if kind == "tiles":
        names, domains, codes, times = _tiles(rng)
    else:
        names, domains, codes, times = _effects(rng, 0.3 if kind == "effects" else 0.9)
    values = [np.array(domain)[codes[:, column]].tolist() for column, domain in enumerate(domains)]
    seconds = 1.0 + 0.5 * rng.random(len(times)) + 0.02 * np.nan_to_num(times, nan=10.0)
    return RecordedProblem(name, ListedSpace.of(names, values), times, seconds)


def _product(domains: list[list[int]]) -> Any:
    grid = np.meshgrid(*[np.arange(len(domain)) for domain in domains], indexing="ij")
    return np.stack([axis.ravel() for axis in grid], axis=1)


def _tiles(rng: np.random.Generator) -> tuple[list[str], list[list[int]], Any, Any]:
    names = ["bm", "bn", "bk", "tm", "tn", "stages", "swizzle", "vector"]
    domains = [
        [16, 32, 48, 64, 96, 128],
        [16, 32, 48, 64, 96, 128],
        [8, 16, 32],
        [1, 2, 4, 8],
        [1, 2, 4, 8],
        [1, 2, 3, 4],
        [0, 1],
        [1, 2, 4],
    ]
    codes = _product(domains)
    columns = [np.array(d, float)[codes[:, i]] for i, d in enumerate(domains)]
    bm, bn, bk, tm, tn, stages, swizzle, vector = columns
    threads, shared = bm / tm * bn / tn, stages * (bm + bn) * bk * 4
    legal = (threads >= 32) & (threads <= 1024) & (shared <= 98304)
    legal &= (bm % tm == 0) & (bn % tn == 0) & (rng.random(len(codes)) < 0.25)
    codes = codes[legal]
    bm, bn, bk, tm, tn, stages, swizzle, vector = (column[legal] for column in columns)
    threads, shared = threads[legal], shared[legal]
    size, units = 2000 + rng.integers(300), rng.choice([48, 80, 108])
    warps = np.ceil(threads / 32)
    registers = (tm * tn + tm + tn + 20) * warps * 32
    room = np.minimum(rng.uniform(8e4, 16e4) / shared, 65536 / registers)
    resident = np.clip(np.floor(np.minimum(room, 2048 / threads)), 0, 16)
    waves = np.ceil(np.ceil(size / bm) * np.ceil(size / bn) / np.maximum(units * resident, 1))
    filled = 1 - np.exp(
        -resident * threads / 32 / (1 + rng.uniform(0.5, 4) / (tm * tn)) / rng.uniform(4, 12)
    )
    compute = bm * bn * bk / 64 / rng.uniform(0.8, 1.2) * (1 + rng.uniform(0.5, 4) / (tm * tn))
    compute *= 1 + (swizzle == 0) * rng.uniform(0.05, 0.5) * (bn / tn % 32 == 0)
    compute *= 1 + rng.uniform(0.1, 0.5) * (vector == 1)
    compute *= 1 + rng.uniform(0.2, 0.6) * ((vector == 4) & (tn % 4 != 0))
    memory = (bm + bn) * bk * 4 / rng.uniform(20, 60) / (np.minimum(stages, 3) * 0.13 + 0.6)
    step = np.maximum(compute / np.maximum(filled, 1e-3), memory) * warps * 32 / threads
    times = waves * (np.maximum(resident, 1) * size / bk * step + 2000)
    times *= np.exp(rng.normal(0, 0.01, len(times)))
    times[resident < 1] = np.nan
    return names, domains, codes, times / np.nanmin(times)


def _effects(rng: np.random.Generator, jump: float) -> tuple[list[str], list[list[int]], Any, Any]:
    domains: list[list[int]] = []
    for _ in range(int(rng.integers(6, 10))):
        kind = int(rng.integers(4))
        if kind == 0:
            domains.append([2**power for power in range(int(rng.integers(3, 8)))])
        elif kind == 1:
            step = int(rng.choice([1, 8, 16]))
            domains.append([step * count for count in range(1, int(rng.integers(5, 13)))])
        elif kind == 2:
            domains.append([0, 1])
        else:
            domains.append(list(range(int(rng.integers(3, 6)))))
    while np.prod([float(len(domain)) for domain in domains]) > 60_000:
        domains.pop()
    while np.prod([float(len(domain)) for domain in domains]) < 3_000:
        domains.append([1, 2, 4, 8])
    count = len(domains)
    codes = _product(domains)
    first, second = rng.choice(count, 2, replace=False)
    product = np.multiply(*(np.array(domains[i], float)[codes[:, i]] for i in (first, second)))
    codes = codes[product <= np.quantile(product, 0.7)]
    codes = codes[np.sort(rng.permutation(len(codes))[:12_000])]

    def curve(size: int) -> Any:
        x = np.linspace(-1, 1, size)
        return rng.normal() * x + 1.5 * rng.normal() * x**2 + jump * rng.normal(size=size)

    log = np.zeros(len(codes))
    for axis in range(count):
        log += rng.exponential(0.4) * curve(len(domains[axis]))[codes[:, axis]]
    for _ in range(count):
        a, b = rng.choice(count, 2, replace=False)
        left, right = curve(len(domains[a])), curve(len(domains[b]))
        log += rng.exponential(0.4) * left[codes[:, a]] * right[codes[:, b]]
    for _ in range(3):
        axes = rng.choice(count, 3, replace=False)
        beyond = [codes[:, axis] >= rng.integers(len(domains[axis])) for axis in axes]
        log += 0.5 * rng.normal() * np.logical_and.reduce(beyond)
    times = np.exp(0.5 * log / log.std() + rng.normal(0, 0.02, len(log)))
    a, b = rng.choice(count, 2, replace=False)
    times[(codes[:, a] == codes[:, a].max()) & (codes[:, b] == codes[:, b].min())] = np.nan
    return [f"p{axis}" for axis in range(count)], domains, codes, times / np.nanmin(times)
