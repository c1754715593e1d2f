"""Places of nodes and edges: nothing overlaps, edges do not cross nodes."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stagejit.inspect.pictures.drawing.layered import layers_of, layout
from stagejit.inspect.pictures.drawing.nodes import Line, Node
from stagejit.inspect.pictures.drawing.nodes import draw as drawn

Box = tuple[float, float, float, float]  # left, top, right, bottom


def around(center: tuple[float, float], size: tuple[float, float]) -> Box:
    (x, y), (width, height) = center, size
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def overlap(one: Box, other: Box) -> bool:
    slack = 1e-6
    return (
        min(one[2], other[2]) - max(one[0], other[0]) > slack
        and min(one[3], other[3]) - max(one[1], other[1]) > slack
    )


@st.composite
def graphs(draw):  # type: ignore[no-untyped-def]
    count = draw(st.integers(1, 12))
    sizes = [
        (draw(st.floats(20, 260)), draw(st.sampled_from([30.0, 55.0, 85.0]))) for _ in range(count)
    ]
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    labelled = draw(st.sets(st.integers(0, len(edges) - 1))) if edges else set()
    labels = {at: (draw(st.floats(20, 300)), 14.0) for at in labelled}
    bands = sorted(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    return sizes, edges, labels, bands


@given(graphs(), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_nothing_overlaps(graph, widest: int) -> None:  # type: ignore[no-untyped-def]
    sizes, edges, labels, bands = graph
    layer = layers_of(len(sizes), edges, bands, widest)
    assert all(layer[source] < layer[target] for source, target in edges)
    assert all(layer.count(each) <= widest for each in set(layer))
    for (one, of_one), (other, of_other) in combinations(zip(layer, bands, strict=True), 2):
        assert of_one == of_other or one < other
    placed = layout(sizes, edges, layer, labels)
    boxes = [around(c, s) for c, s in zip(placed.centers, sizes, strict=True)]
    named = {at: around(placed.labels[at], size) for at, size in labels.items()}
    everything = [*boxes, *named.values()]
    assert not any(overlap(one, other) for one, other in combinations(everything, 2))
    width, height = placed.extent
    assert all(box[0] + 1e-6 >= 0 and box[2] <= width + 1e-6 for box in everything)
    assert all(box[1] + 1e-6 >= 0 and box[3] <= height + 1e-6 for box in everything)
    for number, (source, target) in enumerate(edges):
        path = placed.paths[number]
        assert path[0][1] == boxes[source][3]
        assert path[-1][1] == boxes[target][1]
        assert all(low[1] <= high[1] + 1e-6 for low, high in pairwise(path))
        others = [box for at, box in enumerate(boxes) if at not in (source, target)]
        for (x1, y1), (x2, y2) in pairwise(path):  # curves stay between the ends of a piece
            if x1 == x2 or y1 == y2:
                piece = (min(x1, x2), y1, max(x1, x2), y2)
                assert not any(overlap(piece, box) for box in others)


def test_a_chain_is_a_column() -> None:
    sizes = [(100.0, 40.0)] * 5
    edges = [(at, at + 1) for at in range(4)]
    placed = layout(sizes, edges, layers_of(5, edges, [0] * 5, 7))
    assert max(x for x, _ in placed.centers) - min(x for x, _ in placed.centers) < 1


def test_fewer_nodes_beside_each_other_make_it_narrower() -> None:
    """As on each of two sides."""
    nodes = [Node(f"%{at}", (Line("x" * 30),), "gray", (), at) for at in range(20)]
    whole, side = drawn(nodes, []), drawn(nodes, [], widest=3)
    assert side.nodes == whole.nodes == 20
    assert side.drawing.width < 0.5 * whole.drawing.width
