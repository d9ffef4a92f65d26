"""Optuna's samplers as a policy, and spaces as Optuna sees them. Only this module imports Optuna.

A study has a parameter for every choice: ``recipe`` (where there are several) and
``RECIPE.PARAMETER``, or ``PARAMETER`` alone where the space has one recipe. Ordinal parameters are
positions in their domain, so that samplers know their order; the others are categories. Whatever a
sampler suggests is moved to the nearest legal point that is not known yet before the study
sees it, so a study holds legal points only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.search.base import Base, time_of
from tfsearch.search.objectives import Second
from tfsearch.search.problem import Problem, Result
from tfsearch.search.table import Table
from tfsearch.search.uniform import UniformPoints
from tfsearch.space import Kind, Parameter, Point, RecipeSpace, Space

RECIPE = "recipe"
SHORT = {"tpe": "TPE", "gp": "GP", "cmaes": "CmaEs", "nsgaii": "NSGAII", "qmc": "QMC"}
NEEDS = {"GPSampler": ("torch", "scipy"), "CmaEsSampler": ("cmaes",), "QMCSampler": ("scipy",)}


class Encoding:
    """Points as parameters of a study and back."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._several = len(space.recipes) > 1
        self.distributions: dict[str, BaseDistribution] = {}
        if self._several:
            names = [recipe.name for recipe in space.recipes]
            self.distributions[RECIPE] = CategoricalDistribution(names)
        for recipe in space.recipes:
            for parameter in _free(recipe):
                self.distributions[self._key(recipe, parameter)] = _distribution(parameter)

    def _key(self, recipe: RecipeSpace, parameter: Parameter) -> str:
        return f"{recipe.name}.{parameter.name}" if self._several else parameter.name

    def params(self, point: Point) -> dict[str, Any]:
        """A study's parameters for a point whose values are in their domains."""
        recipe = self.space.recipe(point.recipe_name)
        out: dict[str, Any] = {RECIPE: recipe.name} if self._several else {}
        for parameter in _free(recipe):
            value = point.params[parameter.name]
            ordinal = parameter.kind is Kind.ORDINAL
            out[self._key(recipe, parameter)] = parameter.encode(value) if ordinal else value
        return out

    def point(self, params: Mapping[str, Any]) -> Point:
        """The point of a study's parameters, legal or not; ``KeyError`` if one is missing."""
        name = params[RECIPE] if self._several else self.space.recipes[0].name
        recipe = self.space.recipe(str(name))
        free = {parameter.name for parameter in _free(recipe)}
        values: dict[str, Any] = {}
        for parameter in recipe.parameters:
            if parameter.name not in free:
                values[parameter.name] = parameter.values[0]
                continue
            value = params[self._key(recipe, parameter)]
            ordinal = parameter.kind is Kind.ORDINAL
            values[parameter.name] = parameter.decode(int(value)) if ordinal else value
        return Point(recipe.name, values)

    def suggest(self, trial: Trial) -> Point:
        """The point that a trial's sampler suggests, legal or not."""
        params: dict[str, Any] = {}
        recipe = self.space.recipes[0]
        if self._several:
            params[RECIPE] = self._suggested(trial, RECIPE)
            recipe = self.space.recipe(params[RECIPE])
        for parameter in _free(recipe):
            key = self._key(recipe, parameter)
            params[key] = self._suggested(trial, key)
        return self.point(params)

    def _suggested(self, trial: Trial, key: str) -> Any:
        distribution = self.distributions[key]
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(key, distribution.low, distribution.high)
        assert isinstance(distribution, CategoricalDistribution)
        return trial.suggest_categorical(key, distribution.choices)

    def trial(self, result: Result, second: Second | None = None) -> FrozenTrial:
        """A finished trial for :meth:`optuna.study.Study.add_trial`; its value in microseconds.

        With a ``second`` objective it has two values. A failure is a failed trial whose user
        attribute ``tfsearch`` says why.
        """
        time_us = time_of(result)
        values = None if time_us is None else [time_us]
        if second is not None:
            values = second.values(result)
        params = self.params(result.point)
        attributes = {"tfsearch": " ".join([result.status.value, result.code, result.message])}
        return create_trial(
            state=TrialState.FAIL if time_us is None else TrialState.COMPLETE,
            values=values,
            params=params,
            distributions={key: self.distributions[key] for key in params},
            user_attrs=attributes if time_us is None else {},
        )


