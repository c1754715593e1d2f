"""Register transposes: a square of vectors by log2(n) rounds of two-input shuffles.

Input: n rows of n lanes (n a power of two; missing rows are undefined). Output: the n columns.

Note [Rounds of a transpose]: every round is a shuffle that processors have as one instruction:
parts of 128 bits change places between two vectors first, then elements within parts interleave
(AVX-512: `vshuf*x2`, then `vunpck*`). Blocks that change places in any order would do, too, but
each other pattern costs a vector of indices, and LLVM a search: a kernel of two squares of 16 took
it 31 ms instead of 16. It looks for fewer shuffles in whatever leads to one; told to end that
between the two kinds of rounds, it takes 26 ms for the same machine code of eight squares, not 46.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value

_PART_BITS = 128


def transpose_registers(
    b: Builder, rows: Sequence[Value], lanes: int, wanted: int | None = None
) -> list[Value]:
    """Vector k of the result holds lane k of every row; rows beyond `len(rows)` read as zero.
    wanted: so many vectors, the first ones; by default all."""
    zero = b.const(0, rows[0].type)
    current = dict(enumerate([*rows, *([zero] * (lanes - len(rows)))]))
    part = _part(rows[0], lanes)
    rounds = list(_rounds(lanes, part))
    found = [_register_of(column, part) for column in range(lanes if wanted is None else wanted)]
    needed = [frozenset(found)]
    for distance, *_ in reversed(rounds):
        both = ((register & ~distance, register | distance) for register in needed[0])
        needed.insert(0, frozenset(itertools.chain.from_iterable(both)))
    for (distance, low, high), registers in zip(rounds, needed[1:], strict=True):
        ends = part <= distance == lanes // 2  # now all parts are where they stay
        firsts = (row for row in range(lanes) if not row & distance)
        current = {
            register: b.shuffle(current[row], current[row | distance], picked, ends=ends)
            for row in firsts
            for register, picked in ((row, low), (row | distance, high))
            if register in registers
        }
    return [current[register] for register in found]


def lane_sums(b: Builder, rows: Sequence[Value]) -> Value:
    """A vector of the sums of the lanes of every row; of one row, a scalar. There are a power of
    two of rows, as many as lanes at most: halves of longer rows meet first, then each round of a
    transpose adds the two vectors that it makes of two."""
    add = "fadd" if rows[0].type.is_float else "add"
    if len(rows) == 1:
        return b.reduce(add, rows[0])
    left, lanes = dict(enumerate(rows)), rows[0].type.lanes
    while lanes > len(rows):
        lanes //= 2
        for number, row in left.items():
            halves = (b.shuffle(row, None, range(at, at + lanes)) for at in (0, lanes))
            left[number] = b.binary(add, *halves)
    for distance, *picked in _rounds(lanes, _part(rows[0], lanes)):
        for number in [number for number in left if not number & distance]:
            row, other = left[number], left.pop(number | distance)
            left[number] = b.binary(add, *(b.shuffle(row, other, lanes) for lanes in picked))
    return left[0]


def _part(row: Value, lanes: int) -> int:
    """Lanes that two vectors exchange as they are, before those within them change places."""
    return min(max(_PART_BITS // row.type.bits, 1), lanes)


def _rounds(lanes: int, part: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """How far apart the two vectors of a shuffle are, and what becomes of them. part: lanes of a
    part of a vector."""
    distance = part
    while distance < lanes:
        yield distance, _every_other(lanes, part, 0), _every_other(lanes, part, 1)
        distance *= 2
    distance = 1
    while distance < part:
        yield distance, _woven(lanes, part, distance, 0), _woven(lanes, part, distance, 1)
        distance *= 2


def _every_other(lanes: int, part: int, odd: int) -> list[int]:
    """The even, or the odd, parts of one vector, then those of the other."""
    starts = range(odd * part, 2 * lanes, 2 * part)
    return [start + lane for start in starts for lane in range(part)]


def _woven(lanes: int, part: int, size: int, upper: int) -> list[int]:
    """Of each part the lower, or the upper, half of both vectors, by turns `size` lanes of each."""
    first = upper * (part // 2)
    return [
        vector + start + at + lane
        for start in range(0, lanes, part)
        for at in range(first, first + part // 2, size)
        for vector in (0, lanes)
        for lane in range(size)
    ]


def _register_of(column: int, part: int) -> int:
    """Where a column is at the end: bits within a part are in reverse."""
    made, bit, mirrored = column & ~(part - 1), 1, part >> 1
    while mirrored:
        made |= bit if column & mirrored else 0
        bit, mirrored = bit << 1, mirrored >> 1
    return made
