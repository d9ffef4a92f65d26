"""Lists of values written as Python expressions, computed without running Python.

T1 files hold texts such as ``[1, 2, 4] + list(range(32, 1025, 32))`` or ``[2**i for i in
range(6)]``. The text is parsed by :mod:`ast`; a small set of nodes is computed here, under limits
on the number of steps, the length of lists and the size of numbers. Anything else is refused with
its column.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, cast

from tfsearch.core.errors import RequestError
from tfsearch.space.grammar import INT_MAX, INT_MIN, MAX_DEPTH, MAX_TEXT, parsed, refusal

MAX_STEPS = 200_000
MAX_VALUES = 65_536
MAX_BITS = 64
MAX_LOOPS = 4

_PLAIN = re.compile(r" *\[ *(?:0|-?[1-9][0-9]{0,17})(?:, ?(?:0|-?[1-9][0-9]{0,17})){0,999} *\] *")
"""The most common list: whole numbers. It needs no syntax tree."""

Number = int | float
Value = Any
"""int, float, bool, str, or a list of them."""

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ON_LISTS: dict[str, Callable[[list[Value]], Value]] = {
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "set": lambda items: list(dict.fromkeys(items)),
    "sorted": sorted,
    "sum": sum,
    "tuple": list,
}
_ON_NUMBERS: dict[str, Callable[[Number], Number]] = {
    "abs": abs,
    "bool": bool,
    "ceil": math.ceil,
    "float": float,
    "floor": math.floor,
    "int": int,
    "log2": math.log2,
    "round": round,
    "sqrt": math.sqrt,
}


def evaluate_values(text: str, names: Mapping[str, Value] | None = None) -> Value:
    """The value of ``text``: a list, or a number, boolean or string.

    ``names`` are known names; lists among them may be indexed. Raises
    ``RequestError("space.expression")`` with the column of what is refused or cannot be computed.
    """
    if _PLAIN.fullmatch(text):
        return [int(item) for item in text.strip(" []").split(",")]
    if len(text) > MAX_TEXT:
        raise refusal(text, MAX_TEXT + 1, f"longer than {MAX_TEXT} characters")
    if not text.strip():
        raise refusal(text, 1, "empty; write a list such as [1, 2, 4]")
    for banned, name in (("\\", "a backslash"), ("\0", "a null character")):
        if banned in text:
            raise refusal(text, text.index(banned) + 1, f"{name} is not allowed")
    flat = " ".join(text.split("\n")).strip()
    try:
        tree = parsed(flat)
    except SyntaxError as error:
        raise refusal(text, error.offset or 1, f"not an expression ({error.msg})") from None
    except (RecursionError, MemoryError, ValueError):
        raise refusal(text, 1, f"nested deeper than {MAX_DEPTH} levels") from None
    return _Evaluator(text).value(tree, dict(names or {}), 1)


def _size(items: list[Value]) -> int:
    """How many values a list holds, those of the lists in it included; exact up to the limit."""
    count = len(items)
    for item in items:
        if count > MAX_VALUES:
            break
        if isinstance(item, list):
            count += _size(cast("list[Value]", item))
    return count


class _Evaluator:
    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0

    def refuse(self, node: ast.expr, what: str) -> NoReturn:
        raise refusal(self.text, node.col_offset + 1, what)

    def value(self, node: ast.expr, names: Mapping[str, Value], depth: int) -> Value:
        self.steps += 1
        if depth > MAX_DEPTH:
            self.refuse(node, f"nested deeper than {MAX_DEPTH} levels")
        if self.steps > MAX_STEPS:
            self.refuse(node, f"takes more than {MAX_STEPS} steps to compute")
        try:
            return self.checked(node, self.computed(node, names, depth + 1))
        except RequestError:
            raise
        except (ArithmeticError, ValueError, TypeError, IndexError) as error:
            self.refuse(node, f"cannot be computed: {error}")

    def checked(self, node: ast.expr, value: Value) -> Value:
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            self.refuse(node, f"a number does not fit {MAX_BITS} bits")
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse(node, "a number is not finite")
        if isinstance(value, list):
            # All the way down: repeating a list of lists multiplies what printing or sorting costs.
            count = _size(cast("list[Value]", value))
            self.steps += count
            if count > MAX_VALUES:
                self.refuse(node, f"a list of more than {MAX_VALUES} values")
        return cast("Value", value)

    def computed(self, node: ast.expr, names: Mapping[str, Value], depth: int) -> Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                if name not in names:
                    self.refuse(node, f"unknown name {name!r}")
                return names[name]
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item, names, depth) for item in items]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.number(operand, names, depth)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return +self.number(operand, names, depth)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.value(operand, names, depth)
            case ast.BinOp():
                return self.binary(node, names, depth)
            case ast.Compare():
                return self.comparison(node, names, depth)
            case ast.BoolOp(op=op, values=operands):
                return self.deciding(isinstance(op, ast.And), operands, names, depth)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = body if self.value(test, names, depth) else orelse
                return self.value(chosen, names, depth)
            case ast.ListComp(elt=element, generators=generators):
                return list(self.comprehension(element, generators, names, depth))
            case ast.Subscript(value=inner, slice=index):
                items = self.items(inner, names, depth)
                return items[self.integer(index, names, depth)]
            case ast.Call():
                return self.call(node, names, depth)
            case _:
                self.refuse(node, f"{type(node).__name__} is not allowed in a list of values")

    def number(self, node: ast.expr, names: Mapping[str, Value], depth: int) -> Number:
        value = self.value(node, names, depth)
        if not isinstance(value, (int, float)):
            self.refuse(node, "a number is needed here")
        return value

    def integer(self, node: ast.expr, names: Mapping[str, Value], depth: int) -> int:
        value = self.number(node, names, depth)
        if not isinstance(value, int):
            self.refuse(node, "a whole number is needed here")
        return value

    def items(self, node: ast.expr, names: Mapping[str, Value], depth: int) -> list[Value]:
        if isinstance(node, ast.GeneratorExp):
            return list(self.comprehension(node.elt, node.generators, names, depth))
        value = self.value(node, names, depth)
        if not isinstance(value, list):
            self.refuse(node, "a list is needed here")
        return cast("list[Value]", value)

    def binary(self, node: ast.BinOp, names: Mapping[str, Value], depth: int) -> Value:
        left, right = (self.value(side, names, depth) for side in (node.left, node.right))
        if isinstance(left, list) or isinstance(right, list):
            return self.joined(node, left, right)
        for side, value in ((node.left, left), (node.right, right)):
            if not isinstance(value, (int, float)):
                self.refuse(side, "a number is needed here")
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not isinstance(left + right, float):
            if not 0 <= right < MAX_BITS:
                self.refuse(node.right, f"shifts are by 0 to {MAX_BITS - 1} bits")
            return left << right if isinstance(node.op, ast.LShift) else left >> right
        if type(node.op) not in _BINARY:
            self.refuse(node, f"operator {type(node.op).__name__} is not allowed")
        return _BINARY[type(node.op)](left, right)

    def joined(self, node: ast.BinOp, left: Value, right: Value) -> list[Value]:
        first: Any = isinstance(left, list)
        if isinstance(node.op, ast.Add) and first and isinstance(right, list):
            return cast("list[Value]", left) + cast("list[Value]", right)
        times, items = (right, cast("list[Value]", left)) if first else (left, right)
        if isinstance(node.op, ast.Mult) and isinstance(times, int):
            if times * len(items) > MAX_VALUES:
                self.refuse(node, f"a list of more than {MAX_VALUES} values")
            return items * times
        self.refuse(node, "lists are joined by + or repeated by *, nothing else")

    def power(self, node: ast.BinOp, base: Number, exponent: Number) -> Number:
        if isinstance(base, int) and isinstance(exponent, int):
            if exponent > 0 and abs(base).bit_length() * exponent > 2 * MAX_BITS:
                self.refuse(node, f"a number does not fit {MAX_BITS} bits")
            if exponent < -MAX_BITS * 2:
                self.refuse(node, "an exponent is too small")
        found = base**exponent
        if isinstance(found, complex):
            self.refuse(node, "the root of a negative number")
        return found

    def comparison(self, node: ast.Compare, names: Mapping[str, Value], depth: int) -> bool:
        left = self.value(node.left, names, depth)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.value(item, names, depth)
            if type(op) not in _COMPARE:
                self.refuse(node, "'is' is not allowed; use ==")
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def deciding(
        self, conjunction: bool, operands: list[ast.expr], names: Mapping[str, Value], depth: int
    ) -> Value:
        value: Value = conjunction
        for operand in operands:
            value = self.value(operand, names, depth)
            if bool(value) is not conjunction:
                break
        return value

    def comprehension(
        self,
        element: ast.expr,
        generators: list[ast.comprehension],
        names: Mapping[str, Value],
        depth: int,
    ) -> Iterator[Value]:
        if not generators:
            yield self.value(element, names, depth)
            return
        first = generators[0]
        if len(generators) > MAX_LOOPS:
            self.refuse(first.target, f"more than {MAX_LOOPS} loops in one comprehension")
        if not isinstance(first.target, ast.Name):
            self.refuse(first.target, "a comprehension binds one plain name")
        for item in self.items(first.iter, names, depth):
            inner = {**names, first.target.id: item}
            if all(self.value(test, inner, depth) for test in first.ifs):
                yield from self.comprehension(element, generators[1:], inner, depth + 1)

    def call(self, node: ast.Call, names: Mapping[str, Value], depth: int) -> Value:
        name = self.called(node.func)
        if node.keywords:
            self.refuse(node, f"{name} takes no keyword arguments")
        if name == "range":
            return self.range(node, names, depth)
        if name in ("min", "max") and len(node.args) > 1:
            numbers = [self.number(arg, names, depth) for arg in node.args]
            return min(numbers) if name == "min" else max(numbers)
        if len(node.args) != 1:
            self.refuse(node, f"{name} takes one argument, {len(node.args)} given")
        if name in _ON_LISTS:
            return _ON_LISTS[name](self.items(node.args[0], names, depth))
        if name == "str":
            return str(self.value(node.args[0], names, depth))
        return _ON_NUMBERS[name](self.number(node.args[0], names, depth))

    def called(self, node: ast.expr) -> str:
        known = {*_ON_LISTS, *_ON_NUMBERS, "range", "str"}
        match node:
            case ast.Name(id=name) if name in known:
                return name
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in (
                "ceil", "floor", "log2", "sqrt"
            ):  # fmt: skip
                return name
            case _:
                self.refuse(
                    node, f"a call of this is not allowed; known: {', '.join(sorted(known))}"
                )

    def range(self, node: ast.Call, names: Mapping[str, Value], depth: int) -> list[int]:
        if not 1 <= len(node.args) <= 3:
            self.refuse(node, f"range takes 1 to 3 arguments, {len(node.args)} given")
        span = range(*(self.integer(arg, names, depth) for arg in node.args))
        if len(span) > MAX_VALUES:
            self.refuse(node, f"a list of more than {MAX_VALUES} values")
        return list(span)
