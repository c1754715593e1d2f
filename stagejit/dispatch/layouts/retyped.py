"""Parts of a dispatch for operands of other types.

Input: a part, which is a graph, and operands. Output: a part that computes the same of them; some
of its outputs go into the last operands. Invariant: which op touches which box of what stays as it
was; only where elements lie changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, infer
from stagejit.index.layout import Layout
from stagejit.types import TensorType


def retyped(
    part: Graph,
    types: Sequence[TensorType],
    placed: Sequence[int] = (),
    kept: Sequence[int] | None = None,
    stem: str = "into",
    passes: Callable[[Op], bool] = lambda op: False,
) -> Graph:
    """The part for operands of `types`. placed: numbers of outputs that go into the last operands,
    which are named by `stem`; kept: numbers of those that stay, by default all; passes: which ops
    hand their operand on as it is."""
    made = Graph(part.name)
    own = len(part.inputs)
    names = [*part.input_names, *(f"{stem}{at}" for at in range(len(types) - own))]
    donated = [*part.donated, *(True for _ in types[own:])]
    inputs = [
        made.add_input(name, type, donated=given)
        for name, type, given in zip(names, types, donated, strict=True)
    ]
    values = dict(zip(part.inputs, inputs, strict=False))
    for op in part.ops():
        if passes(op):
            values[op.result] = values[op.operands[0]]
            continue
        operands = [values[value] for value in op.operands]
        inferred = infer(op.kind, [value.type for value in operands], op.attrs)
        results = inferred or [value.type for value in op.results]
        clone = made.add(op.kind, operands, results, op.loc, **op.attrs)
        values.update(zip(op.results, clone.results, strict=True))
    into = dict(zip(placed, inputs[own:], strict=False))
    numbers = range(len(part.outputs)) if kept is None else kept
    made.set_outputs(
        [
            inserted(made, values[part.outputs[number]], into[number])
            if number in into
            else values[part.outputs[number]]
            for number in numbers
        ]
    )
    return made


def inserted(graph: Graph, value: Value, whole: Value) -> Value:
    """`value` in the memory of `whole`, all of which it takes."""
    rank = len(whole.shape)
    offsets, strides = (0,) * rank, (1,) * rank
    return build(graph, "insert_slice", [value, whole], offsets=offsets, strides=strides)


def empty_like(graph: Graph, op: Op, type: TensorType, layout: Layout) -> Value:
    """Memory of that layout for what `op` gives or reads."""
    attrs = {} if layout.is_row_major else {"layout": layout}
    return build(graph, "empty", (), op.loc, shape=type.shape, dtype=type.dtype, **attrs)
