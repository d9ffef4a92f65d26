"""The verifier: structural proof of a kernel before anything is compiled.

One walk over the statements keeps what is known (:class:`~tfsearch.prove.scope.Scope`) and
applies the tables of rules. Nothing is executed; what cannot be decided here (reads of
unwritten memory, races, coverage of outputs) is the interpreter's.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TypeVar

from tfsearch.atoms.contract import Atom, Part, Sync
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Refusal
from tfsearch.ir.tir.expr import Const, Expr
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Io,
    Kernel,
    Let,
    LoopKind,
    MemorySpace,
    Module,
    Role,
    Stmt,
    Window,
)
from tfsearch.ir.tir.printer import first_lines, places, print_expr
from tfsearch.ir.tir.walk import Path, walk
from tfsearch.prove.dataflow import Written
from tfsearch.prove.forms import Form, UnboundError, scale
from tfsearch.prove.limits import Limits
from tfsearch.prove.points import enumerate_points
from tfsearch.prove.protocol.collect import Protocol
from tfsearch.prove.rules_contract import OPERAND_RULES, SIGNATURE_RULES
from tfsearch.prove.rules_control import (
    BARRIER,
    BARRIER_RULES,
    LOOP_RULES,
    ROLE_RULES,
    astray,
    loop_divergence,
    partial_role,
)
from tfsearch.prove.rules_layout import LAYOUT_RULES
from tfsearch.prove.rules_storage import (
    ALLOC_RULES,
    capacity_findings,
    kernel_findings,
    module_findings,
)
from tfsearch.prove.rules_team import ISSUER_RULES, PART_RULES, team_findings
from tfsearch.prove.rules_window import WINDOW_RULES
from tfsearch.prove.scope import Scope
from tfsearch.prove.site import CallSite, Resolved, ResolvedWindow, Rule, Site
from tfsearch.prove.states import state_findings
from tfsearch.prove.team.program import called, needs_team

CALL_RULES: tuple[Rule[CallSite], ...] = OPERAND_RULES + WINDOW_RULES + BARRIER_RULES

_TERMS = itemgetter(1)

S = TypeVar("S", bound=Site)


def verify(program: Kernel | Module, atoms: AtomTable, limits: Limits) -> tuple[Refusal, ...]:
    """Every reason why a kernel or a module is not legal; () if it is.

    Each refusal names a stable code, the statement's place in the canonical text
    (``kernel:line:column: statement``), the numbers, and what would be right. At most
    ``limits.max_refusals`` are reported.
    """
    if isinstance(program, Kernel):
        return tuple(_kernel(program, atoms, limits, 1))
    out: list[Refusal] = []
    if not program.kernels:
        return (Refusal("tir.module-empty", "", "a module has at least one kernel"),)
    for code, index, message in module_findings(program):
        out.append(Refusal(code, f"kernel {program.kernels[index].name}", message))
    lines: tuple[int, ...] = ()
    for index, kernel in enumerate(program.kernels):
        found = _findings(kernel, atoms, limits)
        if found:
            lines = lines or first_lines(program)
            out.extend(_placed(kernel, found, lines[index]))
    return tuple(out[: limits.max_refusals])


def _kernel(kernel: Kernel, atoms: AtomTable, limits: Limits, line: int) -> list[Refusal]:
    found = _findings(kernel, atoms, limits)
    return _placed(kernel, found, line)[: limits.max_refusals] if found else []


Finding = tuple[str, Path, str]


def _placed(kernel: Kernel, found: list[Finding], line: int) -> list[Refusal]:
    where = places(kernel, first_line=line)
    return [Refusal(code, f"{kernel.name}:{where[path]}", message) for code, path, message in found]


def _findings(kernel: Kernel, atoms: AtomTable, limits: Limits) -> list[Finding]:
    found = [*kernel_findings(kernel, limits), *team_findings(kernel, limits)]
    if found:
        return found
    checker = _Checker(kernel, atoms, limits)
    checker.block(kernel.body, (), 0, "")
    found = checker.found
    if not found:
        found.extend(checker.written.unwritten_outputs())
        found.extend(state_findings(kernel, atoms))
    if not found and checker.protocol is not None:
        found.extend(checker.protocol.findings())
    if not any(code in ("tir.buffer-empty", "tir.buffer-layout") for code, _, _ in found):
        found.extend(capacity_findings(kernel, limits, atoms))
    return found


class _Checker:
    def __init__(self, kernel: Kernel, atoms: AtomTable, limits: Limits) -> None:
        self.kernel = kernel
        self.atoms = atoms
        self.limits = limits
        self.scope = Scope(kernel.units)
        self.visible: dict[str, Buffer] = {p.buffer.name: p.buffer for p in kernel.params}
        self.io: dict[str, Io] = {p.buffer.name: p.io for p in kernel.params}
        self.declared: set[str] = set(self.visible)
        self.written = Written(kernel)
        self.found: list[Finding] = []
        self._signatures: set[tuple[object, ...]] = set()
        self._legal: set[tuple[object, ...]] = set()
        self._kinds: dict[tuple[object, ...], int] = {}
        self._kind_of: dict[str, int] = {p.buffer.name: self._kind(p.buffer) for p in kernel.params}
        self._allocated: set[int] = set()
        self._tame: dict[str, bool] = {}
        self._broken: set[str] = set()
        self._issued: set[tuple[str, str | None]] = set()
        self.role: Role | None = None
        self.partial = ""
        self.astray = ""
        self.protocol = Protocol(kernel, atoms, limits) if needs_team(kernel, atoms) else None
        self._meets = kernel.units > 1 and _units_meet(kernel, atoms)

    def block(self, block: Block, prefix: Path, offset: int, divergent: str) -> None:
        """Check a block; names it introduces end with it."""
        visible = self.visible
        self.visible = dict(visible)
        for index, statement in enumerate(block):
            if len(self.found) >= self.limits.max_refusals:
                break
            self._statement(statement, (*prefix, offset + index), divergent)
        self.visible = visible

    def _statement(self, statement: Stmt, path: Path, divergent: str) -> None:
        match statement:
            case Call():
                self._call(statement, path, divergent)
            case For():
                self._loop(statement, path, divergent)
            case If():
                self._if(statement, path, divergent)
            case Let(name, value):
                form = self._form(value, path)
                if form is not None and self._free(name, path):
                    self.scope.let(name, form)
            case Alloc(buffer):
                self._alloc(statement, buffer, path, divergent)
            case Role():
                self._role(statement, path, divergent)
            case _:
                self._refuse("tir.statement", path, f"{type(statement).__name__} is no statement")

    def _call(self, call: Call, path: Path, divergent: str) -> None:
        atom = self.atoms.get(call.atom)
        if atom is None:
            self._refuse("tir.atom-unknown", path, f"there is no atom {call.atom}")
            return
        missing = atom.features - self.atoms.features
        if missing:
            text = f"{atom.id} needs {', '.join(sorted(missing))}, which the target lacks"
            self._refuse("tir.atom-unavailable", path, text)
        if len(call.operands) != len(atom.operands):
            names = ", ".join(spec.name for spec in atom.operands)
            self._refuse(
                "tir.operand-count",
                path,
                f"{atom.id} has {len(call.operands)} operands; it takes {len(atom.operands)} "
                f"({names})",
            )
            return
        operands = self._resolve(call, atom, path)
        if operands is None:
            return
        found = tuple([o for o in operands if isinstance(o, ResolvedWindow)])
        fresh: list[ResolvedWindow] = []
        keys: list[tuple[object, ...]] = []
        for operand in found:
            if operand.literal:
                kind = self._kind_of.get(operand.buffer.name, -1)
                key = (id(operand.spec), kind, operand.starts, operand.extents)
                if key in self._legal:
                    continue
                keys.append(key)
            fresh.append(operand)
        signature = (atom.id, *self._kinds_of(operands))
        known = not fresh and signature in self._signatures and self._is_tame(atom)
        site = CallSite(
            self.kernel, self.atoms, self.limits, self.scope, self.visible, self.io, call, path,
            divergent, self.role, self.partial, self.astray, atom=atom, operands=operands,
            windows=found, open=tuple(fresh),
        )  # fmt: skip
        before = len(self.found)
        if signature not in self._signatures:
            self._apply(SIGNATURE_RULES, site)
            if len(self.found) == before:
                self._signatures.add(signature)
        # A call whose like has been found legal, in windows with literal places, need not be
        # looked at again.
        if not known or not all(map(_by_literals, found)):
            self._apply(CALL_RULES, site)
        if self.protocol is not None:
            self._team_rules(site, atom, known=known)
            if len(self.found) == before:
                self.protocol.call(site)
        if len(self.found) == before:
            self._legal.update(keys)
            for code, message in self.written.reads(site):
                self._refuse(code, path, message)
        self.written.writes(site)

    def _kind(self, buffer: Buffer) -> int:
        """A number that buffers share which differ in nothing but their names."""
        key = (
            buffer.dtype, buffer.shape, buffer.space, buffer.strides, buffer.alignment,
            buffer.layout, buffer.fragment, buffer.over, buffer.at, self.io.get(buffer.name),
        )  # fmt: skip
        return self._kinds.setdefault(key, len(self._kinds))

    def _kinds_of(self, operands: tuple[Resolved, ...]) -> list[int]:
        kinds = self._kind_of
        return [
            kinds.get(o.buffer.name, -1) if isinstance(o, ResolvedWindow) else -2 for o in operands
        ]

    def _is_tame(self, atom: Atom) -> bool:
        """Whether only its signature and its windows decide if a call of an atom is legal."""
        found = self._tame.get(atom.id)
        if found is None:
            written = sum(bool(s.spaces) and s.access.writes for s in atom.operands)
            numbers = any(
                not s.spaces and s.dtype is not None and not s.dtype.is_float for s in atom.operands
            )
            found = atom.effects.synchronises == Sync.NONE and written < 2 and not numbers
            found = found and all(s.box is None for s in atom.operands)
            self._tame[atom.id] = found
        return found

    def _team_rules(self, site: CallSite, atom: Atom, *, known: bool) -> None:
        key = (atom.id, None if self.role is None else self.role.name)
        if key not in self._issued:
            self._issued.add(key)
            self._apply(ISSUER_RULES, site)
        if atom.is_laid_out and not known:
            self._apply(LAYOUT_RULES, site)
        if len(atom.parts) > 1 or Part.TILE not in atom.parts:
            self._apply(PART_RULES, site)

    def _resolve(self, call: Call, atom: Atom, path: Path) -> tuple[Resolved, ...] | None:
        out: list[Resolved] = []
        for operand, spec in zip(call.operands, atom.operands, strict=True):
            if isinstance(operand, Window):
                buffer = operand.buffer
                if buffer.name in self._broken:
                    return None
                if self.visible.get(buffer.name) is not buffer and not self._known(buffer, path):
                    return None
                starts = self._forms(operand.starts, path)
                extents = self._forms(operand.extents, path)
                if starts is None or extents is None:
                    return None
                fixed = _literal(starts)
                literal = fixed and _literal(extents)
                out.append(
                    ResolvedWindow(operand, spec, operand, buffer, starts, extents, fixed, literal)
                )
            else:
                if isinstance(operand, Expr) and self._form(operand, path) is None:
                    return None
                out.append(Resolved(operand, spec))
        return tuple(out)

    def _known(self, buffer: Buffer, path: Path) -> bool:
        declared = self.visible.get(buffer.name)
        if declared is buffer or declared == buffer:
            return True
        if declared is None:
            text = f"buffer {buffer.name} is not alive here; allocate it before and outside"
            self._refuse("tir.buffer-unknown", path, text)
        else:
            text = f"buffer {buffer.name} differs from its declaration ({declared})"
            self._refuse("tir.buffer-mismatch", path, text)
        return False

    def _loop(self, loop: For, path: Path, divergent: str) -> None:
        start, stop = self._form(loop.start, path), self._form(loop.stop, path)
        if start is None or stop is None:
            return
        before = len(self.found)
        self._apply(LOOP_RULES, self._site(loop, path, divergent))
        if not self._free(loop.name, path) or len(self.found) != before:
            return
        inner = divergent
        if self._meets and not inner:
            inner = loop_divergence(self._site(loop, path, ""), loop, start, stop)
        static = loop.kind is LoopKind.UNROLLED
        outside = (self.partial, self.astray)
        if self.protocol is not None:
            what = f"loop {loop.name} runs {print_expr(loop.start)}..{print_expr(loop.stop)}"
            self._meet(loop, path, (start, stop), what)
        mark = self.scope.mark()
        self.scope.loop(loop.name, start, stop, loop.step, static=static)
        if self.scope.feasible:
            self.block(loop.body, path, 0, inner)
        else:
            text = (
                f"loop {loop.name} never runs for any unit: {print_expr(loop.start)} is never "
                f"below {print_expr(loop.stop)}"
            )
            self._refuse("tir.region-unreached", path, text)
        self.scope.reset(mark)
        self.partial, self.astray = outside

    def _meet(self, statement: Stmt, path: Path, forms: tuple[Form, ...], what: str) -> None:
        """Note that warps of a unit, or units of a cluster, take different ways from here."""
        if not self.partial and any(map(self.scope.per_instance, forms)):
            self.partial = f"{what}, which depends on the instance of the role"
        if not self.astray:
            self.astray = astray(self._site(statement, path, ""), forms, what)

    def _if(self, choice: If, path: Path, divergent: str) -> None:
        condition = self._form(choice.condition, path)
        if condition is None:
            return
        decided = self.scope.decide(condition)
        inner = divergent
        if not inner and decided is None and self.scope.per_unit(condition):
            inner = f"the condition {print_expr(choice.condition)} depends on the unit"
        outside = (self.partial, self.astray)
        if self.protocol is not None and decided is None:
            self._meet(choice, path, (condition,), f"if {print_expr(choice.condition)}")
        before = self.written.save()
        self._branch(choice.then, condition, path, 0, inner)
        after = self.written.save()
        self.written.load(before)
        if choice.orelse:
            negated = self.scope.algebra.negate(condition)
            self._branch(choice.orelse, negated, path, len(choice.then), inner)
        self.written.merge(after)
        self.partial, self.astray = outside

    def _branch(
        self, block: Block, condition: Form, path: Path, offset: int, divergent: str
    ) -> None:
        if not block:
            return
        mark = self.scope.mark()
        possible = self.scope.decide(condition) is not False
        self.scope.assume(condition)
        if possible and self.scope.feasible:
            self.block(block, path, offset, divergent)
        else:
            word = "else" if offset else "then"
            text = f"the {word} branch is never taken: {self.scope.algebra.text(condition)} is 0"
            self._refuse("tir.region-unreached", path, text)
        self.scope.reset(mark)

    def _role(self, role: Role, path: Path, divergent: str) -> None:
        before = len(self.found)
        self._apply(ROLE_RULES, self._site(role, path, divergent))
        if len(self.found) != before:
            return
        if role.over_warps:
            self._team_role(role, path, divergent)
            return
        inner = divergent
        if not inner and (role.first, role.last) != (0, self.kernel.units):
            inner = f"role {role.name} is for units {role.first}..{role.last}"
        mark = self.scope.mark()
        self.scope.restrict_unit(role.first, role.last)
        if self.scope.feasible:
            self.block(role.body, path, 0, inner)
        else:
            text = f"role {role.name} is for units {role.first}..{role.last}; none comes here"
            self._refuse("tir.region-unreached", path, text)
        self.scope.reset(mark)

    def _team_role(self, role: Role, path: Path, divergent: str) -> None:
        if role.instance and not self._free(role.instance, path):
            return
        mark, outside = self.scope.mark(), (self.role, self.partial)
        scope = self.scope
        by_instance, instance = scope.by_instance, scope.instance
        if role.instance:
            self.scope.instances(role.instance, role.instances)
        self.role = role
        self.partial = self.partial or partial_role(self._site(role, path, ""), role)
        self.block(role.body, path, 0, divergent)
        self.role, self.partial = outside
        scope.by_instance, scope.instance = by_instance, instance
        self.scope.reset(mark)

    def _alloc(self, statement: Alloc, buffer: Buffer, path: Path, divergent: str) -> None:
        if buffer.name in self.declared or buffer.name in self.scope.names:
            text = f"the name {buffer.name} is taken; every buffer of a kernel has its own"
            self._refuse("tir.name-duplicate", path, text)
        before = len(self.found)
        kind = self._kind_of[buffer.name] = self._kind(buffer)
        if kind not in self._allocated or buffer.space is MemorySpace.SCRATCH or buffer.over:
            self._apply(ALLOC_RULES, self._site(statement, path, divergent))
            if len(self.found) == before:
                self._allocated.add(kind)
        if len(self.found) != before:
            self._broken.add(buffer.name)
        self.declared.add(buffer.name)
        self.visible[buffer.name] = buffer
        self.written.alloc(buffer, path)
        if self.protocol is not None:
            self.protocol.alloc(buffer, self.role)

    def _free(self, name: str, path: Path) -> bool:
        if name not in self.scope.names and name not in self.declared:
            return True
        what = "the executing unit" if name == UNIT else "a name that is in use here"
        self._refuse("tir.name-shadowed", path, f"{name} is {what}; choose another")
        return False

    def _forms(self, exprs: Iterable[Expr], path: Path) -> tuple[Form, ...] | None:
        out: list[Form] = []
        for expr in exprs:
            form = (expr.value, ()) if type(expr) is Const else self._form(expr, path)
            if form is None:
                return None
            out.append(form)
        return tuple(out)

    def _form(self, expr: Expr, path: Path) -> Form | None:
        algebra = self.scope.algebra
        try:
            form = algebra.form(expr, self.scope.names)
        except UnboundError as error:
            self._refuse("tir.variable-unbound", path, f"variable {error} has no value here")
            return None
        return form if self._divides_well(expr, path) else None

    def _divides_well(self, expr: Expr, path: Path) -> bool:
        """Whether divisors are positive and what they divide is not negative.

        Targets' languages round other quotients in other directions.
        """
        algebra = self.scope.algebra
        divisors, algebra.zero_divisors = algebra.zero_divisors, []
        dividends, algebra.dividends = algebra.dividends, []
        for divisor in divisors:
            if self._can_be_below(divisor, 1):
                text = f"{algebra.text(divisor)} divides and can be 0 or less in {print_expr(expr)}"
                self._refuse("tir.division-by-zero", path, text)
                return False
        for dividend in dividends:
            if self._can_be_below(dividend, 0):
                text = f"{algebra.text(dividend)} is divided and can be negative in"
                self._refuse("tir.negative-dividend", path, f"{text} {print_expr(expr)}")
                return False
        return True

    def _can_be_below(self, form: Form, least: int) -> bool:
        if self.scope.at_most(scale(form, -1), -least):
            return False
        points = enumerate_points(self.scope, (form,), self.limits.enumeration_points)
        return points is None or bool((points.value(self.scope.algebra, form) < least).any())

    def _site(self, statement: Stmt, path: Path, divergent: str) -> Site:
        return Site(
            self.kernel, self.atoms, self.limits, self.scope, self.visible, self.io, statement,
            path, divergent, self.role, self.partial, self.astray,
        )  # fmt: skip

    def _apply(self, rules: tuple[Rule[S], ...], site: S) -> None:
        for rule in rules:
            for message in rule.check(site):
                self._refuse(rule.code, site.path, message)

    def _refuse(self, code: str, path: Path, message: str) -> None:
        self.found.append((code, path, message))


def _literal(forms: tuple[Form, ...]) -> bool:
    return not any(map(_TERMS, forms))


def _by_literals(operand: ResolvedWindow) -> bool:
    """Whether a window's place in registers is written in literals."""
    return not operand.buffer.space.is_register or all(
        type(start) is Const for start in operand.window.starts
    )


def _units_meet(kernel: Kernel, atoms: AtomTable) -> bool:
    """Whether anything in a kernel asks that all units come to it."""
    for name in called(kernel.body):
        if name in atoms and atoms[name].effects.synchronises == BARRIER:
            return True
    return any(
        isinstance(statement, Alloc) and not statement.buffer.space.is_private
        for _, statement in walk(kernel.body)
    )
