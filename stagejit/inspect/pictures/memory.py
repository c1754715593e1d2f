"""The map of memory over the schedule: slots against time, and what the peak is made of.

Input: a plan. Output: panels: of the plan, and of the bodies that have transients. Invariant: every
buffer is in the table, transients with memory of a call's own are drawn at their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.numbers import nbytes_text
from stagejit.inspect.page import Markup, joined, table
from stagejit.inspect.pictures.axis import HEIGHT, LEFT, Axis
from stagejit.inspect.pictures.dispatches import body_title
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.picture import Panel
from stagejit.inspect.pictures.words import key_of, line_of, short
from stagejit.schedule.memory.lifetimes import Lifetime, live_nbytes, lives_of, owned
from stagejit.schedule.memory.peak import InUse, Peak
from stagejit.schedule.plans.plan import Plan

_ARENA, _CURVE, _LANE = 340.0, 90.0, 18.0  # heights; the first at most
_MOST_LANES = 12  # of arguments, and of results
_FEW = 16  # buffers of a peak that are listed at once
_COLORS = {
    "argument": "green",
    "weight": "teal",
    "constant": "gray",
    "result": "violet",
    "transient": "blue",
    "workspace": "orange",
}


def panels(plan: Plan) -> Iterator[Panel]:
    """The memory of a function, then of each loop and branch."""
    yield from _panels(plan, plan.name)


def _panels(plan: Plan, title: str) -> Iterator[Panel]:
    lives = lives_of(plan)
    peak = plan.peak
    sums = [
        f"{kind}s {nbytes_text(sum(sizes))}"
        for kind in ("argument", "weight", "constant", "result")
        if (sizes := [b.nbytes for b in plan.buffers if b.kind == kind])
    ]
    note = f"peak of transients {nbytes_text(peak.nbytes)}"
    if plan.dispatches and peak.nbytes:
        note += f" at @{peak.dispatch}"
    note += f", packed {nbytes_text(plan.arena_nbytes)}"
    if plan.arena_nbytes and not plan.peak_nbytes:
        note += " on the stack"
    note += f"; {', '.join(sums)}"
    drawing = _Map(plan, lives, peak).drawing()
    yield Panel(f"memory of {title}", drawing, note, _key(lives, _workspaces(plan)))
    if peak.buffers:
        yield Panel(f"the peak of {title}", None, _where(peak), _by_line(peak))
        few, told = len(peak.buffers) <= _FEW, f"{len(peak.buffers)} of them, by size"
        details = _by_buffer(peak)
        yield Panel(f"buffers of the peak of {title}", None, told, details, is_open=few)
    yield Panel(f"buffers of {title}", None, "all of them", _buffers(plan, lives), is_open=False)
    for dispatch in plan.dispatches:
        for number, body in enumerate(dispatch.bodies):
            if any(buffer.kind == "transient" for buffer in body.plan.buffers):
                yield from _panels(body.plan, body_title(dispatch, number, body))


def _kind(life: Lifetime, workspaces: frozenset[str]) -> str:
    return "workspace" if life.buffer.name in workspaces else life.buffer.kind


def _workspaces(plan: Plan) -> frozenset[str]:
    return frozenset(b.workspace for d in plan.dispatches for b in d.bodies if b.workspace)


class _Map:
    """One drawing: how much is in use, the arena, arguments and results."""

    def __init__(self, plan: Plan, lives: Sequence[Lifetime], peak: Peak) -> None:
        self.plan, self.lives, self.peak = plan, lives, peak
        self.axis, self.workspaces = Axis.of(plan), _workspaces(plan)
        slots = sum(life.in_arena for life in lives)
        self.arena = min(max(40.0 * slots, 90.0), _ARENA)
        self.over = {life.buffer.over for life in lives if life.buffer.over}

    def drawing(self) -> svg.Drawing:
        parts: list[Markup] = []
        y = 24.0
        if self.peak.nbytes:
            parts += self._curve(y)
            y += _CURVE + 26
        if self.plan.arena_nbytes:
            parts += self._arena(y)
            y += self.arena + 26
        y, lanes = self._lanes(y)
        parts += lanes
        if self.peak.nbytes:  # behind the rest
            x = self.axis.x(self.peak.position + 0.5)
            parts.insert(0, svg.line(x, 24, x, y, "sj-peak sj-dashed"))
        parts += self.axis.markup(y)
        return svg.Drawing(self.axis.right + 60, y + HEIGHT + 6, joined(parts))

    def _curve(self, y: float) -> Iterator[Markup]:
        """Bytes of transients in use."""
        nbytes = live_nbytes(owned(self.lives), len(self.plan.dispatches))
        most, base = self.peak.nbytes, y + _CURVE
        points = [f"M{svg.number(LEFT)} {svg.number(base)}"]
        for at, value in enumerate(nbytes):
            height = svg.number(base - _CURVE * value / most)
            points.append(f"V{height}H{svg.number(self.axis.x(at + 1))}")
        points.append(f"V{svg.number(base)}Z")
        yield svg.path("".join(points), "sj-area")
        yield svg.text(LEFT - 6, y + 10, nbytes_text(most), "sj-bad", "end")
        yield svg.text(LEFT - 6, base, "0", "sj-soft", "end")
        title = "transients in use"
        words = f"peak {nbytes_text(most)} at @{self.peak.dispatch}"
        yield svg.text(LEFT, y - 8, title, "sj-strong")
        yield svg.text(LEFT + svg.width_of(title) + 14, y - 8, words, "sj-bad sj-strong")
        yield svg.line(LEFT, y, self.axis.right, y, "sj-rule sj-dashed")
        yield svg.line(LEFT, base, self.axis.right, base, "sj-rule")

    def _arena(self, y: float) -> Iterator[Markup]:
        size = self.plan.arena_nbytes
        yield svg.text(LEFT, y - 8, "the arena: slots of transients", "sj-strong")
        for step in range(5):
            place = y + self.arena * (1 - step / 4)
            yield svg.line(LEFT, place, self.axis.right, place, "sj-rule")
            offset = nbytes_text(size * step // 4)
            yield svg.text(LEFT - 6, place + 4, offset, "sj-soft", "end")
        for life in self.lives:
            if life.in_arena and life.buffer.nbytes:
                assert life.buffer.slot is not None
                height = self.arena * life.buffer.nbytes / size
                top = y + self.arena * (1 - life.buffer.slot / size) - height
                yield self._bar(life, top, height)

    def _lanes(self, y: float) -> tuple[float, list[Markup]]:
        """Arguments, results and what passes between runs: a lane each, the largest ones."""
        own = [life for life in self.lives if not life.in_arena and not life.buffer.host]
        by_size = sorted(own, key=lambda life: -life.buffer.nbytes)
        results = [life for life in by_size if life.buffer.kind == "result"]
        others = [life for life in by_size if life.buffer.kind != "result"]
        shown = [*others[:_MOST_LANES], *results[:_MOST_LANES]]
        parts = []
        if shown:
            more = f", the largest {len(shown)} of {len(own)}" if len(shown) < len(own) else ""
            parts.append(svg.text(LEFT, y - 8, f"arguments and results{more}", "sj-strong"))
        guests: dict[str, list[Lifetime]] = {}
        for life in self.lives:
            if life.buffer.host:
                guests.setdefault(life.buffer.host, []).append(life)
        for life in (life for life in own if life in shown):
            inside = guests.get(life.buffer.name, [])
            lane = _LANE if len(inside) < 2 else 2.5 * _LANE
            parts.append(svg.text(LEFT - 6, y + 12, self._lane_name(life), "sj-soft", "end"))
            parts.append(self._bar(life, y + 1, lane - 3))
            for guest in inside:
                scale = (lane - 3) / max(life.buffer.nbytes, 1)
                height = scale * guest.buffer.nbytes if len(inside) > 1 else lane - 3
                above = scale * (guest.buffer.slot or 0) if len(inside) > 1 else 0.0
                parts.append(self._bar(guest, y + lane - 2 - above - height, height))
            y += lane
        return y + 6, parts

    def _lane_name(self, life: Lifetime) -> str:
        return svg.fitting(life.buffer.name, LEFT - 10)

    def _bar(self, life: Lifetime, top: float, height: float) -> Markup:
        """One buffer. Where one is written over another one both take half of the column."""
        first = life.first + (0.5 if life.buffer.over else 0.0)
        last = life.last + (0.5 if life.buffer.name in self.over else 1.0)
        x, width = self.axis.x(first), max((last - first) * self.axis.column, 1.5)
        kind = _kind(life, self.workspaces)
        form = "sj-shape sj-tinted" if height > 4 else "sj-shape sj-thin"
        parts = [
            svg.tip(*self._told(life)),
            svg.box(x, top, width, max(height, 1.0), f"{form} sj-{_COLORS[kind]}", 2),
        ]
        words = f"{life.buffer.name}  {nbytes_text(life.buffer.nbytes)}"
        if height >= 12:
            name = svg.fitting(
                words if svg.width_of(words) < width else life.buffer.name, width - 4
            )
            if len(name) > 1:
                parts.append(svg.text(x + 4, top + height / 2 + 4, name))
        return svg.thing(*parts)

    def _told(self, life: Lifetime) -> list[str]:
        names = [f"@{dispatch.name}" for dispatch in self.plan.dispatches] or ["nothing"]
        used = f"in use from {names[life.first]} to {names[life.last]}"
        return [
            str(life.buffer),
            f"{life.buffer.nbytes:,} bytes, {used}",
            line_of(_loc(self.plan, life)),
        ]


def _key(lives: Sequence[Lifetime], workspaces: frozenset[str]) -> Markup:
    kinds = dict.fromkeys(life.buffer.kind for life in lives)
    colors: list[tuple[str, str]] = [(kind, _COLORS[kind]) for kind in kinds]
    if workspaces:
        colors.append(("memory that a loop or a branch uses inside", _COLORS["workspace"]))
    return key_of(colors)


def _loc(plan: Plan, life: Lifetime) -> Loc:
    """The line that writes it."""
    return UNKNOWN if life.writer is None else plan.dispatches[life.writer].loc


def _where(peak: Peak) -> str:
    at = f"{peak.nbytes:,} bytes while @{peak.dispatch} runs"
    if peak.idle_nbytes:
        at += f"; {peak.idle_nbytes:,} more are idle then"
    return at


def _by_line(peak: Peak) -> Markup:
    """What it is made of."""
    by_line: dict[str, list[InUse]] = {}
    for each in peak.buffers:
        by_line.setdefault(line_of(each.loc) or "unknown", []).append(each)
    sums = sorted(
        ((sum(each.nbytes for each in own), line, own) for line, own in by_line.items()),
        key=lambda entry: -entry[0],
    )
    return table(
        ("bytes", "of the peak", "written by the line", "buffers"),
        (
            (f"{n:,}", _share(n, peak), line, ", ".join(each.name for each in own))
            for n, line, own in sums
        ),
        numbers={0, 1},
    )


def _by_buffer(peak: Peak) -> Markup:
    return table(
        ("bytes", "of the peak", "buffer", "written by", "until", "line"),
        (
            (
                f"{each.nbytes:,}",
                _share(each.nbytes, peak),
                each.what,
                f"@{each.writer}" if each.writer else "",
                f"@{each.until}",
                short(each.loc),
            )
            for each in peak.buffers
        ),
        numbers={0, 1},
    )


def _share(nbytes: int, peak: Peak) -> str:
    return f"{100 * nbytes / peak.nbytes:.1f}%"


def _buffers(plan: Plan, lives: Sequence[Lifetime]) -> Markup:
    names = [f"@{dispatch.name}" for dispatch in plan.dispatches] or [""]
    return table(
        ("buffer", "bytes", "first used by", "last used by", "line"),
        (
            (
                str(life.buffer).removeprefix("buffer "),
                f"{life.buffer.nbytes:,}",
                names[life.first],
                names[life.last],
                short(_loc(plan, life)),
            )
            for life in lives
        ),
        numbers={1},
    )
