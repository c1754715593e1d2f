"""Sorting networks on registers.

Input: vectors of unsigned integers. Output: the same numbers, sorted. Invariant: which numbers are
compared depends on how many there are, so there is no branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register


@cache
def exchanges(count: int) -> tuple[tuple[int, int], ...]:
    """Which of `count` elements are compared and put in order, one pair after the other: Batcher's
    odd-even merge sort (Knuth, TAOCP 3, 5.2.2, algorithm M), without pairs beyond the last."""
    pairs: list[tuple[int, int]] = []
    run = 1
    while run < count:
        distance = run
        while distance:
            for low in range(distance % run, count - distance, 2 * distance):
                for at in range(low, min(low + distance, count - distance)):
                    if at // (2 * run) == (at + distance) // (2 * run):
                        pairs.append((at, at + distance))
            distance //= 2
        run *= 2
    return tuple(pairs)


def sort_lanes(b: Builder, rows: Sequence[Register]) -> list[Register]:
    """Each lane sorted on its own, from vector to vector."""
    rows = list(rows)
    for low, high in exchanges(len(rows)):
        first, second = rows[low], rows[high]
        rows[low], rows[high] = b.binary("umin", first, second), b.binary("umax", first, second)
    return rows


def merges(count: int) -> Iterator[tuple[int, bool]]:
    """The steps of a bitonic sort of `count` elements, a power of two: element i meets i ^ mask.
    Whether that reverses a block: the first step of a merge, so that all blocks ascend."""
    block = 2
    while block <= count:
        yield block - 1, True
        distance = block // 4
        while distance:
            yield distance, False
            distance //= 2
        block *= 2


def step_operations(vectors: int, lanes: int) -> int:
    """Vector operations of `sort_along` on so many vectors."""
    total = 0
    for mask, reverses in merges(vectors * lanes):
        if mask < lanes:
            total += 4 * vectors
        else:
            total += (2 if reverses else 1) * vectors
    return total


def sort_along(b: Builder, vectors: Sequence[Register]) -> list[Register]:
    """All lanes of all vectors, a power of two of them, as one row (Batcher's bitonic sort).

    Each step is a loop that runs once: LLVM looks for better shuffles in all of a block at once,
    which takes it a minute for all steps of 16 vectors."""
    lanes = vectors[0].type.lanes
    row: Sequence[Register] = vectors
    for mask, reverses in merges(len(row) * lanes):

        def step(
            once: Register, *row: Register, mask: int = mask, reverses: bool = reverses
        ) -> list[Register]:
            return _within(b, row, mask) if mask < lanes else _between(b, row, mask, reverses)

        row = b.loop(0, 1, 1, tuple(row), step, apart=True)
    return list(row)


def _within(b: Builder, row: Sequence[Register], mask: int) -> list[Register]:
    """Lane i meets lane i ^ mask of the same vector."""
    lanes = row[0].type.lanes
    partners = [lane ^ mask for lane in range(lanes)]
    low_then_high = [
        lane if lane < partner else lanes + lane for lane, partner in enumerate(partners)
    ]
    made = []
    for vector in row:
        other = b.shuffle(vector, None, partners)
        low, high = b.binary("umin", vector, other), b.binary("umax", vector, other)
        made.append(b.shuffle(low, high, low_then_high))
    return made


def _between(b: Builder, row: Sequence[Register], mask: int, reverses: bool) -> list[Register]:
    """Vector i meets another one, whose lanes a first step reverses."""
    lanes, made = row[0].type.lanes, list(row)
    backwards = tuple(reversed(range(lanes)))
    for at, vector in enumerate(row):
        partner = at ^ mask // lanes
        if at > partner:
            continue
        other = b.shuffle(row[partner], None, backwards) if reverses else row[partner]
        high = b.binary("umax", vector, other)
        made[at] = b.binary("umin", vector, other)
        made[partner] = b.shuffle(high, None, backwards) if reverses else high
    return made
