"""Long rows by their digits, each row shared by several cores.

Input: rows, a target, how many chunks a row is cut into. Output: code that all items run, pass
after pass. Invariant: the sort is stable, and what it gives does not depend on who runs what.

Note [Passes]: the kernel is launched several times (`Kernel.passes`), so that what all chunks have
written is there. For each key, chunks make theirs and count the lowest digit; then, digit by digit,
each adds up what all have counted, so that it knows where the elements of each digit go that it
has, moves them, and counts the next digit in what came to lie in its place. A row is in one half of
the workspace before a digit is moved, in the other one afterwards, unless all its elements have the
same: which one it is then the first chunk tells all others. Digits of one key share their code,
which shifts a key by as many bits as the number of the launch says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from stagejit.base.machine import FORK_SECONDS, HOT_FORK_SECONDS
from stagejit.codegen.cpu.sorting.radix import Radix
from stagejit.codegen.ir.nodes import I32, I64, Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel, When, vectors
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_UNIT = 64  # elements of which a chunk has a multiple: whole lines, and vectors
_FEWEST_BINS = 16  # a line
# Operations that an element takes for each digit, of which half were moved by other cores, and a
# bin: its first line and its last one are written by two.
_MOVE, _BIN = 6, 100
_LATE = 0.02  # of an item's time, that all wait for the last one


class SharedRadix(Radix):
    """Sorts rows one by one, in chunks. workspaces: bytes of the buffers behind the arguments."""

    def __init__(self, rows: Rows, target: Target, chunks: int) -> None:
        self.block = -(-rows.extent // chunks // _UNIT) * _UNIT
        self.chunks = -(-rows.extent // self.block)
        super().__init__(rows, target)
        self.name = f"{self.name}, in {self.chunks} chunks"
        self.number = math.prod(var.extent for var in rows.shape.kept)
        self.moves = sum(len(self._places_of(number)) for number in range(len(self.keys)))
        self.passes = 2 * self.moves + (2 if rows.loses else 1)
        rounds = -(-self.number * self.chunks // target.cores) + _LATE
        forks = FORK_SECONDS + (self.passes - 1) * HOT_FORK_SECONDS
        latest = rounds * self._by_keys() + forks * target.clock
        self.operations = latest / -(-self.number // target.cores)
        self.workspaces: list[int] = []

    @staticmethod
    def ways(rows: Rows, target: Target) -> Iterator[SharedRadix]:
        """In one chunk for each core, or for half of them, and so on."""
        chunks = target.cores
        while chunks > 1:
            if rows.extent > chunks * _UNIT:
                yield SharedRadix(rows, target, chunks)
            chunks //= 2

    @property
    def work(self) -> float:
        return self.chunks * self._by_keys()

    def _by_key(self, bits: int, width: int) -> float:
        bin_ = self.chunks / self.target.lanes("i32") + _BIN
        return math.ceil(bits / width) * (_MOVE * self.block + bin_ * (1 << width))

    # ---------------------------------------------------------------- memory

    def items(self, cores: int) -> Parallel:
        b, shape = self.b, self.rows.shape
        self.bins = max(1 << max(self.digits), _FEWEST_BINS)
        self.both = Cell("both halves")
        self.own = Cell("number of the chunk")
        self.shift = Cell("bits below the digit")
        self._declare(2 * self.number * self.extent, self._workspace)
        self.counts = self._workspace("counts", I32, self.number * self.chunks * self.bins)
        self.halves = self._workspace("halves", I64, self.number * (self.moves + 1))
        if self.rows.loses:
            self.losing = self._workspace("lost", I64, self.number * self.chunks)
        self.starts = b.scratch("starts", I32, self.bins)
        self.totals = b.scratch("totals", I32, self.bins)
        self.launch = b.param()
        loops = (*((var, 1) for var in shape.kept), (shape.along, self.block))
        return Parallel(loops, self._row())

    def _workspace(self, name: str, type: Type, size: int) -> Buffer:
        self.workspaces.append(size * type.bits // 8)
        return self.b.buffer(name, type)

    def _place_of_row(self) -> Register:
        """The number of the row."""
        env, number = self.rows.elements.position.env, self.b.const(0)
        for var in self.rows.shape.kept:
            number = number * var.extent + env[var]
        return number

    @property
    def _row_number(self) -> Register:
        return self.cell(self.own)[0]

    @property
    def _chunk(self) -> Register:
        return self.cell(self.own)[1]

    @property
    def _other(self) -> Register:
        return self.cell(self.both)[0] - self._from

    def _table(self, number: int, place: int) -> Register:
        return (self._row_number * self.chunks + self._chunk) * self.bins

    def _digit(self, number: int, place: int, key: Register) -> Register:
        """That of the launch, which stands for all places."""
        b, (shift,) = self.b, self.cell(self.shift)
        low = key >> b.cast("trunc", shift, key.type.elem)
        return b.cast("zext", low & ((1 << self.digits[number]) - 1), "i64")

    def _next(self, number: int, place: int, key: Register) -> Register:
        return self._digit(number, place, key)

    # ---------------------------------------------------------------- passes

    def _row(self) -> Node:
        along, b = self.rows.shape.along, self.b

        def where() -> Sequence[Register]:
            start = self.rows.emitter.span(along).start
            return [self._place_of_row(), start // self.block]

        def both() -> Sequence[Register]:
            return [self._row_number * (4 * self.extent) + self.extent]

        def first() -> Sequence[Register]:
            return [self._row_number * (2 * self.extent)]

        def told() -> Sequence[Register]:
            return [b.load(self.halves, self._told_at)]

        return (
            self.set("row and chunk", self.own, where),
            self.set("both halves", self.both, both),
            self.set("where the row is at first", self.half, first),
            When("a digit was moved", lambda: b.compare("ge", self.launch, 2),
                 self.set("where the row is", self.half, told)),
            *self._each_pass(),
        )  # fmt: skip

    @property
    def _moved(self) -> Register:
        """How many digits were moved before this launch."""
        return self.launch >> 1

    @property
    def _told_at(self) -> Register:
        """Where it is told where the row is now."""
        return self._row_number * (self.moves + 1) + self._moved

    def _each_pass(self) -> Iterator[Node]:
        b, moved = self.b, 0
        for number in reversed(range(len(self.keys))):
            until = moved + len(self._places_of(number))
            yield When(f"key {number}", self._is_between(moved, until), self._key(number, moved))
            moved = until
        last = 2 * moved
        yield When("results", lambda: b.compare("eq", self.launch, last), self._shared_results())
        if self.rows.loses:
            lost = self._specials(self._is_lost)
            yield When("specials", lambda: b.compare("gt", self.launch, last), lost)

    def _is_between(self, moved: int, until: int) -> Callable[[], Register]:
        """Whether as many digits were moved."""
        b = self.b
        return lambda: b.compare("ge", self._moved, moved) & b.compare("lt", self._moved, until)

    def _key(self, number: int, moved: int) -> Node:
        """All launches of a key. moved: how many digits of others were."""
        b, start = self.b, self._start(number, first=number == len(self.keys) - 1)
        count = self._count(number, range(1))
        if self.rows.loses:
            start = (start, Do("tell what is lost", self._tell_lost))

        def shift() -> Sequence[Register]:
            return [(self._moved - moved) * self.digits[number]]

        return (
            self.set("bits below the digit", self.shift, shift),
            When("keys", lambda: b.compare("eq", self.launch, 2 * moved), start),
            When("count", lambda: b.compare("eq", self.launch & 1, 0), count),
            When("move", lambda: b.compare("ne", self.launch & 1, 0), self._pass(number, 0)),
        )

    def _pass(self, number: int, place: int) -> Node:
        b, words = self.b, self.words[self.keys[number].bits]
        several = Cell("several digits")

        def digits() -> Sequence[Register]:
            digit = self._digit(number, place, b.load(words, self._from))
            return [b.compare("ne", b.load(self.totals, digit), self.extent)]

        def tell() -> None:
            half = b.select(self.cell(several)[0], self._other, self._from)
            at = self._told_at + 1
            b.if_(b.compare("eq", self._chunk, 0), lambda: b.store(half, self.halves, at))

        return (
            self._add_up(number),
            self.set("several digits", several, digits),
            Do("tell where the row will be", tell),
            When(
                "several digits",
                lambda: self.cell(several)[0],
                (self._sum_up(number, place), *self._move(number, place)),
            ),
        )

    def _add_up(self, number: int) -> Node:
        """How often each digit is there in all chunks, and in those before."""
        b, bins = self.b, Var(1 << self.digits[number], "bin")
        lanes = min(self.target.lanes("i32"), bins.extent)

        def add() -> None:
            at = self.rows.elements.position.env[bins]
            row = self._row_number * self.chunks

            def more(chunk: Register, sum_: Register) -> Sequence[Register]:
                return [sum_ + b.load(self.counts, (row + chunk) * self.bins + at, lanes)]

            none = b.const(0, I32.with_lanes(lanes))
            (before,) = b.loop(0, self._chunk, 1, (none,), more)
            (total,) = b.loop(self._chunk, self.chunks, 1, (before,), more, runs=True)
            b.store(before, self.starts, at)
            b.store(total, self.totals, at)

        return vectors(bins, lanes, Do("add up counts of all chunks", add))

    def _sum_up(self, number: int, place: int) -> Node:
        return self._summed(Var(1 << self.digits[number], "bin"))

    def _started(self, at: Register, before: Register) -> Register:
        b = self.b
        b.store(b.load(self.starts, at) + before, self.starts, at)
        return b.load(self.totals, at)

    # ---------------------------------------------------------------- results

    def _shared_results(self) -> Node:
        """A chunk writes as many as another one, but for the last; if there are any for it."""
        into, b = self.rows.shape.into, self.b
        size = -(-self.count // self.chunks // _UNIT) * _UNIT
        chunks = -(-self.count // size)

        def own() -> dict[Var, Span]:
            return {into: Span.of_block(b, into, size, self._chunk * size)}

        written = self.rows.emitter.within("a chunk of the results", own, self._results())
        return When("some", lambda: b.compare("lt", self._chunk, chunks), written)

    # ---------------------------------------------------------------- what is lost

    def _tell_lost(self) -> None:
        b, (lost,) = self.b, self.cell(self.lost)
        found = b.cast("zext", b.reduce("or", lost), "i64")
        b.store(found, self.losing, self._row_number * self.chunks + self._chunk)

    def _is_lost(self) -> Register:
        """In any chunk, told to the first one."""
        b, first = self.b, self._row_number * self.chunks

        def more(chunk: Register, found: Register) -> Sequence[Register]:
            return [found | b.load(self.losing, first + chunk)]

        (found,) = b.loop(0, self.chunks, 1, (b.const(0),), more, runs=True)
        return b.compare("ne", found, 0) & b.compare("eq", self._chunk, 0)
