"""Values that were made of weights: found while somebody keeps them, however they lie."""

from __future__ import annotations

import gc

import numpy as np

from stagejit.graph.ir import Graph
from stagejit.index.layout import Layout
from stagejit.rewrites.weights.made import Made
from stagejit.runtime.found_again import Lookup
from stagejit.trace.contents import Content, content_of
from stagejit.types import TensorType, f32
from tests.randomness import RNG

PANELS = Layout((1, 0), (1, 4))


def made(layout: Layout) -> Made:
    graph = Graph("made")
    graph.set_outputs([graph.add_input("w0", TensorType(f32, (3, 8)))])
    return Made(graph, (), layout)


def lookup(content: Content, layout: Layout = PANELS, code: str | None = "a") -> Lookup:
    return Lookup(made(layout), code, (), [content])


def test_it_is_found_by_what_it_is_of_and_how_it_lies() -> None:
    one, other = np.zeros(1), np.zeros(1)
    content = content_of(one)
    array = RNG.normal(size=PANELS.room((3, 8))).astype(np.float32)
    lookup(content).remember(array)
    assert lookup(content).found() is array
    assert lookup(content, Layout()).found() is None
    assert lookup(content, code="b").found() is None
    assert lookup(content_of(other)).found() is None


def test_what_lies_otherwise_is_given_row_major() -> None:
    one = np.zeros(1)
    content = content_of(one)
    whole = RNG.normal(size=(3, 8)).astype(np.float32)
    panels = np.empty(PANELS.room(whole.shape), np.float32)
    PANELS.laid_out(whole, panels)
    assert lookup(content, Layout()).row_major() is None
    lookup(content).remember(panels)
    found = lookup(content, Layout()).row_major()
    assert found is not None
    np.testing.assert_array_equal(found, whole)
    lookup(content, Layout()).remember(whole)
    del panels
    gc.collect()
    assert lookup(content).found() is None
    assert lookup(content).row_major() is whole


def test_nothing_is_kept_for_those_who_may_come() -> None:
    one = np.zeros(1)
    content = content_of(one)
    array = np.zeros(PANELS.room((3, 8)), np.float32)
    lookup(content).remember(array)
    del array
    gc.collect()
    assert lookup(content).found() is None
    assert lookup(content).row_major() is None
