"""When stores should bypass the caches: see KERNELS.md, "Large outputs".

Input: a region, its reads and store offsets along a vector variable. Output: a yes or no for each
store. Invariant: only full, aligned cache lines are streamed, and only results that the last cache
could not keep for their readers anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.kernel import Choice
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Store
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

_LINE_NBYTES = 64


def streamed_stores(
    region: ClosedRegion,
    reads: Iterable[tuple[Value, Affine]],
    offsets: Sequence[Affine],
    vector: Var | None,
    lanes: int,
    target: Target,
) -> tuple[tuple[bool, ...], Choice]:
    """For each store, whether its vectors should be streamed."""
    traffic, cache = _traffic(region, reads), target.l3_nbytes
    sizes = f"{traffic >> 10} KiB of traffic, {cache >> 10} KiB of cache"
    none = (False,) * len(region.stores)
    if traffic <= cache:
        return none, Choice("stream", f"stores go to the caches: {sizes}")
    if vector is None or not region.aligned:
        return none, Choice("stream", f"stores go to the caches: no whole lines ({sizes})")
    written = sum(store.value.type.nbytes for store in region.stores)
    large = written >= cache // 2
    found = tuple(
        large and _is_lines(store, offset, vector, lanes)
        for store, offset in zip(region.stores, offsets, strict=True)
    )
    reason = f"{sum(found)} of {len(found)} stores bypass the caches: {sizes}"
    return found, Choice("stream", reason)


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
