"""Parser of TIR's canonical text; the grammar is shown in :mod:`tfsearch.ir.tir.printer`."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout, parse_layout, parse_swizzle
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import (
    Alloc,
    Block,
    Box,
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
    Operand,
    Param,
    Role,
    Scalar,
    Stmt,
    Window,
)
from tfsearch.ir.tir.printer import PRECEDENCE, WORDS

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|\#[^\n]*)"
    r"|(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<sign>\.\.|:\+|//|<=|==|!=|[-+*%<(){}\[\],:=])"
)
_INFIX = {op.value: op for op in PRECEDENCE}
_COMPARISON = PRECEDENCE[Operator.LT]
_LOOSEST = min(PRECEDENCE.values())
_PRIMARY = max(PRECEDENCE.values()) + 1


class _Token:
    __slots__ = ("kind", "position", "text")

    def __init__(self, kind: str, text: str, position: int) -> None:
        self.kind = kind
        self.text = text
        self.position = position


def parse_module(text: str) -> Module:
    """A module from canonical text; ``RequestError("tir.parse")`` names line and column."""
    return _Parser(text).module()


def parse_kernel(text: str) -> Kernel:
    """A single kernel from canonical text; errors as :func:`parse_module`."""
    parser = _Parser(text)
    kernel = parser.kernel()
    parser.end()
    return kernel


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._at = 0
        self._buffers: list[dict[str, Buffer]] = []

    def module(self) -> Module:
        kernels = [self.kernel()]
        while self._peek().kind != "end":
            kernels.append(self.kernel())
        return Module(tuple(kernels))

    def end(self) -> None:
        if self._peek().kind != "end":
            self._wrong("the end of the text")

    def kernel(self) -> Kernel:
        self._take("kernel")
        name = self._name()
        self._take("units")
        units = self._integer()
        warps = self._integer() if self._accept("warps") else 1
        lanes = self._integer() if self._accept("lanes") else 1
        registers = self._integer() if self._accept("registers") else 0
        cluster = self._integers() if self._accept("cluster") else ()
        self._take("(")
        self._buffers = [{}]
        params: list[Param] = []
        while not self._accept(")"):
            word = self._peek().text
            if word not in {io.value for io in Io}:
                self._wrong("in, out, inout, prepared or )")
            self._at += 1
            buffer = self._declaration()
            boxes: list[Box] = []
            while self._accept("box"):
                boxes.append(self._box())
            params.append(Param(buffer, Io(word), tuple(boxes)))
            if not self._accept(","):
                self._take(")")
                break
        body = self._block()
        return Kernel(name, tuple(params), units, body, warps, lanes, registers, cluster)

    def _box(self) -> Box:
        shape = self._integers()
        self._take("strides")
        strides = self._integers()
        swizzle: Swizzle | None = None
        if self._accept("swizzle"):
            token = self._peek()
            text = self._name()
            with self._placed(token):
                swizzle = parse_swizzle(text)
        return Box(shape, strides, swizzle)

    def _block(self) -> Block:
        self._take("{")
        self._buffers.append({})
        out: list[Stmt] = []
        while not self._accept("}"):
            out.append(self._statement())
        self._buffers.pop()
        return tuple(out)

    def _statement(self) -> Stmt:
        token = self._peek()
        match token.text if token.kind == "name" else "":
            case "alloc":
                self._at += 1
                return Alloc(self._declaration())
            case "let":
                self._at += 1
                name = self._name()
                self._take("=")
                return Let(name, self._expr())
            case "for" | "unrolled":
                return self._loop()
            case "if":
                self._at += 1
                condition = self._expr()
                then = self._block()
                return If(condition, then, self._block() if self._accept("else") else ())
            case "role":
                self._at += 1
                return self._role()
            case _:
                return self._call()

    def _role(self) -> Role:
        name = self._name()
        warps = self._accept("warps")
        if not warps:
            self._take("units")
        first = self._integer()
        self._take("..")
        last = self._integer()
        if not warps:
            return Role(name, first, last, self._block())
        self._take("width")
        token = self._peek()
        width = self._integer()
        if width < 1:
            self._fail(token, f"a role over warps has a width of at least 1, not {width}")
        instance = self._name() if self._accept("as") else ""
        return Role(name, first, last, self._block(), width, instance)

    def _loop(self) -> For:
        kind = LoopKind.SERIAL if self._next().text == "for" else LoopKind.UNROLLED
        name = self._name()
        self._take("in")
        start = self._expr()
        self._take("..")
        stop = self._expr()
        step = self._integer() if self._accept("step") else 1
        unroll = self._integer() if self._accept("unroll") else 1
        return For(name, start, stop, self._block(), kind, step, unroll)

    def _call(self) -> Call:
        token = self._next()
        if token.kind == "string":
            atom = self._string(token)
        elif token.kind == "name" and token.text not in WORDS:
            atom = token.text
        else:
            self._at -= 1
            self._wrong("a statement")
        self._take("(")
        operands: list[Operand] = []
        while not self._accept(")"):
            operands.append(self._operand())
            if not self._accept(","):
                self._take(")")
                break
        return Call(atom, tuple(operands))

    def _operand(self) -> Operand:
        token = self._peek()
        ahead = self._tokens[self._at + 1] if token.kind != "end" else token
        if token.text in ("inf", "nan") or token.kind == "float":
            self._at += 1
            return Scalar(float(token.text))
        if token.text == "-" and (ahead.kind == "float" or ahead.text in ("inf", "nan")):
            self._at += 2
            return Scalar(-float(ahead.text))
        if ahead.text == "[" and ahead.kind == "sign":
            return self._window()
        return self._expr()

    def _window(self) -> Window:
        token = self._peek()
        name = self._name()
        buffer = next((scope[name] for scope in reversed(self._buffers) if name in scope), None)
        if buffer is None:
            self._fail(token, f"buffer {name!r} is not declared before this place")
        self._take("[")
        starts: list[Expr] = []
        extents: list[Expr] = []
        while not self._accept("]"):
            starts.append(self._expr())
            extents.append(self._expr() if self._accept(":+") else Const(1))
            if not self._accept(","):
                self._take("]")
                break
        if len(starts) != len(buffer.shape):
            self._fail(
                token,
                f"window of {name!r} has {len(starts)} dimensions, the buffer {len(buffer.shape)}",
            )
        return Window(buffer, tuple(starts), tuple(extents))

    def _declaration(self) -> Buffer:
        name = self._name()
        self._take(":")
        token = self._next()
        if token.text not in {dtype.value for dtype in DType}:
            self._fail(token, f"expected an element type, found {token.text!r}")
        shape = self._integers()
        space = self._next()
        if space.text not in {item.value for item in MemorySpace}:
            self._fail(space, f"expected a memory space, found {space.text!r}")
        strides = self._integers() if self._accept("strides") else None
        layout: Layout | SwizzledLayout | None = None
        if self._accept("layout"):
            place = self._peek()
            text = self._name()
            with self._placed(place):
                layout = parse_layout(text)
        fragment = self._name() if self._accept("fragment") else ""
        self._take("align")
        alignment = self._integer()
        over = self._name() if self._accept("over") else ""
        at = self._integer() if self._accept("at") else 0
        buffer = Buffer(
            name, DType(token.text), shape, MemorySpace(space.text), strides, alignment, layout,
            fragment, over, at,
        )  # fmt: skip
        self._buffers[-1][name] = buffer
        return buffer

    def _integers(self) -> tuple[int, ...]:
        self._take("[")
        out: list[int] = []
        while not self._accept("]"):
            out.append(self._integer())
            if not self._accept(","):
                self._take("]")
                break
        return tuple(out)

    def _expr(self, level: int = _LOOSEST) -> Expr:
        if level == _PRIMARY:
            return self._primary()
        left = self._expr(level + 1)
        while True:
            token = self._peek()
            op = _INFIX.get(token.text) if token.kind in ("sign", "name") else None
            if op is None or PRECEDENCE[op] != level:
                return left
            self._at += 1
            first = self._at
            right = self._expr(level + 1)
            literal = self._at == first + 1 and self._tokens[first].kind == "int"
            if op is Operator.SUB and literal and isinstance(right, Const):
                left = Binary(Operator.ADD, left, Const(-right.value))
            else:
                left = Binary(op, left, right)
            if level == _COMPARISON:
                return left

    def _primary(self) -> Expr:
        token = self._next()
        if token.kind == "int":
            return Const(int(token.text))
        if token.text == "-" and self._peek().kind == "int":
            return Const(-int(self._next().text))
        if token.kind == "name" and token.text in ("min", "max"):
            self._take("(")
            left = self._expr()
            self._take(",")
            right = self._expr()
            self._take(")")
            return Binary(Operator(token.text), left, right)
        if token.text == "(" and token.kind == "sign":
            inner = self._expr()
            self._take(")")
            return inner
        self._at -= 1
        if token.kind in ("name", "string"):
            return Var(self._name())
        self._wrong("an expression")

    def _name(self) -> str:
        token = self._next()
        if token.kind == "string":
            return self._string(token)
        if token.kind != "name" or token.text in WORDS or "." in token.text:
            self._at -= 1
            self._wrong("a name")
        return token.text

    def _string(self, token: _Token) -> str:
        try:
            return str(json.loads(token.text))
        except ValueError as error:
            self._fail(token, f"not a JSON string: {error}")

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        token = self._next()
        if token.kind != "int":
            self._at -= 1
            self._wrong("an integer")
        return sign * int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
            return token
        self._wrong("more text")

    def _accept(self, text: str) -> bool:
        token = self._tokens[self._at]
        if token.text == text and token.kind in ("sign", "name"):
            self._at += 1
            return True
        return False

    def _take(self, text: str) -> None:
        if not self._accept(text):
            self._wrong(text)

    @contextmanager
    def _placed(self, token: _Token) -> Generator[None, None, None]:
        """Errors of a layout's own text at their place in the kernel's."""
        try:
            yield
        except RequestError as error:
            self._fail(token, error.message)

    def _wrong(self, wanted: str) -> NoReturn:
        token = self._peek()
        found = "the end of the text" if token.kind == "end" else repr(token.text)
        self._fail(token, f"expected {wanted}, found {found}")

    def _fail(self, token: _Token, message: str) -> NoReturn:
        self._fail_at(token.position, message)

    def _fail_at(self, position: int, message: str) -> NoReturn:
        line = self._text.count("\n", 0, position) + 1
        column = position - (self._text.rfind("\n", 0, position) + 1) + 1
        raise RequestError("tir.parse", f"line {line}, column {column}: {message}")

    def _scan(self) -> list[_Token]:
        out: list[_Token] = []
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                self._fail_at(position, f"unexpected character {self._text[position]!r}")
            kind = str(match.lastgroup)
            if kind != "space":
                out.append(_Token(kind, match.group(), position))
            position = match.end()
        out.append(_Token("end", "", len(self._text)))
        return out
