"""TIR modules as CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tfsearch.atoms.contract import Atom
from tfsearch.codegen.clike import KernelEmitter
from tfsearch.codegen.storage import ENTRY_PREFIX, entry_spec, plan
from tfsearch.core.errors import InternalError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import UNIT, Buffer, Kernel, MemorySpace, Module
from tfsearch.prove.storage import SharedLayout, shared_layout
from tfsearch.target.cuda.launching import Configuration
from tfsearch.target.cuda.teams import FIRST, LANE, TeamEmitter, descriptors, has_teams

HEADER = "kernel.cuh"
TEAMS_HEADER = "teams" + ".cuh"
SHARED = "tfs_shared"
GIVEN_ALIGNMENT = 16
"""Bytes that dynamic shared memory is known to start at a multiple of; a kernel whose buffers ask
for more asks for padding, and skips it."""
_ELEMENTS = {
    DType.F32: "tfs_f32",
    DType.F64: "tfs_f64",
    DType.BF16: "tfs_bf16",
    DType.F16: "tfs_f16",
    DType.I8: "tfs_i8",
    DType.I32: "tfs_i32",
    DType.BARRIER: "tfs_barrier",
}


class CudaDialect:
    """CUDA C++ with the types of ``clib``; fragments are shared out over ``threads``."""

    def __init__(self, threads: int, shared: Mapping[str, int]) -> None:
        self._threads = threads
        self._shared = shared

    def element(self, dtype: DType) -> str:
        """Storage type of one element."""
        return _ELEMENTS[dtype]

    def register(self, dtype: DType, shape: tuple[int, ...]) -> str:
        """What one thread holds of a fragment."""
        count = math.prod(shape)
        if count % self._threads:
            raise InternalError(
                "codegen.fragment", f"{count} elements are not shared out over {self._threads}"
            )
        return f"tfs_vec<{_ELEMENTS[dtype]}, {count // self._threads}>"

    def literal(self, value: float) -> str:
        """A constant with every bit; it converts exactly to the register's element type."""
        if math.isnan(value):
            return "TFS_NAN"
        if math.isinf(value):
            return "TFS_INFINITY" if value > 0 else "-TFS_INFINITY"
        return value.hex()

    def argument(self, index: int) -> None:
        """Arguments are declared by the entry's signature."""
        del index

    def pointer(self, element: str, name: str, address: str) -> str:
        """A ``__restrict__`` pointer."""
        return f"{element} *__restrict__ {name} = ({element} *){address};"

    def array(self, buffer: Buffer) -> str:
        """A part of the unit's shared memory."""
        if buffer.space is not MemorySpace.SHARED:
            raise InternalError(
                "codegen.space", f"{buffer.name}: CUDA C++ has no {buffer.space.value} memory here"
            )
        element = self.element(buffer.dtype)
        return f"{element} *{buffer.name} = ({element} *)({SHARED} + {self._shared[buffer.name]});"

    def unroll(self, count: int) -> str:
        """A pragma that NVRTC and nvcc take."""
        return f"#pragma unroll {count}"


def source_of(module: Module, atoms: Mapping[str, Atom]) -> tuple[str, LaunchSpec]:
    """CUDA C++ of a module, and how its entries are launched.

    An entry takes the pointers of its arguments in order, then its workspace where it has one
    (zeroed when it was allocated). A unit is a block.
    """
    teams = any(map(has_teams, module.kernels))
    parts = [f'#include "{TEAMS_HEADER if teams else HEADER}"', ""]
    entries: list[EntrySpec] = []
    attributes: dict[str, object] = {}
    for kernel in module.kernels:
        layout = plan(kernel)
        places = shared_layout(kernel)
        shared = places.requested(GIVEN_ALIGNMENT)
        threads = kernel.warps * kernel.lanes
        kind = TeamEmitter if has_teams(kernel) else KernelEmitter
        emitter = kind(kernel, atoms, CudaDialect(threads, places.offsets), layout)
        parts += _entry(kernel, emitter, places)
        entry = entry_spec(kernel, layout)
        boxes = tuple(found for _, found in descriptors(kernel))
        how = Configuration((kernel.units, 1, 1), (threads, 1, 1), _cluster(kernel), shared, boxes)
        entries.append(entry)
        attributes[entry.symbol] = how.to_json()
    launch = LaunchSpec(entries[-1], tuple(entries[:-1]), attributes)
    return "\n".join(parts), launch


def _cluster(kernel: Kernel) -> tuple[int, int, int]:
    return (kernel.cluster_size, 1, 1)


def _entry(kernel: Kernel, emitter: KernelEmitter, shared: SharedLayout) -> list[str]:
    threads = kernel.warps * kernel.lanes
    teams = has_teams(kernel)
    parameters = [f"{element} *__restrict__ {name}" for element, name in emitter.parameters()]
    parameters += [f"const __grid_constant__ tfs_box {name}" for name, _ in descriptors(kernel)]
    # Registers can be handed over where a kernel says how many blocks an SM has.
    bounds = f"{threads}, 1" if teams else f"{threads}"
    lines = [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{ENTRY_PREFIX}{kernel.name}({', '.join(parameters)}) {{",
        f"  const {'int' if teams else 'long'} {UNIT} = blockIdx.x;",
        f"  const int {LANE} = threadIdx.x;",
        f"  (void){UNIT};",
        f"  (void){LANE};",
    ]
    if teams:
        lines.append(f"  const bool {FIRST} = {LANE} == 0;")
    if shared.bytes:
        mask = shared.alignment - 1
        raw = f"{SHARED}_raw"
        lines.append(f"  extern __shared__ __align__({GIVEN_ALIGNMENT}) char {raw}[];")
        if shared.alignment > GIVEN_ALIGNMENT:
            lines += [
                f"  const unsigned tfs_skip = -(unsigned)__cvta_generic_to_shared({raw}) & {mask};",
                f"  char *const {SHARED} = {raw} + tfs_skip;",
            ]
        else:
            lines.append(f"  char *const {SHARED} = {raw};")
    return [*lines, *emitter.lines(), "}", ""]
