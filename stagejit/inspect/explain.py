"""`explain`: every decision of a compilation, and every place that it chose, by the user's source
line.

Input: the schedule of a function. Output: text for a terminal, HTML for a notebook. Invariant: no
decision and no placement is left out; those without a line come last.
"""

from __future__ import annotations

import html
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from stagejit.codegen.generate import Generated
from stagejit.codegen.kernel import Choice
from stagejit.codegen.target import Target
from stagejit.decisions import Decision
from stagejit.dispatch.regions import Region
from stagejit.loc import Loc
from stagejit.machine import Machine
from stagejit.runtime import launching
from stagejit.schedule.schedule import Run, Schedule, Step, Wave


@dataclass(frozen=True)
class Placement:
    """Where a part of a concatenation, a pad or an update was written, and by which dispatch.

    where: the box of the destination's buffer, as in the plan. loc: the user's line that placed it.
    """

    dispatch: str
    where: str
    loc: Loc

    def __str__(self) -> str:
        return f"@{self.dispatch} writes {self.where}"


@dataclass(frozen=True)
class Chosen:
    """A choice that was made for the kernel of a dispatch, with modelled costs."""

    dispatch: str
    name: str
    reason: str
    loc: Loc

    def __str__(self) -> str:
        return f"@{self.dispatch} {self.name}: {self.reason}"


@dataclass(frozen=True)
class Explanation:
    """Decisions, placements and choices of kernels, in order; `str()` is the text, notebooks show
    the table."""

    name: str
    decisions: tuple[Decision, ...]
    placements: tuple[Placement, ...] = ()
    chosen: tuple[Chosen, ...] = ()

    def as_text(self, *, kernels: bool = False) -> str:
        """One block for each source line: the line, then `+` applied and `-` declined rewrites,
        after `=` what is written where. kernels: and after `*` what was chosen for each kernel,
        which depends on the machine."""
        lines = [f"{self.name}: {self._summary()}"]
        for loc, notes in by_line(self._notes if kernels else self._notes_on_the_graph):
            source = linecache.getline(loc.file, loc.line).strip()
            lines.append(f"\n{loc}" + (f"    {source}" if source else ""))
            lines += [f"  {_as_line(note)}" for note in notes]
        return "\n".join(lines)

    __str__ = as_text

    @property
    def _notes_on_the_graph(self) -> tuple[Note, ...]:
        return (*self.decisions, *self.placements)

    @property
    def _notes(self) -> tuple[Note, ...]:
        return (*self._notes_on_the_graph, *self.chosen)

    def _summary(self) -> str:
        applied = sum(d.applied for d in self.decisions)
        declined = len(self.decisions) - applied
        return f"{applied} applied, {declined} declined, {len(self.placements)} placed"

    def _repr_html_(self) -> str:
        rows = []
        for loc, notes in by_line(self._notes):
            source = linecache.getline(loc.file, loc.line).strip()
            rows.append(
                f"<tr><th colspan=4 align=left>{html.escape(str(loc))} "
                f"<code>{html.escape(source)}</code></th></tr>"
            )
            rows += ["<tr>" + "".join(map(_cell, _as_cells(note))) + "</tr>" for note in notes]
        caption = html.escape(f"{self.name}: {self._summary()}")
        return f"<table><caption>{caption}</caption>{''.join(rows)}</table>"


Note = Decision | Placement | Chosen


def _as_line(note: Note) -> str:
    if isinstance(note, Placement):
        return f"= {note}"
    if isinstance(note, Chosen):
        return f"* {note}"
    return f"{'+' if note.applied else '-'} {note.rewrite} @ {note.op}: {note.reason}"


def _as_cells(note: Note) -> tuple[str, str, str, str]:
    if isinstance(note, Placement):
        return "placed", f"@{note.dispatch}", "writes", note.where
    if isinstance(note, Chosen):
        return "chosen", note.name, f"@{note.dispatch}", note.reason
    return "applied" if note.applied else "declined", note.rewrite, note.op, note.reason


def _cell(text: str) -> str:
    return f"<td>{html.escape(text)}</td>"


def by_line(notes: Sequence[Note]) -> list[tuple[Loc, list[Note]]]:
    """Notes grouped by source line, known lines first, otherwise in order."""

    def line(note: Note) -> tuple[bool, str, int]:
        return (not note.loc, note.loc.file, note.loc.line)

    groups = [list(group) for _, group in groupby(sorted(notes, key=line), key=line)]
    return [(Loc(group[0].loc.file, group[0].loc.line), group) for group in groups]


def explain(
    schedule: Schedule, kernels: Mapping[Region, Generated], target: Machine
) -> Explanation:
    """The decisions of a schedule's plan, where its dispatches write what is placed, and what was
    chosen for their kernels, as far as there are any: none for symbolic sizes."""
    plan, steps = schedule.plan, list(_steps(schedule))
    placed = tuple(note for step in steps for note in _placements_of(step))
    threads = dict[Region, Choice]()  # of a CPU; blocks of a GPU's kernels run wherever they can
    if kernels and isinstance(target, Target):
        threads = _threads(schedule, schedule.waves, kernels, target)
    chosen = tuple(note for step in steps for note in _chosen(step, kernels, threads))
    return Explanation(plan.name, plan.decisions, placed, chosen)


def _steps(schedule: Schedule) -> Iterator[Step]:
    """Those with a kernel, of bodies too."""
    for segment in schedule.segments:
        for step in segment.steps if isinstance(segment, Run) else ():
            for body in step.bodies:
                yield from _steps(body)
            if step.region.has_kernel:
                yield step


def _threads(
    schedule: Schedule,
    waves: Mapping[Run, Sequence[Wave]],
    kernels: Mapping[Region, Generated],
    target: Target,
) -> dict[Region, Choice]:
    """Why threads share the kernels, or do not."""
    found: dict[Region, Choice] = {}
    for run in (part for part in schedule.segments if isinstance(part, Run)):
        for wave in waves[run]:
            parts = [part for step in wave.steps for part in step.region.parts if part in kernels]
            for part in parts:
                choice = launching.threads(kernels[part].kernel, target)
                reason = f"{choice.reason}; in a wave of {len(parts)}"
                found[part] = replace(choice, reason=reason) if wave.shared else choice
        for step in run.steps:
            for body, inner in zip(step.dispatch.bodies, step.bodies, strict=True):
                if body.threads > 1:
                    found |= dict.fromkeys(_kernels(inner), launching.beside(body.threads))
                else:
                    found |= _threads(inner, waves, kernels, target)
    return found


def _kernels(schedule: Schedule) -> Iterator[Region]:
    """The regions that have kernels, of bodies too."""
    for step in _steps(schedule):
        yield from step.region.parts


def _chosen(
    step: Step, kernels: Mapping[Region, Generated], threads: Mapping[Region, Choice]
) -> Iterator[Chosen]:
    for part in step.region.parts:
        if part in kernels:
            shared = [threads[part]] if part in threads else []
            for choice in (*kernels[part].kernel.choices, *shared):
                yield Chosen(step.dispatch.name, choice.name, choice.reason, step.region.loc)


def _placements_of(step: Step) -> Iterator[Placement]:
    made: dict[Placement, None] = {}  # a border is one, however many boxes it has
    stores = [(part, store) for part in step.region.parts for store in part.stores]
    for (part, store), access in zip(stores, step.stored, strict=True):
        if store.inserts:
            border = f"the border of {access.buffer}"
            where = str(access) if part is step.region else border
            made[Placement(step.dispatch.name, where, store.inserts[-1].loc)] = None
    yield from made
