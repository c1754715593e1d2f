"""A graph of dispatches with other layouts: what a rewrite that chooses layouts would leave.

Input: a graph of dispatches, and who gets which layout. Output: a graph that means the same.
Only memory that nobody but dispatches touches has a layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, infer
from stagejit.graph.ops.control import memory_of
from stagejit.graph.ops.dispatches import add_dispatch, parts_of
from stagejit.index.layout import Layout


def relaid(graph: Graph, choose: Callable[[Value], Layout | None]) -> Graph:
    """choose: the layout of what is a dispatch's fresh result, or `empty`; None for row-major."""
    made = Graph(graph.name)
    values = {
        value: made.add_input(name, value.type, donated=graph.is_donated(value))
        for value, name in zip(graph.inputs, graph.input_names, strict=True)
    }
    bound = _bound(graph)
    for op in graph.ops():
        if op.definition.is_empty:
            layout = choose(op.result) if op.result not in bound else None
            values[op.result] = _empty(made, op.result, layout)
        elif op.definition.is_dispatch:
            _dispatch(made, op, values, bound, choose)
        else:
            operands = [values[value] for value in op.operands]
            types = [value.type for value in op.results]
            clone = made.add(op.kind, operands, types, op.loc, **_with_inner(op, choose))
            values.update(zip(op.results, clone.results, strict=True))
    made.set_outputs([values[value] for value in graph.outputs])
    return made


def _with_inner(op: Op, choose: Callable[[Value], Layout | None]) -> dict[str, Any]:
    """The attributes of an op that is no dispatch, with its bodies relaid."""
    if op.definition.with_bodies is None:
        return op.attrs
    bodies = [relaid(body, choose) for body in op.definition.bodies(op)]
    return {**op.attrs, **op.definition.with_bodies(bodies)}


def _bound(graph: Graph) -> set[Value]:
    """Memory that others than dispatches look at."""
    kinds = ((op, op.definition) for op in graph.ops())
    others = [op for op, kind in kinds if not (kind.is_dispatch or kind.is_empty)]
    seen = [*graph.outputs, *(v for op in others for v in (*op.operands, *op.results))]
    return {memory_of(value) for value in seen}


def _empty(graph: Graph, like: Value, layout: Layout | None) -> Value:
    attrs = {} if layout is None or layout.is_row_major else {"layout": layout}
    return build(graph, "empty", (), shape=like.shape, dtype=like.type.dtype, **attrs)


def _dispatch(
    made: Graph,
    op: Op,
    values: dict[Value, Value],
    bound: set[Value],
    choose: Callable[[Value], Layout | None],
) -> None:
    tied = {number for number, _ in op.attrs["carried"]}
    into = {}
    for result in op.results:
        layout = choose(result) if result.index not in tied and result not in bound else None
        if layout is not None and not layout.is_row_major:
            into[result.index] = _empty(made, result, layout)
    operands = [*(values[value] for value in op.operands), *into.values()]
    first, *borders = parts_of(op)
    parts = [_part(first, operands, list(into))]
    parts += [_part(border, operands, []) for border in borders]
    clone = add_dispatch(made, operands, parts)
    values.update(zip(op.results, clone.results, strict=True))


def _part(part: Graph, operands: list[Value], placed: list[int]) -> Graph:
    """The part for operands of these types; the outputs `placed` go into the last of them."""
    made = Graph(part.name)
    given = [*part.donated, *(True for _ in operands[len(part.inputs) :])]
    names = [*part.input_names, *(f"into{at}" for at in range(len(given)))]
    inputs = [
        made.add_input(name, value.type, donated=donated)
        for name, value, donated in zip(names, operands, given, strict=False)
    ]
    values = dict(zip(part.inputs, inputs, strict=False))
    for op in part.ops():
        own = [values[value] for value in op.operands]
        types = infer(op.kind, [value.type for value in own], op.attrs)
        clone = made.add(op.kind, own, types or [v.type for v in op.results], op.loc, **op.attrs)
        values.update(zip(op.results, clone.results, strict=True))
    outputs = [values[value] for value in part.outputs]
    for number, whole in zip(placed, inputs[len(part.inputs) :], strict=False):
        rank = len(whole.shape)
        outputs[number] = build(
            made, "insert_slice", [outputs[number], whole], offsets=(0,) * rank, strides=(1,) * rank
        )
    made.set_outputs(outputs)
    return made
