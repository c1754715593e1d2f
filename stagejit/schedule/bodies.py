"""Where the buffers of a body lie, in buffers of the plan around it or in its workspace, and what
its loop or branch touches by that.

Input: a region of a loop or a branch, and the schedules of its bodies. Output: `Bodies`, which give
the `Body`s of the dispatch once buffers have names, and boxes of the values around. Invariant: a
result that updates an argument (the carry of a loop) lies in it wherever the body's schedule puts
it there; slices of xs and ys are addressed where they are, never copied. What a body takes and does
not touch has no place: nobody may have stored it when the body runs. No body touches anything but
what is said; a box is exact iff it is so inside.

Note [Workspace]: transients of all bodies share the beginning of it, because only one body runs at
a time. Behind them lie the verdict of the condition and new carries, which outlive their body. The
branches of a branch share that part, too.

Note [Changing places]: a carry that is not updated in place is written to a second buffer. Small
ones are copied back. For large ones two iterations are laid out one after the other, the second
with the buffers exchanged, so that nothing is copied. A loop of unknown length has its condition
between the two as well. A branch runs once, so it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.dispatch.ranges.accesses import Touch, joined
from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import LoopOperands, body_operands, carried_inputs, carried_operands
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.index.box import Box
from stagejit.schedule.conflicts.access import Access, Buffer, swept
from stagejit.schedule.memory.packing import LINE_NBYTES, aligned
from stagejit.schedule.plans.plan import Binding, Body, Carry, Counter
from stagejit.schedule.schedule import Schedule

# From here on, copying takes longer than the second copy of the loop's code costs.
ALTERNATE_FROM_NBYTES = 4096
MOST_DISPATCHES_TWICE = 32

_INSIDE = "what a body touches is known at run time only"
_RESHAPED = "a body sees another shape"


@record
class Place:
    """Memory of a body's buffer; `value` is one of the graph around it, None for the workspace."""

    buffer: str
    value: Value | None
    offset_nbytes: int = 0
    stride_nbytes: int = 0


@record
class PlacedCounter:
    """See `plan.Counter`. value: in whose memory what comes next is left."""

    buffer: str
    value: Value
    first: int
    step: int


@record(eq=False)
class PlacedBody:
    """One body: its schedule, how often it runs, and where its buffers lie. See `plan.Body`."""

    schedule: Schedule
    trip: int | None
    places: tuple[Place, ...]
    carries: tuple[Carry, ...]
    threads: int = 1
    counters: tuple[PlacedCounter, ...] = ()

    def named(self, name_of: Callable[[Value], str], workspace: str) -> Body:
        bindings = tuple(
            Binding(
                place.buffer,
                workspace if place.value is None else name_of(place.value),
                place.offset_nbytes,
                place.stride_nbytes,
            )
            for place in self.places
        )
        used = any(place.value is None for place in self.places) or self.schedule.arena_nbytes
        return Body(
            self.schedule.plan,
            self.trip,
            bindings,
            workspace if used else "",
            self.carries,
            self.threads,
            tuple(Counter(c.buffer, name_of(c.value), c.first, c.step) for c in self.counters),
        )

    def touches(self) -> tuple[list[Touch], list[Touch]]:
        """What it reads of arguments (what it reads of its own results, it has written before), and
        what it writes, over all iterations."""
        around = {place.buffer: place for place in self.places if place.value is not None}
        inside = {buffer.name: buffer for buffer in self.schedule.plan.buffers}
        reads, writes = [], []
        for dispatch in self.schedule.plan.dispatches:
            for access in dispatch.reads:
                if access.buffer in around and inside[access.buffer].kind == "argument":
                    reads.append(self._around(access, inside, around))
            for access in dispatch.writes:
                if access.buffer in around:
                    writes.append(self._around(access, inside, around))
        for carry in self.carries:  # those that are made elsewhere come back
            value = around[carry.argument].value
            assert value is not None
            writes.append(Touch(value, Box.whole(value.shape)))
        writes += [Touch(counter.value, Box.whole(())) for counter in self.counters]
        return reads, writes

    def _around(
        self, access: Access, inside: Mapping[str, Buffer], around: Mapping[str, Place]
    ) -> Touch:
        """What an access inside of a body touches outside of it, over all iterations: a slice that
        moves with them is one more dimension. Where the body sees another shape than the graph
        around it, the range of bytes is translated."""
        place, shape, trip = around[access.buffer], inside[access.buffer].shape, self.trip or 1
        value = place.value
        assert value is not None
        box, all_of_it = swept(access.box, self.schedule.plan.scalars, trip)
        if place.stride_nbytes:
            # Each iteration has its own slice: what moves within that meets a diagonal.
            all_of_it = all_of_it and (trip == 1 or not access.box.symbols())
            box, shape = Box.of(((0, trip, 1), *box.dims())), (trip, *shape)
        box, fits = box.reshaped(shape, value.shape)
        reason = "" if all_of_it and access.exact and fits else _INSIDE if fits else _RESHAPED
        return Touch(value, box, reason, access.may)


