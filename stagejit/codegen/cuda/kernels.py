"""From the nests of a region to its kernel for a GPU.

Input: as for `nest/kernels.py`, and the threads of a block. Output: a `Kernel`. Invariant: as
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.threads import ThreadElements, ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.kernels import N, kernel_by
from stagejit.codegen.nest.tree import Parallel
from stagejit.errors import InternalError
from stagejit.graph.ir import Value


def grid_kernel(
    region: ClosedRegion,
    device: Device,
    nests: Sequence[N],
    tree: Callable[[N, ThreadEmitter, Sequence[Memory]], Parallel],
    seconds: float,
    *,
    threads: int,
    resident: int = 0,
    choices: Sequence[Choice] = (),
) -> Kernel:
    """The kernel of nests in blocks of so many threads. seconds: on one multiprocessor. resident:
    see `Function`."""
    if threads > device.threads_a_block:
        raise InternalError(f"{threads} threads are too many for {device.name}", step="codegen")
    grid = GridBuilder([threads], calls=region.calls, resident=resident)

    def emitter(builder: Builder, memory: Mapping[Value, Memory]) -> ThreadEmitter:
        return ThreadEmitter(ThreadElements(grid, memory, aligned=region.aligned), grid)

    return kernel_by(grid, emitter, region, nests, tree, seconds, choices)
