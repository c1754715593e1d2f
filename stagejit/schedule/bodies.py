"""Where the buffers of a body lie: in buffers of the plan around it, or in its workspace.

Input: a region of a loop or a branch, and the schedules of its bodies. Output: a `Layout`, which
gives the `Body`s of the dispatch once buffers have names. Invariant: a result that updates an
argument (the carry of a loop) lies in it wherever the body's schedule puts it there; slices of xs
and ys are addressed where they are, never copied. What a body takes and does not touch has no
place: nobody may have stored it when the body runs.

Note [Workspace]: transients of all bodies share the beginning of it, because only one body runs at
a time. Behind them lie the verdict of the condition and new carries, which outlive their body. The
branches of a branch share that part, too.

Note [Changing places]: a carry that is not updated in place is written to a second buffer. Small
ones are copied back. For large ones two iterations are laid out one after the other, the second
with the buffers exchanged, so that nothing is copied. A loop of unknown length has its condition
between the two as well. A branch runs once, so it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import LoopOperands, body_operands, carried_inputs, carried_operands
from stagejit.graph.ops.views import behind_aliases
from stagejit.schedule.memory import aligned
from stagejit.schedule.plan import Binding, Body, Carry
from stagejit.schedule.schedule import Run, Schedule

# From here on, copying takes longer than the second copy of the loop's code costs.
ALTERNATE_FROM_NBYTES = 4096
MOST_DISPATCHES_TWICE = 32


@dataclass(frozen=True)
class Place:
    """Memory of a body's buffer; `value` is one of the graph around it, None for the workspace."""

    buffer: str
    value: Value | None
    offset_nbytes: int = 0
    stride_nbytes: int = 0


@dataclass
class Layout:
    """The bodies of one region. nbytes: of the workspace."""

    schedules: Sequence[Schedule]
    trips: Sequence[int | None]
    nbytes: int = 0
    places: list[list[Place]] = field(default_factory=list)
    carries: list[list[Carry]] = field(default_factory=list)

    def bodies(self, name_of: Callable[[Value], str], workspace: str) -> tuple[Body, ...]:
        """name_of: the buffer of a value of the graph around."""
        made = []
        for schedule, trip, places, carries in zip(
            self.schedules, self.trips, self.places, self.carries, strict=True
        ):
            bindings = tuple(
                Binding(
                    place.buffer,
                    workspace if place.value is None else name_of(place.value),
                    place.offset_nbytes,
                    place.stride_nbytes,
                )
                for place in places
            )
            used = any(place.value is None for place in places) or arena_nbytes(schedule)
            made.append(
                Body(schedule.plan, trip, bindings, workspace if used else "", tuple(carries))
            )
        return tuple(made)

    def reserve(self, nbytes: int) -> int:
        """The offset of memory behind all that the workspace holds so far."""
        offset = self.nbytes
        self.nbytes += aligned(nbytes)
        return offset


def arena_nbytes(schedule: Schedule) -> int:
    """Memory for the transients of a body, which is one run."""
    return max(
        (part.arena_nbytes for part in schedule.segments if isinstance(part, Run)), default=0
    )


def layout_of(region: Region, schedules: Sequence[Schedule]) -> Layout:
    """The layout of a loop's or branch's bodies."""
    op = region.anchor
    assert op is not None
    trips: list[int | None] = [1] * len(schedules)
    if op.definition.is_loop:
        trips[0] = op.attrs["trip"]
    layout = Layout(schedules, trips, max(map(arena_nbytes, schedules)))
    start = end = layout.nbytes
    twice = sum(1 for body in region.bodies for _ in with_inner(body.regions))
    may_alternate = trips[0] != 1 and twice <= MOST_DISPATCHES_TWICE
    for number, (body, schedule) in enumerate(zip(region.bodies, schedules, strict=True)):
        if op.definition.is_branch:
            layout.nbytes = start
        places = _argument_places(op, number, body.graph.inputs, schedule)
        carries = _result_places(op, number, schedule, layout, places)
        large = sum(schedule.plan.buffer(result).nbytes for result, _ in carries)
        alternates = may_alternate and large >= ALTERNATE_FROM_NBYTES
        layout.places.append(_touched(places, schedule, carries))
        layout.carries.append([Carry(result, argument, alternates) for result, argument in carries])
        end = max(end, layout.nbytes)
    layout.nbytes = end
    return layout


def _touched(
    places: Sequence[Place], schedule: Schedule, carries: Sequence[tuple[str, str]]
) -> list[Place]:
    """Without those of arguments that the body passes over: constants and slices whose readers are
    gone, inputs that another branch reads."""
    used = {name for pair in carries for name in pair}
    for dispatch in schedule.plan.dispatches:
        used.update(access.buffer for access in (*dispatch.reads, *dispatch.writes))
    for buffer in schedule.plan.buffers:
        if buffer.kind != "argument" or buffer.result is not None:
            used.add(buffer.name)
    # What has no elements is never copied, so one buffer may be several results.
    return list({place.buffer: place for place in places if place.buffer in used}.values())


def _argument_places(
    op: Op,
    number: int,
    inputs: Sequence[Value],
    schedule: Schedule,
) -> list[Place]:
    places = []
    first = len(op.operands) - len(inputs) if op.definition.is_branch else 0  # operand of input 0
    results = {at - first: result for result, at in carried_operands(op).items()}
    sliced = range(0)
    if op.definition.is_loop and number == 0:
        sliced = range(len(results), len(results) + len(LoopOperands.of(op).xs))
    for at, (value, operand) in enumerate(zip(inputs, body_operands(op)[number], strict=True)):
        name = schedule.buffer_of[value]
        if at in results:
            places.append(Place(name, op.results[results[at]]))
        elif at in sliced:
            places.append(_slice(op, name, behind_aliases(operand), value.type.nbytes))
        else:
            places.append(Place(name, behind_aliases(operand)))
    return places


def _result_places(
    op: Op,
    number: int,
    schedule: Schedule,
    layout: Layout,
    places: list[Place],
) -> list[tuple[str, str]]:
    """Adds the places of results; returns (result, argument) for carries that move."""
    moved = []
    carried = carried_inputs(op, number)
    for at, name in enumerate(schedule.outputs):
        buffer = schedule.plan.buffer(name)
        if at in carried and (name == places[carried[at]].buffer or not buffer.nbytes):
            continue  # it is there, or has no elements, which may be anywhere
        if at in carried:
            places.append(Place(name, None, layout.reserve(buffer.nbytes)))
            moved.append((name, places[carried[at]].buffer))
        elif op.definition.is_branch:
            places.append(Place(name, op.results[at]))
        elif number == 1:  # the verdict of a condition
            places.append(Place(name, None, layout.reserve(buffer.nbytes)))
        else:
            places.append(_slice(op, name, op.results[at], buffer.nbytes))
    return moved


def _slice(op: Op, name: str, whole: Value, nbytes: int) -> Place:
    """One slice an iteration, from the first or from the last."""
    if op.attrs["reverse"]:
        return Place(name, whole, (op.attrs["trip"] - 1) * nbytes, -nbytes)
    return Place(name, whole, 0, nbytes)
