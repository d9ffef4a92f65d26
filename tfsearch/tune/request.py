"""What is to be tuned, and everything that follows from it before the first candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, WorkloadRecord
from tfsearch.cost.model import Prediction
from tfsearch.db.records import BestQuery, SessionFields
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits
from tfsearch.measure.job import protocol as protocol_named
from tfsearch.plugin import identity, registry
from tfsearch.plugin.kernel import bound_problem
from tfsearch.plugin.target import Compiler, Device, Problem, Target
from tfsearch.search import parse_policy
from tfsearch.search.learned import Learned
from tfsearch.search.problem import Times
from tfsearch.space import Points, Space
from tfsearch.space.file import KernelWorkload

DEFAULT_TRIALS = 32
PROOFS = ("shape", "full")
RECIPE = "recipe"


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True)
class TuneRequest:
    """A request to tune one workload.

    ``trials`` and ``seconds`` bound the session; with neither, 32 trials. ``policy`` None: ranked
    by the model, or the portfolio where nothing is predicted (a user's own kernel). ``fix`` holds
    parameters at a value (texts are parsed by the parameter's domain), and may name the
    ``recipe``. ``prove`` is ``shape`` (each distinct recipe shape is interpreted once) or
    ``full`` (every candidate's own reduced form). ``converge``: the session ends when the bound
    says that no more than this share is left to gain. ``finalists``: how many of the best go
    into the final. ``resume``: continue an unfinished session of the same request. ``baseline``:
    time the target's baseline too. ``limits``: what measuring one candidate may use. ``fleet``:
    ``HOST:PORT`` of a Ray cluster to compile and measure on, empty for one of this machine alone;
    None: this process and its own children do it.
    """

    workload: Workload | KernelWorkload
    target: str | None = None
    device: str | None = None
    trials: int | None = None
    seconds: float | None = None
    policy: str | None = None
    workers: int | None = None
    flags: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    toolchain: str | None = None
    fix: Mapping[str, ParamValue] = field(default_factory=dict[str, ParamValue])
    prove: str = "shape"
    seed: int = 0
    protocol: str = "warm"
    converge: float = 0.01
    finalists: int = 4
    resume: bool = True
    baseline: bool = True
    limits: Limits = field(default_factory=Limits)
    fleet: str | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("trials", self.trials, 1),
            ("workers", self.workers, 1),
            ("finalists", self.finalists, 1),
        ):
            if value is not None and not (_whole(value) and value >= least):
                raise RequestError(
                    "tune.budget", f"{name} is {value!r}; it must be a whole number from {least}"
                )
        seconds: object = self.seconds
        if seconds is not None and not (isinstance(seconds, Real) and seconds > 0):
            raise RequestError("tune.budget", f"seconds is {seconds!r}; it must be above 0")
        if self.prove not in PROOFS:
            raise RequestError(
                "tune.prove", f"prove is {self.prove!r}; it must be one of {', '.join(PROOFS)}"
            )
        if not (_whole(self.seed) and 0 <= self.seed < 2**63):
            raise RequestError("tune.seed", f"seed {self.seed!r} must be from 0 to 2**63-1")
        fix: object = self.fix
        if not isinstance(fix, Mapping):
            raise RequestError(
                "tune.option", f"fix is by parameter, as in {{'rows': 4}}, not {fix!r}"
            )
        protocol_named(self.protocol)
        parse_policy(self.policy_name)

    @property
    def policy_name(self) -> str:
        """The policy with its options as text."""
        default = "portfolio" if isinstance(self.workload, KernelWorkload) else "ranked"
        return self.policy or default

    @property
    def trials_limit(self) -> int | None:
        """The trials allowed; None when only time limits the session."""
        if self.trials is None and self.seconds is None:
            return DEFAULT_TRIALS
        return self.trials


@dataclass(frozen=True, eq=False)
class Plan:
    """A resolved request. It is the problem that policies see: ``space`` and ``predict``.

    ``space`` is the target's with the fixed parameters held; ``problem`` the target's own;
    ``learned`` what corrects its estimates, where that has been shown to help.
    """

    request: TuneRequest
    target: Target
    device: Device
    compiler: Compiler
    problem: Problem
    space: Space
    learned: Learned | None = None

    @property
    def corrects(self) -> bool:
        """Whether :meth:`correct` changes anything."""
        return self.learned is not None

    def correct(self, points: Points, estimate_us: Times) -> Times:
        """The estimates of a batch with what was learned from other workloads."""
        if self.learned is None:
            return estimate_us
        return estimate_us * self.learned.factor(points, self.problem.facts(points))

    def predict(self, points: Points) -> Prediction:
        """Predicted times of a batch of points of :attr:`space`, under the request's protocol."""
        return self.problem.predict(points, cold=protocol_named(self.request.protocol).cold)

    def point_facts(self, points: Points) -> Mapping[str, Any]:
        """The integer facts of a batch of points, one column each."""
        return self.problem.facts(points)

    @cached_property
    def workload(self) -> WorkloadRecord:
        """The workload as the database knows it."""
        return self.request.workload.record

    @property
    def facts(self) -> dict[str, Any]:
        """What a searcher outside of this process may know of the workload and the device."""
        return {
            "workload": {
                "op": self.workload.op,
                "dims": dict(self.workload.dims),
                "dtype": self.workload.dtype,
                "accuracy": self.workload.accuracy.value,
                "program": self.workload.program,
            },
            "target": self.target.name,
            "device": {"name": self.device.record.name, "facts": dict(self.device.facts)},
            "protocol": self.request.protocol,
            "refusals": [
                {"code": r.code, "where": r.where, "message": r.message}
                for r in self.problem.refusals
            ],
        }

    @cached_property
    def generator(self) -> str:
        """Digest of the target's generator."""
        return self.target.generator_digest()

    @cached_property
    def query(self) -> BestQuery:
        """The question whose answer this session improves."""
        request = self.request
        return identity.best_query(
            self.workload,
            self.target,
            self.device,
            self.compiler,
            request.flags,
            request.macros,
            request.protocol,
        )

    @cached_property
    def fields(self) -> SessionFields:
        """Identity of the session: an unfinished one with the same can be resumed."""
        request = self.request
        shape = {"space": self.space.fingerprint, "generator": self.generator}
        return SessionFields(
            workload=self.workload.key,
            target=self.target.name,
            device=self.device.record.key,
            toolchain=self.compiler.record.digest,
            flags=(*request.flags, *(f"-D{macro}" for macro in request.macros)),
            policy=f"{request.policy_name} {request.protocol}",
            seed=request.seed,
            space=keys.digest("session-space", shape),
        )


def resolve(request: TuneRequest, place: tuple[Target, Device] | None = None) -> Plan:
    """Find the target, device and compiler, and bind the workload.

    ``place`` names the target and a device where this machine's own are not meant.

    ``RequestError`` for unknown names, rejected flags and macros, and arguments beyond the
    device's memory; ``UnavailableError`` for an absent device or compiler.
    """
    if place is None:
        target = registry.get(request.target) if request.target else registry.best_present()
        device = registry.device(target, request.device)
    else:
        target, device = place
    workload, record = request.workload, device.record
    if record.memory_bytes:
        workload.check_memory(record.memory_bytes, record.name)
    compiler = target.compiler(request.toolchain)
    compiler.check_flags(request.flags, request.macros)
    problem = bound_problem(target, request.workload, device)
    space = fixed_space(problem.space, request.fix)
    return Plan(request, target, device, compiler, problem, space)


def fixed_space(space: Space, fix: Mapping[str, ParamValue]) -> Space:
    """The space with parameters held; ``RequestError`` for unknown names or values.

    ``recipe`` chooses a recipe, unless a parameter has that name.
    """
    rest = dict(fix)
    if RECIPE in rest and not any(RECIPE in recipe.by_name for recipe in space.recipes):
        space = space.only(str(rest.pop(RECIPE)))
    return space.fix({name: _value(space, name, value) for name, value in rest.items()})


def _value(space: Space, name: str, value: ParamValue) -> ParamValue:
    """A text as the domain's own value: ``64`` or ``true`` from a command line."""
    holders = [recipe.by_name[name] for recipe in space.recipes if name in recipe.by_name]
    if not isinstance(value, str) or any(value in parameter for parameter in holders):
        return value
    for parameter in holders:
        try:
            return parameter.parse(value)
        except RequestError:
            continue
    return value
