"""The picture of a plan's dispatches: what waits for what, and for which ranges.

Input: a plan. Output: panels: of the plan, and of the bodies of its loops and branches. Invariant:
every dispatch and every barrier is in a drawing or in a table, with its ranges in full.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from stagejit.base.numbers import counted, flops_text, nbytes_text, number_text
from stagejit.inspect.page import Markup, joined, table
from stagejit.inspect.pictures.drawing.nodes import Edge, Line, Node, draw
from stagejit.inspect.pictures.drawing.repeats import parts_of
from stagejit.inspect.pictures.picture import Panel
from stagejit.inspect.pictures.words import color_of, dispatches_of, key_of, line_of, short
from stagejit.schedule.plans.plan import Access, Barrier, Body, Dispatch, Plan

_MOST_ON_EDGE = 2  # barriers that are written on an arrow


def panels(plan: Plan) -> Iterator[Panel]:
    """The dispatches of a function, then of each loop and branch."""
    yield from _panels(plan, plan.name, first=True)


def _panels(plan: Plan, title: str, *, first: bool) -> Iterator[Panel]:
    nodes, edges = [_node(d) for d in plan.dispatches], _edges(plan)
    drawn = draw(nodes, edges)
    note = f"{dispatches_of(plan)}, {counted(len(plan.barriers), 'barrier')}"
    more = f"; {drawn.note}" if drawn.note else ""
    colors = dict.fromkeys((d.kind, color_of(d.kind)) for d in plan.dispatches)
    details = key_of(colors)
    yield Panel(f"dispatches of {title}", drawn.drawing, note + more, details, is_open=True)
    if first and drawn.nodes < len(nodes):
        whole = draw(nodes, edges, fold=False)
        told = f"each one by itself; {whole.note}" if whole.note else "each one by itself"
        yield Panel("all dispatches", whole.drawing, told, is_open=False)
    yield Panel(f"tables of {title}", None, "reads, writes, ranges", _tables(plan), is_open=False)
    for dispatch in plan.dispatches:
        for number, body in enumerate(dispatch.bodies):
            yield from _panels(body.plan, body_title(dispatch, number, body), first=False)


def body_title(dispatch: Dispatch, number: int, body: Body) -> str:
    """What runs how often."""
    if dispatch.kind == "branch":
        return f"branch {number} of @{dispatch.name}"
    if number:
        return f"the condition of @{dispatch.name}"
    times = "until its condition fails" if body.trip is None else f"{body.trip} times"
    return f"the body of @{dispatch.name}, {times}"


def _node(dispatch: Dispatch) -> Node:
    cost = [flops_text(dispatch.flops)] if dispatch.flops else []
    for what, accesses in (("reads", dispatch.reads), ("writes", dispatch.writes)):
        if accesses:
            cost.append(f"{what} {nbytes_text(sum(access.nbytes for access in accesses))}")
    lines = [Line(f"@{dispatch.name}", "sj-strong")]
    if dispatch.ops:
        lines.append(Line(" ".join(dispatch.ops)))
    lines.append(Line("  ".join(cost), "sj-soft"))
    if dispatch.loc:
        lines.append(Line(short(dispatch.loc), "sj-soft"))
    tip = (
        f"@{dispatch.name} {dispatch.kind} ({', '.join(dispatch.ops)})",
        *(f"reads {access}" for access in dispatch.reads),
        *(f"writes {access}" for access in dispatch.writes),
        line_of(dispatch.loc),
    )
    return Node(f"@{dispatch.name}", tuple(lines), color_of(dispatch.kind), tip, label_of(dispatch))


def label_of(dispatch: Dispatch) -> Hashable:
    """Equal for dispatches that do the same of the same sizes for one line."""

    def sizes(accesses: Sequence[Access]) -> Hashable:
        return tuple((access.sizes, access.strides) for access in accesses)

    return (
        dispatch.kind,
        dispatch.ops,
        sizes(dispatch.reads),
        sizes(dispatch.writes),
        dispatch.flops,
        dispatch.loc,
        tuple(body.plan.as_text() for body in dispatch.bodies),
    )


def copies_of(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """For what repeats the first dispatch of each copy, then the one after it, or nothing."""
    names = [dispatch.name for dispatch in plan.dispatches]
    parts = parts_of([label_of(dispatch) for dispatch in plan.dispatches])
    return tuple(
        (*(names[at] for at in part.starts), *(names[part.stop : part.stop + 1] or [""]))
        for part in parts
        if part.copies > 1
    )


def _edges(plan: Plan) -> list[Edge]:
    position = {dispatch.name: at for at, dispatch in enumerate(plan.dispatches)}
    between: dict[tuple[int, int], list[Barrier]] = {}
    for barrier in plan.barriers:
        key = position[barrier.src], position[barrier.dst]
        between.setdefault(key, []).append(barrier)
    return [_edge(*ends, barriers) for ends, barriers in between.items()]


def _edge(source: int, target: int, barriers: Sequence[Barrier]) -> Edge:
    label = [barrier_text(barrier) for barrier in barriers[:_MOST_ON_EDGE]]
    if len(barriers) > _MOST_ON_EDGE:
        label[-1] = f"… {len(barriers) - _MOST_ON_EDGE + 1} more"
    tip = (f"@{barriers[0].dst} waits for @{barriers[0].src}", *map(barrier_text, barriers))
    flow = any(barrier.hazard == "RAW" for barrier in barriers)
    return Edge(source, target, tuple(label), tip, "" if flow else "sj-dashed")


def barrier_text(barrier: Barrier) -> str:
    """Its hazard and its ranges."""
    ranges = ", ".join(f"{barrier.buffer}{box}" for box in barrier.ranges) or barrier.buffer
    return f"{barrier.hazard} {ranges}".rstrip()


def _tables(plan: Plan) -> Markup:
    dispatches = table(
        ("dispatch", "kind", "ops", "reads", "writes", "flops", "bytes", "line"),
        (
            (
                f"@{d.name}",
                d.kind,
                ", ".join(d.ops),
                ", ".join(map(str, d.reads)),
                ", ".join(map(str, d.writes)),
                number_text(d.flops),
                number_text(d.nbytes),
                line_of(d.loc),
            )
            for d in plan.dispatches
        ),
        numbers={5, 6},
    )
    barriers = table(
        ("dispatch", "waits for", "hazard and ranges", "bytes"),
        ((f"@{b.dst}", f"@{b.src}", barrier_text(b), number_text(b.nbytes)) for b in plan.barriers),
        numbers={3},
    )
    return joined([dispatches, barriers] if plan.barriers else [dispatches])
