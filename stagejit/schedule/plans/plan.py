"""`Plan`: which dispatches run, what each one touches, what has to wait for what, and where memory
lies.

Input: made by `schedule/build.py`, or parsed from text. Output: plain data for people, tests and
the backend. Invariant: `parser.parse_plan(plan.as_text())` gives the same text again; nothing here
depends on a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagejit.base.decisions import Decision
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.base.showing import html_of
from stagejit.base.symbolic import Symbol, symbols_in
from stagejit.base.threads.locks import remembered
from stagejit.dispatch.packs import Pack
from stagejit.errors import OptionsError
from stagejit.graph.text.quoting import quoted
from stagejit.schedule.conflicts import reduction
from stagejit.schedule.conflicts.access import (
    Access,
    Barrier,
    Buffer,
    BufferKind,
    Hazard,
    HostScalar,
    Parts,
)
from stagejit.schedule.conflicts.binding import Binding, Carry, Counter
from stagejit.schedule.memory.packing import FRAME_NBYTES
from stagejit.schedule.memory.peak import Peak, peak_of
from stagejit.schedule.plans import turns
from stagejit.schedule.plans.comparison import Comparison, Totals
from stagejit.schedule.plans.networks import Network, network_of

__all__ = [
    "Access",
    "Barrier",
    "Binding",
    "Body",
    "Buffer",
    "BufferKind",
    "Carry",
    "Counter",
    "Delegated",
    "Dispatch",
    "Hazard",
    "HostScalar",
    "Parts",
    "Plan",
    "exchanged",
]


@dataclass(frozen=True)
class Body:
    """A plan that a dispatch runs: `trip` times, once (a branch, a condition), or, where `trip` is
    None, until its condition fails.

    bindings: of its arguments and results. workspace: the buffer of the plan around it in which its
    transients have their slots; empty if there are none. carries: those that are not updated in
    place; all of one body are either copied after each iteration, or the buffers change places.
    threads: how many share the iterations, at most, in any order; each has one of as many equal
    parts of the workspace. counters: the carries of such a loop that its iterations do not wait
    for.
    """

    plan: Plan
    trip: int | None
    bindings: tuple[Binding, ...]
    workspace: str = ""
    carries: tuple[Carry, ...] = ()
    threads: int = 1
    counters: tuple[Counter, ...] = ()

    @property
    def alternates(self) -> bool:
        return any(carry.alternates for carry in self.carries)


@dataclass(frozen=True)
class Dispatch:
    """One launch: the ops it evaluates and the boxes it touches.

    name: in texts after an `@`; its end counts the dispatches of a plan. kind: "map", "reduce",
        "contract", "conv", "cumulative", "scatter", "sort", "copy", "fill", "delegate" (left to
        XLA), "call" (of a library), "loop", "branch", or an op kind of an extension.
    ops: what it evaluates, in order, as text. reads, writes: boxes of buffers.
    flops: arithmetic operations, a multiply-add counting two. loc: the user's line of its main op.
    bodies: of a loop the body, then its condition if it has one; of a branch all branches.
    parts: what each part of a split sum touches of `reads` and `writes`; see `Plan.part`.
    filled_nbytes: of those written what are borders that it fills; the text does not say it.
    kernel: the symbol of what it launches, in the plan of what is compiled; empty before, and where
        XLA, a library, or the dispatches of a body do the work. Borders have their own; no text.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    flops: int = 0
    loc: Loc = UNKNOWN
    bodies: tuple[Body, ...] = ()
    parts: tuple[Parts, ...] = ()
    filled_nbytes: int = field(default=0, compare=False)
    kernel: str = field(default="", compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes read plus bytes written; what is read twice counts twice."""
        return sum(access.nbytes for access in (*self.reads, *self.writes))

    def __str__(self) -> str:
        parts = [f"dispatch @{self.name} {self.kind} ({', '.join(self.ops)})"]
        for word, accesses in (("reads", self.reads), ("writes", self.writes)):
            if accesses:
                parts.append(f"{word} {', '.join(map(str, accesses))}")
        return "  ".join([*parts, f"flops {self.flops}"] if self.flops else parts)


def exchanged(dispatch: Dispatch, number: int) -> tuple[Binding, ...]:
    """Bindings of a loop's body, or of its condition, after an odd number of iterations in which
    the buffers of carries have changed places."""
    first = dispatch.bodies[0]
    bound = {binding.buffer: binding for binding in first.bindings}
    other: dict[tuple[str, int], Binding] = {}
    for carry in first.carries:
        argument, result = bound[carry.argument], bound[carry.result]
        if first.plan.buffer(carry.result).nbytes:
            other[argument.outer, argument.offset_nbytes] = result
            other[result.outer, result.offset_nbytes] = argument
    made = []
    for binding in dispatch.bodies[number].bindings:
        place = other.get((binding.outer, binding.offset_nbytes))
        if place is not None and not binding.stride_nbytes:
            binding = replace(binding, outer=place.outer, offset_nbytes=place.offset_nbytes)
        made.append(binding)
    return tuple(made)


@dataclass(frozen=True)
class Delegated:
    """An equation left to XLA, and why."""

    dispatch: str
    equation: str
    reason: str
    loc: Loc = UNKNOWN


@dataclass(frozen=True, repr=False)
class Plan:
    """The schedule of one function. Dispatches are in execution order.

    name: of the function. dispatches: what is launched. barriers: what waits for what; for each
        dispatch they stand before it. buffers: arguments, results, constants, weights, transients.
    delegated: the equations that are left to XLA. decisions: of all rewrites and fusions.
    scalars: what the symbols in offsets stand for; see `at`. packs: operands of products that lie
        in no tiles, which a call may pack, see `Pack`: which of them it does, `explain` says.
    """

    name: str
    dispatches: tuple[Dispatch, ...]
    barriers: tuple[Barrier, ...]
    buffers: tuple[Buffer, ...]
    delegated: tuple[Delegated, ...] = ()
    decisions: tuple[Decision, ...] = ()
    scalars: tuple[HostScalar, ...] = ()
    packs: tuple[Pack, ...] = ()

    def at(self, **scalars: int) -> Plan:
        """The plan of one call: exact ranges for these values of scalar arguments (of a body's
        plan: of its scalar inputs). Barriers are those of every call; one for whose ranges nobody
        waits in this call has none. scalars: values by name of their buffers.

        Raises OptionsError where the plan has no such scalar or needs another one."""
        names = {buffer.name for buffer in self.buffers if buffer.kind == "argument"}
        for name in scalars:
            if name not in names:
                raise OptionsError(
                    f"plan.at() got `{name}`, which is no argument of {self.name}",
                    next_step=f"its arguments are {', '.join(sorted(names))}",
                )
        try:
            values = {each.symbol: each.value(scalars) for each in self.scalars}
        except KeyError as missing:
            raise OptionsError(
                f"an offset of {self.name} depends on `{missing.args[0]}`",
                next_step=f"call plan.at({missing.args[0]}=...)",
            ) from None
        return self._with_values(values)

    def _with_values(self, values: Mapping[Symbol, int | None]) -> Plan:
        buffers = {buffer.name: buffer for buffer in self.buffers}

        def fixed(accesses: Sequence[Access]) -> tuple[Access, ...]:
            return tuple(access.at(buffers[access.buffer], values) for access in accesses)

        def at_offsets(dispatch: Dispatch) -> Dispatch:
            reads, writes = fixed(dispatch.reads), fixed(dispatch.writes)
            parts = tuple(
                replace(part, reads=fixed(part.reads), writes=fixed(part.writes))
                for part in dispatch.parts
            )
            return replace(dispatch, reads=reads, writes=writes, parts=parts)

        dispatches = tuple(map(at_offsets, self.dispatches))
        needed = reduction.needed(dispatches, self.barriers)
        lent = {buffer.host for buffer in self.buffers}

        def at_values(barrier: Barrier) -> Barrier:
            if not barrier.buffer:
                return barrier
            buffer = buffers[barrier.buffer]
            ranges = fixed([Access.of(buffer, box) for box in barrier.ranges])
            boxes = [access.box for access in ranges if access.nbytes]
            alone = buffer.slot is None and buffer.name not in lent
            if alone and barrier.hazard != "ORDER" and any(b.symbols() for b in barrier.ranges):
                boxes = reduction.disjoint(
                    box.intersection(other) for box in boxes for other in needed(barrier)
                )
            return reduction.with_ranges(barrier, tuple(boxes), buffers)

        barriers = tuple(map(at_values, self.barriers))
        return replace(self, dispatches=dispatches, barriers=barriers, scalars=())

    def part(self, dispatch: Dispatch, number: int) -> Parts:
        """Part `number` of a split sum, which is a dispatch of this plan, with numbers for offsets.
        Raises IndexError for a number that there is not."""
        for parts in dispatch.parts:
            if parts.first <= number < parts.first + parts.count:
                return parts.at(number, self._by_name)
        raise IndexError(f"@{dispatch.name} has no part {number}")

    def all_dispatches(self) -> Iterator[Dispatch]:
        """The dispatches, each before those inside of it."""
        for dispatch in self.dispatches:
            yield dispatch
            for body in dispatch.bodies:
                yield from body.plan.all_dispatches()

    def launches(self, times: int | None = 1) -> Iterator[tuple[Dispatch, int | None]]:
        """As `all_dispatches`, each with how often a call runs it; None where only the call knows:
        in branches, and in loops that a condition ends. times: how often this plan itself runs."""
        return turns.launches(self.dispatches, times)

    def totals(self, machine: Machine = SMALL_SERVER) -> Totals:
        """What a call costs. machine: whose memory and arithmetic the floor is of."""
        counts: dict[str, int] = {}
        seconds, sizes = 0.0, self.sizes
        for dispatch, known in self.launches():
            times = turns.counted_once(known)
            counts["dispatches"] = counts.get("dispatches", 0) + 1
            found = turns.totals_of(dispatch)
            for name, count in found.items():
                counts[name] = counts.get(name, 0) + times * count
            if not sizes and dispatch.kind != "delegate":
                moved = found["read_nbytes"] + found["written_nbytes"]
                seconds += times * machine.floor_seconds(found["flops"], moved)
        plans = [self, *(body.plan for each in self.all_dispatches() for body in each.bodies)]
        return Totals(
            **counts,
            inner=counts.get("dispatches", 0) - len(self.dispatches),
            copies=len(self.copies),
            fills=len(self.fills),
            packs=len(self.packs),
            delegated=len(self.delegated),
            barriers=sum(len(plan.barriers) for plan in plans),
            transient_nbytes=self.transient_nbytes,
            peak_nbytes=self.peak_nbytes,
            floor_seconds=None if sizes else seconds,
        )

    def compare(self, other: Plan, machine: Machine = SMALL_SERVER) -> Comparison:
        """What another plan costs more, or less: dispatches, copies, bytes, barriers, memory, and
        the floor: the least time, in seconds, that the memory and the arithmetic of a machine
        allow. What kernels take by their model is told by `explain` with `what_if` or `disable`.

        other: mostly that of the same function with other options. machine: by default a small
            server."""
        names = (self.name, other.name if other.name != self.name else f"{other.name}, other")
        return Comparison(names, self.totals(machine), other.totals(machine))

    @property
    def sizes(self) -> tuple[str, ...]:
        """The symbolic sizes that shapes are made of; each is at least 1."""
        sizes = (size for buffer in self.buffers for size in buffer.shape)
        return tuple(dict.fromkeys(symbol.name for size in sizes for symbol in symbols_in(size)))

    @property
    def copies(self) -> tuple[Dispatch, ...]:
        """The dispatches that only move data, those in loops and branches too."""
        return tuple(d for d in self.all_dispatches() if d.kind == "copy")

    @property
    def fills(self) -> tuple[Dispatch, ...]:
        """The dispatches that only fill, those in loops and branches too."""
        return tuple(d for d in self.all_dispatches() if d.kind == "fill")

    @property
    def transient_nbytes(self) -> int:
        """Bytes of all transient buffers, as if none shared memory."""
        return sum(b.nbytes for b in self.buffers if b.kind == "transient")

    @property
    def arena_nbytes(self) -> int:
        """Bytes up to the end of the last slot that is not in a result's memory."""
        ends = (b.slot + b.nbytes for b in self.buffers if b.slot is not None and not b.host)
        return max(ends, default=0)

    @property
    def peak_nbytes(self) -> int:
        """Bytes that a call allocates for transients, those that share memory counted once. What
        lies in results is not allocated, nor is an arena of up to `packing.FRAME_NBYTES`, which is
        on the stack. Scratch of kernels comes on top: see `Compiled.memory_analysis`."""
        passed = sum(b.nbytes for b in self.buffers if b.kind == "transient" and b.slot is None)
        return passed + (self.arena_nbytes if self.arena_nbytes > FRAME_NBYTES else 0)

    @remembered
    def peak(self) -> Peak:
        """What `peak_nbytes` is made of: at which dispatch most bytes of transients are in use, and
        the buffers that are, with their lines; `str()` of it is a text. Raises OptionsError where
        sizes are symbolic."""
        if self.sizes:
            raise OptionsError(
                f"{self.name} has symbolic sizes ({', '.join(self.sizes)}), and so no memory yet",
                next_step="ask for the plan of arguments with sizes",
            )
        return peak_of(self)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name. Raises KeyError."""
        return self._by_name[name]

    @remembered
    def _by_name(self) -> Mapping[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    def to_networkx(self) -> Network:
        """Dispatches by name (attribute `dispatch`); an edge has the list of its `barriers`."""
        return network_of(self.dispatches, self.barriers)

    def as_text(self) -> str:
        """See STYLE: buffers, then dispatches in order, each after the barriers it waits for."""
        return "\n".join([f"plan @{quoted(self.name)} {{", *self._lines(), "}"])

    def _lines(self) -> list[str]:
        lines = [f"  size {name}" for name in self.sizes]
        lines += [f"  {buffer}" for buffer in self.buffers]
        lines += [f"  {scalar}" for scalar in self.scalars]
        delegated = {item.dispatch: item for item in self.delegated}
        waits: dict[str, list[Barrier]] = {}
        for barrier in self.barriers:
            waits.setdefault(barrier.dst, []).append(barrier)
        for dispatch in self.dispatches:
            lines += [f"  {barrier}" for barrier in waits.get(dispatch.name, ())]
            lines.append(f"  {dispatch}")
            lines += [f"    {parts}" for parts in dispatch.parts]
            for body in dispatch.bodies:
                lines += [f"    {line}" for line in _body_lines(dispatch, body)]
            if dispatch.name in delegated:
                item = delegated[dispatch.name]
                lines.append(f"  delegated @{item.dispatch} {item.equation}  // {item.reason}")
        return [*lines, *(f"  {pack}" for pack in self.packs)]

    def __str__(self) -> str:
        return self.as_text()

    __repr__ = __str__  # what a prompt shows

    def _repr_html_(self) -> str:
        """Its pictures and tables, for notebooks."""
        return html_of(self)


def _body_lines(dispatch: Dispatch, body: Body) -> list[str]:
    times = "until its condition fails" if body.trip is None else f"{body.trip} times"
    threads = f" on {body.threads} threads" if body.threads > 1 else ""
    within = f" in {body.workspace}" if body.workspace else ""
    return [
        f"body @{quoted(body.plan.name)} of @{dispatch.name} {times}{threads}{within} {{",
        *(f"  {binding}" for binding in body.bindings),
        *(f"  {carry}" for carry in (*body.carries, *body.counters)),
        *body.plan._lines(),
        "}",
    ]
