"""Why dispatches are several, and where each op is: what `why` answers from.

Input: a schedule, what became of the groups that it was made of. Output: notes. Invariant: each two
dispatches of which one reads what the other one makes have a note, with what formation, or a
rewrite of dispatches, said when it left them apart; nothing is guessed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stagejit.base.decisions import path_inside
from stagejit.base.loc import Loc
from stagejit.compat import callers_of
from stagejit.dispatch.groups.apart import Reason
from stagejit.dispatch.origins.naming import Names, described, named_values, names_of, renamed
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op, Value
from stagejit.inspect.explain.notes import Because, Between, Held, Home
from stagejit.schedule.conflicts.hazards import Conflict, hazard_graph
from stagejit.schedule.schedule import Run, Schedule, Step

_MOST_RANGES = 3
_DIVIDED = "one dispatch would take more buffers than Options(operand_limit=...) allows"
_REWRITTEN = "rewrites of dispatches hand it on like this, see their decisions"


@dataclass(frozen=True)
class Edges:
    """waits: dispatches of which the second waits for the first, though it reads nothing of it."""

    between: tuple[Between, ...]
    homes: tuple[Home, ...]
    gone: tuple[Home, ...]
    buffers: tuple[Held, ...]
    waits: frozenset[tuple[str, str]]


def edges_of(schedule: Schedule, where: Whereabouts) -> Edges:
    """All of a function, of loops and branches too."""
    names = names_of(where)
    values = dict(named_values(where.grouping.graph))
    levels = dict(where.levels_by_region())
    found, waits, buffers = list[Between](), set[tuple[str, str]](), list[Held]()
    for path, inner, level in _levels(schedule, where, levels, ""):
        buffers += _held(path, inner)
        regions = {step.dispatch.name: step.region for step in _steps(inner)}
        for first, second, conflicts in _data(inner):
            pair = f"{path}{first}", f"{path}{second}"
            read = [each for each in conflicts if each.hazard == "RAW"]
            if not read:
                waits.add(pair)
                continue
            one, other = regions[first], regions[second]
            because = tuple(_because(level, one, other, names))
            loc = because[0].loc or other.loc
            found.append(Between(*pair, _ranges(read), because, loc))
    homes, gone = list[Home](), list[Home]()
    for path, level in where.levels():
        evaluated = level.all_evaluated()
        for op in level.grouping.graph.ops():
            if op in evaluated:
                homes.append(_with_results(op, _home(op, path, evaluated[op], names), values))
            else:
                gone.append(_with_results(op, _gone(op, names), values))
        gone += _given(level, values, by="what runs the body" if path else "the caller")
    return Edges(tuple(found), tuple(homes), tuple(gone), tuple(buffers), frozenset(waits))


def _held(path: str, schedule: Schedule) -> Iterator[Held]:
    """Who writes each buffer of a plan."""
    writers: dict[str, dict[str, None]] = {}
    for dispatch in schedule.plan.dispatches:
        for access in dispatch.writes:
            writers.setdefault(access.buffer, {})[f"{path}{dispatch.name}"] = None
    for buffer in schedule.plan.buffers:
        what = f"{buffer.kind} {buffer.dtype}[{','.join(map(str, buffer.shape))}]"
        yield Held(f"{path}{buffer.name}", what, tuple(writers.get(buffer.name, ())))


def _levels(
    schedule: Schedule,
    where: Whereabouts,
    levels: Mapping[tuple[Region, int], Whereabouts],
    path: str,
) -> Iterator[tuple[str, Schedule, Whereabouts]]:
    """The schedules of all graphs, with what became of the groups of each."""
    yield path, schedule, where
    for step in _steps(schedule):
        for number, body in enumerate(step.bodies):
            inner = levels[step.region, number]
            deeper = path_inside(path, step.dispatch.name, body.plan.name)
            yield from _levels(body, inner, levels, deeper)


def _steps(schedule: Schedule) -> Iterator[Step]:
    for part in schedule.segments:
        yield from part.steps if isinstance(part, Run) else (part.step,)


def _data(schedule: Schedule) -> Iterator[tuple[str, str, list[Conflict]]]:
    """Who waits for whom, by names, in the order of who waits."""
    dispatches = schedule.plan.dispatches
    edges = hazard_graph(dispatches, math.inf).edges()
    for first, second, conflicts in sorted(edges, key=lambda edge: (edge[1], edge[0])):
        yield dispatches[first].name, dispatches[second].name, conflicts


def _ranges(conflicts: list[Conflict]) -> str:
    said = [f"{each.buffer}{box}" for each in conflicts for box in each.ranges]
    return ", ".join([*said[:_MOST_RANGES], *(["..."] if len(said) > _MOST_RANGES else [])])


def _because(where: Whereabouts, first: Region, second: Region, names: Names) -> Iterator[Because]:
    """The reasons, each once, those that say what keeps the op out first."""
    graph, reasons = where.grouping.graph, where.between(first, second)
    found = dict.fromkeys(_said(reason, graph, names) for reason in reasons)
    yield from sorted(found, key=lambda each: not each.why)
    if found:
        return
    if where.are_one_group(first, second):
        yield Because("", _DIVIDED, "", "", second.loc)
        return
    yield Because("", _REWRITTEN, "", "", second.loc)


def _said(reason: Reason, graph: Graph, names: Names) -> Because:
    value = _value(reason.value, names) if reason.stored else ""
    why, stored = (renamed(text, graph, names) for text in (reason.why, reason.stored))
    return Because(described(reason.op, names), why, value, stored, reason.op.loc)


def _value(value: Value, names: Names) -> str:
    number = f" result {value.index}" if len(value.op.results) > 1 else ""
    return f"{described(value.op, names)}{number}"


def _with_results(op: Op, home: Home, values: Mapping[Value, str]) -> Home:
    """The same with the names of its other results."""
    also = tuple(values[result] for result in op.results[1:] if result in values)
    return replace(home, also=also) if also else home


def _given(where: Whereabouts, values: Mapping[Value, str], by: str) -> Iterator[Home]:
    """The inputs of a graph."""
    for value in where.grouping.graph.inputs:
        yield Home(values.get(value, ""), "an input", (), False, value.op.loc, (), f"given by {by}")


def _home(op: Op, path: str, regions: Iterable[Region], names: Names) -> Home:
    """Where an op is evaluated."""
    dispatches = tuple(f"{path}{region.name}" for region in regions)
    known = op.definition
    computes = not (known.is_constant or known.is_view or known.is_splat)
    callers = tuple(Loc(loc.file, loc.line) for loc in callers_of(op.loc))
    return Home(names.get(op, ""), described(op, {}), dispatches, computes, op.loc, callers)


def _gone(op: Op, names: Names) -> Home:
    """An op that no dispatch evaluates, which texts of the graph show none the less."""
    said = f"{_left(op, names)}: nothing is left to compute of it"
    return Home(names.get(op, ""), described(op, {}), (), False, op.loc, (), said)


def _left(op: Op, names: Names) -> str:
    known = op.definition
    if known.is_constant:
        return "a constant"
    if not op.operands:
        return "memory that others write"
    source = op.operands[0]
    of = described(source.op, names) if not source.op.definition.is_input else "an argument"
    if known.is_view or known.is_splat:
        return f"a view of {of}"
    return f"what passes on {of}" if known.forwards else f"nothing but {of} in its memory"