@record(eq=False)
class Bodies:
    """The bodies of one region. own_nbytes: of the workspace, for each thread."""

    each: tuple[PlacedBody, ...]
    own_nbytes: int

    @property
    def nbytes(self) -> int:
        """Of the workspace. Threads share no lines of it."""
        threads = self.each[0].threads
        return self.own_nbytes if threads == 1 else threads * aligned(self.own_nbytes, LINE_NBYTES)

    def named(self, name_of: Callable[[Value], str], workspace: str) -> tuple[Body, ...]:
        """name_of: the buffer of a value of the graph around."""
        return tuple(body.named(name_of, workspace) for body in self.each)


def placed_bodies(region: Region, schedules: Sequence[Schedule]) -> Bodies:
    """Where the bodies of a loop or a branch have their buffers."""
    op = region.anchor
    assert op is not None
    trips: list[int | None] = [1] * len(schedules)
    if op.definition.is_loop:
        trips[0] = op.attrs["trip"]
    start = end = max(schedule.arena_nbytes for schedule in schedules)
    made, ends = [], []
    for number, (body, schedule) in enumerate(zip(region.bodies, schedules, strict=True)):
        arguments = _argument_places(op, number, body.graph.inputs, schedule)
        results, moved, end = _result_places(
            op, number, schedule, arguments, start if op.definition.is_branch else end
        )
        ends.append(end)
        large = sum(schedule.plan.buffer(result).nbytes for result, _ in moved)
        alternates = not why_copied(region, large)
        carries = tuple(Carry(result, argument, alternates) for result, argument in moved)
        places = _touched([*arguments, *results], schedule, carries)
        made.append(PlacedBody(schedule, trips[number], places, carries))
    return Bodies(tuple(made), max(ends))


def why_copied(region: Region, nbytes: int) -> str:
    """Why carries of so many bytes do not change places, see Note [Changing places]; empty where
    they do."""
    op = region.anchor
    assert op is not None
    if op.definition.is_branch or op.attrs["trip"] == 1:
        return "it runs once"
    if nbytes < ALTERNATE_FROM_NBYTES:
        return f"less than the {ALTERNATE_FROM_NBYTES:,} bytes from which buffers change places"
    twice = sum(1 for body in region.bodies for _ in with_inner(body.regions))
    if twice > MOST_DISPATCHES_TWICE:
        return f"its {twice} dispatches are too many to be there twice, with buffers exchanged"
    return ""


def with_threads(bodies: Bodies, threads: int, counted: Mapping[str, tuple[int, int]]) -> Bodies:
    """A loop whose iterations threads share. counted: the first value and the step of arguments
    that count them; each thread has those that are carries in its own memory."""
    (body,), end = bodies.each, aligned(bodies.own_nbytes)
    places, counters = list[Place](), list[PlacedCounter]()
    for place in body.places:
        if place.buffer in counted and place.value is not None and not place.stride_nbytes:
            counters.append(PlacedCounter(place.buffer, place.value, *counted[place.buffer]))
            place = Place(place.buffer, None, end)
            end += aligned(body.schedule.plan.buffer(place.buffer).nbytes)
        places.append(place)
    carries = tuple(carry for carry in body.carries if carry.argument not in counted)
    made = PlacedBody(body.schedule, body.trip, tuple(places), carries, threads, tuple(counters))
    return Bodies((made,), end if counters else bodies.own_nbytes)


