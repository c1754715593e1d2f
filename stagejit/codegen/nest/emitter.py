"""The one emitter: a tree of loops becomes loop-nest IR.

Input: a tree (`tree.py`), and the `Elements` whose position the loops move. Output: the code, by
the builder of `elements`; statements find the registers of their cells in `cells`. Invariant: each
element of a loop is covered once, in order, and a statement runs where the tree has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.register_tiles import Tile
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Choice
from stagejit.codegen.nest.groups import Part, Split
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
    When,
    Within,
    cells_set,
    trips,
)
from stagejit.errors import InternalError, OptionsError
from stagejit.index.affine import Var

Registers = tuple[Register, ...]


class Cells(dict[Cell, Registers]):
    """The registers of each cell that has some, oldest first."""

    def __missing__(self, cell: Cell) -> Registers:
        raise OptionsError(
            f"the cell {cell.name!r} is read where it has no registers",
            next_step="set it before the loops that change it: set_cell(what, cell, made)",
        )


class Emitter:
    """Emits trees. cells: the registers of each cell that has some, oldest first. spans: what the
    innermost loop over a variable handed down to those inside. groups: the number of the group of
    each split axis where the loops stand, of those that were handed down. choices: of the policies
    that wrote the trees, each once."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self.b = elements, elements.b
        self.cells = Cells()
        self.spans: dict[Var, Span] = {}
        self.groups: dict[Var, Register] = {}
        self.choices: dict[Choice, None] = {}
        self._evaluated: dict[tuple[tuple[Var, int], ...], dict[Any, Register]] = {}

    def chose(self, name: str, reason: str, *, packs: int | None = None) -> None:
        """For the user to read, see `Choice`."""
        self.choices[Choice(name, reason, packs)] = None

    def emit(self, node: Node) -> None:
        """The code of a tree."""
        match node:
            case tuple():
                for inner in node:
                    self.emit(inner)
            case Do():
                node.run()
            case Loop():
                self._cover(node.var, node.chunks, self.span(node.var))
            case Groups():
                self._groups(node)
            case Parallel():
                self._parallel(node)
            case At():
                self._at(node)
            case Within():
                with node.enter():
                    self.emit(node.body)
            case When():
                self._guarded(node.condition(), (node.body,), lambda: self.emit(node.body))

    # ---------------------------------------------------------------- where the loops stand

    def span(self, var: Var) -> Span:
        """What a loop over `var` covers here."""
        return self.spans.get(var) or Span.whole(self.b, var)

    def offset(self, var: Var) -> Register:
        """How far into what it covers the innermost loop over `var` stands."""
        return self.elements.position.env[var] - self.span(var).start

    def set(self, what: str, cells: Sequence[Cell], made: Callable[[], Iterable[Registers]]) -> Do:
        """A statement that gives cells new registers."""

        def run() -> None:
            self.cells.update(zip(cells, made(), strict=True))

        return Do(what, run, tuple(cells))

    def square(self, var: Var, count: int, body: Do, *, looped: bool = False) -> Within:
        """`body` for `count` rows along `var` of a square of registers, see `register_tiles`."""
        row, elements = Var(count, "row"), self.elements

        def opened() -> AbstractContextManager[None]:
            used = elements.used_lanes()
            assert used is not None
            before = self.b.block if looped else None
            return elements.at(tile=Tile(var, count, used, before=before))

        def step() -> None:
            at = elements.position.env[row]
            with elements.tile_step(at if at.const is None else int(at.const)):
                body.run()

        rows = Loop(row, (Chunk(1, Do(body.what, step), straight=not looped),))
        return Within("square", opened, rows)

    def set_cell(self, what: str, cell: Cell, made: Callable[[], Iterable[Register]]) -> Do:
        """The same for one cell."""
        return self.set(what, [cell], lambda: [tuple(made())])

    def interleaved(self, stride: int, body: Node) -> Within:
        """`body`, which wants all elements between lanes that stand `stride` apart."""
        return Within("interleaved", lambda: self.elements.interleaving(stride), body)

    def forget(self) -> None:
        """What was evaluated at fixed places is evaluated again."""
        self._evaluated = {}

    @contextmanager
    def covering(self, spans: Mapping[Var, Span]) -> Iterator[None]:
        """Inside, loops over the variables cover these elements."""
        before = self.spans
        self.spans = {**before, **spans}
        try:
            yield
        finally:
            self.spans = before

    def within(self, what: str, spans: Callable[[], Mapping[Var, Span]], body: Node) -> Within:
        """`body`, in which loops over variables cover what they are given there."""
        return Within(what, lambda: self.covering(spans()), body)

    @contextmanager
    def _inside(
        self, var: Var, chunk: Chunk, around: Span, position: Register, mask: Register | None = None
    ) -> Iterator[None]:
        """Where the elements of a chunk start. around: what chunks of its kind cover."""
        if chunk.vector:
            with self.elements.at({var: position}, vector=var, lanes=chunk.size, mask=mask):
                yield
            return
        span = Span(position, chunk.size)
        if chunk.tail == "shorter":
            span = around.block_of(var, chunk.size, position)
        with self.covering({var: span}), self.elements.at({var: position}):
            yield

    # ---------------------------------------------------------------- loops in chunks

    def _cover(self, var: Var, chunks: Sequence[Chunk], span: Span) -> None:
        """All of the span, by as many of the first chunks as it has, then by the next."""
        if not chunks:
            return
        first, size = chunks[0], chunks[0].size
        whole = first.tail in ("all masked", "padded", "shorter")  # nothing is left over
        masked = first.tail == "all masked"
        end = span.stop if whole else span.even(size)
        limit = span.limit(size) if masked else 0

        def inside(position: Register) -> AbstractContextManager[None]:
            mask = self.b.mask_below(position, limit, size) if masked else None
            return self._inside(var, first, span, position, mask)

        if first.straight and span.count is not None:
            for at in range(0, span.count if whole else span.count // size * size, size):
                with inside(span.start + at):
                    self.emit(first.body)
        elif whole or span.least >= size or span.count is None:
            runs = span.least >= (1 if whole else size)
            self._for(span.start, end, size, first.body, inside, runs=runs)
        left = 0 if whole else span.left(size)
        if left == 0:
            return
        rest = Span(end, left, span.stop if left is None else None)

        def leftover() -> None:
            if first.tail != "masked":
                self._cover(var, chunks[1:], rest)
                return
            start, stop = (end, span.stop) if left is None else (0, left)
            with self._inside(var, first, rest, end, self.b.mask_below(start, stop, size)):
                self.emit(first.body)

        more = [chunk.body for chunk in (chunks if first.tail == "masked" else chunks[1:])]
        some = self.b.compare("lt", end, span.stop) if span.count is None else None
        self._guarded(some, more, leftover)

    def _for(
        self,
        start: Register,
        stop: Register,
        step: int,
        body: Node,
        inside: Callable[[Register], AbstractContextManager[None]],
        *,
        runs: bool,
    ) -> None:
        """`body` inside a loop, which carries the cells that it sets."""
        carried, outside = self._carried((body,)), self.cells

        def iteration(position: Register, *values: Register) -> Sequence[Register]:
            self._carry(outside, carried, values)
            with inside(position):
                self.emit(body)
            return self._registers(carried)

        registers = self._registers(carried)
        last = self.b.loop(start, stop, step, registers, iteration, runs=runs)
        self._carry(outside, carried, last)

    def _guarded(
        self, condition: Register | None, bodies: Sequence[Node], then: Callable[[], None]
    ) -> None:
        """`then`, which emits the bodies, where a condition holds."""
        if condition is None:
            then()
            return
        carried, outside = self._carried(bodies), self.cells

        def arm() -> Sequence[Register]:
            self.cells = Cells(outside)  # what has no registers before has none afterwards
            then()
            return self._registers(carried)

        before = self._registers(carried)
        after = self.b.if_(condition, arm, lambda: before)
        self._carry(outside, carried, after)

    def _carried(self, bodies: Sequence[Node]) -> list[Cell]:
        """The cells that live across a loop around the bodies."""
        if not self.cells:
            return []
        changed = cells_set(tuple(bodies))
        return [cell for cell in self.cells if cell in changed]

    def _registers(self, cells: Sequence[Cell]) -> Registers:
        return tuple(register for cell in cells for register in self.cells[cell])

    def _carry(
        self, outside: dict[Cell, Registers], cells: Sequence[Cell], values: Sequence[Register]
    ) -> None:
        """The cells have the values, each as many as outside; all others what they had there."""
        rest = iter(values)
        carried = {cell: tuple(next(rest) for _ in outside[cell]) for cell in cells}
        self.cells = Cells(outside | carried)

    # ---------------------------------------------------------------- groups and items

    def _groups(self, node: Groups) -> None:
        b, split = self.b, node.split
        part = self.spans.get(split.var) or split.whole(b)
        if not isinstance(part, Part):
            raise InternalError(f"{split.var} is not in groups here", step="codegen")
        for run in node.runs:

            @contextmanager
            def inside(group: Register, run: Run = run) -> Iterator[None]:
                start, mask = split.start(b, group), None
                if run.ragged:
                    last = start + (run.size - 1) * split.unit
                    mask = b.mask_below(last, split.var.extent, split.unit)
                self.groups[split.var] = group - part.low
                with self.elements.at({split.var: start}, mask=mask):
                    yield

            low = b.binary("smax", part.low, run.first) if run.first else part.low
            high = b.binary("smin", part.high, run.last) if run.last < split.groups else part.high
            self._for(low, high, 1, run.body, inside, runs=False)

    def _parallel(self, node: Parallel) -> None:
        """The items that this call is given, one by one."""
        b, low, high, before = self.b, self.b.lo, self.b.hi, node.before or 0
        if node.before is not None:
            low = b.binary("smax", low, before)
        if not node.last:
            high = b.binary("smin", high, before + node.shares)

        @contextmanager
        def inside(number: Register) -> Iterator[None]:
            spans = self._handed(node, number - before)
            with (
                self.covering(spans),
                self.elements.at({var: span.start for var, span in spans.items()}),
            ):
                yield

        self._for(low, high, 1, node.body, inside, runs=node.before is None)

    def _handed(self, node: Parallel, number: Register) -> dict[Var, Span]:
        """What an item has of each of the loops; the outermost is the slowest."""
        spans: dict[Var, Span] = {}
        for at, loop in reversed(list(enumerate(node.loops))):
            b, count, which = self.b, trips(loop), number
            if count == 1:
                which = b.const(0)
            elif at:
                which, number = number % count, number // count
            which = b.cast("zext", which, "i64")
            if isinstance(loop, Split):
                spans[loop.var] = loop.part(b, which)
            else:
                var, size = loop
                spans[var] = Span.of_block(b, var, size, which * size)
        return spans

    def _at(self, node: At) -> None:
        env = self.elements.position.env
        places = {var: env.get(var, self.b.const(0)) + step for var, step in node.steps}
        mask = self.b.active(node.used, node.lanes) if node.used < node.lanes else None
        known = self._evaluated.setdefault(node.steps, {}) if node.again else None
        with self.elements.at(places, vector=node.vector, lanes=node.lanes, mask=mask, known=known):
            self.emit(node.body)
