"""A correction of the estimate, learned from measured times, with how sure it is.

What is learned is the logarithm of measured over estimated time, as a linear function of features
of a candidate. Only differences between candidates of one workload count: times, estimates and
features are taken relative to the mean of their group, so a factor that all candidates of a
workload share (which ranks nothing) is neither learned nor applied. The weights are the posterior
mean of a Bayesian linear regression (C. M. Bishop, *Pattern Recognition and Machine Learning*,
3.3); the strength of the prior is the one of greatest evidence among ``STRENGTHS`` (3.5).
Candidates slower than the fastest of their group count less, the more so the slower they are: only
the fast end is ranked for. Everything is in closed form, so equal examples give equal corrections.

Whether a correction is to be used is decided by :func:`judge`: each workload in turn is left out,
and ranked by what the others taught.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.cost.ranks import recall, spearman

VERSION = 1
"""Of what is learned and of the form in which it is kept."""
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
FADING = 0.2
"""Log time beyond the fastest of a group at which a candidate counts about a third."""
CAUTION = 2.0
"""Deviations by which what is not known of a candidate counts against it."""
MOST = math.log(2.0)
"""No correction is greater than this, in either direction."""
WORKLOADS, TRIALS = 5, 8
"""Fewer workloads, or workloads with fewer trials, prove nothing."""
FIRST = 4
"""Recall is of so many of the fastest among the first so many of a ranking."""
NEAR = 1.5
"""Candidates within this factor of the fastest are near it."""
SURE = 1.645
"""Standard errors by which the mean gain has to be above 0: one-sided 95 %."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Measured candidates: ``features`` [rows, names], the logs of estimate and measured time
    [rows], and two labels [rows]: rows of one ``group`` may be compared with one another, those of
    one ``workload`` are left out together.
    """

    names: tuple[str, ...]
    features: Floats
    estimate: Floats
    measured: Floats
    group: NDArray[np.int64]
    workload: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.estimate)

    def rows(self, chosen: NDArray[np.bool_]) -> Examples:
        """Some of the rows."""
        return Examples(
            self.names,
            self.features[chosen],
            self.estimate[chosen],
            self.measured[chosen],
            self.group[chosen],
            self.workload[chosen],
        )


@dataclass(frozen=True, eq=False)
class Correction:
    """What was learned. Columns of all arrays are in the order of ``names``.

    A feature is moved by ``centre``, divided by ``scale`` and kept between ``low`` and ``high``,
    the range that was seen. ``covariance`` is that of the weights.
    """

    names: tuple[str, ...]
    centre: Floats
    scale: Floats
    low: Floats
    high: Floats
    weights: Floats
    covariance: Floats
    noise: float

    def apply(self, features: Floats) -> tuple[Floats, Floats]:
        """(mean, deviation) of the log of measured over estimated time, for [rows, names].

        The deviation is what is not known of the mean; times scatter by ``noise`` besides. Values
        that are not numbers count as the centre.
        """
        moved = (features - self.centre) / self.scale
        x = np.clip(np.where(np.isfinite(moved), moved, 0.0), self.low, self.high)
        mean = np.clip(x @ self.weights, -MOST, MOST)
        spread = np.einsum("ij,ij->i", x @ self.covariance, x)
        return mean, np.sqrt(np.maximum(spread, 0.0))

    def ranked(self, features: Floats) -> Floats:
        """What is added to the log of an estimate to rank it: the mean, less sure ones later.

        Of a hundred thousand candidates the one with the least mean is one of which little is
        known.
        """
        mean, deviation = self.apply(features)
        return mean + CAUTION * deviation

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; of the covariance the lower triangle, to six digits."""
        lower = self.covariance[np.tril_indices(len(self.names))]
        return {
            "names": list(self.names),
            "noise": self.noise,
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
            "covariance": [float(f"{value:.6g}") for value in lower.tolist()],
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Correction:
        """Inverse of :meth:`to_json`; ``ValueError`` for anything else."""
        try:
            names = tuple(str(name) for name in fields["names"])
            arrays = {name: np.array(fields[name], np.float64) for name in _ARRAYS}
            lower = np.array(fields["covariance"], np.float64)
            noise = float(fields["noise"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a correction: {error}") from error
        count = len(names)
        sizes = {**dict.fromkeys(_ARRAYS, count), "covariance": count * (count + 1) // 2}
        for name, array in {**arrays, "covariance": lower}.items():
            if array.shape != (sizes[name],) or not np.isfinite(array).all():
                raise ValueError(f"not a correction: {name} is not {sizes[name]} finite numbers")
        if not (arrays["scale"] > 0).all():
            raise ValueError("not a correction: a scale is not above 0")
        covariance = np.zeros((count, count))
        covariance[np.tril_indices(count)] = lower
        covariance += np.tril(covariance, -1).T
        return Correction(names, noise=noise, covariance=covariance, **arrays)


_ARRAYS = ("centre", "scale", "low", "high", "weights")


def fit(examples: Examples) -> Correction:
    """Learn from examples; of none, or where nothing varies, a correction that changes nothing."""
    weight = _weights(examples)
    x = _relative(examples.features, examples.group, weight)
    y = _relative(examples.measured - examples.estimate, examples.group, weight)
    count = len(examples.names)
    root = np.sqrt(weight)
    scale = (
        np.sqrt((weight @ x**2) / max(float(weight.sum()), 1e-12)) if len(x) else np.zeros(count)
    )
    varies = scale > 1e-9
    scale = np.where(varies, scale, 1.0)
    centre = np.average(examples.features, axis=0, weights=weight) if len(x) else np.zeros(count)
    moved = (examples.features - centre) / scale
    low, high = (moved.min(axis=0), moved.max(axis=0)) if len(x) else (centre, centre)
    design = (x / scale * varies) * root[:, None]
    # A group's mean costs it one row; a row counts as much as its weight.
    groups = len(np.unique(examples.group))
    freedom = max(float(weight.sum()) * (1.0 - groups / max(len(x), 1)), 1.0)
    mean, covariance, noise = _posterior(design, y * root, freedom)
    return Correction(examples.names, centre, scale, low, high, mean, covariance, noise)


def _posterior(x: Floats, y: Floats, freedom: float) -> tuple[Floats, Floats, float]:
    """(weights, their covariance, deviation of the noise) at the strength of greatest evidence."""
    squares, basis = np.linalg.eigh(x.T @ x)
    squares = np.maximum(squares, 0.0)
    projected = basis.T @ (x.T @ y)
    total = float(y @ y)
    best: tuple[float, float, float] | None = None
    for strength in STRENGTHS:
        left = max(total - float((projected**2 / (squares + strength)).sum()), 1e-12)
        variance = left / freedom
        evidence = -0.5 * freedom * math.log(variance)
        evidence -= 0.5 * float(np.log1p(squares / strength).sum())
        if best is None or evidence > best[0]:
            best = evidence, strength, variance
    assert best is not None
    _, strength, variance = best
    mean = basis @ (projected / (squares + strength))
    covariance = (basis / (squares + strength)) @ basis.T * variance
    return mean, covariance, math.sqrt(variance)


def _weights(examples: Examples) -> Floats:
    """How much each row counts: 1 for the fastest of its group, less for slower ones."""
    weight = np.ones(len(examples))
    for group in np.unique(examples.group):
        own = examples.group == group
        beyond = examples.measured[own] - examples.measured[own].min()
        weight[own] = np.exp(-beyond / FADING)
    return weight


def _relative(values: Floats, group: NDArray[np.int64], weight: Floats) -> Floats:
    """Values less the weighted mean of their group."""
    out = np.array(values, np.float64)
    for one in np.unique(group):
        own = group == one
        out[own] -= np.average(values[own], axis=0, weights=weight[own])
    return out


@dataclass(frozen=True)
class Scores:
    """How well a ranking does, as means over workloads.

    ``correlation`` is Spearman's, ``near`` that among candidates within 1.5 × of the fastest (None
    where no workload has three of them); ``recall`` the share of the four fastest among the
    first four; ``regret`` the fastest of the first four over the fastest of all.
    """

    correlation: float
    near: float | None
    recall: float
    regret: float


@dataclass(frozen=True)
class Verdict:
    """What leaving out each workload in turn has shown.

    ``before`` ranks by the estimate alone, ``after`` by the corrected one; ``gain`` is the mean
    difference of rank correlation by workload and ``error`` its standard error; ``covered`` the
    share of held-out ratios within the 95 % that the correction expected.
    ``reason`` says in a line why it is used or not.
    """

    workloads: int
    trials: int
    before: Scores | None
    after: Scores | None
    gain: float
    error: float
    covered: float
    used: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        fields = dict(vars(self))
        for name in ("before", "after"):
            fields[name] = None if fields[name] is None else dict(vars(fields[name]))
        return fields

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Verdict:
        """Inverse of :meth:`to_json`; ``TypeError`` or ``KeyError`` for anything else."""
        values = dict(fields)
        for name in ("before", "after"):
            values[name] = None if values[name] is None else Scores(**values[name])
        return Verdict(**values)


def judge(examples: Examples) -> Verdict:
    """Leave out each workload in turn, and say whether the correction ranks it better.

    It is used when the mean gain in rank correlation is above 0 by ``SURE`` standard errors and the
    first four of the corrected ranking hold no less of the fastest, on at least ``WORKLOADS``
    workloads of ``TRIALS`` trials each.
    """
    kept = [w for w in np.unique(examples.workload) if _enough(examples, int(w))]
    if len(kept) < WORKLOADS:
        trials = sum(int((examples.workload == w).sum()) for w in kept)
        reason = (
            f"{len(kept)} workloads with {TRIALS} trials or more; {WORKLOADS} are needed to judge"
        )
        return Verdict(len(kept), trials, None, None, 0.0, 0.0, 0.0, False, reason)
    before: list[_Score] = []
    after: list[_Score] = []
    inside: list[Floats] = []
    for workload in kept:
        held = examples.rows(examples.workload == workload)
        learned = fit(examples.rows(examples.workload != workload))
        mean, deviation = learned.apply(held.features)
        corrected = held.estimate + learned.ranked(held.features)
        for group in np.unique(held.group):
            own = held.group == group
            if own.sum() < TRIALS:
                continue
            before.append(_score(held.estimate[own], held.measured[own]))
            after.append(_score(corrected[own], held.measured[own]))
            off = (held.measured - held.estimate - mean)[own]
            wide = 1.96 * np.sqrt(deviation[own] ** 2 + learned.noise**2)
            inside.append((np.abs(off - np.median(off)) <= wide).astype(np.float64))
    gains = np.array([b.correlation - a.correlation for a, b in zip(before, after, strict=True)])
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(len(gains)))
    scores = _mean(before), _mean(after)
    used, reason = _decide(gain, error, *scores)
    trials = sum(int((examples.workload == w).sum()) for w in kept)
    covered = float(np.concatenate(inside).mean())
    return Verdict(len(kept), trials, *scores, gain, error, covered, used, reason)


def _enough(examples: Examples, workload: int) -> bool:
    own = examples.group[examples.workload == workload]
    return int(np.unique(own, return_counts=True)[1].max()) >= TRIALS


def _decide(gain: float, error: float, before: Scores, after: Scores) -> tuple[bool, str]:
    shown = f"rank correlation of held-out workloads {gain:+.3f} ± {SURE * error:.3f}"
    if gain <= SURE * error:
        return False, f"{shown}: no gain is shown"
    if after.recall < before.recall or after.regret > before.regret:
        return False, f"{shown}, but the first {FIRST} hold less of the fastest"
    return True, shown


@dataclass(frozen=True)
class _Score:
    correlation: float
    near: float | None
    recall: float
    regret: float


def _score(predicted: Floats, measured: Floats) -> _Score:
    near = measured <= measured.min() + math.log(NEAR)
    first = np.argsort(predicted, kind="stable")[:FIRST]
    return _Score(
        spearman(predicted, measured),
        spearman(predicted[near], measured[near]) if near.sum() >= 3 else None,
        recall(predicted, measured, FIRST),
        math.exp(float(measured[first].min() - measured.min())),
    )


def _mean(scores: Sequence[_Score]) -> Scores:
    near = [score.near for score in scores if score.near is not None]
    return Scores(
        float(np.mean([score.correlation for score in scores])),
        float(np.mean(near)) if near else None,
        float(np.mean([score.recall for score in scores])),
        float(np.mean([score.regret for score in scores])),
    )