def _touched(
    places: Sequence[Place], schedule: Schedule, carries: Sequence[Carry]
) -> tuple[Place, ...]:
    """Without those of arguments that the body passes over: constants and slices whose readers are
    gone, inputs that another branch reads. A kernel has an address of each operand, also of one of
    which it reads no element (windows that lie in the padding)."""
    used = {name for carry in carries for name in (carry.result, carry.argument)}
    for step in schedule.steps():
        dispatch = step.dispatch
        used.update(access.buffer for access in (*dispatch.reads, *dispatch.writes))
        used.update(bound.outer for body in dispatch.bodies for bound in body.bindings)
        if not dispatch.bodies:
            used.update(step.reads)
    for buffer in schedule.plan.buffers:
        if buffer.kind != "argument" or buffer.result is not None:
            used.add(buffer.name)
    # What has no elements is never copied, so one buffer may be several results.
    return tuple({place.buffer: place for place in places if place.buffer in used}.values())


def _argument_places(
    op: Op, number: int, inputs: Sequence[Value], schedule: Schedule
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
    op: Op, number: int, schedule: Schedule, arguments: Sequence[Place], end: int
) -> tuple[list[Place], list[tuple[str, str]], int]:
    """The places of results; (result, argument) of carries that move; where the workspace, which
    has been taken up to `end`, ends now."""
    places, moved = [], []
    carried = carried_inputs(op, number)
    for at, name in enumerate(schedule.outputs):
        buffer = schedule.plan.buffer(name)
        if at in carried and (name == arguments[carried[at]].buffer or not buffer.nbytes):
            continue  # it is there, or has no elements, which may be anywhere
        if at in carried or (op.definition.is_loop and number == 1):  # the verdict of a condition
            places.append(Place(name, None, end))
            end += aligned(buffer.nbytes)
            if at in carried:
                moved.append((name, arguments[carried[at]].buffer))
        elif op.definition.is_branch:
            places.append(Place(name, op.results[at]))
        else:
            places.append(_slice(op, name, op.results[at], buffer.nbytes))
    return places, moved, end


def _slice(op: Op, name: str, whole: Value, nbytes: int) -> Place:
    """One slice an iteration, from the first or from the last."""
    if op.attrs["reverse"]:
        return Place(name, whole, (op.attrs["trip"] - 1) * nbytes, -nbytes)
    return Place(name, whole, 0, nbytes)


def touches_of(region: Region, bodies: Bodies) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    """What the dispatch of a loop or branch reads and writes: its index, and what bodies do."""
    op = region.anchor
    assert op is not None
    reads: list[Touch] = []
    writes: list[Touch] = []
    if op.definition.is_branch:
        index = behind_aliases(op.operands[0])
        reads.append(Touch(index, Box.whole(index.shape)))
    found = [body.touches() for body in bodies.each]
    beside = [tuple(map(_by_value, each)) for each in found] if op.definition.is_branch else []
    for number, (body, own) in enumerate(zip(bodies.each, found, strict=True)):
        others = [*beside[:number], *beside[number + 1 :]]
        for side, made in enumerate((reads, writes)):
            for touch in own[side]:
                # The condition of a loop may fail at once.
                certain = body.trip is not None and all(
                    _is_certain(touch, other[side].get(touch.value, ())) for other in others
                )
                made.append(replace(touch, may=touch.may or not certain))
    return _united(reads), _united(writes)


def _is_certain(touch: Touch, others: Sequence[Touch]) -> bool:
    """Whether another branch touches all of the box, too. others: what it touches of the value."""
    return any(o.must and o.box.contains(touch.box) for o in others)


def _united(touches: Sequence[Touch]) -> tuple[Touch, ...]:
    return tuple(touch for found in _by_value(touches).values() for touch in joined(found))


def _by_value(touches: Sequence[Touch]) -> dict[Value, list[Touch]]:
    found: dict[Value, list[Touch]] = {}
    for touch in touches:
        found.setdefault(touch.value, []).append(touch)
    return found
