"""Where the nodes and edges of an acyclic graph are drawn: layers from top to bottom.

Input: sizes of nodes, in an order in which edges point forward, edges, sizes of their labels.
Output: centres of nodes and labels, and the points that each edge goes through. Invariants: nodes
and labels do not overlap, and no edge crosses a node; the time is about linear in nodes and edges.

The method is that of Sugiyama, Tagawa and Toda ("Methods for visual understanding of hierarchical
system structures", 1981): layers by longest paths, here of a limited width; a place in each layer
that an edge crosses, and one for each label; orders within layers by the means of neighbours; then
coordinates, for each layer the exact least squares towards its neighbours under its order
(pool-adjacent-violators), layer by layer, down and up.

Note [No library]: networkx places the nodes of layers, but orders them not, and knows no sizes and
no edges around nodes. Graphviz is a binary, that no wheel brings. grandalf (pure Python) had its
last release in 2023, is under the GPL, and does not limit widths; fast-sugiyama has nodes of one
size and straight edges; igraph is a binary under the GPL. All of them place edges regardless of
labels, which here are what the picture is about: the ranges of barriers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
Size = tuple[float, float]

_GAP_X, _GAP_Y = 26.0, 22.0
_LANE = 10.0  # width of an edge that passes a layer
_TURN = 9.0  # height in which such edges go to the side
_TO_THE_MIDDLE = 0.04  # the weight of x = 0 beside that of a neighbour
_ROUNDS = 6  # down and up, for orders and for coordinates


@dataclass(frozen=True)
class Layout:
    """centers: of nodes. labels: centres of those of edges. paths: for each edge that is drawn its
    points, from the bottom of its source to the top of its target. extent: width and height."""

    centers: list[Point]
    labels: dict[int, Point]
    paths: dict[int, list[Point]]
    extent: Size


@dataclass(eq=False)
class _Item:
    """A node, a label or a place where an edge passes a layer."""

    width: float
    height: float
    node: int | None = None
    up: list[_Item] = field(default_factory=list)
    down: list[_Item] = field(default_factory=list)
    x: float = 0.0
    at: int = 0  # in the order of its layer

    @property
    def weight(self) -> float:
        """Edges that pass are straight rather than nodes are in the middle."""
        return 1.0 if self.node is not None else 12.0


def layers_of(
    count: int, edges: Sequence[tuple[int, int]], bands: Sequence[int], widest: int
) -> list[int]:
    """The layer of each node. bands: of a later band all nodes come below those of an earlier
    one; they are ascending."""
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
    layer = [0] * count
    taken: dict[int, int] = {}
    floor = deepest = 0
    for node in range(count):
        if node and bands[node] != bands[node - 1]:
            floor = deepest + 1
        at = max((layer[source] + 1 for source in before[node]), default=floor)
        at = max(at, floor)
        while taken.get(at, 0) >= widest:
            at += 1
        layer[node] = at
        taken[at] = taken.get(at, 0) + 1
        deepest = max(deepest, at)
    return layer


def layout(
    sizes: Sequence[Size],
    edges: Sequence[tuple[int, int]],
    layer: Sequence[int],
    labels: Mapping[int, Size] | None = None,
) -> Layout:
    """Places nodes of these sizes in these layers. labels: sizes of what stands on edges, by the
    number of the edge."""
    labels = labels or {}
    rows: list[list[_Item]] = [[] for _ in range(2 * (max(layer, default=0) + 1))]
    nodes = [_Item(*size, node=at) for at, size in enumerate(sizes)]
    for node in nodes:
        assert node.node is not None
        rows[2 * layer[node.node]].append(node)  # labels stand in odd rows
    chains = {
        number: _chain(rows, nodes, edge, layer, labels.get(number))
        for number, edge in enumerate(edges)
    }
    _order(rows)
    _place(rows)
    tops, bottoms, height = _heights(rows)
    width = _shift(rows)
    row_of = {item: at for at, row in enumerate(rows) for item in row}

    def center(item: _Item) -> Point:
        at = row_of[item]
        return item.x, (tops[at] + bottoms[at]) / 2

    places = {number: center(items[1]) for number, items in chains.items() if number in labels}
    ports = _Ports(nodes, edges, chains)
    paths = {
        number: _path(items, row_of, tops, bottoms, ports.of(number))
        for number, items in chains.items()
    }
    return Layout([center(node) for node in nodes], places, paths, (width, height))


def _chain(
    rows: list[list[_Item]],
    nodes: Sequence[_Item],
    edge: tuple[int, int],
    layer: Sequence[int],
    label: Size | None,
) -> list[_Item]:
    """The items of an edge from its source to its target, linked to each other. A label stands
    right below the source."""
    source, target = edge
    chain = [nodes[source]]
    for row in range(2 * layer[source] + 1, 2 * layer[target]):
        first = row == 2 * layer[source] + 1
        item = _Item(*label) if first and label else _Item(_LANE, 0.0)
        rows[row].append(item)
        chain.append(item)
    chain.append(nodes[target])
    for upper, lower in pairwise(chain):
        upper.down.append(lower)
        lower.up.append(upper)
    return chain


def _order(rows: Sequence[list[_Item]]) -> None:
    """Few crossings: each row by the means of its neighbours in the row above, then below."""
    for row in rows:
        _number(row)
    for step in range(2 * _ROUNDS):
        downwards = step % 2 == 0
        for row in rows if downwards else reversed(rows):
            means = {}
            for item in row:
                near = item.up if downwards else item.down
                mean = sum(other.at for other in near) / len(near) if near else float(item.at)
                means[item] = mean
            row.sort(key=means.__getitem__)
            _number(row)


def _number(row: Sequence[_Item]) -> None:
    for at, item in enumerate(row):
        item.at = at


def _place(rows: Sequence[list[_Item]]) -> None:
    """x of all items."""
    for row in rows:
        left = -sum(item.width + _GAP_X for item in row) / 2
        for item in row:
            item.x = left + item.width / 2
            left += item.width + _GAP_X
    for step in range(2 * _ROUNDS):
        downwards = step % 2 == 0
        for row in rows if downwards else reversed(rows):
            _settle(row, downwards, both=step >= 2 * _ROUNDS - 2)


def _settle(row: Sequence[_Item], downwards: bool, *, both: bool) -> None:
    """The exact least squares of one row towards its neighbours, with the gaps between items."""
    offsets, offset = [], 0.0
    for at, item in enumerate(row):
        if at:
            offset += (row[at - 1].width + item.width) / 2 + _GAP_X
        offsets.append(offset)
    pools: list[list[float]] = []  # sum of weighted places, weight, number of items
    for item, offset in zip(row, offsets, strict=True):
        near = [*item.up, *item.down] if both else (item.up if downwards else item.down)
        # Nothing else holds the picture together: parts of it would drift apart.
        wanted = sum(other.x for other in near) / (len(near) + _TO_THE_MIDDLE)
        weight = item.weight if near else _TO_THE_MIDDLE
        pools.append([weight * (wanted - offset), weight, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    at = 0
    for total, weight, number in pools:
        for _ in range(int(number)):
            row[at].x = total / weight + offsets[at]
            at += 1


def _heights(rows: Sequence[Sequence[_Item]]) -> tuple[list[float], list[float], float]:
    """Top and bottom of each row, and the height of all. Rows where nothing stands are low."""
    tops, bottoms, y = [], [], 0.0
    for row in rows:
        height = max((item.height for item in row), default=0.0)
        tops.append(y)
        bottoms.append(y + height)
        y += height + (_GAP_Y if height else _TURN if row else 0.0)
    return tops, bottoms, max(bottoms, default=0.0)


def _shift(rows: Sequence[Sequence[_Item]]) -> float:
    """The leftmost item begins at 0; returns the width of all."""
    items = [item for row in rows for item in row]
    left = min((item.x - item.width / 2 for item in items), default=0.0)
    for item in items:
        item.x -= left
    return max((item.x + item.width / 2 for item in items), default=0.0)


class _Ports:
    """Where edges leave and enter nodes: side by side, in the order of where they go."""

    def __init__(
        self,
        nodes: Sequence[_Item],
        edges: Sequence[tuple[int, int]],
        chains: Mapping[int, Sequence[_Item]],
    ) -> None:
        leaving: dict[int, list[int]] = {}
        entering: dict[int, list[int]] = {}
        for number, (source, target) in enumerate(edges):
            leaving.setdefault(source, []).append(number)
            entering.setdefault(target, []).append(number)
        self.found: dict[tuple[int, bool], float] = {}
        for leaves, numbers_of in ((True, leaving), (False, entering)):
            for node, numbers in numbers_of.items():
                numbers.sort(key=lambda number: chains[number][1 if leaves else -2].x)
                step = min(nodes[node].width * 0.6 / max(len(numbers) - 1, 1), 24.0)
                for at, number in enumerate(numbers):
                    x = nodes[node].x + (at - (len(numbers) - 1) / 2) * step
                    self.found[number, leaves] = x

    def of(self, number: int) -> tuple[float, float]:
        """x at the source and at the target of an edge."""
        return self.found[number, True], self.found[number, False]


def _path(
    items: Sequence[_Item],
    row_of: Mapping[_Item, int],
    tops: Sequence[float],
    bottoms: Sequence[float],
    ports: tuple[float, float],
) -> list[Point]:
    """From port to port, straight through each row on the way."""
    source, target = items[0], items[-1]
    upper, lower = row_of[source], row_of[target]
    points = [(ports[0], (tops[upper] + bottoms[upper] + source.height) / 2)]
    points.append((ports[0], bottoms[upper]))
    for item in items[1:-1]:
        row = row_of[item]
        points += [(item.x, tops[row]), (item.x, bottoms[row])]
    points.append((ports[1], tops[lower]))
    points.append((ports[1], (tops[lower] + bottoms[lower] - target.height) / 2))
    return points
