"""`Schedule`: the plan, and what a backend needs to carry it out, cut into native runs and
delegated equations.

Input: made by `build.py`. Output: read by code generation and the runtime. Invariant: a run touches
nothing but its arguments, its results and its arena; segments are executed in order; every result
of the function leaves one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from stagejit.base.records import record
from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph.ir import Graph, Value
from stagejit.schedule.memory.packing import aligned
from stagejit.schedule.plans.plan import Access, Buffer, Dispatch, Plan


@record(eq=False)
class Step:
    """One dispatch with its region.

    reads: names of the buffers of `region.reads`; writes: of `region.writes`. stored: what each
    store of the region's parts writes, where it has a kernel. bodies: schedules of `region.bodies`,
    each one run; `dispatch.bodies` says where their buffers lie.
    """

    dispatch: Dispatch
    region: Region
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stored: tuple[Access, ...] = ()
    bodies: tuple[Schedule, ...] = ()

    @property
    def delegated(self) -> bool:
        return self.region.definition.is_left

    @property
    def buffers(self) -> tuple[str, ...]:
        """Every buffer that the step touches, each once."""
        inner = (body.workspace for body in self.dispatch.bodies if body.workspace)
        return tuple(dict.fromkeys((*self.reads, *self.writes, *inner)))


@record(eq=False)
class Run:
    """Consecutive native dispatches: one custom call.

    arguments: buffers whose contents come in (arguments and constants of the function, and values
    of other segments; not weights, which no call passes), in order. results: buffers whose
    contents go out. aliases: (result, argument) positions of one and the same buffer, which the run
    updates in place. arena_nbytes: memory for the transients that live in this run only;
    `Buffer.slot` are offsets in it.
    """

    steps: tuple[Step, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...]
    arena_nbytes: int


@record(eq=False)
class Wave:
    """Steps that may run at the same time, as `threads/waves.py` says. shared: whether they have
    one fork and its join; those that are not shared run one after the other. It is decided when
    kernels are known, see `runtime/modelled`."""

    steps: tuple[Step, ...]
    shared: bool = False


@record(eq=False)
class Delegation:
    """An equation left to XLA: `step.region.anchor` is the op. operands, results: its buffers."""

    step: Step
    operands: tuple[str, ...]
    results: tuple[str, ...]


@record(eq=False)
class Schedule:
    """See the module's docstring.

    graph: of dispatches. segments: in execution order. A buffer that several segments write is one
    value after the other for XLA: each segment takes the latest. outputs: for each result its
    buffer, whose shape may be another row-major shape of the same elements. buffer_of: the buffer
    of every value that a region reads or writes. overwritten: by region, inside of loops and
    branches too, the inputs whose memory its results take, see `dispatch/in_place.py`. waves: the
    steps of each run, inside of loops and branches too; those of a body stand with its function's.
    """

    graph: Graph
    plan: Plan
    segments: tuple[Run | Delegation, ...]
    outputs: tuple[str, ...]
    buffer_of: Mapping[Value, str]
    overwritten: Mapping[Region, frozenset[Value]]
    waves: Mapping[Run, tuple[Wave, ...]] = field(default_factory=dict)

    @property
    def runs(self) -> Iterator[Run]:
        """In order."""
        return (part for part in self.segments if isinstance(part, Run))

    @property
    def arena_nbytes(self) -> int:
        """Memory for the transients of one run at a time."""
        return max((run.arena_nbytes for run in self.runs), default=0)

    def steps(self) -> Iterator[Step]:
        """Those of native runs, in order."""
        for run in self.runs:
            yield from run.steps

    def side_by_side(self) -> Iterator[Region]:
        """What runs in iterations that threads share: each on one core."""
        for step in self.steps():
            for body, inner in zip(step.dispatch.bodies, step.bodies, strict=True):
                if body.threads > 1:
                    yield from with_inner(each.region for each in inner.steps())
                else:
                    yield from inner.side_by_side()


def segments_of(
    steps: Sequence[Step],
    segment: Sequence[int],
    buffers: Mapping[str, Buffer],
    buffer_of: Mapping[Value, str],
    outputs: Sequence[str],
) -> tuple[Run | Delegation, ...]:
    """The segments in order. segment: the number of that of each step."""
    parts: list[Run | Delegation] = []
    given = ("argument", "weight", "constant")
    known = {name for name, buffer in buffers.items() if buffer.kind in given}
    empty = _without_elements(steps, buffers, buffer_of, [*outputs], known)
    groups = itertools.groupby(zip(segment, steps, strict=True), key=lambda pair: pair[0])
    for group in ([step for _, step in pairs] for _, pairs in groups):
        if group[0].delegated:
            if empty:
                parts.append(_run([], buffers, known, empty))
            parts.append(_delegation(group[0], buffer_of))
        else:
            parts.append(_run(group, buffers, known, empty))
        empty = []
        known.update(parts[-1].results)
    if empty or not parts:
        parts.append(_run([], buffers, known, empty))
    return tuple(parts)


def _without_elements(
    steps: Iterable[Step],
    buffers: Mapping[str, Buffer],
    buffer_of: Mapping[Value, str],
    needed: list[str],
    known: set[str],
) -> list[str]:
    """Buffers without elements that somebody needs outside of a run. The first run makes them:
    there is no byte of them for which a reader would wait, so it may come before the writer, if
    there is one at all."""
    for step in steps:
        if step.delegated:
            needed += _delegation(step, buffer_of).operands
    return [
        name for name in dict.fromkeys(needed) if name not in known and 0 in buffers[name].shape
    ]


def _delegation(step: Step, buffer_of: Mapping[Value, str]) -> Delegation:
    anchor = step.region.anchor
    assert anchor is not None
    return Delegation(
        step,
        tuple(buffer_of[value] for value in anchor.operands),
        tuple(buffer_of[value] for value in anchor.results),
    )


def _run(
    steps: Sequence[Step],
    buffers: Mapping[str, Buffer],
    known: set[str],
    more_results: Sequence[str],
) -> Run:
    arguments: dict[str, None] = {}
    results: dict[str, None] = {}
    arena_nbytes = 0
    for step in steps:
        for name in step.buffers:
            buffer = buffers[name]
            if buffer.host:
                continue
            if buffer.slot is not None:
                arena_nbytes = max(arena_nbytes, buffer.slot + aligned(buffer.nbytes))
                continue
            if name in known and buffer.kind != "weight":
                arguments[name] = None
            if name in step.writes:
                results[name] = None
    results.update(dict.fromkeys(more_results))
    ordered = sorted(results, key=lambda name: _last_output_first(buffers[name]))
    positions = {name: at for at, name in enumerate(arguments)}
    aliases = tuple((at, positions[name]) for at, name in enumerate(ordered) if name in positions)
    return Run(tuple(steps), tuple(arguments), tuple(ordered), aliases, arena_nbytes)


def _last_output_first(buffer: Buffer) -> int:
    """The order of a run's results.

    Note [Results in reverse]: where the body of an XLA loop is one call whose results are the
    body's results in order, XLA makes the call the body's root. Its loop-invariant code motion
    (while_util.cc, GetInvariantGTEsForWhileBody, jax 0.10.2) takes the operands of any root for
    those of a tuple: a call that reads carried value i as operand i then counts as invariant and
    leaves the loop, which never ends. In reverse order the root stays a tuple.
    """
    number = buffer.result if buffer.result is not None else buffer.index
    return -number if number is not None and buffer.kind != "constant" else 0
