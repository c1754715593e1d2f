"""The loops of a `cumulative` region for threads: a line for each, or some for each line.

Input: the loops, and which threads have which elements. Output: the tree of the kernel. Invariant:
each stored element is written once, by one thread; the order of accumulation depends on shapes and
the device only.

Note [Runs]: rounding errors grow with the number of additions to one sum, so what a run comes to
joins what the runs before it came to only at its end.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stagejit.codegen.cuda.rows.mapping import Mapping
from stagejit.codegen.cuda.rows.merging import Column, shared_panel
from stagejit.codegen.cuda.scans.scanning import Scanned, across_block, across_group
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.tree import (
    At,
    Cell,
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    When,
    Within,
    serial,
)
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.reducers import Accumulator, Panel, chosen, merge_all
from stagejit.codegen.rows.runs import MOST_ADDED
from stagejit.codegen.rows.scans import ROWS_AT_ONCE, ScanPolicy
from stagejit.index.affine import Var


class ThreadScan(ScanPolicy):
    """Items, and sums in runs. before: what all runs before this one came to."""

    emitter: ThreadEmitter

    def __init__(
        self, nest: Loops, mapping: Mapping, emitter: ThreadEmitter, memory: Sequence[Memory]
    ) -> None:
        super().__init__(nest, emitter, memory)
        self.mapping, self.grid = mapping, emitter.b
        self.before = Cell("before")

    @property
    def lanes(self) -> int:
        return self.mapping.lanes if self.mapping.lanes > 1 else 0

    def items(self, body: Node) -> Parallel:
        return self.mapping.items(self.kept, self.elements, body)

    def start(self, *cells: Cell) -> Node:
        return tuple(self.set("start", cell, self.nothing) for cell in cells)

    def end_run(self, running: Cell) -> Node:
        def joined() -> Accumulator:
            return self.merged(self.held(self.before), self.held(running))

        return (self.set("end the run", self.before, joined), self.start(running))


class LineScan(ThreadScan):
    """A thread goes along a line, or along neighbouring ones in its lanes."""

    def tree(self) -> Parallel:
        length = math.prod(var.extent for var in self.axis)
        self.runs = self.in_runs and length > MOST_ADDED
        cells = [self.carry, self.before] if self.runs else [self.carry]
        end_run, run = (self.end_run(self.carry), MOST_ADDED) if self.runs else ((), 0)
        along = self.along(self.axis, self._elements, end_run, run)
        return self.items((self.start(*cells), along))

    def _elements(self, count: int) -> Node:
        """The next ones: all are read, then added one by one."""
        inner = self.axis[-1] if self.axis else None
        read = [Cell("element") for _ in range(count)]

        def added(cell: Cell) -> Accumulator:
            running = self.merged(self.held(self.carry), self.held(cell))
            self.store(self.merged(self.held(self.before), running) if self.runs else running)
            return running

        def at(number: int, body: Node) -> Node:
            return At(((inner, number),) if inner else (), body)

        return (
            *(at(k, self.set("read", cell, self.operand)) for k, cell in enumerate(read)),
            *(
                at(k, self.set("add", self.carry, partial(added, cell)))
                for k, cell in enumerate(read)
            ),
        )


class ChunkScan(ThreadScan):
    """Members have elements of a chunk, then of the next one."""

    there: Register | None = None  # whether the element where the loops stand is one
    panel: Panel | None = None

    @property
    def chunk(self) -> int:
        """Elements along the axis."""
        return self.mapping.step

    @abstractmethod
    def scan(self, along: Var) -> Node:
        """One chunk."""

    def tree(self) -> Parallel:
        *outer, along = self.axis
        size, extent = self.chunk, along.extent
        chunks = math.prod(var.extent for var in outer) * -(-extent // size)
        self.runs = self.in_runs and chunks > MOST_ADDED
        scan = self.scan(along)
        tiles = [Chunk(size, scan, tail="padded")]
        if self.runs and extent >= MOST_ADDED * size:
            inside = Loop(along, (Chunk(size, scan),))
            tiles.insert(0, Chunk(MOST_ADDED * size, (inside, self.end_run(self.carry))))
        line: Node = Loop(along, tuple(tiles))
        if self.runs:
            line = (line, self.end_run(self.carry))
        cells = [self.carry, self.before] if self.runs else [self.carry]
        return self.items((self.start(*cells), serial(outer, line)))

    def first(self, before: Accumulator) -> Accumulator:
        """What comes before a member's elements; `before` does in its chunk."""
        first = self.merged(self.held(self.carry), before)
        return self.merged(self.held(self.before), first) if self.runs else first

    def chosen(self, own: Accumulator) -> Accumulator:
        """Nothing where there is no element."""
        if self.there is None:
            return own
        return chosen(self.b, self.there, own, self.reducer.initial(self.b, self.lanes))

    def stored(self, made: Callable[[], Accumulator]) -> Node:
        return When("it exists", self._exists, Do("store", lambda: self.store(made())))

    def _exists(self) -> Register | None:
        exists, there = self.emitter.exists, self.there
        if exists is None or there is None:
            return there if exists is None else exists
        return exists & there


