"""What pictures call things, and in which colours: kinds of dispatches and of ops, lines.

Input: names and numbers. Output: short texts, names of colours. Invariant: one kind has one colour
in all pictures.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable

from stagejit.base.loc import Loc
from stagejit.inspect.page import Markup, element, joined
from stagejit.inspect.pictures.drawing import svg
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.plans.turns import dispatches_text

_COLORS = {
    "contract": "blue",
    "conv": "blue",
    "attention": "blue",
    "reduce": "violet",
    "window": "violet",
    "cumulative": "violet",
    "sort": "violet",
    "map": "green",
    "copy": "orange",
    "fill": "orange",
    "gather": "orange",
    "scatter": "orange",
    "insert_slice": "orange",
    "extract_slice": "orange",
    "loop": "teal",
    "branch": "teal",
    "call": "pink",
    "delegate": "pink",
}


def color_of(kind: str) -> str:
    """Of a kind of dispatch or op: products, reductions, maps, what moves data, what has bodies,
    what others compute; gray for the rest."""
    return _COLORS.get(kind, "gray")


def key_of(colors: Iterable[tuple[str, str]]) -> Markup:
    """What the colours mean: names and colours."""
    by_color: dict[str, list[str]] = {}
    for name, color in colors:
        by_color.setdefault(color, []).append(name)
    entries = []
    for color, names in by_color.items():
        square = svg.box(1, 1, 10, 10, f"sj-tinted sj-{color}", 2)
        drawn = element("svg", square, classes="sj-picture", width=12, height=12, style=_INLINE)
        entries.append(element("span", drawn, ", ".join(names)))
    return element("div", joined(entries), classes="sj-key")


_INLINE = "display: inline-block"


def dispatches_of(plan: Plan) -> str:
    """How many a plan has, counted as explanations count them."""
    outer = len(plan.dispatches)
    return dispatches_text(outer, sum(1 for _ in plan.all_dispatches()) - outer)


def short(loc: Loc) -> str:
    """File and line, without folders."""
    return loc.short


def line_of(loc: Loc) -> str:
    """File, line, and what stands there."""
    if not loc:
        return ""
    source = linecache.getline(loc.file, loc.line).strip()
    return f"{loc}  {source}".rstrip()
