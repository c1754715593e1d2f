"""When an op may be evaluated inside a group: its place in the group's space, order, size of the
rows.

Input: a state, an op, a group. Output: a location, or the reason for a refusal. Invariant: pure
questions; nothing here changes the state.

Note [Spaces]: a group's results live in one space ("out"), those of reductions in two: an element
of the "row" space is an element that is reduced, an element of the "kept" space is a whole row. A
value may be computed in a group if each of its elements needs only elements of the group at one
place of that space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.symbolic import at_most
from stagejit.dispatch.groups import cost
from stagejit.dispatch.groups.group import Group, Location, Place, Refusal
from stagejit.dispatch.groups.state import State
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.graph.ops.moving.splits import is_uneven
from stagejit.index.affine import Index
from stagejit.index.coordinates import coordinates, keeps_row_major_order, variables

# The largest row that is read again from a near cache.
ROW_NBYTES = 256 << 10
# Fewer rows (or blocks of rows that are reduced together) than this would leave workers idle.
FEWEST_ROWS = 8
# Neighbours along a kept innermost dimension that are reduced together.
_ROWS_ABREAST = 16


def locate(state: State, group: Group, value: Value) -> Place:
    """Where the elements of `value` lie in the space of `group`."""
    pending = [value]  # operands first: a chain of converts or views may be longer than the stack
    while pending:
        if _is_placed(state, group, pending[-1]):
            pending.pop()
            continue
        op = pending[-1].op
        behind = [v for v in _through(op) if not _is_placed(state, group, v)]
        if not behind:
            group.places[pending.pop()] = _locate_pointwise(state, group, op)
        pending += behind
    return _place(state, group, value)


def _is_placed(state: State, group: Group, value: Value) -> bool:
    """Whether its place is known, or nothing but the value itself tells it."""
    return (
        value in group.places
        or value in group.located
        or value.op in state.home
        or not state.deps.get(value.op, 0) >> group.id & 1
        or not state.is_floating(value)
    )


def _place(state: State, group: Group, value: Value) -> Place:
    """The place of a value that is placed."""
    if value in group.located:
        return group.located[value]
    if value.op in state.home:
        return Refusal() if state.home[value.op] is group else None
    if not state.deps.get(value.op, 0) >> group.id & 1:
        return None
    # Through memory, there is nothing to fuse.
    return group.places[value] if state.is_floating(value) else Refusal()


def _through(op: Op) -> Sequence[Value]:
    """The operands whose places decide the place of the result."""
    known = op.definition
    return op.operands if known.is_view or known.is_elementwise or known.is_splat else ()


def _locate_pointwise(state: State, group: Group, op: Op) -> Place:
    if op.definition.is_view or op.definition.is_splat:
        return _locate_view(state, group, op)
    if not op.definition.is_elementwise:
        return Refusal(f"{op.kind} reads elements of {group.kind} at computed places")
    places = [_place(state, group, operand) for operand in op.operands]
    refused = next((place for place in places if isinstance(place, Refusal)), None)
    if refused is not None:
        return refused
    return _combine(group, op, [place for place in places if isinstance(place, Location)])


def _locate_view(state: State, group: Group, op: Op) -> Place:
    place = _place(state, group, op.operands[0])
    if place is None:
        return Refusal(f"the offset of {op.kind} depends on {group.kind}")
    if isinstance(place, Refusal):
        return place
    if any(_place(state, group, start) is not None for start in op.operands[1:]):
        return Refusal(f"the offset of {op.kind} depends on {group.kind}")
    if not op.result.type.size:
        return Refusal()
    if op.definition.is_view and not op.definition.rearranges:
        return Refusal(f"{op.kind} takes a part of the results of {group.kind}")
    same_size = op.result.type.size == op.operands[0].type.size
    repeats = op.definition.repeats or op.definition.is_splat
    if not same_size and (place.space != "kept" or not repeats):
        return Refusal(f"{op.kind} gives it another shape than the loops over {group.kind}")
    index = _through_view(op, place.index)
    return Location(place.space, index, place.one_to_one and same_size)


def _through_view(op: Op, index: Index) -> Index:
    """`index` maps coordinates of the view's operand; the result maps those of the view."""
    if op.definition.is_splat:
        return index
    pulled = pull_view(op, coordinates(op.result.shape))
    step = dict(zip(variables(op.operands[0].shape), pulled, strict=True))
    return tuple(part.substitute(step) for part in index)


