"""Sums that are neighbours in memory, put together in vectors before they are stored.

Input: sums of a tile that are one element each, or of which each is the sum of the lanes of a
vector, and their places. Output: vectors, and their places. Invariant: each sum is in one of them;
lanes are added in pairs, until one is left.

Note [Joined sums]: what is read as a vector, as the next turn of a loop or an epilogue reads it, a
core hands on from the store before only if that one store holds all of it. Behind stores of single
elements it waits until all of them have reached the cache, which was half of the time of
`tanh(w @ h)` in a loop. And the lanes of several vectors together are summed in a fraction of the
shuffles: 16 vectors of 16 lanes by 45 instructions, one by one by 128.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.transposes import lane_sums

Placed = tuple[int, Register]


def joined(b: Builder, sums: Sequence[Placed], lanes: int, *, across: bool) -> Iterator[Placed]:
    """Vectors of at most `lanes` sums. across: each is the sum of the lanes of a vector."""
    terms = sums[0][1].type.lanes if across else 0
    most = min(lanes, terms) if terms > 1 else lanes
    for group in _groups(sorted(sums, key=itemgetter(0)), most):
        totals = [total for _, total in group]
        yield group[0][0], lane_sums(b, totals) if terms > 1 else _of_elements(b, totals)


def _groups(sums: Sequence[Placed], lanes: int) -> Iterator[Sequence[Placed]]:
    """Neighbours, of which a power of two is together."""
    start = 0
    for end in range(1, len(sums) + 1):
        if end == len(sums) or sums[end][0] != sums[end - 1][0] + 1:
            while start < end:
                size = min(lanes, 1 << (end - start).bit_length() - 1)
                yield sums[start : start + size]
                start += size


def _of_elements(b: Builder, totals: Sequence[Register]) -> Register:
    if len(totals) == 1:
        return totals[0]
    scalars = [b.extract(total, 0) if total.type.lanes else total for total in totals]
    made = b.splat(scalars[0], len(scalars))
    for lane, scalar in enumerate(scalars[1:], 1):
        made = b.insert(made, scalar, lane)
    return made
