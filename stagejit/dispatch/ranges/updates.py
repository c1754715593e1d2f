"""Which elements of its destination an update changes.

Input: an `insert_slice`, a `scatter`, or a loop or branch that carries an operand. Output: boxes.
Invariant: elements outside of them are the destination's.
"""

from __future__ import annotations

from stagejit.dispatch.ranges.scalars import NOTHING
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops.control import before, bodies_of, carried_inputs, destination_of
from stagejit.graph.ops.dispatches import destination
from stagejit.index.box import Box, hull_of

MOST_BOXES = 4  # more become their hull


def updated_boxes(value: Value) -> list[Box]:
    """Boxes around what `value` changes of what it is an update of; all of it where that is not
    known, or where it is no update."""
    op = value.op
    if op.definition.is_insert:
        return [NOTHING.box(op)]  # a body's offsets mean nothing around it
    boxes: list[Box] = []
    for number, body in enumerate(bodies_of(op)):
        carried = carried_inputs(op, number)
        if value.index not in carried:
            continue
        start = carried[value.index]
        if not op.definition.is_dispatch or number == 0:
            boxes += _changed(body, value.index, start)
        elif destination(body, 0) is body.inputs[start]:  # a border
            boxes += _changed(body, 0, start)
    if destination_of(value) is None or not op.definition.has_bodies:
        return [Box.whole(value.shape)]
    boxes = [box for box in dict.fromkeys(boxes) if box.count]
    if len(boxes) <= MOST_BOXES:
        return boxes
    return [hull_of(boxes)]


def _changed(body: Graph, output: int, start: int) -> list[Box]:
    """What an output of a body changes of the input that it starts from."""
    boxes, value = [], body.outputs[output]
    while value is not body.inputs[start]:
        earlier = before(value)
        if earlier is None or earlier.shape != value.shape:
            return [Box.whole(value.shape)]
        boxes += updated_boxes(value) if destination_of(value) is not None else []
        value = earlier
    return boxes
