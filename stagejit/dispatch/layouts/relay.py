"""A graph of dispatches, some of whose memory has another layout.

Input: a graph of dispatches, and layouts for fresh results and `empty`s that only dispatches touch.
Output: the same graph with dispatches that read and write them so. Invariant: what it computes, and
which op touches which box of what, stays as it was; only where elements lie changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.dispatch.layouts.retyped import empty_like, retyped
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import memory_of
from stagejit.graph.ops.dispatches import add_dispatch, parts_of
from stagejit.index.layout import Layout
from stagejit.types import TensorType

_Parts = tuple[Graph, ...]


def bound_memory(graph: Graph) -> set[Value]:
    """Memory that others than dispatches look at: the caller, loops and branches, libraries, and
    who takes it for an array of another shape. It is row-major."""
    kinds = ((op, op.definition) for op in graph.ops())
    others = [op for op, kind in kinds if not (kind.is_dispatch or kind.is_empty)]
    seen = [*graph.outputs, *(v for op in others for v in (*op.operands, *op.results))]
    known: dict[Value, Value] = {}
    return {memory_of(value, known) for value in (*seen, *graph.inputs)}


def relay(graph: Graph, chosen: Mapping[Value, Layout]) -> dict[Op, Op]:
    """Gives these values, none of which is bound, their layouts; returns what was put in place of
    ops."""
    replaced: dict[Op, Op] = {}
    known: dict[tuple[_Parts, tuple[TensorType, ...], tuple[int, ...]], _Parts] = {}
    for op in graph.ops():
        if op.definition.is_empty and op.result in chosen:
            made = empty_like(graph, op, op.result.type, chosen[op.result]).op
            graph.put_at(op, made)
        elif op.definition.is_dispatch and _changes(op, chosen):
            made = _dispatch(graph, op, chosen, known)
        else:
            continue
        graph.replace_results(op, made.results)
        graph.erase(op)
        replaced[op] = made
    return replaced


def _changes(op: Op, chosen: Mapping[Value, Layout]) -> bool:
    taken = zip(op.operands, parts_of(op)[0].inputs, strict=True)
    return any(value in chosen for value in op.results) or any(
        value.type != own.type for value, own in taken
    )


def _dispatch(
    graph: Graph,
    op: Op,
    chosen: Mapping[Value, Layout],
    known: dict[tuple[_Parts, tuple[TensorType, ...], tuple[int, ...]], _Parts],
) -> Op:
    tied = dict(op.attrs["carried"])
    placed = [v for v in op.results if v.index not in tied and v in chosen]
    into = [empty_like(graph, value.op, value.type, chosen[value]) for value in placed]
    operands = [*op.operands, *into]
    numbers = tuple(value.index for value in placed)
    key = parts_of(op), tuple(value.type for value in operands), numbers
    parts = known.get(key)
    if parts is None:  # dispatches that share their parts go on to do so
        first, *borders = parts_of(op)
        made = [retyped(first, key[1], numbers), *(retyped(border, key[1]) for border in borders)]
        parts = known[key] = tuple(made)
    result = add_dispatch(graph, operands, parts)
    graph.put_at(op, *(value.op for value in into), result)
    return result
