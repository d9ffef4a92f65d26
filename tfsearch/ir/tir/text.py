"""Canonical text of TIR: what other modules import; printer and parser stand beside it."""

from tfsearch.ir.tir.parser import parse_kernel, parse_module
from tfsearch.ir.tir.printer import (
    Place,
    first_lines,
    head_text,
    place,
    places,
    print_buffer,
    print_expr,
    print_kernel,
    print_module,
    print_operand,
)

__all__ = [
    "Place",
    "first_lines",
    "head_text",
    "parse_kernel",
    "parse_module",
    "place",
    "places",
    "print_buffer",
    "print_expr",
    "print_kernel",
    "print_module",
    "print_operand",
]