def _free(recipe: RecipeSpace) -> list[Parameter]:
    """Parameters with a choice."""
    return [parameter for parameter in recipe.parameters if len(parameter) > 1]


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.kind is Kind.ORDINAL:
        return IntDistribution(0, len(parameter) - 1)
    return CategoricalDistribution(parameter.values)


class LegalSampler(BaseSampler):
    """A sampler whose suggestions are moved to legal points by ``legal``."""

    def __init__(
        self, inner: BaseSampler, encoding: Encoding, legal: Callable[[Point], Point]
    ) -> None:
        self._inner = inner
        self._encoding = encoding
        self._legal = legal

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters: what the inner sampler leaves out is sampled one by one."""
        del study, trial
        return dict(self._encoding.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The legal point nearest to the inner sampler's suggestion."""
        inner = self._inner.infer_relative_search_space(study, trial)
        found = dict(self._inner.sample_relative(study, trial, inner))
        for key, distribution in search_space.items():
            if key not in found:
                found[key] = self._inner.sample_independent(study, trial, key, distribution)
        return self._encoding.params(self._legal(self._encoding.point(found)))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """As the inner sampler does; for parameters that are not of the space."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passed on."""
        self._inner.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passed on."""
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Passed on."""
        self._inner.reseed_rng()


def nearest_legal(inner: BaseSampler, problem: Problem) -> LegalSampler:
    """A sampler for a study of one's own; known points may be suggested again."""
    encoding, table = Encoding(problem.space), Table(problem, 0)

    def legal(point: Point) -> Point:
        return (
            point if table.row(point) is not None else table.nearest(point, np.arange(len(table)))
        )

    return LegalSampler(inner, encoding, legal)


def pruned(trial: Trial, reason: str) -> optuna.TrialPruned:
    """What to raise in an objective; the reason becomes the trial's attribute ``tfsearch``."""
    trial.set_user_attr("tfsearch", reason)
    return optuna.TrialPruned(reason)


