"""Gaussian-process regression in NumPy for a few hundred observations.

The covariance is a Matérn function of smoothness 5/2 of the distance after every group of
dimensions is divided by a length of its own (C. E. Rasmussen and C. K. I. Williams, *Gaussian
Processes for Machine Learning*, sections 4.2 and 5.1). Lengths and noise are those of greatest
posterior density under weak priors; the overall variance is in closed form. A posterior keeps mean
and variance at a fixed set of points up to date, one observation at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.search.problem import Times
from tfsearch.search.scan import Ints

ROOT5 = math.sqrt(5.0)
JITTER = 1e-8
LENGTH = 0.7
"""Centre of the prior of lengths: features run from 0 to 1."""
LENGTH_SPREAD = 1.0
LENGTHS = (math.log(0.05), math.log(10.0))
NOISE = 1e-2
NOISE_SPREAD = 2.0
NOISES = (math.log(1e-4), 0.0)
FIRST_STEP = 0.3
STEPS = (0.01, 1.0)


@dataclass(frozen=True)
class Shape:
    """Logarithms of lengths [groups] and of the noise's share of the variance."""

    lengths: Times
    noise: float

    @staticmethod
    def first(groups: int) -> Shape:
        """Where fitting starts: short lengths, a per cent of noise."""
        return Shape(np.full(groups, math.log(0.5)), math.log(NOISE))

    def scaled(self, features: Times, groups: Ints) -> Times:
        """Features divided by their group's length."""
        return features * np.exp(-self.lengths)[groups]


def covariance(squared: Times) -> Times:
    """Matérn 5/2 of squared distances, 1 at distance 0."""
    r = ROOT5 * np.sqrt(np.maximum(squared, 0.0))
    return (1.0 + r + r * r / 3.0) * np.exp(-r)


def _slope(squared: Times) -> Times:
    """Derivative of :func:`covariance` with respect to the squared distance."""
    r = ROOT5 * np.sqrt(squared)
    return (-5.0 / 6.0) * (1.0 + r) * np.exp(-r)


def squared_distances(left: Times, right: Times) -> Times:
    """[rows of left, rows of right]."""
    own = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)
    return np.maximum(own - 2.0 * left @ right.T, 0.0)


def fit(start: Shape, features: Times, groups: Ints, y: Times, rounds: int = 15) -> Shape:
    """A shape of high posterior density given observations ``y`` of mean about 0.

    The best seen on sign-based gradient steps from ``start`` (Rprop: Riedmiller and Braun, 1993).
    """
    count = len(start.lengths)
    squared = np.empty((count, len(y), len(y)))
    for group in range(count):
        own = features[:, groups == group]
        squared[group] = ((own[:, None, :] - own[None, :, :]) ** 2).sum(axis=2)
    theta = np.append(start.lengths, start.noise)
    low = np.append(np.full(count, LENGTHS[0]), NOISES[0])
    high = np.append(np.full(count, LENGTHS[1]), NOISES[1])
    best, least = theta, math.inf
    step, before = np.full(count + 1, FIRST_STEP), np.zeros(count + 1)
    for _ in range(rounds):
        try:
            value, gradient = _loss(theta, squared, y)
        except np.linalg.LinAlgError:
            break
        if value < least:
            best, least = theta, value
        turn = np.sign(gradient * before)
        step = np.clip(step * np.where(turn > 0, 1.4, np.where(turn < 0, 0.5, 1.0)), *STEPS)
        before = gradient
        theta = np.clip(theta - np.sign(gradient) * step, low, high)
    return Shape(best[:count], float(best[count]))


def _loss(theta: Times, squared: Times, y: Times) -> tuple[float, Times]:
    """Negative log posterior density with the variance profiled out, and its gradient."""
    count, n = len(squared), len(y)
    weights, noise = np.exp(-2.0 * theta[:count]), math.exp(theta[count])
    distance = np.tensordot(weights, squared, 1)
    matrix = covariance(distance)
    matrix[np.diag_indices(n)] += noise + JITTER
    lower = np.linalg.inv(np.linalg.cholesky(matrix))
    inverse = lower.T @ lower
    solved = inverse @ y
    variance = max(float(y @ solved) / n, 1e-12)
    off = np.append(
        (theta[:count] - math.log(LENGTH)) / LENGTH_SPREAD,
        (theta[count] - math.log(NOISE)) / NOISE_SPREAD,
    )
    value = 0.5 * n * math.log(variance) - float(np.log(np.diag(lower)).sum())
    value += 0.5 * float(off @ off)
    outer = inverse - np.outer(solved, solved) / variance
    pull = outer * _slope(distance)
    gradient = np.empty(count + 1)
    gradient[:count] = -weights * np.tensordot(squared, pull, 2) + off[:count] / LENGTH_SPREAD
    gradient[count] = 0.5 * noise * np.trace(outer) + off[count] / NOISE_SPREAD
    return value, gradient


