import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.ir.layout import (
    Layout,
    Swizzle,
    SwizzledLayout,
    coalesce,
    complement,
    composition,
    logical_divide,
    logical_product,
    make_layout,
    parse_layout,
    right_inverse,
    tile,
    zipped_divide,
)


def shapes():
    leaf = st.sampled_from([1, 2, 3, 4, 6])
    return st.recursive(
        leaf, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=3
    )


def with_strides(shape):
    if isinstance(shape, int):
        return st.tuples(st.just(shape), st.sampled_from([0, 1, 2, 3, 4, 8, 12]))
    parts = st.tuples(*(with_strides(s) for s in shape))
    return parts.map(lambda p: (tuple(s for s, _ in p), tuple(d for _, d in p)))


layouts = shapes().flatmap(with_strides).map(lambda pair: Layout(*pair))


@st.composite
def dense(draw: st.DrawFn) -> Layout:
    """A compact layout whose modes are permuted: a bijection onto 0 … size-1."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    strides = [0] * len(sizes)
    step = 1
    for i in order:
        strides[i] = step
        step *= sizes[i]
    return Layout(tuple(sizes), tuple(strides))


def found_or_refused(make, code):
    """What ``make`` gives, or None when it refuses with ``code``."""
    try:
        return make()
    except RequestError as error:
        if error.code != code:
            raise
        return None


@given(layouts)
def test_text_round_trips(layout):
    assert parse_layout(str(layout)) == layout
    swizzled = SwizzledLayout(Swizzle(2, 1, 3), layout)
    assert parse_layout(str(swizzled)) == swizzled


@given(layouts)
def test_size_and_cosize_are_those_of_the_function(layout):
    offsets = layout.offsets()
    assert len(offsets) == layout.size
    assert max(offsets) + 1 == layout.cosize


@given(layouts)
def test_coalesce_keeps_the_function_and_flattens(layout):
    simple = coalesce(layout)
    assert simple.offsets() == layout.offsets()
    assert simple.depth <= 1
    assert coalesce(simple) == simple


@given(layouts, layouts)
@settings(max_examples=400)
def test_composition_is_functional_composition(outer, inner):
    both = found_or_refused(lambda: composition(outer, inner), "layout.composition")
    if both is not None:
        assert both.offsets() == [outer(inner(i)) for i in range(inner.size)]


@given(dense(), st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
def test_composition_succeeds_when_sizes_divide(outer, size):
    plain = coalesce(outer)
    first = plain.shape if isinstance(plain.shape, int) else plain.shape[0]
    assume(first % size == 0)
    found = composition(outer, Layout(size, 1))
    assert found.offsets() == [outer(i) for i in range(size)]


@given(layouts, st.sampled_from([1, 5, 24, 60]))
@settings(max_examples=300)
def test_complement_is_disjoint_ordered_and_covers(layout, extent):
    assume(layout.is_injective())
    rest = found_or_refused(lambda: complement(layout, extent), "layout.complement")
    assume(rest is not None)
    offsets = rest.offsets()
    assert offsets == sorted(offsets)
    together = make_layout(layout, rest)
    assert together.is_injective()
    assert set(range(extent)) <= set(together.offsets())


@given(dense())
def test_a_right_inverse_inverts(layout):
    inverse = right_inverse(layout)
    assert inverse.size == layout.size
    assert [layout(inverse(i)) for i in range(layout.size)] == list(range(layout.size))


@given(layouts)
def test_a_right_inverse_of_any_layout_inverts_what_it_covers(layout):
    inverse = right_inverse(layout)
    assert [layout(inverse(i)) for i in range(inverse.size)] == list(range(inverse.size))


@given(dense(), st.sampled_from([(2, 1), (4, 1), (2, 2), (3, 1)]))
@settings(max_examples=200)
def test_dividing_only_reorders(layout, tile_of):
    tiled = Layout(*tile_of)
    parts = found_or_refused(lambda: logical_divide(layout, tiled), "layout.composition")
    assume(parts is not None)
    assert sorted(parts.offsets()) == sorted(layout.offsets())
    assert parts[0].offsets() == [layout(i * tile_of[1]) for i in range(tile_of[0])]


def test_tiles_of_a_matrix():
    matrix = Layout.row_major((8, 12))
    tiles = tile(matrix, 4, 3)
    assert tiles.shape == ((4, 3), (2, 4))
    for i in range(8):
        for j in range(12):
            assert tiles(((i % 4, j % 3), (i // 4, j // 3))) == matrix((i, j))
    rows = zipped_divide(matrix, [Layout(2, 4)])
    assert rows[0].offsets() == [matrix((0, 0)), matrix((4, 0))]


@given(dense(), dense())
def test_a_product_repeats_its_first_mode(layout, repeat):
    assume(layout.size * repeat.size <= 512)
    both = logical_product(layout, repeat)
    assert both[0] == layout
    assert both.is_injective()
    for i in range(repeat.size):
        moved = [both((j, i)) - both((0, i)) for j in range(layout.size)]
        assert moved == [layout(j) for j in range(layout.size)]


def test_coordinates_may_be_coarse_or_fine():
    layout = parse_layout("((2,4),8):((1,2),8)")
    assert layout(((1, 3), 5)) == 1 + 6 + 40
    assert layout((7, 5)) == layout(((1, 3), 5))
    assert layout(7 + 8 * 5) == layout((7, 5))
    assert (layout.rank, layout.depth, layout.size, layout.cosize) == (2, 2, 64, 64)
    with pytest.raises(RequestError):
        layout((1, 2, 3))
    with pytest.raises(RequestError):
        layout(((1, (2, 3)), 5))


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_a_swizzle_permutes_every_period(bits, base, extra):
    swizzle = Swizzle(bits, base, bits + extra)
    period = swizzle.period
    assert sorted(map(swizzle, range(period))) == list(range(period))
    assert all(swizzle(swizzle(i)) == i for i in range(period))
    assert all(swizzle(i + period) == swizzle(i) + period for i in range(period))


def test_a_swizzled_tile_spreads_a_column_over_the_banks():
    plain = Layout.row_major((8, 64))
    swizzled = SwizzledLayout(Swizzle(3, 3, 3), plain)
    assert len({plain((i, 0)) % 64 // 8 for i in range(8)}) == 1
    assert len({swizzled((i, 0)) % 64 // 8 for i in range(8)}) == 8
    assert sorted(swizzled(i) for i in range(swizzled.size)) == list(range(512))
    assert swizzled.cosize == 512


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("(2,3)", "expected ':'"),
        ("(2,3:1", "expected ','"),
        ("(2,x):(1,2)", "column 4"),
        ("(2,3):(1,2) 4", "expected the end"),
        ("sw(1,2) o 3:1", "column 1"),
    ],
)
def test_wrong_text_is_refused_with_its_column(text, part):
    with pytest.raises(RequestError) as caught:
        parse_layout(text)
    assert caught.value.code == "layout.parse"
    assert part in caught.value.message


def test_impossible_layouts_are_refused():
    for shape, stride in (
        ((2, 3), (1,)),
        ((2, 0), (1, 2)),
        ((2, 2), (1, -1)),
        ((2, (2, 2)), (1, 2)),
    ):
        with pytest.raises(RequestError):
            Layout(shape, stride)
    with pytest.raises(RequestError):
        Swizzle(3, 0, 1)
    with pytest.raises(RequestError, match="repeats offsets"):
        complement(Layout(4, 0), 8)
