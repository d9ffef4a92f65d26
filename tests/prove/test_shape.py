"""The hash of a recipe's shape sees structure, not names."""

import re

import pytest

from tests.prove.kernels import gemm, prepared
from tests.prove.toy import LIMITS, TABLE
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.shape import renamed, shape_hash
from tfsearch.prove.verify import verify


def test_names_do_not_matter():
    text = print_module(gemm(13, 37, 21))
    other = re.sub(r"\b(kb|ib|jp|rows|acc|pack|kk|a|c|gemm)\b", r"z_\1", text)
    assert other != text
    assert shape_hash(parse_module(other)) == shape_hash(parse_module(text))
    assert len(shape_hash(gemm(13, 37, 21))) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("toy.barrier()\n", ""),
        ("toy.fma", "toy.add"),
        ("kb * 16 + p", "kb * 16 + p + 1"),
        ("0.0", "1.0"),
        ("unrolled v in", "for v in"),
        ("units 2", "units 3"),
        ("scratch", "local"),
    ],
)
def test_structure_matters(old, new):
    text = print_module(gemm(13, 37, 21))
    assert old in text
    assert shape_hash(parse_module(text.replace(old, new, 1))) != shape_hash(parse_module(text))


def test_renaming_keeps_a_module_legal_and_its_arguments_joined():
    module = renamed(prepared(3, 13))
    assert verify(module, TABLE, LIMITS) == ()
    filled, used = module.kernels[0].params[1], module.kernels[1].params[1]
    assert filled.buffer.name == used.buffer.name
    assert renamed(module) == renamed(renamed(module))
