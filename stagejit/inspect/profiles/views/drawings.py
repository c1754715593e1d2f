"""Pictures of times: a flame graph and a timeline, as SVG.

Input: rows; spans. Output: markup. Invariants: a box is as wide as what it stands for took; each
has a name that a search finds, whether or not there is room for it, and a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stagejit.inspect.page import Markup, element, joined
from stagejit.inspect.profiles.rows import FORK_JOIN, HOST, XLA, DispatchTimes
from stagejit.inspect.profiles.spans import Span

_WIDTH, _HEIGHT, _LETTER = 1200.0, 20.0, 7.3
_LEAST_LEFT, _MOST_LEFT, _GAP = 100.0, 400.0, 10.0  # of the names of threads
_LEAST_WIDTH = 0.3
_MOST_BOXES = 4000
_COLORS = {
    "contract": "blue",
    "conv": "violet",
    "map": "green",
    "reduce": "orange",
    "copy": "gray",
    "fill": "gray",
    "call": "pink",
    "sort": "teal",
    "gather": "teal",
    "scatter": "teal",
    XLA: "pink",
    HOST: "gray",
    FORK_JOIN: "warn",
    "region": "line",
    "function": "accent",
}


@dataclass
class _Node:
    name: str
    kind: str = "function"
    seconds: float = 0.0
    about: str = ""
    inner: dict[str, _Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((node.depth() for node in self.inner.values()), default=0)


def flame(rows: Iterable[DispatchTimes]) -> Markup:
    """Functions, in them loops and branches, in these dispatches."""
    whole = _Node("all")
    for row in rows:
        whole.seconds += row.seconds
        node = whole
        for name in (row.function, *row.dispatch.split("/")):
            node = node.inner.setdefault(name, _Node(name, "region"))
            node.seconds += row.seconds
        node.kind, node.about = row.kind, f"{row.count} times; {row.loc}" if row.loc else ""
    if whole.seconds <= 0:
        return Markup("")
    boxes: list[Markup] = []
    _stack(whole, 0.0, 0, _WIDTH / whole.seconds, boxes)
    return _svg(boxes, _HEIGHT * whole.depth(), "flame graph")


def _stack(node: _Node, left: float, level: int, scale: float, boxes: list[Markup]) -> None:
    width = node.seconds * scale
    if width < _LEAST_WIDTH:
        return
    about = f"{node.name}: {1e3 * node.seconds:.3f} ms {node.about}".rstrip()
    boxes.append(_box(left, level * _HEIGHT, width, node.name, about, node.kind))
    for inner in sorted(node.inner.values(), key=lambda each: -each.seconds):
        _stack(inner, left, level + 1, scale, boxes)
        left += max(inner.seconds, 0.0) * scale


def timeline(spans: Sequence[Span]) -> Markup:
    """What all threads did during the last call."""
    calls = [span for span in spans if span.kind == "call"]
    if not calls:
        return Markup("")
    last = max(calls, key=lambda span: span.stop_seconds)
    begin, end = last.start_seconds, last.stop_seconds
    shown = [s for s in spans if s.start_seconds < end and s.stop_seconds > begin]
    shown = sorted(shown, key=lambda span: -span.seconds)[:_MOST_BOXES]
    shown.sort(key=lambda span: (span.start_seconds, -span.seconds))
    threads = dict.fromkeys([last.thread, *(span.thread for span in shown)])
    longest = max(len(thread) for thread in threads) * _LETTER + _GAP
    left_edge = min(max(longest, _LEAST_LEFT), _MOST_LEFT)
    scale, top, boxes = (_WIDTH - left_edge) / max(end - begin, 1e-12), 0.0, list[Markup]()
    for thread in threads:
        own = [span for span in shown if span.thread == thread]
        label = _fitting(thread, left_edge - _GAP)
        text = element("text", label, x=0, y=f"{top + 14:.0f}", fill="var(--sj-soft)")
        boxes.append(element("g", element("title", thread), text))
        open_until: list[float] = []
        deepest = 1
        for span in own:
            while open_until and span.start_seconds >= open_until[-1] - 1e-9:
                open_until.pop()
            left = max(span.start_seconds, begin)
            width = (min(span.stop_seconds, end) - left) * scale
            about = f"{span.function} {span.name}: {1e6 * span.seconds:.1f} us {span.loc or ''}"
            if width >= _LEAST_WIDTH:
                y = top + len(open_until) * _HEIGHT
                kind = {"call": "function", "dispatch": ""}.get(span.kind, span.kind)
                kind = kind or span.name.rpartition("/")[2].partition(".")[0]
                x = left_edge + (left - begin) * scale
                boxes.append(_box(x, y, width, span.name, about.rstrip(), kind))
            open_until.append(span.stop_seconds)
            deepest = max(deepest, len(open_until))
        top += deepest * _HEIGHT + 8
    return joined([element("p", f"{1e3 * (end - begin):.3f} ms"), _svg(boxes, top, "timeline")])


def _box(x: float, y: float, width: float, name: str, about: str, kind: str) -> Markup:
    color = _COLORS.get(kind, "teal")
    rectangle = element(
        "rect",
        classes="sj-shape",
        x=f"{x:.2f}",
        y=f"{y:.1f}",
        width=f"{max(width - 0.4, 0.3):.2f}",
        height=f"{_HEIGHT - 1:.1f}",
        rx=2,
        fill=f"var(--sj-{color})",
        fill_opacity=0.35,
        stroke=f"var(--sj-{color})",
        stroke_width=0.5,
    )
    shown = _fitting(name, width - 6)
    text = element("text", shown, x=f"{x + 3:.2f}", y=f"{y + 14:.1f}", fill="var(--sj-ink)")
    return element("g", element("title", about), rectangle, text, classes="sj-item")


def _fitting(name: str, width: float) -> str:
    """What there is room for."""
    letters = int(width / _LETTER)
    return name if len(name) <= letters else f"{name[: letters - 1]}…" if letters > 2 else ""


def _svg(boxes: Sequence[Markup], height: float, label: str) -> Markup:
    svg = element(
        "svg",
        *boxes,
        viewBox=f"0 0 {_WIDTH:.0f} {height + 2:.0f}",
        width=f"{_WIDTH:.0f}",
        height=f"{height + 2:.0f}",
        role="img",
        aria_label=label,
        font_family="ui-monospace, monospace",
        font_size="12",
    )
    return element("div", svg, classes="sj-wide")