def _inverse(matrix: Any) -> Times:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _solve(matrix: Any, right: Any) -> Times:
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


class Posterior:
    """Mean and deviation at ``points`` [points, dimensions] (features) given observations.

    Observations are numbered in the order in which they were added; an expected one may be
    corrected later with :meth:`correct`.
    """

    def __init__(
        self, shape: Shape, groups: Ints, points: Times, observed: Times, values: Times, room: int
    ) -> None:
        self._shape, self._groups = shape, groups
        self._points = shape.scaled(points, groups)
        self._norms = (self._points**2).sum(axis=1)
        self._noise = math.exp(shape.noise) + JITTER
        count = len(observed)
        self._observed = shape.scaled(observed, groups)
        self._count = count
        self._values: list[float] = values.tolist()
        lower = np.linalg.cholesky(self._matrix(self._observed))
        rows = np.empty((count + room, len(points)))
        inverse = _inverse(lower)
        rows[:count] = inverse @ covariance(squared_distances(self._observed, self._points))
        self._rows: Times = rows
        self._lower: Times = np.zeros((count + room, count + room))
        self._lower[:count, :count] = lower
        self._solved: list[float] = (inverse @ values).tolist()
        solved = np.array(self._solved)
        self._variance = max(float(solved @ solved) / max(count, 1), 1e-6)
        self.mean: Times = solved @ rows[:count]
        self._left: Times = 1.0 - (rows[:count] ** 2).sum(axis=0)

    def _matrix(self, observed: Times) -> Times:
        matrix = covariance(squared_distances(observed, observed))
        matrix[np.diag_indices(len(observed))] += self._noise
        return matrix

    @property
    def full(self) -> bool:
        """Whether there is no room for another observation."""
        return self._count == len(self._rows)

    @property
    def spread(self) -> Times:
        """How unknown each point is: 1 far from every observation, about 0 beside one."""
        return np.sqrt(np.maximum(self._left, 1e-12))

    @property
    def deviation(self) -> Times:
        """Standard deviation of the function at the points, without noise."""
        return self.spread * math.sqrt(self._variance)

    def add(self, features: Times, place: int | None, value: float | None) -> int:
        """Add an observation and give its number. ``place``: its position among the points.

        Without a value the mean there is taken for it.
        """
        own = self._shape.scaled(features, self._groups)
        count = self._count
        distance = self._norms - 2.0 * (self._points @ own) + own @ own
        rows: Times = self._rows[:count]
        if place is None:
            near = covariance(squared_distances(self._observed, own[None])[:, 0])
            column: Times = _solve(self._lower[:count, :count], near)
            expected = float(column @ np.array(self._solved))
        else:
            column = rows[:, place].copy()
            expected = float(self.mean[place])
        diagonal = math.sqrt(max(1.0 + self._noise - float(column @ column), 1e-10))
        row: Times = (covariance(distance) - column @ rows) / diagonal
        known = expected if value is None else value
        solved = (known - expected) / diagonal
        self._rows[count] = row
        self._lower[count, :count], self._lower[count, count] = column, diagonal
        self._observed = np.concatenate([self._observed, own[None]])
        self._values.append(known)
        self._solved.append(solved)
        self._count += 1
        self.mean = self.mean + solved * row
        self._left = self._left - row**2
        return count

    def correct(self, number: int, value: float) -> None:
        """Say what an observation turned out to be."""
        count = self._count
        self._values[number] = value
        if number == count - 1:
            before = self._solved[number]
            expected = float(self._lower[number, :number] @ np.array(self._solved[:number]))
            after = (value - expected) / float(self._lower[number, number])
            self._solved[number] = after
            self.mean = self.mean + (after - before) * self._rows[number]
            return
        solved: Times = _solve(self._lower[:count, :count], np.array(self._values))
        self._solved = solved.tolist()
        self.mean = solved @ self._rows[:count]


def improvement(mean: Times, deviation: Times, best: float) -> Times:
    """Expected improvement below ``best`` (D. R. Jones, M. Schonlau, W. J. Welch, 1998)."""
    gain = best - mean
    z = gain / deviation
    return gain * _normal(z) + deviation * np.exp(-0.5 * z * z) * 0.3989422804014327


def _normal(z: Times) -> Times:
    """Normal distribution function to 8e-8 (Abramowitz and Stegun, 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = 0.3989422804014327 * np.exp(-0.5 * z * z) * poly
    return np.where(z > 0, 1.0 - tail, tail)
