"""Layouts of shared memory are compared as functions, whatever they are written like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.atoms.contract import ANY, TileLayout
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout, parse_layout
from tfsearch.ir.tir.nodes import Buffer, MemorySpace
from tfsearch.prove.rules_layout import fits, injective, layout_faults, mode_offsets

SIZES = st.integers(1, 5)
STRIDES = st.integers(0, 12)
FLAT = st.lists(st.tuples(SIZES, STRIDES), min_size=1, max_size=3).map(
    lambda modes: Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))
)


@settings(max_examples=200, deadline=None)
@given(FLAT)
def test_offsets_are_those_of_the_layout(layout):
    assert mode_offsets(layout.shape, layout.stride).tolist() == layout.offsets()
    assert injective(layout) == layout.is_injective()


def shared(layout, dtype=DType.F32, shape=None, **more):
    layout = parse_layout(layout) if isinstance(layout, str) else layout
    sizes = shape or tuple(mode.size for mode in getattr(layout, "layout", layout).modes)
    more = {"alignment": 1024, **more}
    return Buffer("b", dtype, sizes, MemorySpace.SHARED, None, layout=layout, **more)


def takes(buffer, dims, starts, extents, *tiles):
    return fits((buffer.layout, buffer.shape, buffer.strides), dims, starts, extents, tiles)


ROWS = TileLayout("rows", (8, 8), (8, 1))
SWIZZLED = TileLayout("swizzled", (8, 8), (8, 1), Swizzle(1, 2, 3))
CORE = TileLayout("core", ((8, ANY), 4), ((4, ANY), 1))
WHOLE = ((0, 0), (0, 0), (0, 0))


@pytest.mark.parametrize(
    ("layout", "starts", "tile", "fit"),
    [
        ("(3,8,8):(64,8,1)", WHOLE, ROWS, True),
        ("(3,8,8):(100,8,1)", ((0, 1), (0, 0), (0, 0)), ROWS, True),
        ("(3,(4,2),8):(64,(8,32),1)", WHOLE, ROWS, True),
        ("(3,8,8):(64,1,8)", WHOLE, ROWS, False),
        ("(3,8,8):(64,8,1)", WHOLE, SWIZZLED, False),
        ("sw(1,2,3) o (3,8,8):(64,8,1)", WHOLE, SWIZZLED, True),
        ("sw(1,2,3) o (3,8,8):(64,8,1)", WHOLE, ROWS, False),
        ("sw(0,2,3) o (3,8,8):(64,8,1)", WHOLE, ROWS, True),
        ("(3,16,8):(128,8,1)", ((0, 1), (0, 8), (0, 0)), ROWS, True),
        ("(3,(4,4),8):(128,(8,32),1)", ((0, 1), (0, 8), (0, 0)), ROWS, True),
        ("(3,(4,4),8):(192,(8,48),1)", ((0, 1), (0, 8), (0, 0)), ROWS, False),
        ("(3,(8,2),8):(128,(8,64),1)", ((0, 1), (0, 4), (0, 0)), ROWS, True),
        ("(3,(8,2),8):(192,(8,128),1)", ((0, 1), (0, 4), (0, 0)), ROWS, False),
        ("(3,(8,2),8):(192,(8,128),1)", ((0, 1), (0, 8), (0, 0)), ROWS, True),
    ],
)
def test_a_tile_lies_as_the_atom_takes_it(layout, starts, tile, fit):
    assert takes(shared(layout), (1, 2), starts, (1, 8, 8), tile) is fit


@pytest.mark.parametrize("stride", [32, 40, 4])
def test_a_free_stride_may_be_any(stride):
    buffer = shared(f"((8,3),4):((4,{stride}),1)")
    assert takes(buffer, (0, 1), WHOLE[:2], (24, 4), CORE)
    assert not takes(shared("((4,6),4):((4,32),1)"), (0, 1), WHOLE[:2], (24, 4), CORE)


def test_dense_buffers_have_a_layout_too():
    dense = Buffer("b", DType.F32, (3, 8, 8), MemorySpace.SHARED)
    padded = Buffer("b", DType.F32, (3, 8, 8), MemorySpace.SHARED, (96, 12, 1))
    assert takes(dense, (1, 2), WHOLE, (1, 8, 8), ROWS)
    assert not takes(padded, (1, 2), WHOLE, (1, 8, 8), ROWS)


@pytest.mark.parametrize(
    ("buffer", "what"),
    [
        (shared("(4,8):(8,1)"), ""),
        (shared("(4,8):(4,1)"), "elements overlap"),
        (shared("(4,8):(8,1)", shape=(4, 9)), "its layout is of [4, 8]"),
        (shared("sw(1,2,3) o (8,8):(8,1)", alignment=128), "period of 256 bytes"),
        (shared("sw(1,2,3) o (8,8):(8,1)", alignment=256), ""),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(buffer, what):
    found = list(layout_faults(buffer))
    assert bool(found) == bool(what)
    assert not what or what in found[0]


def test_the_bytes_of_a_layout_count_its_gaps():
    assert shared("(4,8):(16,1)").bytes == (3 * 16 + 8) * 4
    swizzled = SwizzledLayout(Swizzle(1, 2, 3), Layout((2, 8), (8, 1)))
    assert shared(swizzled).bytes == 64 * 4
    assert np.prod(shared(swizzled).shape) == 16
