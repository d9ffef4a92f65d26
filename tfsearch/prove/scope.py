"""What is known at a place of a kernel: variables, their ranges, conditions that hold.

Bounds are proved symbolically. The largest value of a form is found by eliminating its symbols
innermost first: a variable with a positive coefficient becomes its upper bound, which is an
expression of outer variables, so that ``start = ic * MC + i`` with ``i < min(MC, m - ic * MC)``
is bounded exactly; minima and maxima are split into their arguments, quotients use
monotonicity and ``d * (x // d) <= x``. Every bound that is returned is sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tfsearch.ir.tir.expr import Const, Expr, free_variables
from tfsearch.ir.tir.nodes import UNIT
from tfsearch.prove.forms import Algebra, Form, Term, combine, constant, scale

UNBOUNDED = 1 << 62
"""Stands for "no bound is known"; sums with it stay beyond every real index."""


@dataclass(frozen=True, slots=True)
class Range:
    """What is known of a variable.

    ``low <= v <= high`` in numbers, and tighter as forms of outer variables: ``v`` is at least
    every one of ``lows`` and at most every one of ``highs``. ``multiple`` divides ``v``.
    ``static``: a literal once unrolled loops are expanded. ``per_unit``: may differ from unit to
    unit.
    """

    lows: tuple[Form, ...]
    highs: tuple[Form, ...]
    low: int
    high: int
    multiple: int = 1
    static: bool = False
    per_unit: bool = False

    @property
    def box(self) -> bool:
        """True where the numbers say all that is known."""
        return not any(form[1] for form in self.lows + self.highs)


@dataclass(frozen=True, slots=True)
class Loop:
    """An enclosing loop: symbol, bounds, step."""

    symbol: int
    start: Form
    stop: Form
    step: int


@dataclass(frozen=True, slots=True)
class Condition:
    """An enclosing predicate that holds (is not 0)."""

    form: Form


@dataclass(frozen=True, slots=True)
class Mark:
    """A state of a scope to return to."""

    names: Mapping[str, Form]
    ranges: Mapping[int, Range]
    boxes: Mapping[int, tuple[int, int]]
    remainders: Mapping[int, tuple[int, int]]
    cache: dict[Form, int]
    entries: int
    feasible: bool


class Scope:
    """Knowledge along one path through a kernel of ``units`` units; grows and is reset."""

    def __init__(self, units: int) -> None:
        self.algebra = Algebra()
        self.names: dict[str, Form] = {}
        self.ranges: dict[int, Range] = {}
        self.entries: list[Loop | Condition] = []
        self.feasible = True
        self._boxes: dict[int, tuple[int, int]] = {}
        self._remainders: dict[int, tuple[int, int]] = {}
        self._cache: dict[Form, int] = {}
        self.by_instance: frozenset[int] = frozenset()
        """Variables whose value may differ between instances of one role."""
        self.instance: int | None = None
        """The variable that counts the instances of the role around."""
        self.unit = self.algebra.declare(UNIT)
        self.names[UNIT] = self.algebra.variable(self.unit)
        low, high = constant(0), constant(max(units, 1) - 1)
        self._set(self.unit, Range((low,), (high,), 0, high[0], per_unit=units > 1))
        self.entries.append(Loop(self.unit, low, constant(units), 1))

    def mark(self) -> Mark:
        """The present state. The scope goes on with copies."""
        mark = Mark(
            self.names,
            self.ranges,
            self._boxes,
            self._remainders,
            self._cache,
            len(self.entries),
            self.feasible,
        )
        self._restore(mark)
        return mark

    def reset(self, mark: Mark) -> None:
        """Return to a marked state."""
        self._restore(mark)
        self._cache = mark.cache
        del self.entries[mark.entries :]
        self.feasible = mark.feasible

    def _restore(self, mark: Mark) -> None:
        self.names, self.ranges = dict(mark.names), dict(mark.ranges)
        self._boxes, self._remainders = dict(mark.boxes), dict(mark.remainders)

    def form(self, expr: Expr) -> Form:
        """The normal form of an expression here; ``UnboundError`` for an unknown name."""
        return self.algebra.form(expr, self.names)

    def let(self, name: str, value: Form) -> None:
        """Name a value."""
        self.names[name] = value

    def loop(self, name: str, start: Form, stop: Form, step: int, *, static: bool) -> int:
        """Enter a loop; inside, ``start <= v < stop`` and the loop runs at least once."""
        algebra = self.algebra
        length = combine(stop, start, -1)
        highs = self._last(start, stop, length, step)
        high = min(self.upper(form) for form in highs)
        per_unit = self.per_unit(start) or self.per_unit(stop)
        known = Range(
            (start,), highs, self.lower(start), high, gcd(self.multiple(start), step), static,
            per_unit,
        )  # fmt: skip
        if length[1] and not self.at_least(length, 1):
            self.narrow(combine(constant(1), length, -1))
        symbol = algebra.declare(name)
        if self.by_instance and (self.per_instance(start) or self.per_instance(stop)):
            self.by_instance |= {symbol}
        self._set(symbol, known)
        self.names[name] = algebra.variable(symbol)
        self.entries.append(Loop(symbol, start, stop, step))
        if known.low > known.high:
            self.feasible = False
        return symbol

    def assume(self, condition: Form) -> None:
        """Enter a region where a predicate is not 0; narrows ranges, may find it impossible."""
        self.entries.append(Condition(condition))
        self._assume(condition)

    def restrict_unit(self, first: int, last: int) -> None:
        """Enter a region of the units ``first <= unit < last``."""
        unit = self.algebra.variable(self.unit)
        for form in (combine(constant(first), unit, -1), combine(unit, constant(last - 1), -1)):
            self.entries.append(Condition(self.algebra.negative(combine(form, constant(-1)))))
            self.narrow(form)

    def upper(self, form: Form) -> int:
        """A number that the form never exceeds here."""
        total, terms = form
        boxes = self._boxes
        for symbol, coefficient in terms:
            box = boxes.get(symbol)
            if box is None:
                break
            total += coefficient * box[1 if coefficient > 0 else 0]
        else:
            return total
        found = self._cache.get(form)
        if found is None:
            found = self._cache[form] = self._upper(form)
        return found

    def lower(self, form: Form) -> int:
        """A number that the form never goes below here."""
        return -self.upper((-form[0], tuple((s, -c) for s, c in form[1]))) if form[1] else form[0]

    def at_most(self, form: Form, limit: int) -> bool:
        """Whether the form is proved to be at most ``limit``; cheap ways are tried first."""
        total, terms = form
        ranges = self.ranges
        for symbol, coefficient in terms:
            known = ranges.get(symbol)
            if known is not None:
                total += coefficient * (known.high if coefficient > 0 else known.low)
            elif coefficient > 0:
                total += coefficient * self.upper((0, ((symbol, 1),)))
            else:
                total += -coefficient * self.upper((0, ((symbol, -1),)))
        return total <= limit or (len(terms) > 0 and self.upper(form) <= limit)

    def at_least(self, form: Form, limit: int) -> bool:
        """Whether the form is proved to be at least ``limit``."""
        negated = (-form[0], tuple([(symbol, -factor) for symbol, factor in form[1]]))
        return self.at_most(negated, -limit)

    def decide(self, condition: Form) -> bool | None:
        """Whether a predicate always holds here (True), never (False), or is open (None)."""
        if not condition[1]:
            return bool(condition[0])
        symbol = self.algebra.single(condition)
        if symbol is not None:
            arguments = self.algebra.arguments[symbol]
            match self.algebra.kinds[symbol]:
                case Term.NEGATIVE:
                    if self.at_most(arguments[0], -1):
                        return True
                    return False if self.at_least(arguments[0], 0) else None
                case Term.ZERO:
                    low, high = self.lower(arguments[0]), self.upper(arguments[0])
                    if low == high == 0:
                        return True
                    return False if low > 0 or high < 0 else None
                case Term.NOT:
                    inner = self.decide(arguments[0])
                    return None if inner is None else not inner
                case Term.AND | Term.OR as kind:
                    parts = [self.decide(form) for form in arguments]
                    deciding = kind is Term.OR
                    if deciding in parts:
                        return deciding
                    return None if None in parts else not deciding
                case _:
                    pass
        if self.lower(condition) > 0 or self.upper(condition) < 0:
            return True
        return False if self.lower(condition) == self.upper(condition) == 0 else None

    def multiple(self, form: Form) -> int:
        """A positive number that divides the form for all values here; 0 for the form 0."""
        out = abs(form[0])
        for symbol, coefficient in form[1]:
            out = gcd(out, coefficient * self._multiple(symbol))
        return out

    def expands(self, expr: Expr) -> bool:
        """True where substituting the variables of unrolled loops makes the expression a literal.

        This is what emitters do: they do not cancel terms, and a ``let`` stays a name.
        """
        if type(expr) is Const:
            return True
        for name in free_variables(expr):
            symbol = self.algebra.single(self.names[name])
            if symbol is None or self.algebra.names[symbol] != name:
                return False
            if not self.ranges[symbol].static:
                return False
        return True

    def per_unit(self, form: Form) -> bool:
        """True where the value may differ from unit to unit."""
        if not form[1]:
            return False
        return any(self.ranges[v].per_unit for v in self.algebra.variables_of(form))

    def instances(self, name: str, count: int) -> None:
        """Enter a role of ``count`` instances, numbered by a variable."""
        symbol = self.loop(name, constant(0), constant(count), 1, static=False)
        self.by_instance |= {symbol}
        self.instance = symbol

    def per_instance(self, form: Form) -> bool:
        """True where the value may differ between instances of one role."""
        return bool(form[1]) and not self.by_instance.isdisjoint(self.algebra.variables_of(form))

    def narrow(self, form: Form) -> None:
        """Learn that ``form <= 0`` here."""
        algebra = self.algebra
        if not form[1]:
            self.feasible = self.feasible and form[0] <= 0
            return
        for symbol, coefficient in form[1]:
            kind = algebra.kinds[symbol]
            if kind is (Term.MAX if coefficient > 0 else Term.MIN):
                rest = combine(form, (0, ((symbol, coefficient),)), -1)
                for argument in algebra.arguments[symbol]:
                    self.narrow(combine(rest, argument, coefficient))
                return
        for symbol, coefficient in form[1]:
            kind = algebra.kinds[symbol]
            if kind is Term.VAR:
                self._bound(symbol, coefficient, form)
            elif kind in (Term.QUOTIENT, Term.REMAINDER):
                self._bound_term(symbol, coefficient, form)
        if self.lower(form) > 0:
            self.feasible = False

    def _bound_term(self, symbol: int, coefficient: int, form: Form) -> None:
        """From ``form <= 0``, bound a quotient (through what it divides) or a remainder."""
        rest = combine(form, (0, ((symbol, coefficient),)), -1)
        inner, by = self.algebra.arguments[symbol]
        divisor = by[0]
        above = coefficient > 0
        # coefficient * term <= -rest; the largest of -rest bounds the term in numbers.
        room = self.upper(scale(rest, -1))
        if abs(room) >= UNBOUNDED >> 2:
            return
        limit = room // coefficient if above else -(room // -coefficient)
        if self.algebra.kinds[symbol] is Term.QUOTIENT:
            edge = limit * divisor + divisor - 1 if above else limit * divisor
            fact = combine(inner, constant(-edge)) if above else combine(constant(edge), inner, -1)
            self.narrow(fact)
            return
        turn = self.lower(inner) // divisor
        if turn == self.upper(inner) // divisor:
            edge = divisor * turn + limit
            fact = combine(inner, constant(-edge)) if above else combine(constant(edge), inner, -1)
            self.narrow(fact)
            return
        low, high = self._remainders.get(symbol, (0, divisor - 1))
        new = (low, min(high, limit)) if above else (max(low, limit), high)
        if new != (low, high):
            self._remainders[symbol] = new
            self._cache = {}
            if new[0] > new[1]:
                self.feasible = False

    def _bound(self, symbol: int, coefficient: int, form: Form) -> None:
        """From ``form <= 0``, bound one variable that it holds linearly."""
        algebra = self.algebra
        rest = combine(form, (0, ((symbol, coefficient),)), -1)
        others = algebra.variables_of(rest)
        if symbol in others:
            return
        size = abs(coefficient)
        if coefficient > 0:
            bound = algebra.quotient(scale(rest, -1), size)
        else:
            bound = algebra.quotient(combine(rest, constant(size - 1)), size)
        rank = algebra.ranks[symbol]
        symbolic = all(algebra.ranks[v] < rank for v in others)
        old = self.ranges[symbol]
        if coefficient > 0:
            number = self.upper(bound)
            highs = (*old.highs, bound) if symbolic and bound[1] else old.highs
            if number < old.high and not bound[1]:
                highs = (*(f for f in highs if f[1]), constant(number))
            elif number < old.high and not symbolic:
                highs = (*highs, constant(number))
            new = Range(
                old.lows, highs, old.low, min(old.high, number), old.multiple, old.static,
                old.per_unit,
            )  # fmt: skip
        else:
            number = self.lower(bound)
            lows = (*old.lows, bound) if symbolic and bound[1] else old.lows
            if number > old.low and not bound[1]:
                lows = (*(f for f in lows if f[1]), constant(number))
            elif number > old.low and not symbolic:
                lows = (*lows, constant(number))
            new = Range(
                lows, old.highs, max(old.low, number), old.high, old.multiple, old.static,
                old.per_unit,
            )  # fmt: skip
        if new == old:
            return
        self._set(symbol, new)
        self._cache = {}
        if new.low > new.high:
            self.feasible = False

    def _set(self, symbol: int, known: Range) -> None:
        self.ranges[symbol] = known
        if known.box:
            self._boxes[symbol] = (known.low, known.high)
        else:
            self._boxes.pop(symbol, None)

    def _last(self, start: Form, stop: Form, length: Form, step: int) -> tuple[Form, ...]:
        """Upper bounds of a loop variable."""
        before = combine(stop, constant(-1))
        if step <= 1:
            return (before,)
        if self.multiple(length) % step == 0:
            return (combine(stop, constant(-step)),)
        steps = self.algebra.quotient(combine(length, constant(-1)), step)
        exact = combine(start, steps, step)
        return (exact,) if not steps[1] else (exact, before)

    def _assume(self, condition: Form) -> None:
        if not condition[1]:
            self.feasible = self.feasible and condition[0] != 0
            return
        symbol = self.algebra.single(condition)
        if symbol is None:
            return
        arguments = self.algebra.arguments[symbol]
        match self.algebra.kinds[symbol]:
            case Term.NEGATIVE:
                self.narrow(combine(arguments[0], constant(1)))
            case Term.ZERO:
                self.narrow(arguments[0])
                self.narrow(scale(arguments[0], -1))
            case Term.AND:
                for form in arguments:
                    self._assume(form)
            case Term.OR:
                if all(self.decide(form) is False for form in arguments):
                    self.feasible = False
            case Term.NOT:
                self._assume_not(arguments[0])
            case _:
                if self.decide(condition) is False:
                    self.feasible = False

    def _assume_not(self, condition: Form) -> None:
        """Narrow by ``condition == 0``; of ``x != c`` only the ends of a range can be cut."""
        if self.decide(condition) is True:
            self.feasible = False
            return
        symbol = self.algebra.single(condition)
        if symbol is None or self.algebra.kinds[symbol] is not Term.ZERO:
            return
        (form,) = self.algebra.arguments[symbol]
        if self.lower(form) == 0:
            self.narrow(combine(constant(1), form, -1))
        elif self.upper(form) == 0:
            self.narrow(combine(form, constant(1)))

    def _multiple(self, symbol: int) -> int:
        arguments = self.algebra.arguments[symbol]
        match self.algebra.kinds[symbol]:
            case Term.VAR:
                known = self.ranges[symbol]
                return abs(known.low) if known.low == known.high else known.multiple
            case Term.MIN | Term.MAX:
                return gcd(*(self.multiple(form) for form in arguments))
            case Term.REMAINDER:
                return gcd(self.multiple(arguments[0]), arguments[1][0])
            case Term.QUOTIENT:
                inner, divisor = self.multiple(arguments[0]), arguments[1][0]
                return inner // divisor if inner % divisor == 0 else 1
            case Term.PRODUCT:
                return self.multiple(arguments[0]) * self.multiple(arguments[1])
            case _:
                return 1

    def _upper(self, form: Form) -> int:
        common = gcd(*[coefficient for _, coefficient in form[1]])
        if common > 1:
            # Multiples of a step: what is rounded on the way then loses less than the step.
            terms = tuple([(symbol, c // common) for symbol, c in form[1]])
            return form[0] + common * self.upper((0, terms))
        ranks = self.algebra.ranks
        symbol, coefficient = form[1][0]
        for other, factor in form[1]:
            if ranks[other] >= ranks[symbol]:
                symbol, coefficient = other, factor
        rest = (form[0], tuple(term for term in form[1] if term[0] != symbol))
        arguments = self.algebra.arguments[symbol]
        match self.algebra.kinds[symbol]:
            case Term.VAR:
                known = self.ranges[symbol]
                number = known.high if coefficient > 0 else known.low
                best = self.upper(rest) + coefficient * number
                for bound in known.highs if coefficient > 0 else known.lows:
                    if bound[1]:
                        best = min(best, self.upper(combine(rest, bound, coefficient)))
                return best
            case Term.MIN | Term.MAX as kind:
                least = (kind is Term.MIN) == (coefficient > 0)
                values = [self.upper(combine(rest, arg, coefficient)) for arg in arguments]
                return min(values) if least else max(values)
            case Term.QUOTIENT:
                return self._upper_quotient(rest, coefficient, *arguments)
            case Term.REMAINDER:
                inner, by = arguments
                within = self._remainders.get(symbol)
                return self._upper_remainder(rest, coefficient, inner, by, within)
            case _:
                low, high = self._interval(symbol)
                return self.upper(rest) + coefficient * (high if coefficient > 0 else low)

    def _upper_quotient(self, rest: Form, coefficient: int, inner: Form, by: Form) -> int:
        divisor = by[0]
        edge = self.upper(inner) if coefficient > 0 else self.lower(inner)
        best = self.upper(rest) + coefficient * (edge // divisor)
        if self._share(rest, inner):
            linear = combine(scale(rest, divisor), inner, coefficient)
            if coefficient < 0:
                linear = combine(linear, constant(-coefficient * (divisor - 1)))
            best = min(best, self.upper(linear) // divisor)
        return best

    def _upper_remainder(
        self,
        rest: Form,
        coefficient: int,
        inner: Form,
        by: Form,
        known: tuple[int, int] | None,
    ) -> int:
        divisor = by[0]
        low, high = self.lower(inner), self.upper(inner)
        if low // divisor == high // divisor:
            exact = combine(inner, constant(-divisor * (low // divisor)))
            return self.upper(combine(rest, exact, coefficient))
        spacing = gcd(divisor, self.multiple(combine(inner, constant(-inner[0]))))
        least, most = inner[0] % spacing, divisor - spacing + inner[0] % spacing
        if known is not None:
            least, most = max(least, known[0]), min(most, known[1])
        best = self.upper(rest) + coefficient * (most if coefficient > 0 else least)
        if self._share(rest, inner):
            split = combine(inner, self.algebra.quotient(inner, divisor), -divisor)
            best = min(best, self.upper(combine(rest, split, coefficient)))
        return best

    def _share(self, left: Form, right: Form) -> bool:
        return bool(left[1] and self.algebra.variables_of(left) & self.algebra.variables_of(right))

    def _interval(self, symbol: int) -> tuple[int, int]:
        arguments = self.algebra.arguments[symbol]
        match self.algebra.kinds[symbol]:
            case Term.PRODUCT:
                left, right = arguments
                ends = [
                    a * b
                    for a in (self.lower(left), self.upper(left))
                    for b in (self.lower(right), self.upper(right))
                ]
                return min(ends), max(ends)
            case Term.DIVIDE:
                low, high = self.lower(arguments[1]), self.upper(arguments[1])
                if low <= 0 or high < low:  # The second where nothing comes here at all.
                    return -UNBOUNDED, UNBOUNDED
                ends = [
                    a // b
                    for a in (self.lower(arguments[0]), self.upper(arguments[0]))
                    for b in (low, high)
                ]
                return min(ends), max(ends)
            case Term.MODULO:
                low, high = self.lower(arguments[1]), self.upper(arguments[1])
                return (0, high - 1) if low > 0 else (-UNBOUNDED, UNBOUNDED)
            case _:
                decided = self.decide((0, ((symbol, 1),)))
                return (0, 1) if decided is None else (int(decided), int(decided))
