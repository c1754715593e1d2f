"""split-scan: running sums along few long lines become those of parts, so that workers share them.

Input: `cumulative`s of few, long lines. Output: what each part comes to, the running values of
those, then the running values inside of each part, from what came before it. Invariant: how long a
part is depends on the op and the machine's caches, never on how many threads run; 16-bit floats
round once.

Note [Two passes]: (Blelloch, "Prefix sums and their applications", 1990). Each element is read
twice, so it pays where the line would be one core's work for longer than memory takes to bring all
of it once more. What does not fill a part is a line by itself, the one that comes last; parts that
leave nothing over are preferred, for then the result is a view of theirs.

Note [Turns]: a block of threads of a GPU goes along a line in turns, in each of which it waits for
what it has asked for, and asks for too little to keep memory busy by itself. So it pays there far
earlier, and parts begin at whole accesses, of which threads then have several elements.
"""

from __future__ import annotations

import math

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.graph.functions import neutral
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import GraphStep, Log
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.split.pieces import joined_along, put_along, taken_along
from stagejit.types import TensorType

NAME = "split-scan"
_PART_NBYTES = 128 << 10  # of a line's part: some microseconds
_WORTH = 0.85  # of the time in one piece: what is less is lost in noise
_LOG_SUM = 30  # steps of a sum of exponentials for one of a sum
_ACCESS_NBYTES = 16  # the widest access of a thread
_TURNS = 4  # that are on their way for a multiprocessor at once


def split_scans(log: Log) -> None:
    """cumulative %x  -->  cumulative of parts of %x, from the cumulative of their totals"""
    for op in log.graph.ops():
        if op.definition.is_cumulative and op in log.graph:
            _visit(log, op)


STEP = GraphStep(NAME, split_scans)


def _visit(log: Log, op: Op) -> None:
    if not op.result.type.has_numbers or not op.result.type.size:
        return
    line = _Line.of(op, log.machine)
    if line.parts < 2:
        return
    whole, apart = line.seconds(log.machine), line.seconds_apart(log.machine)
    times = f"{1e6 * whole:.3g} us in one piece, {1e6 * apart:.3g} in {line.parts} parts"
    if apart > _WORTH * whole:
        if line.pieces < log.machine.cores:
            log.decline(NAME, op, times)
        return
    first_new = log.graph.next_id
    value = _Split(log.graph, op, line).value()
    log.located(first_new, op)
    log.replace(NAME, op, value, times)


# ------------------------------------------------------------------- the model


