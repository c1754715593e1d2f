"""Drawings: SVG made of boxes, lines and text.

Input: places and contents, in pixels from the top left. Output: `Drawing`, a size and markup.
Invariants: text is text, which can be searched and copied; no element has an id; colours are the
variables of `theme.py`. What a place has no room for is cut, with the whole of it in a tooltip.

Letters are of one width, so that it is known what fits: see `CHARACTER`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from stagejit.inspect.page import Markup, element, joined
from stagejit.inspect.theme import theme_css

CHARACTER = 6.95  # width of a letter of the size that is drawn, of the widest font in use
Size = tuple[float, float]

LINE = 15.0  # height of a line of text


@dataclass(frozen=True)
class Drawing:
    """width, height: in pixels. body: elements of an SVG."""

    width: float
    height: float
    body: Markup

    def as_markup(self) -> Markup:
        """For a page, which has the colours and `style()`."""
        return element("div", self._svg("sj-picture"), classes="sj-wide")

    def as_file(self) -> str:
        """A document of its own."""
        style = element("style", Markup(f"{theme_css('.sj-view')}\n{style_css()}"))
        back = element("rect", width="100%", height="100%", fill="var(--sj-paper)")
        return self._svg("sj-picture sj-view", style, back, xmlns="http://www.w3.org/2000/svg")

    def _svg(self, classes: str, *before: Markup, **attributes: object) -> Markup:
        width, height = number(self.width), number(self.height)
        return element(
            "svg",
            *before,
            self.body,
            classes=classes,
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
            **attributes,
        )


def stacked(drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Drawings below each other, each under its title if it has one."""
    parts, y, width = [], 0.0, 0.0
    for title, drawing in drawings:
        if title:
            parts.append(text(12, y + 20, title, classes="sj-strong"))
            width = max(width, 24 + len(title) * CHARACTER)
            y += 28
        parts.append(moved(drawing, 0, y))
        y += drawing.height + 12
        width = max(width, drawing.width)
    return Drawing(width, y, joined(parts))


def beside(drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Drawings next to each other, each under its title, with a rule between them."""
    parts, x = [], 0.0
    height = 28 + max(drawing.height for _, drawing in drawings)
    for at, (title, drawing) in enumerate(drawings):
        if at:
            parts.append(line(x, 8, x, height, "sj-rule"))
        parts.append(text(x + 12, 20, title, classes="sj-strong"))
        parts.append(moved(drawing, x, 28))
        x += max(drawing.width, 24 + width_of(title))
    return Drawing(x, height, joined(parts))


def moved(drawing: Drawing, x: float, y: float) -> Markup:
    return element("g", drawing.body, transform=f"translate({number(x)} {number(y)})")


def number(value: float) -> str:
    """As short as it can be."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def fitting(content: str, width: float) -> str:
    """As much as there is room for."""
    most = int(width / CHARACTER)
    if len(content) <= most:
        return content
    return f"{content[: most - 1]}…" if most > 2 else ""


def width_of(content: str) -> float:
    return len(content) * CHARACTER


def text(x: float, y: float, content: str, classes: str = "", anchor: str | None = None) -> Markup:
    """A line of text, y: of its base line. anchor: "middle" or "end" of it is at x."""
    where = {"x": number(x), "y": number(y), "text_anchor": anchor}
    return element("text", content, classes=classes, **where)


def box(
    x: float, y: float, width: float, height: float, classes: str = "", rounded: float = 3
) -> Markup:
    where = {"x": number(x), "y": number(y), "width": number(width), "height": number(height)}
    return element("rect", classes=classes, rx=number(rounded) if rounded else None, **where)


def line(x1: float, y1: float, x2: float, y2: float, classes: str = "") -> Markup:
    d = f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"
    return element("path", classes=f"sj-line {classes}".rstrip(), d=d)


def path(d: str, classes: str = "") -> Markup:
    """Of any form; the classes say how it is drawn."""
    return element("path", classes=classes, d=d)


def tip(*lines: str) -> Markup:
    """The tooltip of the element that it stands in."""
    return element("title", "\n".join(lines))


def thing(*contents: Markup, classes: str = "") -> Markup:
    """A group that a search finds as a whole."""
    return element("g", *contents, classes=f"sj-item {classes}".rstrip())


def arrow(points: Sequence[tuple[float, float]], classes: str = "") -> Markup:
    """A line through points, from top to bottom curved between pairs of them, with a head."""
    x, y = points[0]
    parts = [f"M{number(x)} {number(y)}"]
    for at, (to_x, to_y) in enumerate(points[1:], start=1):
        if at == len(points) - 1:
            to_y -= 4  # the head begins here
        if abs(to_x - x) < 0.1:
            parts.append(f"V{number(to_y)}")
        elif abs(to_y - y) < 0.1:
            parts.append(f"H{number(to_x)}")
        else:
            half = number((y + to_y) / 2)
            parts.append(f"C{number(x)} {half} {number(to_x)} {half} {number(to_x)} {number(to_y)}")
        x, y = to_x, to_y
    tip_x, tip_y = points[-1]
    head = f"M{number(tip_x)} {number(tip_y)}l-3.5 -6.5h7z"
    return joined(
        [
            element("path", classes=f"sj-line sj-arrow {classes}".rstrip(), d="".join(parts)),
            element("path", classes=f"sj-head sj-arrow {classes}".rstrip(), d=head),
        ]
    )


def style() -> Markup:
    """What a page needs beside its own style."""
    return element("style", Markup(style_css()))


@functools.cache
def style_css() -> str:
    return (resources.files("stagejit.inspect") / "web" / "picture.css").read_text(encoding="utf-8")
