"""The grammar of space expressions: a small subset of Python's, checked node by node.

The text is parsed by :mod:`ast` and never evaluated as code. Whatever is not listed here is
refused with the offending part and its column (counted from 1).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from tfsearch.core.errors import RequestError

MAX_TEXT = 8192
MAX_DEPTH = 100
MAX_NODES = 2048
MAX_EXPONENT = 63
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

FUNCTIONS: dict[str, tuple[int, int]] = {
    "abs": (1, 1),
    "all": (1, 64),
    "any": (1, 64),
    "bool": (1, 1),
    "ceil": (1, 1),
    "ceil_div": (2, 2),
    "float": (1, 1),
    "floor": (1, 1),
    "gcd": (2, 2),
    "int": (1, 1),
    "is_pow2": (1, 1),
    "log2": (1, 1),
    "max": (2, 64),
    "min": (2, 64),
    "pow": (2, 2),
    "round": (1, 1),
    "round_up": (2, 2),
    "sqrt": (1, 1),
    "sum": (1, 64),
}
"""Callable names with their least and greatest number of arguments."""
LISTED = frozenset({"all", "any", "sum"})
"""Functions of one literal list or tuple, as in Python."""
LISTABLE = LISTED | {"max", "min"}
"""Functions that may be given one literal list or tuple."""
MODULE = "math"
OF_MODULE = frozenset({"ceil", "floor", "gcd", "log2", "pow", "sqrt"})
"""Functions that may be written ``math.name``."""

ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
UNARY: dict[type[ast.unaryop], str] = {
    ast.UAdd: "+",
    ast.USub: "-",
    ast.Not: "not",
    ast.Invert: "~",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALLOWED = (
    "names, numbers, strings, + - * / // % ** & | ^ << >> ~, comparisons, and/or/not, in, if/else, "
    + ", ".join(FUNCTIONS)
)
_WARNED = re.compile(r"\d[A-Za-z_]|\bis\b|[)\]}'\"0-9] *[(\[]")
"""Where Python may warn: numbers run into words, ``is`` with a literal, calls of literals."""
_FOREIGN = {"&&": "and", "||": "or", "!": "not"}
_OPERATOR_OF_C = re.compile(r"&&|\|\||!(?!=)")


def is_name(text: str) -> bool:
    """Whether ``text`` can name a parameter: an ASCII identifier without ``__`` at its start."""
    reserved = text in FUNCTIONS or text in ("and", "or", "not", "in", "if", "else")
    return bool(_NAME.fullmatch(text)) and not text.startswith("__") and not reserved


def shorten(text: str, width: int = 60) -> str:
    """``text`` on one line, cut to ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def refusal(text: str, column: int, what: str, code: str = "space.expression") -> RequestError:
    """The error for a part of ``text`` at ``column`` (from 1)."""
    return RequestError(code, f"expression {shorten(text)!r}, column {column}: {what}")


def parse_tree(text: str) -> tuple[ast.expr, frozenset[str]]:
    """The checked tree of ``text`` and the names it reads.

    Raises ``RequestError("space.expression")`` for anything outside the grammar or its limits.
    """
    if len(text) > MAX_TEXT:
        raise refusal(text, MAX_TEXT + 1, f"longer than {MAX_TEXT} characters")
    for banned, name in (("\\", "a backslash"), ("\0", "a null character")):
        if banned in text:
            raise refusal(text, text.index(banned) + 1, f"{name} is not allowed")
    flat = re.sub(r"\s", " ", text)
    offset = len(flat) - len(flat.lstrip())
    if offset == len(flat):
        raise refusal(text, 1, "empty; write a condition such as 'a * b <= 1024'")
    try:
        tree = parsed(flat.strip())
    except SyntaxError as error:
        foreign = _OPERATOR_OF_C.search(re.sub(r"'[^']*'|\"[^\"]*\"", _blank, text))
        if foreign:
            what = f"{foreign[0]} is C's; write {_FOREIGN[foreign[0]]!r}"
            raise refusal(text, foreign.start() + 1, f"not an expression: {what}") from None
        column = offset + (error.offset or 1)
        raise refusal(text, column, f"not an expression ({error.msg})") from None
    except (RecursionError, MemoryError, ValueError):
        raise refusal(text, 1, f"nested deeper than {MAX_DEPTH} levels") from None
    checker = _Checker(text, offset)
    checker.visit(tree, 1)
    return tree, frozenset(checker.names)


def parsed(text: str) -> ast.expr:
    """Python's tree of an expression; what Python only warns of is for this module to judge."""
    if not _WARNED.search(text):
        return ast.parse(text, mode="eval").body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval").body


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def function_name(node: ast.expr) -> str:
    """The function that a call's ``func`` names, written plainly or ``math.name``; else ""."""
    match node:
        case ast.Name(id=name) if name in FUNCTIONS:
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name) if (
            module == MODULE and name in OF_MODULE
        ):
            return name
        case _:
            return ""


def arguments(node: ast.Call) -> list[ast.expr]:
    """The arguments of a call; the elements of the one list or tuple that stands for them."""
    match node.args:
        case [ast.Tuple(elts=items) | ast.List(elts=items)] if function_name(node.func) in LISTABLE:
            return items
        case _:
            return node.args


def names_of(tree: ast.expr) -> frozenset[str]:
    """The names that a checked tree reads; those of functions are not among them."""
    called = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for inner in ast.walk(node.func)
    }
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    )


