"""The emitter: random trees of loops over one variable visit each element once, in order, with the
right lanes; cells live across the loops around the statements that set them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I64
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import (
    At,
    Cell,
    Chunk,
    Do,
    Groups,
    Loop,
    Node,
    Parallel,
    Run,
    Tail,
    When,
    Within,
    blocks,
    cells_set,
    serial,
    vectors,
)
from stagejit.errors import InternalError
from stagejit.index.affine import Affine, Var

LANES = 8
BEYOND = 256  # elements that no tree visits


class Recorder:
    """A statement that writes, at the elements where the loops stand, the number of the visit."""

    def __init__(self, var: Var) -> None:
        self.builder = Builder()
        self.order = self.builder.buffer("order", I64)
        self.last = self.builder.buffer("last", I64)
        self.emitter = Emitter(Elements(self.builder, {}))
        self.var, self.count = var, Cell("count")
        self.start = Do("start", self._start, (self.count,))
        self.visit = Do("visit", self._visit, (self.count,))
        self.end = Do("end", self._end)

    def _start(self) -> None:
        self.emitter.cells[self.count] = (self.builder.const(0),)

    def _visit(self) -> None:
        b, elements = self.builder, self.emitter.elements
        position = elements.position
        (number,) = self.emitter.cells[self.count]
        at = elements.scalar_index(Affine.of(self.var))
        if position.vector is None:
            b.store(b.load(self.order, at) * 1000 + (number + 1), self.order, at)
        else:
            before = b.load(self.order, at, LANES, mask=position.mask)
            b.store(before * 1000 + (number + 1), self.order, at, mask=position.mask)
        self.emitter.cells[self.count] = (number + 1,)

    def _end(self) -> None:
        self.builder.store(self.emitter.cells[self.count][0], self.last, 0)

    def run(self, run_kernel: Any, tree: Node, items: int = 1) -> tuple[list[int], int]:
        """(the number of the visit of each element, how many there were)."""
        self.emitter.emit(tree)
        extent = self.var.extent
        order, last = np.zeros(extent + BEYOND, np.int64), np.zeros(1, np.int64)
        run_kernel(self.builder.finish(), [order, last], (), 0, items)
        assert not order[extent:].any(), "an element that is none was visited"
        return order[:extent].tolist(), int(last[0])


def expected(sizes: list[int]) -> list[int]:
    """The number of the visit of each element, of visits of so many elements."""
    return [number + 1 for number, size in enumerate(sizes) for _ in range(size)]


def cut(count: int, chunks: list[tuple[int, Tail]]) -> list[int]:
    """What a loop should do: the sizes of its visits."""
    sizes = []
    for size, tail in chunks:
        sizes += [size] * (count // size)
        count %= size
        if count and tail != "none":
            sizes.append(count)
            count = 0
    return sizes


def chunk(recorder: Recorder, size: int, tail: Tail, *, straight: bool = False) -> Chunk:
    return Chunk(size, recorder.visit, vector=size == LANES, tail=tail, straight=straight)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    extent=st.integers(1, 100),
    tail=st.sampled_from(["none", "masked", "all masked"]),
    straight=st.booleans(),
    singles=st.booleans(),
)
def test_vectors_and_what_is_left(
    run_kernel: Any, extent: int, tail: Tail, straight: bool, singles: bool
) -> None:
    recorder = Recorder(Var(extent))
    chunks = [chunk(recorder, LANES, tail, straight=straight)]
    plan: list[tuple[int, Tail]] = [(LANES, tail)]
    if singles and tail == "none":
        chunks.append(chunk(recorder, 1, "none"))
        plan.append((1, "none"))
    tree = (recorder.start, Loop(recorder.var, tuple(chunks)), recorder.end)
    sizes = cut(extent, plan)
    order, last = recorder.run(run_kernel, tree)
    assert order == expected(sizes) + [0] * (extent - sum(sizes))
    assert last == len(sizes)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    extent=st.integers(1, 200),
    vectors_a_block=st.integers(1, 4),
    tail=st.sampled_from(["masked", "all masked"]),
    way=st.sampled_from(["blocks", "items", "chunks"]),
)
def test_a_loop_covers_what_one_around_left_it(
    run_kernel: Any, extent: int, vectors_a_block: int, tail: Tail, way: str
) -> None:
    recorder, block = Recorder(Var(extent)), LANES * vectors_a_block
    var, inner = recorder.var, vectors(recorder.var, LANES, recorder.visit, tail=tail)
    items, start, end = 1, recorder.start, recorder.end
    if way == "blocks":
        tree: Node = (start, blocks(var, block, inner), end)
    elif way == "items":  # each of them counts by itself
        items, tree = -(-extent // block), Parallel(((var, block),), (start, inner, end))
    else:
        rest = extent % block
        chunks = [Chunk(block, inner), *([Chunk(rest, inner, straight=True)] if rest else [])]
        tree = (start, Loop(var, tuple(chunks)), end)
    order, last = recorder.run(run_kernel, tree, items)
    sizes = [cut(min(block, extent - first), [(LANES, tail)]) for first in range(0, extent, block)]
    if way == "items":
        assert order == [number for part in sizes for number in expected(part)]
        assert last == len(sizes[-1])
    else:
        assert order == expected([size for part in sizes for size in part])
        assert last == sum(map(len, sizes))


def nested(count: int, sizes: list[int], chunks: list[tuple[int, Tail]]) -> list[int]:
    """The sizes of the visits of so many elements, in blocks of these sizes, one in the other."""
    if not sizes:
        return cut(count, chunks)
    size, *inner = sizes
    parts = [min(size, count - first) for first in range(0, count, size)]
    return [visit for part in parts for visit in nested(part, inner, chunks)]


@settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    extent=st.integers(1, 120),
    item=st.integers(1, 50),
    sizes=st.lists(st.integers(1, 40), max_size=3),
    tail=st.sampled_from(["masked", "all masked", "none"]),
    straight=st.booleans(),
)
def test_blocks_of_any_size_lie_in_blocks_of_any_size(
    run_kernel: Any, extent: int, item: int, sizes: list[int], tail: Tail, straight: bool
) -> None:
    """None of the sizes has to be a multiple of another one, or of the lanes."""
    recorder = Recorder(Var(extent))
    var, ways = recorder.var, [(LANES, tail), (1, "none")] if tail == "none" else [(LANES, tail)]
    body: Node = Loop(var, tuple(chunk(recorder, *way, straight=straight) for way in ways))
    for size in reversed(sizes):
        body = blocks(var, size, body)
    items = -(-extent // item)
    order, _ = recorder.run(run_kernel, Parallel(((var, item),), (recorder.start, body)), items)
    counts = [min(item, extent - first) for first in range(0, extent, item)]
    assert order == [n for count in counts for n in expected(nested(count, sizes, ways))]


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=st.integers(0, 40), count=st.integers(0, 40), more=st.booleans())
def test_spans_that_only_a_call_knows(run_kernel: Any, first: int, count: int, more: bool) -> None:
    recorder = Recorder(Var(100))
    b, var = recorder.builder, recorder.var
    start, stop = (b.load(recorder.order, at) for at in (98, 99))
    span = Span(start, None, stop)
    tail: Tail = "none" if more else "masked"
    loop = Loop(var, (chunk(recorder, LANES, tail), *([chunk(recorder, 1, "none")] * more)))
    order, last = np.zeros(100, np.int64), np.zeros(1, np.int64)
    order[98:] = first, first + count
    with recorder.emitter.covering({var: span}):
        recorder.emitter.emit((recorder.start, loop, recorder.end))
    run_kernel(b.finish(), [order, last], (), 0, 1)
    sizes = cut(count, [(LANES, tail), (1, "none")])
    assert order[first : first + count].tolist() == expected(sizes)
    assert not order[:first].any()
    assert not order[first + count : 98].any()
    assert last[0] == len(sizes)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    extent=st.integers(1, 100),
    vectors=st.booleans(),
    most=st.integers(1, 5),
    parts=st.integers(1, 7),
)
def test_items_share_the_groups_of_an_axis(
    run_kernel: Any, extent: int, vectors: bool, most: int, parts: int
) -> None:
    unit = LANES if vectors else 1
    split = Split.of(Var(extent, "i"), unit, most)
    split = replace(split, parts=min(parts, split.groups))
    b = Builder()
    elements = Elements(b, {})
    emitter = Emitter(elements)
    item, number, place = (b.buffer(name, I64) for name in ("item", "number", "place"))

    def visit(size: int, ragged: bool) -> None:
        position, span = elements.position, emitter.span(split.var)
        written = (span.start, emitter.groups[split.var], emitter.offset(split.var))
        for step in range(size):
            at = position.env[split.var] + step * unit
            mask = position.mask if ragged and step == size - 1 else None
            for buffer, register in zip((item, number, place), written, strict=True):
                if vectors:
                    b.store(b.splat(register, LANES), buffer, at, mask=mask)
                else:
                    b.store(register, buffer, at)

    def run(size: int, first: int, last: int, ragged: bool = False) -> Run:
        return Run(size, first, last, Do("visit", lambda: visit(size, ragged)), ragged)

    last = split.groups - 1
    runs = (
        run(split.small + 1, 0, min(split.big, last)),
        run(split.small, split.big, last),
        run(split.small + (last < split.big), last, split.groups, extent % unit > 0),
    )
    runs = tuple(run for run in runs if run.first < run.last)
    emitter.emit(Parallel((split,), Groups(split, runs)))
    found = [np.full(extent, -1) for _ in range(3)]
    run_kernel(b.finish(), found, (), 0, split.parts)

    sizes = [split.small + 1] * split.big + [split.small] * (split.groups - split.big)
    starts = [unit * sum(sizes[:group]) for group in range(split.groups)]
    few, more = divmod(split.groups, split.parts)
    firsts = [part * few + min(part, more) for part in range(split.parts)]
    wanted = []
    for at in range(extent):
        group = max(g for g in range(split.groups) if starts[g] <= at)
        first = max(f for f in firsts if f <= group)
        wanted.append((starts[first], group - first, starts[group] - starts[first]))
    assert list(zip(*(a.tolist() for a in found), strict=True)) == wanted


def test_groups_of_what_is_not_in_groups() -> None:
    emitter = Emitter(Elements(Builder(), {}))
    split = Split.of(Var(40, "i"), 1, 4)
    with pytest.raises(InternalError, match="not in groups here"):
        emitter.emit(blocks(split.var, 8, Groups(split, ())))


def test_fixed_places(run_kernel: Any) -> None:
    recorder = Recorder(Var(12))
    places = tuple(At(((recorder.var, step),), recorder.visit) for step in (0, 2, 1))
    tree = (recorder.start, Loop(recorder.var, (Chunk(4, places),)), recorder.end)
    order, last = recorder.run(run_kernel, tree)
    assert order == [1, 3, 2, 0, 4, 6, 5, 0, 7, 9, 8, 0]
    assert last == 9


def test_what_is_evaluated_at_fixed_places_is_remembered_until_it_is_forgotten() -> None:
    var, emitter = Var(4), Emitter(Elements(Builder(), {}))
    found: list[object] = []
    look = Do("look", lambda: found.append(emitter.elements._known))
    again, once = At(((var, 1),), look, again=True), At(((var, 1),), look)
    emitter.emit((again, again, once, Do("forget", emitter.forget), again))
    assert found[0] is found[1]
    assert found[2] is not found[0]
    assert found[3] is not found[0]


@pytest.mark.parametrize("limit", [0, 3, 10])
def test_conditions_carry_cells(run_kernel: Any, limit: int) -> None:
    recorder = Recorder(Var(10))

    def below() -> Any:
        return recorder.emitter.elements.position.env[recorder.var] < limit

    body = serial([recorder.var], When("below", below, recorder.visit))
    order, last = recorder.run(run_kernel, (recorder.start, body, recorder.end))
    assert order == [*range(1, limit + 1), *[0] * (10 - limit)]
    assert last == limit


def test_no_condition_is_always() -> None:
    emitter, ran = Emitter(Elements(Builder(), {})), []
    emitter.emit(When("always", lambda: None, Do("ran", lambda: ran.append(1))))
    assert ran == [1]


def test_a_cell_that_starts_inside_a_loop_does_not_leave_it() -> None:
    emitter, cell, var = Emitter(Elements(Builder(), {})), Cell("inner"), Var(3)

    def start() -> None:
        emitter.cells[cell] = (emitter.b.const(0),)

    emitter.emit(serial([var], Do("start", start, (cell,))))
    assert cell not in emitter.cells


def test_statements_stand_inside_their_context() -> None:
    recorder = Recorder(Var(3))
    elements = recorder.emitter.elements
    strides: list[int] = []
    look = Do("look", lambda: strides.append(elements.position.stride))
    recorder.emitter.emit((Within("apart", lambda: elements.interleaving(2), look), look))
    assert strides == [2, 0]


def test_cells_of_a_tree() -> None:
    a, b = Cell("a"), Cell("b")
    first, second = Do("first", lambda: None, (a,)), Do("second", lambda: None, (b,))
    tree = (first, serial([Var(3)], (At((), second), first)))
    assert cells_set(tree) == {a, b}
    assert cells_set(first) == {a}


@pytest.mark.parametrize("extent", range(1, 40))
@pytest.mark.parametrize("item", [5, 15, 40])
def test_blocks_of_what_vectors_leave_end_where_that_does(
    run_kernel: Any, extent: int, item: int
) -> None:
    """not where blocks of the whole variable would: three elements had been taken for the last of
    9, which a vector of 8 leaves over"""
    recorder = Recorder(Var(extent))
    body = Loop(recorder.var, (Chunk(1, recorder.visit),))
    chunks = Chunk(LANES, recorder.visit, vector=True), Chunk(3, body, tail="shorter")
    tree = Parallel(((recorder.var, item),), (recorder.start, Loop(recorder.var, chunks)))
    order, _ = recorder.run(run_kernel, tree, tree.items)
    assert 0 not in order
