"""Barriers: an edge iff boxes overlap and one side writes; the fewest edges; exact ranges."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule import hazards
from stagejit.schedule.plan import Access, Buffer, Dispatch, Plan
from stagejit.schedule.verifier import verify_plan
from stagejit.types import f32
from tests.schedule.planning import plan_of

BUFFERS = {name: Buffer(name, (12,), f32, "argument", number) for number, name in enumerate("abc")}


def access(name: str, offset: int, size: int, stride: int = 1) -> Access:
    return Access.of(BUFFERS[name], Box((offset,), (size,), (stride,)))


def dispatch(
    name: str, reads: tuple[Access, ...] = (), writes: tuple[Access, ...] = ()
) -> Dispatch:
    return Dispatch(name, "map", (), reads, writes)


def plan(*dispatches: Dispatch) -> Plan:
    found = hazards.conflicts(dispatches)
    return Plan(
        "f",
        dispatches,
        tuple(hazards.barriers(dispatches, BUFFERS, found)),
        tuple(BUFFERS.values()),
    )


def texts(made: Plan) -> list[str]:
    return [str(barrier) for barrier in made.barriers]


def test_a_read_waits_for_the_write_of_what_it_reads() -> None:
    made = plan(dispatch("p", writes=(access("a", 0, 8),)), dispatch("q", (access("a", 6, 4),)))
    assert texts(made) == ["barrier a[6:8]  // RAW @p -> @q"]
    assert made.barriers[0].nbytes == 8


def test_a_write_waits_for_the_readers_of_what_it_overwrites() -> None:
    made = plan(dispatch("p", (access("a", 0, 8),)), dispatch("q", (), (access("a", 6, 4),)))
    assert texts(made) == ["barrier a[6:8]  // WAR @p -> @q"]


def test_writes_of_one_place_are_ordered() -> None:
    made = plan(dispatch("p", (), (access("a", 0, 8),)), dispatch("q", (), (access("a", 6, 4),)))
    assert texts(made) == ["barrier a[6:8]  // WAW @p -> @q"]


def test_dont_order_two_reads() -> None:
    reads = (access("a", 0, 8),)
    assert not plan(dispatch("p", reads), dispatch("q", reads)).barriers


def test_dont_order_disjoint_boxes() -> None:
    assert not plan(
        dispatch("p", (), (access("a", 0, 4),)), dispatch("q", (), (access("a", 4, 4),))
    ).barriers


def test_dont_order_interleaved_boxes() -> None:
    assert not plan(
        dispatch("p", (), (access("a", 0, 6, 2),)), dispatch("q", (), (access("a", 1, 6, 2),))
    ).barriers


def test_dont_order_different_buffers() -> None:
    assert not plan(
        dispatch("p", (), (access("a", 0, 4),)), dispatch("q", (), (access("b", 0, 4),))
    ).barriers


def test_what_a_chain_orders_needs_no_barrier() -> None:
    made = plan(
        dispatch("p", (), (access("a", 0, 4),)),
        dispatch("q", (access("a", 0, 4),), (access("b", 0, 4),)),
        dispatch("r", (access("a", 0, 4), access("b", 0, 4))),
    )
    assert texts(made) == ["barrier a[0:4]  // RAW @p -> @q", "barrier b[0:4]  // RAW @q -> @r"]


def test_full_barriers_order_everything() -> None:
    made = plan_of(lambda x, y: (x * 2, y.sum()), *_arrays(2), options=Options(full_barriers=True))
    assert [b.hazard for b in made.barriers] == ["FULL"]


def test_c4_barriers_name_newly_written_channels_only() -> None:
    first = dispatch("x", (), (access("a", 0, 4),))
    second = dispatch("p", (access("a", 0, 4),), (access("a", 4, 2),))
    third = dispatch("q", (access("a", 0, 6),), (access("a", 6, 2),))
    fourth = dispatch("r", (access("a", 0, 8),))
    assert texts(plan(first, second, third, fourth)) == [
        "barrier a[0:4]  // RAW @x -> @p",
        "barrier a[4:6]  // RAW @p -> @q",
        "barrier a[6:8]  // RAW @q -> @r",
    ]


def _arrays(count: int) -> list[Any]:
    return [np.ones((7, 3), np.float32)] * count


@st.composite
def random_dispatches(draw: Any) -> list[Dispatch]:
    def accesses() -> tuple[Access, ...]:
        found = []
        for _ in range(draw(st.integers(0, 2))):
            offset, stride = draw(st.integers(0, 5)), draw(st.integers(1, 2))
            name, size = draw(st.sampled_from("abc")), draw(st.integers(1, 3))
            found.append(access(name, offset, size, stride))
        return tuple(dict.fromkeys(found))

    return [dispatch(f"d{n}", accesses(), accesses()) for n in range(draw(st.integers(1, 7)))]


@given(random_dispatches())
def test_s1_an_edge_iff_boxes_overlap_and_one_writes(dispatches: list[Dispatch]) -> None:
    made = plan(*dispatches)
    graph = made.to_networkx()
    expected: nx.DiGraph[str] = nx.DiGraph()
    expected.add_nodes_from(graph.nodes)
    for at, later in enumerate(dispatches):
        for earlier in dispatches[:at]:
            pairs = [
                *itertools.product(earlier.writes, (*later.reads, *later.writes)),
                *itertools.product(earlier.reads, later.writes),
            ]
            if any(a.overlaps(b) for a, b in pairs):
                expected.add_edge(earlier.name, later.name)
    assert set(graph.edges) == set(nx.transitive_reduction(expected).edges)


@given(random_dispatches())
def test_s3_accepted_and_rejected_without_any_one_barrier(dispatches: list[Dispatch]) -> None:
    made = plan(*dispatches)
    verify_plan(made)
    for barrier in made.barriers:
        fewer = tuple(other for other in made.barriers if other is not barrier)
        with pytest.raises(VerificationError, match="does not wait for"):
            verify_plan(dataclasses.replace(made, barriers=fewer))


@given(random_dispatches(), st.integers(0, 99))
def test_s2_every_order_that_barriers_allow_gives_the_same(
    dispatches: list[Dispatch], seed: int
) -> None:
    made = plan(*dispatches)
    graph, rng = made.to_networkx(), random.Random(seed)
    order, waiting = [], {n: graph.in_degree(n) for n in graph}
    while waiting:
        name = rng.choice(sorted(n for n, count in waiting.items() if not count))
        del waiting[name]
        order.append(name)
        for after in graph.successors(name):
            waiting[after] -= 1
    by_name = {d.name: d for d in dispatches}
    assert _simulate([by_name[n] for n in order]) == _simulate(dispatches)


def _simulate(dispatches: list[Dispatch]) -> dict[tuple[str, int], Any]:
    """Each dispatch writes a value that tells everything it read."""
    memory: dict[tuple[str, int], Any] = {}
    for one in dispatches:
        seen = hash((one.name, tuple(memory.get(place) for a in one.reads for place in _places(a))))
        memory.update((place, seen) for a in one.writes for place in _places(a))
    return memory


def _places(one: Access) -> list[tuple[str, int]]:
    (dim,) = one.box.dims()
    offset, size, stride = dim
    return [(one.buffer, offset + i * stride) for i in range(size)]