class _Checker:
    """Walks a tree and refuses what the grammar does not list."""

    def __init__(self, text: str, offset: int) -> None:
        self.text = text
        self.offset = offset
        self.names: set[str] = set()
        self.nodes = 0

    def refuse(self, node: ast.expr, what: str) -> RequestError:
        return refusal(self.text, self.offset + node.col_offset + 1, what)

    def visit(self, node: ast.expr, depth: int) -> None:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise self.refuse(node, f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise self.refuse(node, f"more than {MAX_NODES} parts")
        for child in self.children(node):
            self.visit(child, depth + 1)

    def children(self, node: ast.expr) -> Iterator[ast.expr]:
        match node:
            case ast.Constant():
                self.constant(node)
            case ast.Name():
                if not is_name(node.id):
                    raise self.refuse(node, f"{node.id!r} is not a usable name")
                self.names.add(node.id)
            case ast.BinOp():
                self.operator(node)
                yield from (node.left, node.right)
            case ast.UnaryOp():
                yield node.operand
            case ast.BoolOp():
                yield from node.values
            case ast.IfExp():
                yield from (node.test, node.body, node.orelse)
            case ast.Compare():
                yield from self.comparison(node)
            case ast.Call():
                yield from self.call(node)
            case _:
                raise self.refuse(node, f"{_describe(node)} is not allowed; allowed are {_ALLOWED}")

    def constant(self, node: ast.Constant) -> None:
        value: object = node.value
        if isinstance(value, bool) or (isinstance(value, str) and node.kind is None):
            return
        if isinstance(value, int):
            if value > INT_MAX:
                raise self.refuse(node, "the number does not fit 64 bits")
        elif isinstance(value, float):
            if value == float("inf"):
                raise self.refuse(node, "the number is not finite")
        else:
            raise self.refuse(node, f"constant {shorten(repr(value), 20)} is not allowed")

    def operator(self, node: ast.BinOp) -> None:
        if type(node.op) not in ARITHMETIC:
            raise self.refuse(
                node, f"operator {type(node.op).__name__} is not allowed; allowed are {_ALLOWED}"
            )
        right = node.right
        if (
            isinstance(node.op, ast.Pow)
            and isinstance(right, ast.Constant)
            and isinstance(right.value, (int, float))
            and right.value > MAX_EXPONENT
        ):
            raise self.refuse(right, f"exponent {right.value} exceeds {MAX_EXPONENT}")

    def comparison(self, node: ast.Compare) -> Iterator[ast.expr]:
        yield node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) not in COMPARISONS:
                raise self.refuse(node, "'is' is not allowed; use ==")
            if not isinstance(op, (ast.In, ast.NotIn)):
                yield right
                continue
            if len(node.ops) > 1:
                raise self.refuse(node, "'in' cannot be chained with other comparisons")
            if not isinstance(right, (ast.Tuple, ast.List)):
                raise self.refuse(right, "'in' needs a literal list or tuple on its right")
            yield from right.elts

    def call(self, node: ast.Call) -> Iterator[ast.expr]:
        name = function_name(node.func)
        if not name:
            if not isinstance(node.func, ast.Name):
                raise self.refuse(node, f"a call of {_describe(node.func)} is not allowed")
            raise self.refuse(
                node,
                f"a call of {node.func.id!r} is not allowed; allowed are {', '.join(FUNCTIONS)}",
            )
        if node.keywords:
            raise self.refuse(node, f"{name} takes no keyword arguments")
        given = arguments(node)
        if name in LISTED and given is node.args:
            raise self.refuse(node, f"{name} takes one list or tuple of arguments, written out")
        least, most = FUNCTIONS[name]
        if name in LISTABLE and given is not node.args:
            least = 1
        if not least <= len(given) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise self.refuse(node, f"{name} takes {wanted} arguments, {len(given)} given")
        yield from given


_DESCRIPTIONS: dict[type[ast.expr], str] = {
    ast.Attribute: "attribute access",
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.NamedExpr: "an assignment (:=)",
    ast.JoinedStr: "an f-string",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a generator",
    ast.Starred: "unpacking (*)",
    ast.Tuple: "a tuple outside 'in'",
    ast.List: "a list outside 'in'",
}


def _describe(node: ast.expr) -> str:
    return _DESCRIPTIONS.get(type(node), f"syntax {type(node).__name__}")


def canonical(node: ast.expr) -> str:
    """Prefix text of a checked tree: equal for equal trees in every Python version."""
    match node:
        case ast.Constant():
            return repr(node.value)
        case ast.Name():
            return node.id
        case ast.BinOp():
            parts = [ARITHMETIC[type(node.op)], canonical(node.left), canonical(node.right)]
        case ast.UnaryOp():
            parts = [UNARY[type(node.op)], canonical(node.operand)]
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
            parts = [word, *map(canonical, node.values)]
        case ast.IfExp():
            parts = ["if", *map(canonical, (node.test, node.body, node.orelse))]
        case ast.Compare():
            parts = ["?", canonical(node.left)]
            for op, right in zip(node.ops, node.comparators, strict=True):
                parts += [COMPARISONS[type(op)], canonical(right)]
        case ast.Tuple() | ast.List():
            parts = ["of", *map(canonical, node.elts)]
        case ast.Call():
            parts = ["call", function_name(node.func), *map(canonical, arguments(node))]
        case _:
            raise TypeError(f"{type(node).__name__} is outside the grammar")
    return f"({' '.join(parts)})"
