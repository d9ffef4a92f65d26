"""The workspace: aligned, disjoint, one copy of local memory per unit."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.kernels import with_allocations
from tfsearch.codegen.storage import PAGE, SMALL, allocations, on_stack, plan
from tfsearch.ir.tir.nodes import MemorySpace

SPACES = (MemorySpace.LOCAL, MemorySpace.SCRATCH, MemorySpace.REGISTER)
BUFFERS = st.lists(
    st.tuples(
        st.sampled_from(SPACES), st.integers(1, 20000), st.sampled_from((1, 4, 64, 128, 4096))
    ),
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(buffers=BUFFERS, units=st.integers(1, 4), reserved=st.sampled_from((0, 128)))
def test_buffers_are_aligned_disjoint_and_inside_of_the_workspace(
    buffers: list[tuple[MemorySpace, int, int]], units: int, reserved: int
) -> None:
    kernel = with_allocations(buffers, units)
    found = plan(kernel, reserved)
    taken: list[tuple[int, int]] = [(0, reserved)]
    for buffer in allocations(kernel.body):
        local = buffer.space is MemorySpace.LOCAL
        if buffer.space is MemorySpace.REGISTER or on_stack(buffer):
            assert buffer.name not in found.offsets
            continue
        start = found.offsets[buffer.name]
        for unit in range(units if local else 1):
            first = start + unit * found.per_unit
            assert first % max(buffer.alignment, 64) == 0
            taken.append((first, first + buffer.bytes))
    taken.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))
    assert taken[-1][1] <= found.workspace_bytes or found.workspace_bytes == reserved


def test_units_lie_an_odd_number_of_pages_apart() -> None:
    for elements in (5000, 8192, 100_000):
        kernel = with_allocations([(MemorySpace.LOCAL, elements, 64)], 3)
        step = plan(kernel).per_unit
        assert step % PAGE == 0
        assert step // PAGE % 2 == 1
        assert step >= 4 * elements


def test_small_local_buffers_need_no_workspace() -> None:
    kernel = with_allocations([(MemorySpace.LOCAL, SMALL // 4, 64)], 2)
    assert plan(kernel).workspace_bytes == 0
    larger = with_allocations([(MemorySpace.LOCAL, SMALL // 4 + 1, 64)], 2)
    assert plan(larger).workspace_bytes > 2 * SMALL


def test_without_local_memory_units_share_one_workspace() -> None:
    kernel = with_allocations([(MemorySpace.SCRATCH, 100, 64)], 4)
    found = plan(kernel)
    assert (found.per_unit, found.workspace_bytes) == (0, 400)
