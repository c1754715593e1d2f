"""Lanes that stand a few elements apart: whole vectors cross memory, shuffles deal out their lanes.

Input: a wide register of `stride` vectors, or `stride` registers. Output: the lanes of one phase,
or the wide register in which the phases alternate. Invariant: element k of phase p is at `k *
stride + p`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value

T = TypeVar("T")

# The widest stride at which each phase is picked from the vectors by shuffles of two of them;
# beyond it, squares of rows are transposed.
WIDEST_PICKED = 4
# The widest stride at which the phases between two lanes share whole vectors: so many registers
# wait.
MOST_PHASES = 32
# As many lanes at most cross memory one by one, or in a square, whose code grows with them; and as
# far at most they stand apart where what is between them is a variable of a map.
MOST_LANES_APART = 16


def is_dealt(stride: int, lanes: int, *, shared: bool) -> bool:
    """Whether whole vectors pay. shared: the phases between two lanes are wanted too."""
    return lanes > 1 and 1 < stride <= (MOST_PHASES if shared else min(lanes, WIDEST_PICKED))


def squares(stride: int, lanes: int) -> Iterator[tuple[int, int]]:
    """(first phase, number of phases) of each square of rows that the phases fill."""
    for first in range(0, stride, lanes):
        yield first, min(lanes, stride - first)


def dealing_cost(stride: int, lanes: int, *, shared: bool) -> float:
    """Loads and shuffles for one vector of a phase."""
    if not shared:
        return 2.0 * stride - 1
    if stride <= WIDEST_PICKED:
        return float(stride)
    return -(-stride // lanes) * lanes * (1 + math.log2(lanes)) / stride


def dealt(b: Builder, wide: Value, stride: int, phase: int) -> Value:
    """Every `stride`-th lane of `wide`, from lane `phase` on."""
    lanes = wide.type.lanes // stride
    return b.shuffle(wide, None, [lane * stride + phase for lane in range(lanes)])


def interleaved(b: Builder, phases: Sequence[Value]) -> Value:
    """The register whose lanes are lane 0 of every phase, then lane 1, and so on."""
    count, lanes = len(phases), phases[0].type.lanes
    picked = [phase * lanes + lane for lane in range(lanes) for phase in range(count)]
    return b.shuffle(end_to_end(b.shuffle, phases, lanes), None, picked)


def end_to_end(shuffle: Callable[[T, T, range], T], parts: Sequence[T], lanes: int) -> T:
    """The register of all lanes of parts of so many; copies of the last ones may follow."""
    whole = list(parts)
    while len(whole) > 1:
        lanes *= 2
        whole += whole[-1:] * (len(whole) % 2)
        pairs = zip(whole[::2], whole[1::2], strict=True)
        whole = [shuffle(x, y, range(lanes)) for x, y in pairs]
    return whole[0]


def every(b: Builder, parts: Sequence[Value], first: int) -> Value:
    """Elements `first`, `first + n`, `first + 2 n`, ... of n vectors end to end."""
    lanes, count = parts[0].type.lanes, len(parts)
    return picked(b, parts, [lane * count + first for lane in range(lanes)])


def picked(b: Builder, parts: Sequence[Value], places: Sequence[int]) -> Value:
    """A vector whose lane k is element `places[k]` of vectors end to end, or anything where that is
    -1."""
    lanes = parts[0].type.lanes
    first, *others = sorted({place // lanes for place in places if place >= 0})
    result, lies = parts[first], [place % lanes if place >= 0 else -1 for place in places]
    if not others:
        stays = all(at in (lane, -1) for lane, at in enumerate(lies))
        return result if stays and len(lies) == lanes else b.shuffle(result, None, lies)
    for source in others:
        choice = []
        for lane, place in enumerate(places):
            of, at = divmod(place, lanes)
            # Lanes that earlier vectors filled stay.
            choice.append(lanes + at if of == source else at if source == others[0] else lane)
        result = b.shuffle(result, parts[source], choice)
    return result