class NeighbourScan(ChunkScan):
    """Members follow each other along a line; each may have some neighbours."""

    def tree(self) -> Parallel:
        warps = self.mapping.members // WARP
        if warps > 1:
            self.panel = shared_panel(self.grid, self.reducer, warps)
        return super().tree()

    def nothing(self) -> Accumulator:
        return self.reducer.initial(self.b, 0)  # what joins chunks is one value

    @contextmanager
    def standing(self, along: Var) -> Iterator[None]:
        """At this thread's elements of a chunk; one that has none reads the last ones."""
        mapping, b = self.mapping, self.b
        first = self.elements.position.env[along]
        if mapping.members > 1:
            first = first + self.emitter.member * mapping.lanes
        self.there: Register | None = None
        if along.extent % mapping.step:
            self.there = b.compare("lt", first, along.extent)
            first = b.binary("smin", first, along.extent - mapping.lanes)
        vector = along if self.lanes else None
        with self.elements.at({along: first}, vector=vector, lanes=self.lanes):
            yield

    def scan(self, along: Var) -> Node:
        found: list[Accumulator] = []

        def scanned() -> Accumulator:
            own = self._own()
            last = own
            if self.lanes:
                last = tuple(self.b.extract(part, self.lanes - 1) for part in own)
            across = self._across(last)
            found[:] = [self._after(self.first(across.before), own)]
            return self.merged(self.held(self.carry), across.total)

        steps = (self.set("scan", self.carry, scanned), self.stored(lambda: found[0]))
        return Within("neighbours", partial(self.standing, along), steps)

    def _own(self) -> Accumulator:
        """A thread's elements, each with those of the thread before it."""
        own = self.operand()
        if self.lanes:
            own = self.scanned(own)
        return self.chosen(own)

    def shifted_in(self) -> Register:
        (identity,) = self.reducer.initial(self.b, self.lanes)
        return identity

    def _across(self, own: Accumulator) -> Scanned:
        members = self.mapping.members
        if self.panel is not None:
            self.grid.barrier()  # all have read what the last chunk came to
            return across_block(self.grid, self.panel, own, members)
        if members == 1:
            return Scanned(self.nothing(), own)
        return across_group(self.grid, self.reducer, own, self.emitter.member, members)

    def _after(self, first: Accumulator, own: Accumulator) -> Accumulator:
        if self.lanes:
            first = tuple(self.b.splat(part, self.lanes) for part in first)
        return self.merged(first, own)


class ColumnScan(ChunkScan):
    """Lines next to each other: members of one are in different warps, and have some elements of a
    chunk one after the other."""

    @property
    def chunk(self) -> int:
        return self.mapping.members * ROWS_AT_ONCE

    def tree(self) -> Parallel:
        mapping = self.mapping
        self.panel = shared_panel(self.grid, self.reducer, mapping.threads * mapping.lanes)
        self._column = Column(self.grid, mapping.members, mapping.together, self.lanes)
        return super().tree()

    def scan(self, along: Var) -> Node:
        read = [Cell("element") for _ in range(ROWS_AT_ONCE)]
        running = Cell("running")

        def each(body: Callable[[Cell], Node]) -> Node:
            places = (partial(self._standing, along, k) for k in range(ROWS_AT_ONCE))
            return tuple(
                Within(f"element {k}", place, body(cell))
                for k, (place, cell) in enumerate(zip(places, read, strict=True))
            )

        def meet() -> Iterator[Accumulator]:
            before, total = self._across(
                merge_all(self.b, self.reducer, list(map(self.held, read)))
            )
            yield self.first(before)
            yield self.merged(self.held(self.carry), total)

        def store(cell: Cell) -> Node:
            add = self.set("add", running, lambda: self.merged(self.held(running), self.held(cell)))
            return add, self.stored(lambda: self.held(running))

        return (
            each(lambda cell: self.set("read", cell, lambda: self.chosen(self.operand()))),
            self.emitter.set("meet", [running, self.carry], meet),
            each(store),
        )

    @contextmanager
    def _standing(self, along: Var, number: int) -> Iterator[None]:
        first = self.elements.position.env[along]
        at = first + self.emitter.member * ROWS_AT_ONCE + number
        self.there = None
        if along.extent % self.chunk:
            self.there = self.b.compare("lt", at, along.extent)
            at = self.b.binary("smin", at, along.extent - 1)
        with self.elements.at({along: at}):
            yield

    def _across(self, own: Accumulator) -> tuple[Accumulator, Accumulator]:
        """What the members before this one come to, and all of them."""
        assert self.panel is not None
        self.grid.barrier()  # all have read what the last chunk came to
        self._column.save(self.panel, own)
        self.grid.barrier()
        before = self.nothing()
        total, *parts = self._column.parts(self.panel)
        for number, part in enumerate(parts, 1):
            here = self.b.compare("eq", self.emitter.member, number)
            before = chosen(self.b, here, total, before)
            total = self.merged(total, part)
        return before, total
