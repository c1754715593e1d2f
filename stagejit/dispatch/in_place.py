"""When a region may write a result over an operand that nobody reads afterwards.

Input: a region, a value that it reads, the destination of one of its stores. Output: why not, or
nothing. Invariant: where the answer is empty, every kernel of the region's kind has read an element
of the operand for the last time when it stores the element that takes its place; no other item of
the parallel loop reads it.

What kernels promise (`codegen`): a map evaluates all stores of an element before it writes one; a
reduce finishes all passes over a row before it stores in it, and an item has whole rows; a
contraction or convolution applies what follows the product where it stores an element, and its
running sums lie in scratch unless the product itself is what is stored.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from stagejit.dispatch.ranges.accesses import indices_read, store_index, touch_of
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine


def refuse_in_place(region: Region, operand: Value, store: Store) -> str:
    """Why `region` cannot have `store`, one of its own, over `operand`, one of its inputs; empty if
    it can. They have to be of one size, element for element."""
    into = store.into
    known = region.definition
    if not (known.is_elementwise or known.is_reduce or known.is_product):
        return f"a {region.kind} reads the operand while it writes the result"
    if region.borders:
        return "the dispatch writes a border beside the result"
    if says_where(region, operand):
        return "the operand says where something is placed"
    if operand.type.dtype.itemsize != into.type.dtype.itemsize:
        return "elements of the operand and of the result differ in size"
    if not store.value.type.size == operand.type.size == into.type.size:
        return "the operand and what the dispatch writes differ in size"
    if known.is_reduce:
        reason = _refuse_rows(region, operand, store)
    elif region.anchor is not None:
        reason = _refuse_epilogue(region, operand, store)
    else:
        reason = ""
    if reason:
        return reason
    read = {operand.type.offset(index) for index in indices_read(region, operand)}
    if read == {into.type.offset(store_index(store))}:
        return ""
    return "the dispatch reads other elements of the operand than it writes"


def refuse_updates(region: Region, operands: Container[Value], result: Value) -> str:
    """Why `region` cannot make `result`, an update of the memory that it reads by `operands`;
    empty if it can."""
    read = zip(region.inputs, region.operands, strict=True)
    stores = zip(region.stores, region.results, strict=True)
    written = [store for store, into in stores if into is result]
    faults = (
        _refuse_update(region, own, store)
        for own, operand in read
        if operand in operands
        for store in written
    )
    return next(filter(None, faults), "")


def _refuse_update(region: Region, operand: Value, store: Store) -> str:
    """Why `region` cannot have `store` overwrite elements of `operand`, one of its inputs, in the
    memory of both; empty if it can: a map may, of an element that it reads for what it stores
    there."""
    if region.anchor is not None:
        return refuse_in_place(region, operand, store)
    if says_where(region, operand):
        return "the operand says where something is placed"
    index = store_index(store)
    written = touch_of(store.into, index, region.scalars).box
    place = _terms(store.into.type.offset(index))
    for read in indices_read(region, operand):
        overlaps = touch_of(operand, read, region.scalars).box.overlaps(written)
        if overlaps and _terms(operand.type.offset(read)) != place:
            return "the dispatch reads other elements of the operand than it writes"
    return ""


def _terms(offset: Affine) -> tuple[frozenset[tuple[object, int]], int]:
    """By which equal offsets are known, also if they are read at run time: from one value then."""
    terms = (
        ((var.source, var.extent) if var.kind == "dynamic" else var, coeff)
        for var, coeff in offset.terms
    )
    return frozenset(terms), offset.const


def says_where(region: Region, value: Value) -> bool:
    """Whether a dynamic offset of a store depends on `value`: each item reads it, whatever it
    stores."""
    inserts = [insert for store in region.stores for insert in store.inserts]
    return _reaches(region, [start for insert in inserts for start in insert.operands[2:]], value)


def _refuse_rows(region: Region, operand: Value, store: Store) -> str:
    """Stores of whole rows come last, those of a number for each row after them."""
    reduces = [op for op in region.ops if op.definition.is_reduce]
    row_space = reduces[0].operands[0].shape
    if store.value.shape != row_space:
        return "the result has another shape than what is reduced"
    results = frozenset(op.result for op in reduces)
    for other in region.stores:
        if other.value.shape != row_space and _reaches(region, [other.value], operand, results):
            return "a result for each row reads the operand after the rows are written"
    return ""


def _refuse_epilogue(region: Region, operand: Value, store: Store) -> str:
    anchor = region.anchor
    assert anchor is not None
    if _reaches(region, anchor.operands, operand):
        return f"the {anchor.kind} reads the operand while others write the result"
    if not _reaches(region, [store.value], operand, frozenset(anchor.results)):
        return "running sums lie in the result while the operand is needed"
    return ""


def _reaches(
    region: Region,
    values: Sequence[Value],
    operand: Value,
    stop: frozenset[Value] = frozenset(),
) -> bool:
    """Whether evaluating `values` in the region reads `operand`, but through values in `stop`."""
    inside = set(region.ops)
    pending, seen = list(values), set(stop)
    while pending:
        value = pending.pop()
        if value is operand:
            return True
        if value not in seen and value.op in inside:
            seen.add(value)
            pending.extend(value.op.operands)
    return False