@record
class _Line:
    """extents: before the axis, along it, behind it. tile: elements of a part along the axis.
    pieces: what workers can share as it is. steps: instructions for each vector of elements."""

    extents: tuple[int, int, int]
    tile: int
    pieces: int
    steps: int
    itemsize: int

    @staticmethod
    def of(op: Op, machine: Machine) -> _Line:
        shape, axis, dtype = op.result.shape, op.attrs["axis"], op.result.type.dtype
        before, extent, behind = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        lanes = max(machine.vector_nbytes // dtype.accumulator.itemsize, 1)
        across = behind > 1
        each = _LOG_SUM if op.attrs["fn"] == "logaddexp" else 1
        # See Note [Turns].
        unit = 1 if across or not machine.turn_nbytes else _ACCESS_NBYTES // dtype.itemsize
        return _Line(
            (before, extent, behind),
            _tile(extent, max(_PART_NBYTES // (behind * dtype.itemsize), 1), unit),
            # Workers that take less of a row than a line of the caches each read all of it.
            before * -(-behind * dtype.itemsize // machine.line_nbytes) if across else before,
            each * (4 if across else 6 + 3 * (lanes.bit_length() - 1)),
            dtype.itemsize,
        )

    @property
    def parts(self) -> int:
        return self.extents[1] // self.tile

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * self.itemsize

    def _scan(self, machine: Machine, share: float, bandwidth: float) -> float:
        """Seconds for the busiest worker, which has this share of all."""
        vectors = self.nbytes / machine.vector_nbytes
        arithmetic = vectors * self.steps * machine.vector_nbytes / 2 / machine.peak_flops
        return max(arithmetic * share, self._streamed(2, bandwidth, machine))

    def _streamed(self, times: int, bandwidth: float, machine: Machine) -> float:
        nbytes = times * self.nbytes
        return nbytes / bandwidth if nbytes > machine.l3s_nbytes else 0.0

    def seconds(self, machine: Machine) -> float:
        """As it is."""
        workers = min(self.pieces, machine.cores)
        share = -(-self.pieces // machine.cores) / self.pieces
        bandwidth = min(workers * machine.core_bandwidth, machine.bandwidth)
        return max(self._scan(machine, share, bandwidth), self._waits(self.pieces, machine))

    def seconds_apart(self, machine: Machine) -> float:
        """In parts: once more through memory, and one fork for each pass."""
        pieces = self.pieces * self.parts
        share = -(-pieces // machine.cores) / pieces
        waits = self._waits(pieces, machine)
        first = max(self._streamed(1, machine.bandwidth, machine), waits)
        second = max(self._scan(machine, share, machine.bandwidth), waits)
        return first + second + 2 * machine.start_seconds

    def _waits(self, pieces: int, machine: Machine) -> float:
        """Seconds of all turns of so many pieces, as many at once as there is room for."""
        if not machine.turn_nbytes:
            return 0.0
        each = self.nbytes / pieces
        asked = pieces * min(each, machine.turn_nbytes)
        rounds = math.ceil(asked / (machine.cores * _TURNS * machine.turn_nbytes))
        return rounds * math.ceil(each / machine.turn_nbytes) * machine.turn_seconds


def _tile(extent: int, wanted: int, unit: int = 1) -> int:
    """About as long as `wanted`, a multiple of `unit`; without a rest, if half of it to twice of it
    can be."""
    near = range(min(2 * wanted, extent // 2), max(wanted // 2, 1) - 1, -1)
    even = [tile for tile in near if extent % tile == 0 and tile % unit == 0]
    wanted = max(wanted // unit * unit, 1)
    return min(even, key=lambda tile: abs(tile - wanted), default=min(wanted, extent))


# ------------------------------------------------------------------- building


class _Split:
    """The graph of one scan in parts. In reverse, what is left over comes first."""

    def __init__(self, graph: Graph, op: Op, line: _Line) -> None:
        self.graph, self.op, self.tile, self.parts = graph, op, line.tile, line.parts
        self.fn, self.axis, self.reverse = op.attrs["fn"], op.attrs["axis"], op.attrs["reverse"]
        self.dtype = op.result.type.dtype
        self.x = converted(graph, op.operands[0], self.dtype.accumulator)
        self.rest = self.x.shape[self.axis] - self.parts * self.tile

    def value(self) -> Value:
        shape, axis = self.x.shape, self.axis
        main = self._slice(self.x, self.rest if self.reverse else 0, self.parts * self.tile)
        apart = (*shape[:axis], self.parts, self.tile, *shape[axis + 1 :])
        parts = build(self.graph, "reshape", (main,), shape=apart)
        before = self._before(parts)
        inside = self._running(parts, axis + 1)
        start = self._slice(before, 1 if self.reverse else 0, self.parts)
        made = self._combined(start, inside, axis + 1)
        made = build(self.graph, "reshape", (made,), shape=main.shape)
        return self._with_rest(made, before) if self.rest else made

    def _before(self, parts: Value) -> Value:
        """What comes before each part, and at last before what follows all of them."""
        totals = self._totals(parts)
        shape = list(totals.shape)
        shape[self.axis] += 1
        nothing = neutral(self.fn, totals.type.dtype)
        around = filled(self.graph, nothing, TensorType(totals.type.dtype, tuple(shape)))
        start = 0 if self.reverse else 1
        put = put_along(self.graph, totals, around, self.axis, start)
        return self._running(put, self.axis)

    def _totals(self, parts: Value) -> Value:
        axis = self.axis + 1
        if self.fn != "logaddexp":
            return build(self.graph, "reduce", (parts,), fn=self.fn, axes=(axis,))
        largest = build(self.graph, "reduce", (parts,), fn="max", axes=(axis,))
        zero, infinity = (filled(self.graph, x, largest.type) for x in (0.0, math.inf))
        finite = self._map("lt", self._map("abs", largest), infinity)
        shift = self._map("select", finite, largest, zero)
        scaled = self._map("exp", self._map("sub", parts, self._along(shift, parts, axis)))
        total = build(self.graph, "reduce", (scaled,), fn="add", axes=(axis,))
        return self._map("add", shift, self._map("log", total))

    def _with_rest(self, made: Value, before: Value) -> Value:
        last = self._slice(before, 0 if self.reverse else self.parts, 1)
        where = 0 if self.reverse else self.parts * self.tile
        rest = self._running(self._slice(self.x, where, self.rest), self.axis)
        squeezed = (*last.shape[: self.axis], *last.shape[self.axis + 1 :])
        start = build(self.graph, "reshape", (last,), shape=squeezed)
        rest = self._combined(start, rest, self.axis)
        first, second = (rest, made) if self.reverse else (made, rest)
        return joined_along(self.graph, first, second, self.axis)

    def _combined(self, start: Value, inside: Value, axis: int) -> Value:
        """start, which has no such axis, before all that lies along it."""
        wide = self._along(start, inside, axis)
        if self.fn == "logaddexp":
            total = self._log_add_exp(wide, inside)
        else:
            total = self._map(self.fn, wide, inside)
        return converted(self.graph, total, self.dtype)

    def _log_add_exp(self, x: Value, y: Value) -> Value:
        """As JAX writes it: max + log1p(exp(-|x - y|)), infinities apart."""
        delta = self._map("sub", x, y)
        decay = self._map("exp", self._map("neg", self._map("abs", delta)))
        total = self._map("add", self._map("max", x, y), self._map("log1p", decay))
        undefined = self._map("ne", delta, delta)
        return self._map("select", undefined, self._map("add", x, y), total)

    def _map(self, fn: str, *operands: Value) -> Value:
        return mapped(self.graph, fn, *operands)

    def _along(self, x: Value, like: Value, axis: int) -> Value:
        """x, which has no such axis, repeated along it."""
        axes = tuple(at for at in range(like.type.rank) if at != axis)
        return build(self.graph, "broadcast", (x,), shape=like.shape, axes=axes)

    def _running(self, x: Value, axis: int) -> Value:
        return build(self.graph, "cumulative", (x,), fn=self.fn, axis=axis, reverse=self.reverse)

    def _slice(self, x: Value, start: int, size: int) -> Value:
        return taken_along(self.graph, x, self.axis, start, size)
