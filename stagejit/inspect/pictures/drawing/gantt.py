"""Bars on lanes against time.

Input: lanes, bars, joins where lanes wait for each other, links from one lane to another one.
Output: a `Drawing`. Invariant: times are to scale; each bar has its text in a tooltip, and as much
of it inside as fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stagejit.base.numbers import seconds_text
from stagejit.base.threads.locks import remembered
from stagejit.inspect.page import Markup, joined
from stagejit.inspect.pictures.drawing import svg

_LEFT, _TOP, _WIDTH = 84.0, 12.0, 1080.0
_HEAD = 8.0  # more room above the lanes, where there are frames
_TALLEST, _LOWEST, _LANES = 30.0, 5.0, 240.0  # of a lane, and of all of them together
_WIDEST = 16_000.0
_MOST_LINES = 60  # joins that go through all lanes; more are ticks
_TEXT = 64.0  # width of the middle bar of a closer view


@dataclass(frozen=True)
class Bar:
    """A dispatch on `lanes` neighbours from lane `lane` on, from `start` to `end` seconds.
    is_known: whether somebody knows how long it takes."""

    dispatch: str
    lane: int
    lanes: int
    start: float
    end: float
    text: str
    tip: tuple[str, ...]
    color: str
    is_known: bool = True


@dataclass(frozen=True)
class Join:
    """At a time lanes wait for each other; what comes next waits for `text`."""

    time: float
    until: float
    text: str
    tip: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """What is on all lanes in this time is one thing: `text`."""

    start: float
    end: float
    text: str
    tip: tuple[str, ...]


@dataclass(frozen=True)
class Link:
    """What is on lane `target` at time `end` waits for what was on lane `source` at `start`."""

    source: int
    start: float
    target: int
    end: float
    tip: tuple[str, ...]


@dataclass(frozen=True)
class Gantt:
    """lanes: their names. copies: for what repeats the first
    dispatch of each copy, then the one that comes after the last copy, or nothing. told:
    what is said of each of them, rather than how many there are."""

    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    joins: tuple[Join, ...] = ()
    links: tuple[Link, ...] = ()
    frames: tuple[Frame, ...] = ()
    copies: tuple[tuple[str, ...], ...] = ()
    told: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        return max((bar.end for bar in self.bars), default=0.0)

    def folded(self) -> Gantt:
        """With the first copy only of what repeats; what comes later is moved there."""
        cuts: list[tuple[float, float]] = []
        copies: list[tuple[str, ...]] = []
        told: list[str] = []
        for names in self.copies:
            first, *later, end = [self.starts.get(name, self.end) for name in names]
            count = len(later) + 1
            # Copies that run at the same time have nothing in between that could be left out.
            if later and count * (later[0] - first) > (end - first) / 2:
                cuts.append((later[0], end))
                copies.append((names[0], names[-1]))
                told.append(f"× {count}, {seconds_text(end - later[0])} more")
            else:
                copies.append(names)
                told.append(f"× {count}")

        def stays(start: float) -> bool:
            return not any(first <= start < last for first, last in cuts)

        def moved(time: float) -> float:
            return time - sum(min(time, last) - first for first, last in cuts if time > first)

        bars = [
            replace(bar, start=moved(bar.start), end=moved(bar.end))
            for bar in self.bars
            if stays(bar.start)
        ]
        joins = [
            replace(join, time=moved(join.time), until=moved(join.until))
            for join in self.joins
            if stays(join.time)
        ]
        links = [
            replace(link, start=moved(link.start), end=moved(link.end))
            for link in self.links
            if stays(link.start) and stays(link.end)
        ]
        frames = [
            replace(frame, start=moved(frame.start), end=moved(frame.end))
            for frame in self.frames
            if stays(frame.start)
        ]
        return Gantt(
            self.lanes,
            tuple(bars),
            tuple(joins),
            tuple(links),
            tuple(frames),
            tuple(copies),
            tuple(told),
        )

    @remembered
    def starts(self) -> dict[str, float]:
        """When each dispatch starts."""
        found: dict[str, float] = {}
        for bar in self.bars:
            found[bar.dispatch] = min(bar.start, found.get(bar.dispatch, bar.start))
        return found

    @property
    def close_width(self) -> float:
        """Of a drawing in which there is room for the text of half of the bars."""
        lengths = sorted(bar.end - bar.start for bar in self.bars)
        middle = lengths[len(lengths) // 2] if lengths else 0.0
        if middle <= 0:
            return _WIDTH
        return min(max(_WIDTH, _TEXT * self.end / middle), _WIDEST)

    def drawing(self, width: float = _WIDTH) -> svg.Drawing:
        """width: of all of the time."""
        return _Scene(self, width).drawing()


class _Scene:
    def __init__(self, gantt: Gantt, width: float) -> None:
        self.gantt, self.width = gantt, width
        self.scale = width / gantt.end if gantt.end else 0.0
        self.lane = min(_TALLEST, max(_LOWEST, _LANES / max(len(gantt.lanes), 1)))

    def x(self, time: float) -> float:
        return _LEFT + time * self.scale

    def y(self, lane: float) -> float:
        return _TOP + (_HEAD if self.gantt.frames else 0.0) + lane * self.lane

    def drawing(self) -> svg.Drawing:
        bottom = self.y(len(self.gantt.lanes))
        parts = [*self._lanes(), *(self._join(join, bottom) for join in self.gantt.joins)]
        parts += map(self._frame, self.gantt.frames)
        parts += map(self._bar, self.gantt.bars)
        parts += map(self._link, self.gantt.links)
        y = bottom + (24 if self.gantt.joins else 4)
        parts += self._scale(y)
        if self.gantt.copies:
            parts += self._brackets(y + 24)
            y += 22
        return svg.Drawing(_LEFT + self.width + 60, y + 24, joined(parts))

    def _lanes(self) -> Iterator[Markup]:
        every = math.ceil(14 / self.lane)
        for at, name in enumerate(self.gantt.lanes):
            yield svg.box(_LEFT, self.y(at) + 1, self.width, self.lane - 2, "sj-idle", 0)
            if at % every == 0:
                middle = self.y(at + 0.5) + 4
                yield svg.text(_LEFT - 6, middle, svg.fitting(name, _LEFT - 8), "sj-soft", "end")

    def _bar(self, bar: Bar) -> Markup:
        x, width = self.x(bar.start), max((bar.end - bar.start) * self.scale, 1.0)
        y, height = self.y(bar.lane) + 2, bar.lanes * self.lane - 4
        classes = f"sj-shape sj-tinted sj-{bar.color}" + ("" if bar.is_known else " sj-unknown")
        parts = [
            svg.tip(bar.text, *bar.tip),
            svg.box(x, y, width, max(height, 1.5), classes, 2 if width > 6 else 0),
        ]
        text = svg.fitting(bar.text, width - 6)
        if len(text) > 3 and height >= 12:
            parts.append(svg.text(x + 4, y + height / 2 + 4, text))
        return svg.thing(*parts)

    def _frame(self, frame: Frame) -> Markup:
        """A box around all lanes, with its text above them."""
        x, width = self.x(frame.start), max((frame.end - frame.start) * self.scale, 2.0)
        height = len(self.gantt.lanes) * self.lane
        parts = [svg.tip(frame.text, *frame.tip)]
        parts.append(svg.box(x, self.y(0) - 1, width, height + 2, "sj-frame", 3))
        text = svg.fitting(frame.text, width - 4)
        if len(text) > 3:
            parts.append(svg.text(x + 2, self.y(0) - 5, text, "sj-soft"))
        return svg.thing(*parts)

    def _join(self, join: Join, bottom: float) -> Markup:
        x, room = self.x(join.time), (join.until - join.time) * self.scale
        top = self.y(0) if len(self.gantt.joins) <= _MOST_LINES else bottom
        parts = [svg.tip(*join.tip), svg.line(x, top, x, bottom + 6, "sj-join")]
        text = svg.fitting(join.text, room - 4)
        if len(text) > 3:
            parts.append(svg.text(x + 3, bottom + 16, text, "sj-soft"))
        return svg.thing(*parts)

    def _link(self, link: Link) -> Markup:
        x1, y1 = self.x(link.start), self.y(link.source + 0.5)
        x2, y2 = self.x(link.end), self.y(link.target + 0.5)
        side = 1 if y2 > y1 else -1
        y1, y2 = y1 + side * (self.lane / 2 - 3), y2 - side * (self.lane / 2 - 2)
        half = svg.number((y1 + y2) / 2)
        a, b, c, d = map(svg.number, (x1, y1, x2, y2 - side * 5))
        head = f"M{svg.number(x2)} {svg.number(y2)}l-3.5 {-6.5 * side}h7z"
        return svg.thing(
            svg.tip(*link.tip),
            svg.path(f"M{a} {b}C{a} {half} {c} {half} {c} {d}", "sj-link"),
            svg.path(head, "sj-link-head"),
        )

    def _brackets(self, y: float) -> Iterator[Markup]:
        """Under what repeats."""
        starts, end = self.gantt.starts, self.gantt.end
        for at, names in enumerate(self.gantt.copies):
            places = [starts.get(name, end) for name in names]
            for first, last in pairwise(places):
                yield svg.line(self.x(first) + 1, y, self.x(last) - 1, y, "sj-accent")
            told = self.gantt.told[at] if self.gantt.told else f"× {len(places) - 1}"
            middle = (self.x(places[0]) + self.x(places[-1])) / 2
            yield svg.text(middle, y + 14, told, "sj-accent", "middle")

    def _scale(self, y: float) -> Iterator[Markup]:
        yield svg.line(_LEFT, y, _LEFT + self.width, y, "sj-rule")
        for time in ticks(self.gantt.end, max(int(self.width / 130), 2)):
            x = self.x(time)
            yield svg.line(x, y, x, y + 5, "sj-rule")
            yield svg.text(x, y + 17, seconds_text(time), "sj-soft", "middle")


def ticks(end: float, most: int) -> Sequence[float]:
    """Round times up to `end`."""
    if end <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(end / most))
    step *= next(factor for factor in (1, 2, 5, 10) if end / (step * factor) <= most)
    return [step * at for at in range(int(end / step) + 1)]
