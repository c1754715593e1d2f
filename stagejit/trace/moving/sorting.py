"""Translations of sorts and of selections of the largest elements to `sort`.

Input: JAX's `sort`, `top_k` and `approx_top_k`. Output: one `sort`. An operand that counts along
the axis is no operand but the positions that a sort gives anyway; a complex number is two keys.
Invariant: the order is the stable one, which is right whether or not the equation asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.sorting import LONGEST_ROW, SORT
from stagejit.trace.complex.parts import is_complex, joined, part_of
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, translation
from stagejit.types import TensorType, i32


def _sort(emit: Emitter, site: Site, *operands: Value) -> Sequence[Value]:
    axis, keys = int(site.params["dimension"]), int(site.params["num_keys"])
    if operands[0].type.shape[axis] < 2 or not operands[0].type.size:
        return operands
    counts = [at >= keys and _counts_along(x, axis) for at, x in enumerate(operands)]
    moved = [x for x, counting in zip(operands, counts, strict=True) if not counting]
    numbers = [len(moved) if counting else moved.index(x)
               for x, counting in zip(operands, counts, strict=True)]  # fmt: skip
    length = operands[0].type.shape[axis]
    made = sort(emit, moved, axis, keys, length, numbers)
    return [
        emit.convert(value, x.type.dtype) if counting else value
        for value, x, counting in zip(made, operands, counts, strict=True)
    ]


def of_complex(emit: Emitter, site: Site, *operands: Value) -> Sequence[Value]:
    """A sort of complex numbers among others: by the real parts, then by the imaginary ones."""
    number, keys = int(site.params["num_keys"]), 0
    parts: list[Value] = []
    for at, (x, aval) in enumerate(zip(operands, site.inputs, strict=True)):
        own = [part_of(emit, x, 0), part_of(emit, x, 1)] if is_complex(aval) else [x]
        keys += len(own) if at < number else 0
        parts += own
    made = iter(_sort(emit, site.with_params({"num_keys": keys}), *parts))
    return [
        joined(emit, (next(made), next(made))) if is_complex(aval) else next(made)
        for aval in site.outputs
    ]


def _counts_along(x: Value, axis: int) -> bool:
    """Whether an element is its own index along the axis, but for a last conversion."""
    if x.op.definition.is_conversion and x.type.dtype.is_integer:
        (x,) = x.op.operands
    return _is_index(x, axis)


def _is_index(x: Value, axis: int) -> bool:
    op, known, dtype = x.op, x.op.definition, x.type.dtype
    if not dtype.is_integer or np.iinfo(dtype.numpy).max < x.type.shape[axis] - 1:
        return False
    if known.repeats:
        axes = op.attrs["axes"]
        return axis in axes and _is_index(op.operands[0], axes.index(axis))
    if known.is_conversion:
        return _is_index(op.operands[0], axis)
    return bool(known.counts and op.attrs["axis"] == axis)


def sort(
    emit: Emitter,
    operands: Sequence[Value],
    axis: int,
    keys: int,
    count: int,
    numbers: Sequence[int],
    *,
    descending: bool = False,
) -> list[Value]:
    """The first `count` elements along an axis in the order of the first `keys` operands, of the
    operands that `numbers` name; their number names the positions."""
    shape = operands[0].type.shape
    if shape[axis] >= LONGEST_ROW:
        raise Unsupported(f"an axis of {shape[axis]} elements")
    kept = (*shape[:axis], count, *shape[axis + 1 :])
    different = sorted(set(numbers))
    dtypes = [*(x.type.dtype for x in operands), i32]
    types = [TensorType(dtypes[number], kept) for number in different]
    made = emit.emit_many(
        "sort", operands, types, axis=axis, keys=keys, count=count, descending=descending,
        results=tuple(different),
    )  # fmt: skip
    return [made[different.index(number)] for number in numbers]


def drop_unused(graph: Graph) -> None:
    """sort %x, %y results=(0, 1, 2)  -->  sort %x results=(1), where nobody reads the others

    JAX sorts the keys with the positions also where positions alone are wanted."""
    for op in graph.ops():
        if op.definition is SORT:
            used = sorted(graph.uses_by_result(op))
            if len(used) < len(op.results):
                _keep(graph, op, used)


def _keep(graph: Graph, op: Op, used: Sequence[int]) -> None:
    """The results `used` of a sort, and the operands that these need."""
    numbers = [op.attrs["results"][at] for at in used]
    needed = [at for at in range(len(op.operands)) if at < op.attrs["keys"] or at in numbers]
    places = {at: place for place, at in enumerate((*needed, len(op.operands)))}
    operands, types = [op.operands[at] for at in needed], [op.results[at].type for at in used]
    attrs = {**op.attrs, "results": tuple(places[number] for number in numbers)}
    made = graph.add(op.kind, operands, types, op.loc, **attrs)
    graph.put_at(op, made)
    values = dict(zip(used, made.results, strict=True))
    graph.replace_results(op, [values.get(at) for at in range(len(op.results))])
    graph.erase(op)


def _top_k(emit: Emitter, site: Site, x: Value) -> Sequence[Value]:
    return _first(emit, site, x, int(site.params["axis"]), descending=True)


def _approx_top_k(emit: Emitter, site: Site, x: Value) -> Sequence[Value]:
    """The exact ones: no other choice recalls more of them."""
    axis, largest = int(site.params["reduction_dimension"]), bool(site.params["is_max_k"])
    return _first(emit, site, x, axis % x.type.rank, descending=largest)


def _first(emit: Emitter, site: Site, x: Value, axis: int, *, descending: bool) -> Sequence[Value]:
    values, positions = site.results
    if not values.size:
        return [emit.empty(values), emit.empty(positions)]
    count = values.shape[axis]
    made, order = sort(emit, [x], axis, 1, count, (0, 1), descending=descending)
    return made, emit.convert(order, positions.dtype)


TRANSLATIONS: dict[str, Translation] = {
    "sort": translation(_sort, "dimension", "num_keys", ignored=("is_stable",)),
    "top_k": translation(_top_k, "axis", ignored=("k", "operand", "is_stable")),
    "approx_top_k": translation(
        _approx_top_k, "reduction_dimension", "is_max_k",
        ignored=("k", "recall_target", "reduction_input_size_override", "aggregate_to_topk"),
    ),
}  # fmt: skip
