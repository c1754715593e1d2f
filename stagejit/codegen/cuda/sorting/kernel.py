"""Kernels of `sort` regions for a GPU: tiles of rows are sorted in shared memory, and merged.

Input: a region whose anchor is a `sort`. Output: its kernel. Invariant: stable; each result is
written once.

Note [Passes]: where a row has several tiles, the kernel is launched several times. The first pass
sorts tiles, each of the others merges pairs of runs, from one half of the workspace to the other,
and the last one writes results instead. A block makes one tile of what a pair becomes, so all
passes have as many shares. Of each run only those elements are kept that the results may have.

Note [From share to share]: a thread puts the records of a share where it was the one that wrote
results, or a run, of the share before. So it waits for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.coalescing import sectors
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.sorting.merges import Run, Tile, splits_by_warp
from stagejit.codegen.cuda.sorting.records import Record, Records
from stagejit.codegen.cuda.sorting.tiling import Task, Tiling, best_tiling
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import I32, Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.tree import Do, Node, Parallel, When
from stagejit.codegen.sorting.rows import Rows, Shape
from stagejit.index.affine import Affine, Var


def sort_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region of kind `sort`."""
    rows = Rows(region)
    records = Records(rows)
    number = math.prod(var.extent for var in rows.shape.kept)
    task = Task(
        rows.extent, rows.count, number, records.nbytes, len(records.words), _is_across(rows)
    )
    ranked = best_tiling(task, device)
    tiling = ranked.best

    def tree(shape: Shape, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        rows.bind(emitter, memory)
        return _Sort(rows, records, task, tiling, emitter).tree()

    seconds = region_seconds(region, device)
    kernel = grid_kernel(
        region, device, [rows.shape], tree, seconds, threads=tiling.threads, resident=1,
        choices=[ranked.choice],
    )  # fmt: skip
    if tiling.tiles == 1:
        return kernel
    passes = tuple((number,) for number in range(tiling.merges + 1))
    nbytes = 2 * number * rows.extent * records.nbytes
    return replace(kernel, passes=passes, workspaces=(nbytes,))


def _is_across(rows: Rows) -> bool:
    """Whether neighbours in memory are of neighbouring rows, in most reads and writes."""
    shape = rows.shape
    if not shape.kept:
        return False
    last = shape.kept[-1]

    def cost(var: Var, forms: Sequence[Affine]) -> float:
        return sum(sectors(form, var, 4) for form in forms)

    reads = [form for _, form in shape.reads]
    along = cost(shape.along, reads) + cost(shape.into, shape.offsets)
    return cost(last, [*reads, *shape.offsets]) < along


class _Sort:
    """The tiles of one sort, and what becomes of them."""

    def __init__(
        self, rows: Rows, records: Records, task: Task, tiling: Tiling, emitter: ThreadEmitter
    ) -> None:
        self.rows, self.records, self.task, self.tiling = rows, records, task, tiling
        self.emitter, self.b = emitter, emitter.b
        self.group = Var(-(-task.number // tiling.rows), "r")
        self.tile_var = Var(tiling.tiles, "tile")
        self.tile = Tile(emitter.b, records, tiling.each)

    def tree(self) -> Parallel:
        loops = [(self.group, 1)]
        sort: tuple[Node, ...] = (
            Do("read records", self._read), Do("sort a tile", self._sort_tile),
        )  # fmt: skip
        if self.tiling.tiles == 1:
            return Parallel(tuple(loops), (*sort, Do("write results", self._write_rows)))
        loops.append((self.tile_var, 1))
        b, merges = self.b, self.tiling.merges
        self.workspace: Buffer = b.buffer("workspace", self.records.type)
        self.splits = b.shared("splits", I32, 2)
        number = b.param()
        self.pass_ = number
        first = When("first pass", lambda: b.compare("eq", number, 0),
                     (*sort, Do("write a run", self._write_run)))  # fmt: skip
        later = When("later pass", lambda: b.compare("gt", number, 0),
                     Do(f"merge pairs of runs, {merges} times", self._merge))  # fmt: skip
        return Parallel(tuple(loops), (first, later))

    # ---------------------------------------------------------------- where one is

    def _here(self, var: Var) -> Register:
        return self.rows.elements.position.env[var]

    @property
    def _thread(self) -> Register:
        return self.b.cast("trunc", self.b.thread_of_block(), "i32")

    @property
    def _first(self) -> Register:
        """The first of the places in the tile that this thread has."""
        return self._thread * self.tiling.each

    @contextmanager
    def _at_row(self, number: Register) -> Iterator[None]:
        """Where the loops over rows stand at the row with that number."""
        env: dict[Var, Register] = {}
        narrow = self.task.number < 1 << 31
        number = self.b.cast("trunc", number, "i32") if narrow else number
        for at, var in reversed(list(enumerate(self.rows.shape.kept))):
            own = number % var.extent if at else number
            env[var] = self.b.cast("zext", own, "i64")
            number = number // var.extent
        with self.rows.elements.at(env):
            yield

    def _each(self, one: Callable[[Register, Register, Register], None]) -> None:
        """All places of the tile, neighbours by neighbouring threads: where in the tile, which row
        of the block, and where in that. All are i32."""
        b, tiling = self.b, self.tiling

        def body(at: Register) -> None:
            place = b.cast("trunc", at, "i32")
            if tiling.rows == 1:
                one(place, b.const(0, I32), place)
            elif self.task.across:
                row, along = place % tiling.rows, place // tiling.rows
                one(row * tiling.row_size + along, row, along)
            else:
                one(place, place // tiling.row_size, place % tiling.row_size)

        b.loop(b.thread_of_block(), tiling.size, tiling.threads, (), body)

    def _row(self, row: Register) -> Register:
        """The number of a row of the block among all rows."""
        return self._here(self.group) * self.tiling.rows + self.b.cast("zext", row, "i64")

    def _before_tile(self) -> Register | int:
        """Places of the row before the tile."""
        return self._here(self.tile_var) * self.tiling.size if self.tiling.tiles > 1 else 0

    # ---------------------------------------------------------------- tiles

    def _read(self) -> None:
        """Records of all elements into the tile, and such that come after them."""
        b, task, tiling = self.b, self.task, self.tiling
        even = task.extent % tiling.row_size == 0
        whole = task.number % tiling.rows == 0

        def one(place: Register, row: Register, along: Register) -> None:
            number = self._row(row)
            at = b.cast("zext", along, "i64") + self._before_tile()
            if not whole:
                number = b.binary("smin", number, task.number - 1)

            def read() -> Record:
                with self._at_row(number):
                    return self.records.read(at)

            exists = b.const(1, I32.with_elem("i1")) if even else b.compare("lt", at, task.extent)
            self.tile.put(b.if_(exists, read, self.records.last), place)

        self._each(one)
        self._meet()

    def _sort_tile(self) -> None:
        b, tile, tiling = self.b, self.tile, self.tiling
        own = tile.sorted(tile.own(self._first))
        flat = [word for record in own for word in record]
        rounds = tiling.members.bit_length() - 1

        def merge(level: Register, *flat: Register) -> Sequence[Register]:
            level = b.cast("trunc", level, "i32")
            tile.share(self._records(flat), self._first)
            runs = b.const(1, I32) << level  # threads of a run
            pair = self._thread & (0 - (runs << 1))  # the first thread of both
            length = runs * tiling.each
            start = pair * tiling.each
            first, second = Run(start, length), Run(start + length, length)
            steps = b.cast("zext", level, "i64") + tiling.each.bit_length()
            made = tile.merged(first, second, self._first - start, steps)
            return [word for record in made for word in record]

        flat = list(b.loop(0, rounds, 1, flat, merge))
        tile.put_back(self._records(flat), self._first)
        self._meet()

    def _meet(self) -> None:
        """What was put by the order of places is wanted by that of threads, or the other way; they
        are the same where each thread has one record."""
        if self.tiling.each > 1 or self.task.across:
            self.b.barrier()

    def _records(self, flat: Sequence[Register]) -> list[Record]:
        count = len(self.records.words)
        return [tuple(flat[at : at + count]) for at in range(0, len(flat), count)]

    def _write_rows(self) -> None:
        """Results of whole rows."""
        b, task, tiling = self.b, self.task, self.tiling

        def one(place: Register, row: Register, along: Register) -> None:
            number = self._row(row)
            exists = b.compare("lt", along, task.count)
            if task.number % tiling.rows:
                exists = exists & b.compare("lt", number, task.number)
            b.if_(exists, lambda: self._result(number, self.tile.at(place), along))

        self._each(one)

    def _result(self, number: Register, record: Record, along: Register) -> None:
        """The results of a record, at a place of the row with that number."""
        at = self.b.cast("zext", along, "i64")
        with self._at_row(number):
            for result, which in enumerate(self.rows.results):
                self.rows.write(result, self.records.result(which, record), at)

    # ---------------------------------------------------------------- runs

    def _write_run(self) -> None:
        """What may be wanted of a sorted tile, to the first half of the workspace."""
        b, task, size = self.b, self.task, self.tiling.size
        before = self._before_tile()

        def one(place: Register, row: Register, along: Register) -> None:
            at = b.cast("zext", along, "i64") + before
            exists = b.compare("lt", at, task.extent)
            if task.count < size:
                exists = exists & b.compare("lt", along, task.count)
            b.if_(exists, lambda: self._keep(self.tile.at(place), b.const(0), at))

        self._each(one)

    def _place(self, half: Register, word: int, at: Register) -> Register:
        """Where in the workspace a number of a record of this row is."""
        number, count = self._here(self.group), len(self.records.words)
        return ((half * count + word) * self.task.number + number) * self.task.extent + at

    def _keep(self, record: Record, half: Register, at: Register) -> None:
        for word, register in enumerate(record):
            self.b.store(register, self.workspace, self._place(half, word, at))

    def _kept(self, half: Register, at: Register) -> Record:
        words = range(len(self.records.words))
        return tuple(self.b.load(self.workspace, self._place(half, w, at)) for w in words)

    def _merge(self) -> None:
        """One tile of what two runs become."""
        b, task, size = self.b, self.task, self.tiling.size
        tile = b.cast("trunc", self._here(self.tile_var), "i32")
        level = b.cast("trunc", self.pass_, "i32") - 1
        half = self.pass_ - 1 & 1
        tiles = b.const(1, I32) << level  # of a run
        pair = tile & (0 - (tiles << 1))  # the first tile of both
        start, other = pair * size, (pair + tiles) * size
        longest = b.binary("smin", tiles * size, task.count)
        runs = [
            Run(begin, b.binary("smax", b.binary("smin", longest, task.extent - begin), 0))
            for begin in (start, other)
        ]
        total = b.binary("smin", runs[0].length + runs[1].length, task.count)
        low = (tile - pair) * size
        high = b.binary("umin", low + size, total)  # the sum may be 2^31, or more
        b.if_(
            b.compare("lt", low, high),
            lambda: self._merge_part(runs, low, high, half),
        )

    def _merge_part(
        self, both: Sequence[Run], low: Register, high: Register, half: Register
    ) -> None:
        """The records from `low` to the one before `high` of what two runs become."""
        b, tile, task, (first, second) = self.b, self.tile, self.task, both
        wide = tile.wide

        def reads(run: Run) -> Callable[[Register], Record]:
            return lambda place: self._kept(half, wide(run.start + place))

        def search() -> None:
            begins = splits_by_warp(
                b, self.records, reads(first), reads(second), (first.length, second.length),
                (low, high), min(task.count, task.extent),
            )  # fmt: skip
            for number, begin in enumerate(begins):
                b.store(begin, self.splits, number, mask=b.compare("eq", b.lane(), 0))

        b.if_(b.compare("eq", b.warp(), 0), search)
        b.barrier()
        begin, end = b.load(self.splits, 0), b.load(self.splits, 1)
        count = end - begin  # of the first run; the rest is of the second one
        total = high - low

        def stage(at: Register) -> None:
            place = b.cast("trunc", at, "i32")
            of_first = b.compare("lt", place, count)
            in_first = first.start + begin + place
            in_second = second.start + (low - begin) + (place - count)
            tile.put(self._kept(half, wide(b.select(of_first, in_first, in_second))), place)

        b.loop(b.thread_of_block(), wide(total), self.tiling.threads, (), stage)
        b.barrier()
        runs = Run(b.const(0, I32), count), Run(count, total - count)
        diagonal = b.binary("smin", self._first, total)
        steps = b.const(self.tiling.size.bit_length())
        tile.share(tile.merged(*runs, diagonal, steps), self._first)
        is_last = b.compare("eq", self.pass_, self.tiling.merges)

        def write(at: Register) -> None:
            place = b.cast("trunc", at, "i32")
            record, along = tile.at(place), first.start + low + place
            b.if_(
                is_last,
                lambda: self._result(self._here(self.group), record, along),
                lambda: self._keep(record, 1 - half, wide(along)),
            )

        b.loop(b.thread_of_block(), wide(total), self.tiling.threads, (), write)
