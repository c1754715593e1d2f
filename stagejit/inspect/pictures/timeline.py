"""Panels of the timeline: threads of a CPU, streams of a GPU.

Input: what `threads.py` or `streams.py` made. Output: panels. Invariant: every wave, or dispatch on
a stream, is in a table with what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagejit.base.numbers import counted, seconds_text
from stagejit.inspect.page import table
from stagejit.inspect.pictures import streams as gpu
from stagejit.inspect.pictures import threads as cpu
from stagejit.inspect.pictures.dispatches import body_title
from stagejit.inspect.pictures.drawing.gantt import Gantt
from stagejit.inspect.pictures.picture import Panel
from stagejit.inspect.pictures.words import color_of, dispatches_of, key_of
from stagejit.runtime.modelled.kernels import Modelled
from stagejit.schedule.plans.plan import Plan

_FEW = 30  # bars whose text fits a drawing of the usual width


def panels_of_threads(made: cpu.Waves, title: str) -> Iterator[Panel]:
    """Of a function, then of its loops and branches."""
    plan, gantt, made_rows = made.plan, made.gantt(), made.rows
    waves = counted(len(made_rows), "wave")
    note = f"{dispatches_of(plan)} in {waves}, {_time(made.whole)}"
    rows = (
        (
            row.number,
            ", ".join(row.dispatches),
            row.shared,
            seconds_text(row.seconds),
            "; ".join(row.waits),
        )
        for row in made_rows
    )
    head = ("wave", "dispatches", "threads", "modelled", "waits for")
    yield from _panels(gantt, plan, title, note)
    yield Panel(
        f"waves of {title}",
        None,
        "and what each waits for",
        table(head, rows, numbers={0, 3}),
        is_open=False,
    )
    for step, number, inner in made.inner():
        body = step.dispatch.bodies[number]
        yield from panels_of_threads(inner, body_title(step.dispatch, number, body))


def panels_of_streams(top: gpu.Streams, title: str) -> Iterator[Panel]:
    """Of a function, then of its loops and branches."""
    head = ("dispatch", "stream", "launches", "modelled", "waits for")
    for where, made in gpu.levels(top):
        gantt = made.gantt()
        name = title
        if where is not None:
            dispatch, number = where
            name = body_title(dispatch, number, dispatch.bodies[number])
        counts = (
            f"{counted(len(made.rows), 'dispatch')} on {counted(len(gantt.lanes), 'stream')}, "
            f"{counted(len(made.known.waited), 'wait')}"
        )
        note = f"{counts}, {_time(made.whole)}"
        rows = (
            (f"@{r.name}", r.stream, r.launches, seconds_text(r.took.seconds), "; ".join(r.waits))
            for r in made.rows
        )
        yield from _panels(gantt, made.plan, name, note)
        details = table(head, rows, numbers={1, 2, 3})
        yield Panel(f"streams of {name}", None, "and what each waits for", details, is_open=False)


def _time(whole: Modelled) -> str:
    rest = "" if whole.is_known else ", without what nobody knows the time of (dashed)"
    return f"{seconds_text(whole.seconds)} by the model{rest}"


def _panels(gantt: Gantt, plan: Plan, title: str, note: str) -> Iterator[Panel]:
    key = key_of(dict.fromkeys((d.kind, color_of(d.kind)) for d in plan.dispatches))
    name = f"timeline of {title}"
    if gantt.copies:
        told = f"{note}; of what repeats the first copy"
        yield Panel(name, gantt.folded().drawing(), told, key)
        yield Panel(f"all of the {name}", gantt.drawing(), note, is_open=False)
    else:
        yield Panel(name, gantt.drawing(), note, key)
    if len(gantt.bars) > _FEW:
        closer = gantt.drawing(gantt.close_width)
        yield Panel(f"{name}, closer", closer, "to be scrolled", is_open=False)
