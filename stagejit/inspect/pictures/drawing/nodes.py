"""Graphs as boxes with lines of text, arrows between them, and frames around what repeats.

Input: `Node`s, in an order in which everything comes after what it needs, and `Edge`s. Output: a
`Drawing`. Invariants: each node is drawn, or one that looks the same is drawn for it in a frame
that says how many there are; each edge is an arrow, or, where it is long or goes from one copy to
the next, a line of text in the node that it leads to.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stagejit.inspect.page import Markup, joined
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.drawing.layered import Layout, layers_of, layout
from stagejit.inspect.pictures.drawing.repeats import Part, parts_of, single

MOST = 400  # nodes of a drawing; more are neither read nor placed in a second
WIDEST = 7  # nodes beside each other
_LONGEST = 5  # layers that an arrow crosses
_MOST_ARROWS = 10  # at one end of a node
_LETTERS = 42  # of a line in a node
_ON_EDGE = 40  # of one on an edge
_MOST_NOTES, _MOST_TOLD = 4, 60  # in a node, in its tooltip
_MARGIN = 14.0


@dataclass(frozen=True)
class Line:
    """Of text. classes: of style, such as `sj-soft`."""

    text: str
    classes: str = ""


@dataclass(frozen=True)
class Node:
    """name: what edges that are not drawn call it. color: of a stripe, see `theme.py`. tip: lines
    of the tooltip. label: equal for nodes of which one may stand for the others. mark: `sj-added`,
    `sj-removed`, `sj-changed` or nothing."""

    name: str
    lines: tuple[Line, ...]
    color: str
    tip: tuple[str, ...]
    label: Hashable
    mark: str = ""


@dataclass(frozen=True)
class Edge:
    """From node `source` to node `target`. label: lines that stand on it."""

    source: int
    target: int
    label: tuple[str, ...] = ()
    tip: tuple[str, ...] = ()
    classes: str = ""

    def note(self, name: str, back: int) -> Line:
        """It as a line of text in its target. back: how many copies before it begins."""
        before = "" if not back else ", copy before" if back == 1 else f", {back} copies before"
        labels = f" {self.label[0]}" if self.label else ""
        return Line(f"◂ {name}{before}{labels}", "sj-soft")


@dataclass(frozen=True)
class Drawn:
    """drawing: of `nodes` boxes, which stand for `of` things. left_out: how many are not shown."""

    drawing: svg.Drawing
    nodes: int
    of: int
    left_out: int

    @property
    def note(self) -> str:
        """What a reader should know of how much is drawn."""
        if self.left_out:
            return f"the first {self.of - self.left_out} of {self.of} are drawn"
        if self.nodes == self.of:
            return ""
        return f"{self.nodes} boxes drawn for {self.of} nodes, alike ones once"


def draw(
    nodes: Sequence[Node], edges: Sequence[Edge], *, fold: bool = True, widest: int = WIDEST
) -> Drawn:
    """The picture. fold: draw one copy of what repeats. widest: nodes beside each other at most."""
    folded = parts_of([node.label for node in nodes]) if fold else [single(0, len(nodes))]
    parts = _shown(folded)
    of, stop = len(nodes), parts[-1].stop if parts else 0
    shown = [edge for edge in edges if edge.target < stop]
    scene = _Scene(nodes[:stop], shown, parts, widest)
    return Drawn(scene.drawing(), len(scene.nodes), of, of - stop)


def _shown(parts: Sequence[Part]) -> list[Part]:
    """As many parts as there is room for."""
    room, found = MOST, list[Part]()
    for part in parts:
        if len(part.columns) > room:
            if part.copies == 1:
                found.append(single(part.starts[0], part.starts[0] + room))
            break
        found.append(part)
        room -= len(part.columns)
    return found


class _Scene:
    """One drawing. Drawn nodes are numbered; `stands_for[i]` is the number of node i's."""

    def __init__(
        self, nodes: Sequence[Node], edges: Sequence[Edge], parts: Sequence[Part], widest: int
    ) -> None:
        self.parts, self.widest = parts, widest
        self.nodes: list[Node] = []
        self.part_of: list[int] = []
        self.stands: list[int] = []  # for how many
        stands_for = [0] * len(nodes)
        copy_of = [0] * len(nodes)
        for number, part in enumerate(parts):
            for copy, (first, last) in enumerate(pairwise([*part.starts, part.stop])):
                copy_of[first:last] = [copy] * (last - first)
            for column in part.columns:
                for at in column:
                    stands_for[at] = len(self.nodes)
                alike = [nodes[at] for at in column]
                self.nodes.append(_standing_for(alike, part.copies))
                self.part_of.append(number)
                self.stands.append(len(column))
        self._add_edges(edges, stands_for, copy_of)

    def _add_edges(
        self, edges: Sequence[Edge], stands_for: Sequence[int], copy_of: Sequence[int]
    ) -> None:
        """Arrows, or notes; of edges of several copies the first. What most copies do not have is
        a note, too."""
        pairs: dict[tuple[int, int], list[Edge]] = {}
        notes: dict[int, dict[tuple[int, int], Edge]] = {}
        for edge in edges:
            source, target = stands_for[edge.source], stands_for[edge.target]
            back = 0
            if self.part_of[source] == self.part_of[target]:
                back = copy_of[edge.target] - copy_of[edge.source]
            if back or source >= target:
                _first(notes.setdefault(target, {}), (source, back), edge)
            else:
                pairs.setdefault((source, target), []).append(edge)
        drawn = {
            (source, target): same[0]
            for (source, target), same in pairs.items()
            if 2 * len(same) >= min(self.stands[source], self.stands[target])
        }
        for source, target in pairs.keys() - drawn.keys():
            _first(notes.setdefault(target, {}), (source, 0), pairs[source, target][0])
        self.layer = layers_of(len(self.nodes), list(drawn), self.part_of, self.widest)
        self.edges: list[Edge] = []
        ends: dict[tuple[int, bool], int] = {}
        for (source, target), edge in drawn.items():
            span = self.layer[target] - self.layer[source]
            crowded = max(ends.get((source, True), 0), ends.get((target, False), 0))
            if span > _LONGEST or (crowded >= _MOST_ARROWS and span > 1):
                _first(notes.setdefault(target, {}), (source, 0), edge)
                continue
            for end in ((source, True), (target, False)):
                ends[end] = ends.get(end, 0) + 1
            self.edges.append(replace(edge, source=source, target=target))
        for number, found in notes.items():
            ordered = sorted(found.items(), key=lambda item: (bool(item[1].classes), item[0]))
            lines = [edge.note(self.nodes[key[0]].name, key[1]) for key, edge in ordered]
            self.nodes[number] = _with_notes(self.nodes[number], lines)

    def drawing(self) -> svg.Drawing:
        sizes = [_size(node) for node in self.nodes]
        labels = {at: _label_size(edge) for at, edge in enumerate(self.edges) if edge.label}
        pairs = [(edge.source, edge.target) for edge in self.edges]
        placed = layout(sizes, pairs, self._layers_with_frames(), labels)
        frames = [
            self._frame(number, part, placed, sizes)
            for number, part in enumerate(self.parts)
            if part.copies > 1
        ]
        body = [frame for frame, _ in frames]
        body += [
            _arrow(edge, placed.paths[at], placed.labels.get(at))
            for at, edge in enumerate(self.edges)
        ]
        body += [
            _boxed(node, center, size)
            for node, center, size in zip(self.nodes, placed.centers, sizes, strict=True)
        ]
        right = max([placed.extent[0], *(edge for _, edge in frames)])
        inner = svg.Drawing(right, placed.extent[1], joined(body))
        moved = svg.moved(inner, 2 * _MARGIN, 2 * _MARGIN)
        return svg.Drawing(right + 4 * _MARGIN, inner.height + 4 * _MARGIN, moved)

    def _layers_with_frames(self) -> list[int]:
        """The layers, with an empty one before each part: the room for frames."""
        return [layer + number for layer, number in zip(self.layer, self.part_of, strict=True)]

    def _frame(
        self, number: int, part: Part, placed: Layout, sizes: Sequence[svg.Size]
    ) -> tuple[Markup, float]:
        """Around the nodes of a part, with how often they come, and its right side."""
        inside = [at for at, of in enumerate(self.part_of) if of == number]
        left = min(placed.centers[at][0] - sizes[at][0] / 2 for at in inside) - 12
        right = max(placed.centers[at][0] + sizes[at][0] / 2 for at in inside) + 12
        top = min(placed.centers[at][1] - sizes[at][1] / 2 for at in inside) - 14
        bottom = max(placed.centers[at][1] + sizes[at][1] / 2 for at in inside) + 12
        what = f"× {part.copies}"
        width = svg.width_of(what) + 12
        told = f"{part.copies} copies of {len(part.columns)} boxes"
        return svg.thing(
            svg.tip(told),
            svg.box(left, top, right - left, bottom - top, "sj-frame", 6),
            svg.box(right - width, top - 8, width, 17, "sj-tab", 4),
            svg.text(right - width / 2, top + 4.5, what, "sj-on-tab", "middle"),
        ), right


