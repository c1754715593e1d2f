"""host-offsets: says for each offset that is read at run time whether the host knows it.

Input: a state and an op. Output: a decision, if the op has such an offset. Invariant: nobody ever
waits for a device to learn an offset; one that is computed there stays a conservative hull.
"""

from __future__ import annotations

from stagejit.base.formulas import bare, renamed
from stagejit.dispatch.groups.state import State
from stagejit.dispatch.ranges.scalars import Scalars
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import boxed
from stagejit.rewrites.driving.driver import describe

NAME = "host-offsets"
ANYWHERE = "its range is a conservative hull: all places where it may be"


def explain_offsets(state: State, op: Op) -> None:
    """A decision for a slice or insert with a computed start, and for each scatter."""
    if op.definition.boxed is not None:
        starts = boxed(op)[2]
    elif op.definition.is_scatter:
        starts = (op.operands[1],)
    else:
        return
    if not starts:
        return
    if not state.enabled(NAME):
        state.decide(NAME, op, False, f"{NAME} is disabled: {ANYWHERE}")
    elif state.scalars.knows(op):
        names = [f"%{name}" for name in state.graph.input_names]
        offsets = [
            offset for offset in state.scalars.box(op).offsets if not isinstance(offset, int)
        ]
        texts = dict.fromkeys(renamed(bare(str(offset)), names) for offset in offsets)
        known = ", ".join(texts) or "a constant"
        state.decide(NAME, op, True, f"the host knows the offset {known}: its range is exact")
    else:
        unknown = next((start for start in starts if state.scalars[start] is None), starts[0])
        state.decide(NAME, op, False, f"{_maker(unknown, state.scalars)}: {ANYWHERE}")


def _passes(op: Op) -> bool:
    """Whether what the host knows of an element is what it knows of elements of the operands."""
    known = op.definition
    return known.is_insert or (known.is_pointwise and not known.is_gather and not known.is_window)


def _maker(start: Value, scalars: Scalars) -> str:
    """What makes an offset something that the host does not know, and on which line."""
    while _passes(start.op):
        unknown = [value for value in start.op.operands if scalars[value] is None]
        if not unknown:
            break
        start = min(unknown, key=lambda value: value.op.definition.is_constant)
    op = start.op
    if op.definition.is_constant:
        return "the offset is an element of a constant array"
    if op.definition.is_input:
        what = "an element of an argument array" if start.shape else "made of a float argument"
        return f"the offset is {what}"
    line = f" of line {op.loc.line}" if op.loc else ""
    name, _, types = describe(op).partition(": ")
    what = f"{name} {types}"
    if _passes(op):
        return f"{what}{line} is no function that the host computes"
    return f"the offset is computed by {what}{line}"
