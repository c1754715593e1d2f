"""When stores should bypass the caches: see KERNELS.md, "Large outputs".

Input: loops, along a vector variable. Output: the loops, with a yes or no for each store.
Invariant: only full, aligned cache lines are streamed, and only results that the last cache
could not keep for their readers anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.loops import Loops
from stagejit.codegen.kernel import Choice
from stagejit.dispatch.regions import Store
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

_LINE_NBYTES = 64


def in_streams(loops: Loops) -> Loops:
    """With stores that bypass the caches where that pays."""
    streamed, why = _streamed(loops)
    return replace(loops, streamed=streamed, choices=(*loops.choices, Choice("stream", why)))


def _streamed(loops: Loops) -> tuple[tuple[bool, ...], str]:
    """For each store, whether its vectors should be streamed; and why."""
    region, vector, cache = loops.region, loops.vector, loops.target.l3_nbytes
    traffic, none = _traffic(region, loops.reads), (False,) * len(region.stores)
    sizes = f"{traffic >> 10} KiB of traffic, {cache >> 10} KiB of cache"
    if traffic <= cache:
        return none, f"stores go to the caches: {sizes}"
    if vector is None or not region.aligned:
        return none, f"stores go to the caches: no whole lines ({sizes})"
    large = sum(store.value.type.nbytes for store in region.stores) >= cache // 2
    found = tuple(
        large and _is_lines(store, offset, vector, loops.lanes)
        for store, offset in zip(region.stores, loops.offsets, strict=True)
    )
    return found, f"{sum(found)} of {len(found)} stores bypass the caches: {sizes}"


def _traffic(region: ClosedRegion, reads: Iterable[tuple[Value, Affine]]) -> int:
    """Bytes that cross memory; what a gather picks is no more than what is made of it."""
    most = max((op.result.type.size for op in region.ops if len(op.results) == 1), default=0)
    most = max(most, *(store.value.type.size for store in region.stores))
    read = sum(
        min(value.type.nbytes, most * value.type.dtype.itemsize)
        for value in {value: None for value, _ in reads}
    )
    return read + sum(store.value.type.nbytes for store in region.stores)


def _is_lines(store: Store, offset: Affine, vector: Var, lanes: int) -> bool:
    size = store.value.type.dtype.itemsize
    if lanes * size != _LINE_NBYTES or offset.coeff(vector) != 1:
        return False
    if any(var.kind != "loop" for var in offset.vars()):
        return False
    return offset.const * size % _LINE_NBYTES == 0 and all(
        coeff * size % _LINE_NBYTES == 0 for var, coeff in offset.terms if var is not vector
    )