def _first(found: dict[tuple[int, int], Edge], key: tuple[int, int], edge: Edge) -> None:
    """Keeps the first of its kind; an edge along which data flow rather than another one."""
    if key not in found or (found[key].classes and not edge.classes):
        found[key] = edge


def _standing_for(alike: Sequence[Node], copies: int) -> Node:
    """One node for all. It says in how many copies it is, if not in all of them."""
    node = alike[0]
    if copies == 1:
        return node
    names = [each.name for each in alike]
    some = "" if len(names) == copies else f"  in {len(names)} of {copies}"
    head = Line(node.lines[0].text + some, node.lines[0].classes)
    more = ", …" if len(names) > _MOST_TOLD else ""
    tip = (*node.tip, "", f"{len(names)} of them: {', '.join(names[:_MOST_TOLD])}{more}")
    return replace(node, lines=(head, *node.lines[1:]), tip=tip)


def _with_notes(node: Node, notes: Sequence[Line]) -> Node:
    shown = list(notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        shown[-1] = Line(f"◂ … {len(notes) - _MOST_NOTES + 1} more", "sj-soft")
    tip = (*node.tip, "", *(note.text for note in notes[:_MOST_TOLD]))
    return replace(node, lines=(*node.lines, *shown), tip=tip)


def _size(node: Node) -> svg.Size:
    letters = min(max(len(each.text) for each in node.lines), _LETTERS)
    return letters * svg.CHARACTER + 26, len(node.lines) * svg.LINE + 10


def _label_size(edge: Edge) -> svg.Size:
    letters = min(max(map(len, edge.label)), _ON_EDGE)
    return letters * svg.CHARACTER + 8, len(edge.label) * 14.0


def _boxed(node: Node, center: tuple[float, float], size: svg.Size) -> Markup:
    width, height = size
    x, y = center[0] - width / 2, center[1] - height / 2
    lines = [
        svg.text(x + 16, y + 16 + at * svg.LINE, svg.fitting(each.text, width - 24), each.classes)
        for at, each in enumerate(node.lines)
    ]
    return svg.thing(
        svg.tip(*node.tip),
        svg.box(x, y, width, height, "sj-shape", 4),
        svg.box(x + 4, y + 5, 4, height - 10, f"sj-stripe sj-{node.color}", 2),
        *lines,
        classes=node.mark,
    )


def _arrow(
    edge: Edge, path: Sequence[tuple[float, float]], at: tuple[float, float] | None
) -> Markup:
    drawn = svg.arrow(path, edge.classes)
    if not edge.label or at is None:
        return drawn
    width, height = _label_size(edge)
    x, y = at[0], at[1] - height / 2
    lines = [
        svg.text(x, y + 11 + number * 14, svg.fitting(text, width), "sj-soft", "middle")
        for number, text in enumerate(edge.label)
    ]
    behind = svg.box(x - width / 2, y, width, height, "sj-behind", 0)
    return joined([drawn, svg.thing(svg.tip(*edge.tip), behind, *lines)])