def sampler(name: str, seed: int) -> BaseSampler:
    """A sampler of Optuna by name, as ``tpe``, ``nsgaii`` or ``TPESampler``, in any case.

    ``RequestError("policy.optuna-sampler")`` for an unknown one, or one that needs arguments;
    ``UnavailableError("policy.optuna-missing")`` where it needs a package that is absent.
    """
    known = {
        item.lower(): getattr(optuna.samplers, item)
        for item in optuna.samplers.__all__
        if item.endswith("Sampler") and not item.startswith("Base")
    }
    wanted = SHORT.get(name.lower(), name).lower()
    made = known.get(wanted) or known.get(f"{wanted}sampler")
    if made is None:
        names = ", ".join(sorted(item.removesuffix("sampler") for item in known))
        raise RequestError(
            "policy.optuna-sampler", f"Optuna has no sampler {name!r}; known: {names}"
        )
    missing = [p for p in NEEDS.get(made.__name__, ()) if importlib.util.find_spec(p) is None]
    if missing:
        raise UnavailableError(
            "policy.optuna-missing",
            f"Optuna's {made.__name__} needs {' and '.join(missing)}: pip install "
            f"{' '.join(missing)}",
        )
    arguments = inspect.signature(made).parameters
    needed = [
        n for n, p in arguments.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if made is optuna.samplers.BruteForceSampler:
        raise RequestError(
            "policy.optuna-sampler",
            "Optuna's BruteForceSampler ends studies by itself; use the policy exhaustive",
        )
    if needed:
        raise RequestError(
            "policy.optuna-sampler",
            f"Optuna's {made.__name__} needs {', '.join(needed)} and cannot be made by name",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return made(seed=seed) if "seed" in arguments else made()


class OptunaPolicy(Base):
    """A sampler asked for one point after the other.

    ``projected`` counts suggestions that were illegal or known already and were moved. ``study`` is
    what the sampler sees; failures are failed trials in it. ``second`` names another objective
    beside the time: the study then has two, and :attr:`front` what nothing beats in both.
    """

    name = "optuna"

    def __init__(
        self,
        problem: Problem,
        *,
        variant: str,
        seed: int,
        incumbent_us: float | None,
        hints: Sequence[Point] = (),
        second: str = "",
    ) -> None:
        super().__init__(problem, incumbent_us)
        self.name = f"optuna:{variant}" + (f",second={second}" if second else "")
        self._second = Second(second, problem) if second else None
        self.projected = 0
        self._variant, self._seed = variant, seed
        self._table = Table(problem, seed)
        self._open = np.ones(len(self._table), np.bool_)
        self._encoding = Encoding(problem.space)
        self._hints = [point for point in hints if not problem.space.check(point)]
        self._rest = iter(UniformPoints(problem, (seed, 13)))
        self._running: dict[Point, Trial] = {}
        self._proposed = 0
        self.study = _quiet_study(sampler(variant, seed), 1 + bool(second))

    def tell(self, results: Sequence[Result]) -> None:
        """Finish the trials of these points, or add them to the study."""
        super().tell(results)
        for result in results:
            row = self._table.row(result.point)
            if row is None:
                continue
            self._close(row)
            trial = self._running.pop(result.point, None)
            if result.status is Status.CANCELLED:
                continue
            time_us = time_of(result)
            if trial is None:
                self._proposed += 1
                self.study.add_trial(self._encoding.trial(result, self._second))
            elif time_us is None:
                self.study.tell(trial, state=TrialState.FAIL)
            elif self._second is not None:
                self.study.tell(trial, self._second.values(result))
            else:
                self.study.tell(trial, time_us)

    @property
    def front(self) -> list[tuple[Point, tuple[float, ...]]]:
        """Points that no other one beats in every objective, with their values."""
        best = self.study.best_trials if self._second is not None else []
        return [(self._encoding.point(one.params), tuple(one.values)) for one in best]

    def _close(self, row: int) -> None:
        more = len(self._table) - len(self._open)
        self._open = np.concatenate([self._open, np.ones(more, np.bool_)])
        self._open[row] = False

    def _next(self) -> Point | None:
        if self._hints:
            return self._hints.pop(0)
        if not self._possible().any():
            return next((p for p, bound in self._rest if not self._hopeless(bound)), None)
        # A sampler's own generator would go on differently in a resumed session.
        inner = sampler(self._variant, _mixed(self._seed, self._proposed))
        self.study.sampler = LegalSampler(inner, self._encoding, self._legal)
        self._proposed += 1
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                trial = self.study.ask()
                point = self._encoding.suggest(trial)
            except (ValueError, NotImplementedError, RuntimeError) as error:
                if self._second is None:
                    raise
                raise RequestError(
                    "policy.optuna-sampler",
                    f"Optuna's {self._variant} takes no second objective: {error}",
                ) from error
        row = self._table.row(point)
        assert row is not None
        self._close(row)
        self._running[point] = trial
        return point

    def _possible(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        # What cannot be the fastest may still be on the front of two objectives.
        if self.best_us is None or self._second is not None:
            return self._open
        return self._open & (self._table.bound_us[: len(self._open)] < self.best_us)

    def _legal(self, point: Point) -> Point:
        """The point, or the nearest one that may still be proposed."""
        row = self._table.row(point)
        if row is not None and row >= len(self._open):
            self._close(row)
            self._open[row] = True
        possible = self._possible()
        if row is not None and possible[row]:
            return point
        self.projected += 1
        return self._table.nearest(point, np.flatnonzero(possible))


def _mixed(seed: int, count: int) -> int:
    return int(np.random.SeedSequence([seed, count]).generate_state(1)[0])


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without Optuna's notes on every study and on every parameter that a sampler leaves out."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _quiet_study(inner: BaseSampler, objectives: int) -> Study:
    with _quiet():
        return optuna.create_study(sampler=inner, directions=[StudyDirection.MINIMIZE] * objectives)


def stored_study(storage: str, name: str, objectives: int) -> Study:
    """A study in a storage of Optuna's, made if it is not there.

    ``RequestError`` (``optuna.storage``) for a storage that does not open, or a study of that name
    with another number of objectives.
    """
    try:
        with _quiet():
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                directions=[StudyDirection.MINIMIZE] * objectives,
                load_if_exists=True,
            )
    except Exception as error:
        raise RequestError(
            "optuna.storage", f"Optuna cannot open {storage}: {str(error).splitlines()[0]}"
        ) from error
    if len(study.directions) != objectives:
        raise RequestError(
            "optuna.storage",
            f"the study {name!r} in {storage} has {len(study.directions)} objectives, not "
            f"{objectives}; give another name",
        )
    return study
