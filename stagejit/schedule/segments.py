"""The plan cut into native runs and delegated equations.

Input: regions and plan in execution order, and the segment of each. Output: `Run`s and
`Delegation`s with the values that pass between them. Invariant: every result of the function leaves
some segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Value
from stagejit.schedule.memory import aligned
from stagejit.schedule.plan import Buffer, Plan
from stagejit.schedule.schedule import Delegation, Run, Schedule, Step


def segments_of(
    regions: Sequence[Region],
    plan: Plan,
    segment: Sequence[int],
    buffer_of: Mapping[Value, str],
    outputs: Sequence[str],
    bodies: Mapping[Region, tuple[Schedule, ...]],
) -> tuple[Run | Delegation, ...]:
    """The segments in order."""
    steps: dict[int, list[Step]] = {}
    for number, region, dispatch in zip(segment, regions, plan.dispatches, strict=True):
        steps.setdefault(number, []).append(
            Step(
                dispatch,
                region,
                tuple(buffer_of[value] for value in region.reads),
                tuple(buffer_of[value] for value in region.writes),
                bodies.get(region, ()),
            )
        )
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    known = {name for name, buffer in buffers.items() if buffer.kind in ("argument", "constant")}
    empty = _without_elements(steps.values(), buffers, buffer_of, outputs, known)
    parts: list[Run | Delegation] = []
    for group in steps.values():
        part: Run | Delegation
        if group[0].region.definition.is_left:
            if empty:
                parts.append(_run([], buffers, known, empty))
            part = _delegation(group[0], buffer_of)
        else:
            part = _run(group, buffers, known, empty)
        empty = []
        known.update(part.results)
        parts.append(part)
    if empty or not parts:
        parts.append(_run([], buffers, known, empty))
    return tuple(parts)


def _without_elements(
    groups: Iterable[Sequence[Step]],
    buffers: Mapping[str, Buffer],
    buffer_of: Mapping[Value, str],
    outputs: Sequence[str],
    known: set[str],
) -> list[str]:
    """Buffers without elements that somebody needs outside of a run. The first run makes them:
    there is no byte of them for which a reader would wait, so it may come before the writer, if
    there is one at all."""
    needed = dict.fromkeys(outputs)
    for group in groups:
        for step in group:
            if step.region.definition.is_left:
                needed.update(dict.fromkeys(_delegation(step, buffer_of).operands))
    return [name for name in needed if name not in known and 0 in buffers[name].shape]


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
            if name in known:
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
