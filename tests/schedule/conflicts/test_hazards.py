"""Barriers: an edge iff boxes overlap and one side writes; the fewest edges; exact ranges."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.conflicts import hazards, reduction
from stagejit.schedule.memory.shared import Place, add_shared, shared
from stagejit.schedule.plans.plan import Access, Buffer, Dispatch, Plan
from stagejit.schedule.verifier.plans import verify_plan
from stagejit.types import f32
from tests.schedule.mutations import check_mutations
from tests.schedule.planning import plan_of

BUFFERS = {name: Buffer(name, (12,), f32, "argument", number) for number, name in enumerate("abc")}
MEMORY = Buffer("memory", (22,), f32, "argument", 3)


def access(name: str, offset: int, size: int, stride: int = 1) -> Access:
    return Access.of(BUFFERS[name], Box((offset,), (size,), (stride,)))


def dispatch(
    name: str, reads: tuple[Access, ...] = (), writes: tuple[Access, ...] = ()
) -> Dispatch:
    return Dispatch(name, "map", (), reads, writes)


def plan(*dispatches: Dispatch, most: int | None = None) -> Plan:
    graph = hazards.hazard_graph(dispatches, most)
    made = tuple(reduction.barriers(dispatches, BUFFERS, graph))
    return Plan("f", dispatches, made, tuple(BUFFERS.values()))


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
def test_s1_an_edge_only_where_boxes_overlap_and_one_writes(dispatches: list[Dispatch]) -> None:
    by_name = {d.name: d for d in dispatches}
    for barrier in plan(*dispatches).barriers:
        src, dst = by_name[barrier.src], by_name[barrier.dst]
        first = src.reads if barrier.hazard == "WAR" else src.writes
        second = dst.reads if barrier.hazard == "RAW" else dst.writes
        for box in barrier.ranges:
            assert any(a.buffer == barrier.buffer and a.box.overlaps(box) for a in first)
            assert any(a.buffer == barrier.buffer and a.box.overlaps(box) for a in second)


@given(random_dispatches())
def test_s7_all_has_settled_and_nothing_is_named_that_need_not_be(
    dispatches: list[Dispatch],
) -> None:
    """By looking at each element of each pair of dispatches."""
    named = _named(plan(*dispatches))
    assert _all_settled(dispatches, named)
    for at in range(len(named)):
        assert not _all_settled(dispatches, named[:at] + named[at + 1 :])


def _named(made: Plan) -> list[tuple[tuple[str, str], tuple[str, int]]]:
    """What each barrier names, element by element."""
    return [
        ((b.src, b.dst), place)
        for b in made.barriers
        for box in b.ranges
        for place in _elements(b.buffer, box)
    ]


def _all_settled(
    dispatches: list[Dispatch], named: list[tuple[tuple[str, str], tuple[str, int]]]
) -> bool:
    """Whether each of two dispatches that meet in an element, of which one writes, comes after what
    the other does with it. named: by barrier, what has settled."""
    seen: dict[str, set[tuple[str, tuple[str, int]]]] = {}
    for at, later in enumerate(dispatches):
        mine = seen[later.name] = set()
        for (src, dst), place in named:
            if dst == later.name:
                mine |= seen[src] | {(src, place)}
        for earlier in dispatches[:at]:
            written = _all_places(earlier.writes), _all_places(later.writes)
            touched = [_all_places((*d.reads, *d.writes)) for d in (earlier, later)]
            common = (written[0] & touched[1]) | (touched[0] & written[1])
            if any((earlier.name, place) not in mine for place in common):
                return False
    return True


@given(random_dispatches())
def test_s7_what_lies_in_shared_memory_has_settled_byte_for_byte(
    dispatches: list[Dispatch],
) -> None:
    """`b` begins within `a`, and `c` within `b`."""
    starts = {"a": 0, "b": 24, "c": 40}
    graph = hazards.hazard_graph(dispatches)
    places = {name: Place("arena", start, start + 48) for name, start in starts.items()}
    add_shared(graph, dispatches, shared(places))
    made = reduction.barriers(dispatches, BUFFERS, graph)

    def in_memory(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        words = [starts[name] // 4 + at for name, at in sorted(_all_places(accesses))]
        return tuple(Access.of(MEMORY, Box((at,), (1,), (1,))) for at in words)

    merged = [dispatch(d.name, in_memory(d.reads), in_memory(d.writes)) for d in dispatches]
    named = [
        ((b.src, b.dst), ("memory", starts[b.buffer] // 4 + at))
        for b in made
        for box in b.ranges
        for _, at in _elements(b.buffer, box)
    ]
    assert _all_settled(merged, named)


def _all_places(accesses: tuple[Access, ...]) -> set[tuple[str, int]]:
    return {place for access in accesses for place in _places(access)}


@given(random_dispatches(), st.integers(0, 2))
def test_s7_all_has_settled_where_few_versions_are_many(
    dispatches: list[Dispatch], most: int
) -> None:
    made = plan(*dispatches, most=most)
    verify_plan(made)
    assert _all_settled(dispatches, _named(made))


def versions(count: int, *, reads_all: bool) -> list[Dispatch]:
    """Of one buffer, each of which is read."""
    buffer = Buffer("v", (count,), f32, "argument", 0)

    def part(start: int, size: int) -> Access:
        return Access.of(buffer, Box((start,), (size,), (1,)))

    steps = []
    for n in range(count):
        read = part(0, count) if reads_all else part(0, n + 1)
        steps += [dispatch(f"r{n}", (read,)), dispatch(f"w{n}", (), (part(n, 1),))]
    return steps


@pytest.mark.parametrize("reads_all", [False, True])
def test_versions_of_one_buffer_have_no_conflict_a_pair(reads_all: bool) -> None:
    short, long = (
        len([*hazards.hazard_graph(versions(count, reads_all=reads_all)).edges()])
        for count in (100, 400)
    )
    assert long <= 4.5 * short
    buffer = Buffer("v", (100,), f32, "argument", 0)
    steps = versions(100, reads_all=reads_all)
    graph = hazards.hazard_graph(steps)
    made = tuple(reduction.barriers(steps, {"v": buffer}, graph))
    verify_plan(Plan("f", tuple(steps), made, (buffer,)))
    everything = hazards.hazard_graph(steps, math.inf)
    assert len([*everything.edges()]) > len([*graph.edges()])
    assert made == tuple(reduction.barriers(steps, {"v": buffer}, everything))


def test_who_does_not_come_after_a_reader_waits_for_what_that_one_has_waited_for() -> None:
    parts = [dispatch(f"p{n}", (), (access("a", n, 1),)) for n in range(12)]
    readers = [dispatch(f"r{n}", (access("a", 0, 12),)) for n in range(2)]
    made = plan(*parts, *readers, most=3)
    assert len(made.barriers) == 24
    check_mutations(made)


@given(random_dispatches())
def test_s3_accepted_and_rejected_with_anything_less(dispatches: list[Dispatch]) -> None:
    check_mutations(plan(*dispatches))


def test_the_rest_of_what_was_overwritten_in_part_settles_too() -> None:
    made = plan(
        dispatch("p", (), (access("a", 0, 12),)),
        dispatch("q", (), (access("a", 0, 2),)),
        dispatch("r", (access("a", 0, 12),)),
    )
    assert texts(made) == [
        "barrier a[0:2]  // WAW @p -> @q",
        "barrier a[2:12]  // RAW @p -> @r",
        "barrier a[0:2]  // RAW @q -> @r",
    ]
    check_mutations(made)


def test_an_element_is_named_once_whatever_the_hazards() -> None:
    both = (access("a", 0, 4),)
    made = plan(dispatch("p", both, both), dispatch("q", both, both))
    assert texts(made) == ["barrier a[0:4]  // RAW @p -> @q"]


def test_one_after_the_other_that_reads_all_and_writes_a_part_has_few_barriers() -> None:
    """Each waits for all before it, for another element: see Note [Many parts]."""
    whole = (access("a", 0, 12),)
    steps = [dispatch(f"d{n}", whole, (access("a", n % 12, 1),)) for n in range(40)]
    made = plan(*steps)
    assert len(made.barriers) <= 8 * len(steps)
    assert _all_settled(steps, _named(made))
    verify_plan(made)


@pytest.mark.parametrize("most", [0, 1, 3, 16])
@given(st.randoms(use_true_random=False))
def test_s7_all_has_settled_in_long_programs_too(most: int, rng: random.Random) -> None:
    """most: see Note [Many versions]."""
    steps = []
    for n in range(25):
        read = [access(rng.choice("ab"), rng.randint(0, 3), rng.randint(1, 9))]
        written = [access(rng.choice("ab"), rng.randint(0, 9), rng.randint(1, 3))]
        steps.append(dispatch(f"d{n}", tuple(read), tuple(written)))
    made = plan(*steps, most=most)
    verify_plan(made)
    assert _all_settled(steps, _named(made))


def conflicts_of_buffers_in_one_place(count: int) -> int:
    """Each of the buffers is written in two parts, with the bytes of one between those of the
    other, and read after that."""
    shape = (4, 6)
    names = [f"b{n}" for n in range(count)]
    buffers = {n: Buffer(n, shape, f32, "transient", None) for n in names}
    steps = []
    for name in names:
        edges = Access.of(buffers[name], Box((0, 0), (4, 2), (1, 5)))
        inside = Access.of(buffers[name], Box((0, 1), (4, 4), (1, 1)))
        whole = Access.of(buffers[name], Box((0, 0), (4, 6), (1, 1)))
        steps += [dispatch(f"{name}e", (), (edges,)), dispatch(f"{name}i", (), (inside,))]
        steps.append(dispatch(f"{name}r", (whole,)))
    graph = hazards.hazard_graph(steps)
    add_shared(graph, steps, {name: Place("m", 0, 96) for name in names})
    return len([*graph.edges()])


def test_buffers_in_one_place_wait_for_those_before_only() -> None:
    assert conflicts_of_buffers_in_one_place(40) <= 40 * 10
    assert conflicts_of_buffers_in_one_place(80) <= 80 * 10


def test_many_readers_of_many_parts() -> None:
    """More barriers of one source than are looked at one by one, and more pieces than are told
    apart."""
    big = Buffer("a", (400,), f32, "argument", 0)

    def part(start: int, size: int) -> Access:
        return Access.of(big, Box((start,), (size,), (1,)))

    parts = [dispatch(f"d{n}", (part(4 * n, 2),), (part(4 * n + 2, 1),)) for n in range(100)]
    whole = dispatch("first", (), (part(0, 400),))
    last = dispatch("last", (part(0, 300),))
    made = (whole, *parts, dispatch("some", (part(0, 40),)), last)
    graph = hazards.hazard_graph(made)
    plan = Plan("f", made, tuple(reduction.barriers(made, {"a": big}, graph)), (big,))
    verify_plan(plan)
    waits = {(b.src, b.dst): b.ranges for b in plan.barriers}
    assert len(waits["first", "some"]) == 10  # but what each of ten has read or written
    assert [str(box) for box in waits["first", "last"]] == ["[0:300]"]


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
    return _elements(one.buffer, one.box)


def _elements(buffer: str, box: Box) -> list[tuple[str, int]]:
    ((offset, size, stride),) = box.dims()
    return [(buffer, int(offset) + i * stride) for i in range(size)]
