"""How many items the loops of a kernel become, and how wide the panel of each is.

Input: loops, outermost first, and what runs inside. Output: their tree. Invariant: items are
independent; which thread runs one never changes a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.machine import Machine
from stagejit.codegen.nest.tree import Node, Parallel, blocks, serial, trips
from stagejit.index.affine import Var

# Pieces that a loop is cut into for each core: enough that cores balance, few enough that an item
# is worth claiming; so many that it does not matter whether all cores have as many.
ITEMS_A_CORE, _MANY_A_CORE = 4, 16
# Iterations of whole loops: of what comes apart anyway more is better, for one core may be late.
_ROWS_A_CORE = 32
_LINE = 64  # elements of which a block has a multiple: whole lines, and vectors
_WORTH_SHARING = 10e-6  # seconds of one core; to wake another one takes 6 to 16 us

# Bytes along the lanes that one item takes where it goes through many rows of them: wide enough to
# stream, narrow enough that a few running values of each stay in the nearest cache. Where cores
# would idle, pieces are as narrow as what memory gives at a time: two lines that are neighbours.
WIDEST_PANEL_NBYTES, NARROWEST_PANEL_NBYTES, LEAST_PANEL_NBYTES = 2048, 512, 128
_FAR_PANEL_NBYTES, FAR_ITEMS_A_CORE = 1024, 2


def panel_width(
    variables: Sequence[Var],
    vector: Var,
    lanes: int,
    machine: Machine,
    seconds: float,
    *,
    far: bool = False,
) -> int:
    """How many elements along the lanes one item takes, in whole vectors, if it takes one of the
    other variables. seconds: of all items on one core. far: rows come from memory, so longer pieces
    of each, on fewer pages, are worth more than that all cores have many items."""
    cores = machine.cores
    extent, others = vector.extent, math.prod(v.extent for v in variables if v is not vector)

    def elements(nbytes: int) -> int:
        return max(nbytes * lanes // machine.vector_nbytes, 1)

    fair = -(-extent * others // cores_worth_having(seconds, cores))
    narrowest = max(min(elements(NARROWEST_PANEL_NBYTES), fair), elements(LEAST_PANEL_NBYTES))
    pieces = _pieces(-(-extent // elements(WIDEST_PANEL_NBYTES)), others, cores)
    width = max(-(-extent // pieces), narrowest)
    if far:
        evenly = -(-extent * others // (FAR_ITEMS_A_CORE * cores))
        width = max(width, min(elements(_FAR_PANEL_NBYTES), evenly))
    return min(-(-width // lanes), -(-extent // lanes)) * lanes


def panel_in_words(vector: Var, width: int, cores: int) -> str:
    """For the user to read."""
    panels = -(-vector.extent // width)
    return f"{width} of {vector.extent} lines next to each other: {panels} panels, {cores} cores"


def cores_worth_having(seconds: float, cores: int) -> int:
    """How many cores should share what takes one core so long."""
    return cores if seconds > _WORTH_SHARING else 1


def block_of(extent: int, others: int, most: int, least: int, cores: int) -> int:
    """How many of `extent` elements one item takes, at most `most`, if there are `others` items
    beside it: fewer where one of several cores would stay without work, but at least `least`."""
    whole = min(extent, most)
    pieces = -(-extent // whole)
    wanted = _pieces(pieces, others, cores)
    if cores == 1 or extent <= least or pieces >= wanted:
        return whole
    unit = min(least, _LINE)
    return max(-(-extent // (wanted * unit)) * unit, least)


def _pieces(least: int, others: int, cores: int) -> int:
    """How many pieces, at least so many, give each of the cores enough and all as many, if there
    are `others` items beside it."""
    wanted = max(least, -(-ITEMS_A_CORE * cores // others))
    if wanted * others >= _MANY_A_CORE * cores:
        return wanted
    step = cores // math.gcd(cores, others)
    return -(-wanted // step) * step


def in_items(loops: Sequence[tuple[Var, int]], body: Node, cores: int) -> Parallel:
    """`body` inside loops over variables, in blocks of so many elements: as many leading loops as
    give enough items, and the others inside an item."""
    count, items = 0, 1
    while count < len(loops) and items < _ROWS_A_CORE * cores:
        items *= trips(loops[count])
        count += 1
    for var, size in reversed(loops[count:]):
        body = serial([var], body) if size == 1 else blocks(var, size, body)
    return Parallel(tuple(loops[:count]), body)
