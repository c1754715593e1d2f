"""Kernels of `reduce` regions for a GPU: all stages of a row (maxima, sums, results) in one launch.

Input: a region whose reduces share a row space. Output: its kernel. Each row is in registers of its
members, where it fits, otherwise in loops, of which the passes share what is costly in shared
memory. Invariant: an item reads and writes its own rows only; the order of accumulation depends on
shapes and the device only.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.rows.mapping import best_mapping, merge_nbytes
from stagejit.codegen.cuda.rows.policies import HeldRows, LoopedRows, ThreadNest
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.rows.nest import RowNest
from stagejit.codegen.rows.plan import keeping, row_nests


def reduce_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region of kind `reduce`."""
    rows = row_nests(region, device)
    room = device.static_shared_nbytes // len(rows)
    nests: list[ThreadNest] = []
    for nest in rows:
        threads = nests[0].mapping.threads if nests else 0
        nests.append(_bound(nest, device, threads, room))
    seconds, choices = region_seconds(region, device), (*nests[0].choices, *_kept(nests[0]))
    threads = nests[0].mapping.threads
    return grid_kernel(region, device, nests, _tree, seconds, threads=threads, choices=choices)


def _bound(rows: RowNest, device: Device, threads: int, room: int) -> ThreadNest:
    """Rows by threads. threads: of a block, if known; room: bytes of its shared memory."""
    ranked = best_mapping(rows, device, threads, room)
    mapping = ranked.best
    lanes = mapping.lanes if mapping.rows_are_neighbours else mapping.step
    fields = {
        **vars(rows), "vector": mapping.fast, "lanes": lanes, "choices": (ranked.choice,),
    }  # fmt: skip
    nest = ThreadNest(**fields, mapping=mapping)
    return nest if mapping.held else keeping(nest, room - merge_nbytes(rows, mapping))


def _kept(nest: ThreadNest) -> list[Choice]:
    kept = ", ".join(value.op.attrs.get("fn", value.op.kind) for value in nest.cached)
    return [Choice("keep", f"passes share {kept} in shared memory")] if kept else []


def _tree(nest: ThreadNest, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
    policy = HeldRows if nest.mapping.held else LoopedRows
    return policy(nest, emitter, memory).tree()
