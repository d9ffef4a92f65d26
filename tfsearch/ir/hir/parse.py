"""Parser of the text syntax described in :mod:`tfsearch.ir.hir.text`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DATA_TYPES, DType
from tfsearch.ir.hir.build import canonicalise
from tfsearch.ir.hir.ops import (
    Attrs,
    BinaryAttrs,
    BinaryFn,
    BroadcastAttrs,
    CompareAttrs,
    CompareFn,
    ConstAttrs,
    ContractAttrs,
    InputAttrs,
    NoAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    TransposeAttrs,
    UnaryAttrs,
    UnaryFn,
)
from tfsearch.ir.hir.program import Input, Op, Program
from tfsearch.ir.hir.rules import result_type
from tfsearch.ir.hir.types import Dim, Range, TensorType, column_major, shape_text

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|\#[^\n]*)"
    r"|(?P<value>%[A-Za-z0-9_]+)"
    r"|(?P<number>-?(?:inf\b|(?:\d+\.(?!\.)\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<string>"[^"\n]*")'
    r"|(?P<mark>->|\.\.|[()\[\]{}:;,=%])"
)
_DTYPES = {d.value: d for d in DATA_TYPES}
_FUNCTIONS: dict[str, tuple[OpKind, Attrs]] = {
    **{fn.value: (OpKind.UNARY, UnaryAttrs(fn)) for fn in UnaryFn},
    **{fn.value: (OpKind.BINARY, BinaryAttrs(fn)) for fn in BinaryFn},
    **{fn.value: (OpKind.COMPARE, CompareAttrs(fn)) for fn in CompareFn},
}
_PLAIN = {k.value: k for k in (OpKind.SELECT, OpKind.CAST, OpKind.RESHAPE)}
T = TypeVar("T")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_program(text: str) -> Program:
    """The canonical form of a program text.

    Raises ``RequestError`` ``hir.parse`` with line and column for a text that does not follow the
    syntax, and the ``hir.*`` code of the type rule that an op breaks.
    """
    return canonicalise(_Parser(text, {}, {}).program())


def parse_type(
    text: str,
    dims: Mapping[str, int | Range] | None = None,
    dtypes: Mapping[str, DType] | None = None,
) -> TensorType:
    """A type such as ``f32[m, 4096]``; bare names are looked up in ``dims`` and ``dtypes``.

    Raises ``RequestError`` ``hir.parse`` for a wrong syntax or an unknown name.
    """
    parser = _Parser(text, dims or {}, dtypes or {})
    found = parser.type()
    parser.end()
    return found


class _Parser:
    def __init__(
        self, text: str, dims: Mapping[str, int | Range], dtypes: Mapping[str, DType]
    ) -> None:
        self.text = text
        self.dims: dict[str, int | Range] = dict(dims)
        self.dtypes = {**_DTYPES, **dtypes}
        self.values: dict[str, int] = {}
        self.ops: list[Op] = []
        self.tokens: list[_Token] = []
        self.at = 0
        self._split()

    def _split(self) -> None:
        offset = 0
        while offset < len(self.text):
            found = _TOKEN.match(self.text, offset)
            if found is None:
                raise self.error(f"unexpected character {self.text[offset]!r}", offset)
            kind = str(found.lastgroup)
            if kind == "value" and self._percent_is_mark(found.group()):
                self.tokens.append(_Token("mark", "%", offset))
                offset += 1
                continue
            if kind != "space":
                self.tokens.append(_Token(kind, found.group(), offset))
            offset = found.end()
        self.tokens.append(_Token("end", "the end of the text", len(self.text)))

    def _percent_is_mark(self, text: str) -> bool:
        """``1..64%8`` means a multiple, not a value: a value never follows a number."""
        return bool(self.tokens) and self.tokens[-1].kind == "number" and text[1:].isdigit()

    def error(self, message: str, offset: int | None = None) -> RequestError:
        at = self.tokens[self.at].offset if offset is None else offset
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return RequestError("hir.parse", f"line {line}, column {column}: {message}")

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def take(self, kind: str, what: str) -> str:
        token = self.peek()
        if token.kind != kind:
            raise self.error(f"expected {what}, found {token.text!r}")
        self.at += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.peek().kind in ("mark", "name") and self.peek().text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r}, found {self.peek().text!r}")

    def end(self) -> None:
        self.take("end", "the end of the text")

    def comma_list(self, item: Callable[[], T], close: str) -> list[T]:
        out: list[T] = []
        if self.accept(close):
            return out
        while True:
            out.append(item())
            if self.accept(close):
                return out
            self.expect(",")

    def integer(self) -> int:
        token = self.peek()
        text = self.take("number", "an integer")
        if not text.removeprefix("-").isdigit():
            raise self.error(f"expected an integer, found {text!r}", token.offset)
        return int(text)

    def program(self) -> Program:
        self.expect("program")
        name = self.take("name", "a program name")
        self.expect("(")
        inputs = self.comma_list(self.input, ")")
        self.expect("->")
        self.expect("(")
        outputs = self.comma_list(self.named_type, ")")
        self.expect("{")
        while not self.accept("return"):
            self.statement()
        start = self.peek().offset
        returned = [self.value()]
        while self.accept(","):
            returned.append(self.value())
        self.expect("}")
        self.end()
        if len(returned) != len(outputs):
            raise self.error(f"{len(returned)} values for {len(outputs)} outputs", start)
        for (label, type_), index in zip(outputs, returned, strict=True):
            found = self.ops[index].type
            if type_ != TensorType(found.dtype, found.shape):
                raise self.error(
                    f"output {label} is declared with another type than %{index}", start
                )
        return self.checked(
            lambda: Program(
                name,
                tuple(inputs),
                tuple(self.ops),
                tuple((n, v) for (n, _), v in zip(outputs, returned, strict=True)),
            ),
            start,
        )

    def checked(self, make: Callable[[], T], offset: int) -> T:
        """The result of ``make``; its errors get the place in the text."""
        try:
            return make()
        except RequestError as error:
            if error.code == "hir.parse":
                raise
            raise RequestError(error.code, self.error(error.message, offset).message) from None

    def named_type(self) -> tuple[str, TensorType]:
        name = self.take("name", "a name")
        self.expect(":")
        return name, self.type()

    def input(self) -> Input:
        start = self.peek().offset
        name, type_ = self.named_type()
        index = len(self.ops)
        for label in (name, str(index)):
            if label in self.values:
                raise self.error(f"input {name!r} is declared twice", start)
            self.values[label] = index
        self.ops.append(Op(OpKind.INPUT, (), InputAttrs(index), type_))
        return Input(name, type_)

    def value(self) -> int:
        token = self.peek()
        name = self.take("value", "a value such as %0")[1:]
        if name not in self.values:
            raise self.error(f"value %{name} is not defined", token.offset)
        return self.values[name]

    def statement(self) -> None:
        start = self.peek().offset
        label = self.take("value", "a value such as %0, or return")[1:]
        if label in self.values:
            raise self.error(f"value %{label} is defined twice", start)
        self.expect("=")
        name_at = self.peek().offset
        name = self.take("name", "an operation")
        operands: tuple[int, ...] = ()
        if self.accept("("):
            operands = tuple(self.comma_list(self.value, ")"))
        kind, attrs = self.attributes(name, name_at)
        self.expect(":")
        type_ = self.type()
        op = self.checked(lambda: self.op(kind, operands, attrs, type_), start)
        self.values[label] = len(self.ops)
        self.ops.append(op)

    def op(self, kind: OpKind, operands: tuple[int, ...], attrs: Attrs, type_: TensorType) -> Op:
        if isinstance(attrs, ConstAttrs):
            attrs = ConstAttrs.of(attrs.value, type_.dtype)
        found = result_type(kind, attrs, [self.ops[o].type for o in operands], type_)
        if found != type_:
            raise RequestError(
                "hir.result-type",
                f"{kind.value} gives {found.dtype.value}{shape_text(found.shape)}, not the "
                f"declared {type_.dtype.value}{shape_text(type_.shape)}",
            )
        return Op(kind, operands, attrs, type_)

    def attributes(self, name: str, name_at: int) -> tuple[OpKind, Attrs]:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        if name in _PLAIN:
            return _PLAIN[name], NoAttrs()
        if name not in ("const", "broadcast", "transpose", "reduce", "contract"):
            raise self.error(f"unknown operation {name!r}", name_at)
        self.expect("{")
        attrs: Attrs
        match name:
            case "const":
                attrs = ConstAttrs(self.field("value", self.literal))
            case "broadcast":
                attrs = BroadcastAttrs(self.field("dims", self.integers))
            case "transpose":
                attrs = TransposeAttrs(self.field("perm", self.integers))
            case "reduce":
                fn = self.field("fn", self.reduce_fn)
                self.expect(",")
                axes = self.field("axes", self.integers)
                self.expect(",")
                attrs = ReduceAttrs(fn, axes, self.field("acc", self.dtype))
            case _:
                at = self.peek().offset
                dims = self.field("dims", lambda: self.take("string", "a string")[1:-1])
                self.expect(",")
                acc = self.field("acc", self.dtype)
                attrs = self.checked(lambda: ContractAttrs(dims, acc), at)
        self.expect("}")
        return OpKind(name), attrs

    def field(self, name: str, parse: Callable[[], T]) -> T:
        self.expect(name)
        self.expect("=")
        return parse()

    def literal(self) -> str:
        if self.accept("nan"):
            return "nan"
        if self.accept("inf"):
            return "inf"
        token = self.peek()
        text = self.take("number", "a number")
        if "inf" not in text and math.isinf(float(text)):
            raise self.error(f"constant {text} is beyond every float type", token.offset)
        return text

    def integers(self) -> tuple[int, ...]:
        self.expect("[")
        return tuple(self.comma_list(self.integer, "]"))

    def reduce_fn(self) -> ReduceFn:
        token = self.peek()
        name = self.take("name", "a reduction")
        if name not in {fn.value for fn in ReduceFn}:
            raise self.error(f"unknown reduction {name!r}", token.offset)
        return ReduceFn(name)

    def dtype(self) -> DType:
        token = self.peek()
        name = self.take("name", "an element type")
        if name not in self.dtypes:
            raise self.error(
                f"unknown element type {name!r}; known: {', '.join(_DTYPES)}", token.offset
            )
        return self.dtypes[name]

    def type(self) -> TensorType:
        start = self.peek().offset
        dtype = self.dtype()
        self.expect("[")
        shape: list[Dim] = []
        strides: tuple[int, ...] | None = None
        while not self.accept("]"):
            if self.accept(";"):
                self.expect("strides")
                strides = tuple(self.comma_list(self.integer, "]"))
                break
            if shape:
                self.expect(",")
            shape.append(self.dim())
        if strides is None and self.peek().text == ":" and self.tokens[self.at + 1].text == "col":
            self.at += 2
            strides = column_major(tuple(shape))
            if strides is None:
                raise self.error(":col needs two dimensions, the last ones constant", start)
        return self.checked(lambda: TensorType(dtype, tuple(shape), strides), start)

    def dim(self) -> Dim:
        token = self.peek()
        if token.kind == "number":
            return self.integer()
        name = self.take("name", "a dimension")
        if not self.accept(":"):
            if name not in self.dims:
                raise self.error(f"dimension {name!r} has no size", token.offset)
            return self.dims[name]
        low = self.integer()
        self.expect("..")
        high = self.integer()
        multiple = self.integer() if self.accept("%") else 1
        found = self.checked(lambda: Range(name, low, high, multiple), token.offset)
        if self.dims.setdefault(name, found) != found:
            raise self.error(f"dimension {name!r} has two different ranges", token.offset)
        return found