def _combine(group: Group, op: Op, found: list[Location]) -> Place:
    """The place that all operands share; a row element may read the kept element of its row."""
    if not found:
        return None
    exact = [place for place in found if place.one_to_one]
    row = next((place for place in exact if place.space == "row"), None)
    if row is None and len(exact) == len(found):
        if all(place is exact[0] or place == exact[0] for place in exact):
            return exact[0]
        return Refusal(f"one result of it needs two different elements of {group.kind}")
    if row is None and not exact and op.result.shape == group.shape:
        row = Location("row", coordinates(group.shape))
    if row is None:
        return Refusal(f"its shape is neither that of the rows nor of the results of {group.kind}")
    for place in found:
        if place.index != (row.index if place.space == "row" else group.kept_index(row.index)):
            return Refusal(f"one result of it needs two different elements of {group.kind}")
    return row


def switch_of(group: Group, place: Location | Refusal | None) -> str:
    """The rewrite that evaluating an op in `group` is."""
    if group.anchor is None:
        return "fuse-producers"
    row = isinstance(place, Location) and place.space == "row"
    return "fuse-rows" if row else "fuse-epilogues"


def refuse_join(state: State, group: Group, op: Op, place: Location) -> Refusal | None:
    """Why a pointwise `op` at `place` must not be evaluated in `group`; None if it may."""
    if not place.one_to_one:
        return Refusal("it uses elements of a row more than once")
    switch = switch_of(group, place)
    if not state.enabled(switch):
        return Refusal(f"{switch} is disabled")
    if group.closed:
        return Refusal(f"{group.kind} has as many ops behind it as one dispatch may have")
    known = group.definition
    if known.is_elementwise or (known.accumulates and not known.is_product):
        into = group.shape if place.space != "kept" else group.kept_shape
        if not keeps_row_major_order(place.index, op.result.shape, into):
            return Refusal(f"it needs another order of the elements of {group.kind}")
        if known.is_elementwise and op.result.shape != group.shape:
            return Refusal("its shape is not that of what the dispatch computes")
    if place.space == "row" and (reason := refuse_rows(group)):
        return reason
    return refuse_turn(state, group, op, state.deps_of_all(op.operands))


def refuse_turn(state: State, group: Group, op: Op, needed: int) -> Refusal | None:
    """Why `op`, which needs the groups of a bit set, is not evaluated when `group` is."""
    return refuse_order(state, group, needed) or _refuse_overwritten(state, group, op)


def refuse_order(state: State, group: Group, needed: int) -> Refusal | None:
    """Why `group` cannot wait for the groups of the bit set `needed`."""
    others = needed & ~(1 << group.id)
    if state.reach.reaches_any(group.id, others):
        made = f"another of its operands is made from {group.kind}"
        return Refusal(f"{made} in a dispatch between the two")
    return None


def _refuse_overwritten(state: State, group: Group, op: Op) -> Refusal | None:
    """Why `op`, which is small, and `group` had better not be one: an update of a buffer that one
    of them reads would come before the other, and all of the buffer would be copied."""
    of_group, of_op = state.overwritten_by.get(group, set()), state.overwritten(op.operands)
    if not (of_group or of_op):
        return None
    after_op = state.reach.closure(state.deps_of_all(op.operands))
    after_group = state.reach.before(group.id)
    for buffers, before in ((of_group, after_op), (of_op, after_group)):
        for buffer in buffers:
            update = state.update_of(buffer)
            assert update is not None
            late = before & state.deps_of(update.results[0])
            if late and at_most(2 * op.result.type.size, buffer.type.size):
                return Refusal(f"a {update.kind} between the two overwrites what one of them reads")
    return None


def refuse_rows(group: Group) -> Refusal | None:
    """Why results of a reduction must not be read again by the dispatch that reduces."""
    assert group.anchor is not None
    if is_uneven(group.anchor.operands[0].op):
        return Refusal("its rows are not all equally long")
    itemsize = group.anchor.operands[0].type.dtype.itemsize
    size = math.prod(group.shape)
    if at_most(size * itemsize, cost.SMALL_SPACE_NBYTES):
        return None
    rows = math.prod(group.kept_shape)
    abreast = 1 if len(group.shape) - 1 in group.axes else _ROWS_ABREAST
    if at_most(rows, (FEWEST_ROWS - 1) * abreast):
        return Refusal(
            f"{rows} rows of {size // max(rows, 1)} elements: "
            "too few for all cores, if one dispatch goes over them twice"
        )
    nbytes = size // rows * itemsize * abreast
    if not at_most(nbytes, ROW_NBYTES):
        return Refusal(
            f"a row takes {nbytes} bytes, over {ROW_NBYTES}: "
            "a second pass would read it from memory, not from a cache"
        )
    return None
