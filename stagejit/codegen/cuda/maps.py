"""Kernels of `map`, `copy` and `fill` regions for a GPU: each thread has elements of the space.

Input: a region whose stores share a shape. Output: its kernel. The loops become one number, of
which the variable whose elements are neighbours in most memory is the fastest, so that the threads
of a warp touch the same lines; threads take several neighbours where accesses of 16 bytes are to be
had. Invariant: each stored element is written once, by one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.coalescing import best_order
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.squares import best_squares, squares_tree
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.tree import Do, Node, Parallel, vectors
from stagejit.codegen.places.loops import Loops, loops_of_stores
from stagejit.index.affine import Var

_THREADS = 256  # of a block: eight blocks fill a multiprocessor
_BUSY = 2  # waves of threads that are worth more than accesses of 16 bytes


def map_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region without an anchor."""
    loops = loops_of_stores(region, device)
    seconds = region_seconds(region, device)

    def tree(loops: Loops, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        return _tree(loops, device, emitter, memory)

    return grid_kernel(region, device, [loops], tree, seconds, threads=_THREADS)


def _tree(
    loops: Loops, device: Device, emitter: ThreadEmitter, memory: Sequence[Memory]
) -> Parallel:
    (variables,) = loops.groups
    stores = Stores(loops.region, emitter.elements, memory, loops.offsets)
    body: Node = Do("store", lambda: stores.write(enumerate(loops.places)))
    order, choice = best_order(variables, loops)
    emitter.chose(choice.name, choice.reason)
    squares, why = best_squares(loops, order)
    if len(order) > 1:
        emitter.chose(why.name, why.reason)
    if squares:
        return squares_tree(loops, squares, order, stores, emitter)
    lanes = _lanes(order, loops, device)
    each = [(var, 1) for var in order]
    if lanes > 1:
        *_, last = order
        each[-1] = (last, lanes)
        body = vectors(last, lanes, body)
    emitter.chose("elements", f"{lanes} neighbours a thread, {emitter.threads} threads a block")
    return Parallel(tuple(each), body, together=emitter.threads)


def _lanes(order: Sequence[Var], loops: Loops, device: Device) -> int:
    """Neighbours that a thread takes, along the last variable."""
    if not order:
        return 1
    last, lanes = order[-1], loops.lanes
    size = math.prod(var.extent for var in order)
    moved = [form.coeff(last) for form in (*loops.forms, *loops.offsets)]
    neighbours = all(coeff in (0, 1) for coeff in moved)
    enough = size >= _BUSY * lanes * device.threads
    return lanes if neighbours and enough and last.extent % lanes == 0 else 1
