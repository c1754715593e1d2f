"""All pictures, by name, and what notebooks show of graphs, plans and lowered functions.

Input: graphs, plans, schedules with their kernels. Output: `Picture`s, and HTML. Invariant: each
picture is made from what the compiler made, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from stagejit.base.machine import Machine
from stagejit.base.numbers import counted, number_text
from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph
from stagejit.inspect import page
from stagejit.inspect.page import Markup, Section
from stagejit.inspect.pictures import dispatches, graphs, memory, timeline
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.picture import Picture
from stagejit.inspect.pictures.rewrites import Recorder
from stagejit.inspect.pictures.streams import Streams
from stagejit.inspect.pictures.threads import Waves
from stagejit.inspect.pictures.words import dispatches_of
from stagejit.runtime.cuda.programs.program import CudaProgram
from stagejit.schedule.plans.comparison import Comparison
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.schedule import Schedule

NAMES = ("graph", "rewrites", "dispatches", "memory", "timeline")


def of_graph(graph: Graph) -> Picture:
    """The ops of a graph, and of the graphs inside."""
    return Picture("graph", graph.name, "graph of ops", tuple(graphs.panels(graph)))


def of_rewrites(name: str, recorder: Recorder) -> Picture:
    """What each step changed."""
    return Picture("rewrites", name, "before and after each rewrite", tuple(recorder.panels()))


def of_dispatches(plan: Plan) -> Picture:
    """What waits for what."""
    return Picture("dispatches", plan.name, summary(plan), tuple(dispatches.panels(plan)))


def of_memory(plan: Plan) -> Picture:
    """Where buffers lie, and when. Raises Undecided for symbolic sizes."""
    return Picture("memory", plan.name, summary(plan), tuple(memory.panels(plan)))


def of_threads(schedule: Schedule, kernels: Mapping[Region, Generated], target: Target) -> Picture:
    """Waves on the threads of a CPU."""
    made = Waves.of(schedule, kernels, target)
    panels = tuple(timeline.panels_of_threads(made, schedule.plan.name))
    return Picture("timeline", schedule.plan.name, summary(schedule.plan), panels)


def of_streams(
    program: CudaProgram, plan: Plan, kernels: Mapping[Region, Generated], device: Machine
) -> Picture:
    """Dispatches on the streams of a GPU."""
    made = Streams.of(program, plan, kernels.values(), device)
    panels = tuple(timeline.panels_of_streams(made, plan.name))
    return Picture("timeline", plan.name, summary(plan), panels)


def summary(plan: Plan) -> str:
    """A plan in numbers."""
    totals = plan.totals()
    counts = (
        dispatches_of(plan),
        counted(totals.copies, "copy"),
        counted(totals.fills, "fill"),
        counted(totals.barriers, "barrier"),
    )
    return (
        f"{', '.join(counts)}, {number_text(plan.transient_nbytes)} transient bytes "
        f"(peak {number_text(plan.peak_nbytes)} allocated)"
    )


def html_of(shown: Graph | Plan | Comparison) -> str:
    """What a notebook shows of it."""
    if isinstance(shown, Graph):
        return of_graph(shown)._repr_html_()
    if isinstance(shown, Comparison):
        return of_comparison(shown)
    return page.fragment(shown.name, _plan_sections(shown), note=summary(shown))


def of_comparison(shown: Comparison) -> str:
    """Two plans: what differs, then all else, folded."""
    head, differing = ("", *shown.names, "difference"), set(shown.differing)
    some, same = (
        page.table(head, [row.texts() for row in shown.rows if (row in differing) == which],
                   numbers={1, 2, 3})
        for which in (True, False)
    )  # fmt: skip
    sections = [
        Section("what differs", some, "" if differing else "nothing"),
        Section("what is the same", same, is_open=False),
    ]
    return page.fragment(f"{shown.names[0]} and {shown.names[1]}", sections)


def with_note(picture: Picture, left_to_xla: str) -> Picture:
    """A picture of a call that is not ours says so first. left_to_xla: why, or nothing."""
    return replace(picture, note=_warned(picture.note, left_to_xla))


def _warned(note: str, left_to_xla: str) -> str:
    return f"JAX runs this call without stagejit: {left_to_xla}; {note}" if left_to_xla else note


def html_of_all(graph: Graph, plan: Plan, left_to_xla: str = "") -> str:
    """What a notebook shows of a lowered function. left_to_xla: see `with_note`."""
    sections: Iterator[Section | Markup] = chain(
        _plan_sections(plan), (_closed(section) for section in of_graph(graph).sections())
    )
    return page.fragment(plan.name, sections, note=_warned(summary(plan), left_to_xla))


def _plan_sections(plan: Plan) -> Iterator[Section | Markup]:
    """Memory is drawn where sizes are numbers."""
    yield svg.style()
    yield from of_dispatches(plan).sections()
    if not plan.sizes:
        yield from (_closed(section) for section in of_memory(plan).sections())


def _closed(section: Section) -> Section:
    return Section(section.title, section.body, section.note, is_open=False)
