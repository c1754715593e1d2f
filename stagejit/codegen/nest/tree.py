"""The loops of a kernel as data.

Input: written by the policies of each kind of kernel. Output: a tree of loops with statements at
its leaves: `emitter.Emitter` turns it into loop-nest IR, `text.text_of` into text. Invariant: the
tree says where each statement stands and which registers live across which loop; vectors, tails,
positions and carried registers follow from it.

Note [Loops inside loops]: a loop over a variable around which there is one already covers what that
one handed down: the block of an item, a run, a few rows. So tiling is a loop inside a loop over the
same variable. Of all the rest a loop covers `[0, extent)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

from stagejit.base.records import record
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.groups import Split
from stagejit.index.affine import Var


@record(eq=False)
class Cell:
    """Registers that statements change as the loops run: an accumulator, a carry. A loop carries
    the cells that a statement inside it sets and that had a value before it."""

    name: str


@record(eq=False)
class Do:
    """A statement where the loops stand. sets: the cells that it gives new registers."""

    what: str
    run: Callable[[], None]
    sets: tuple[Cell, ...] = ()


# What becomes of fewer elements than a chunk has: they are left to the next chunk; they are one
# more vector, which is masked; each vector is masked, so that the body is there once; they are one
# more whole chunk, and what it does for elements that are none harms nobody; or they are a shorter
# one, the last block of all of the variable.
Tail = Literal["none", "masked", "all masked", "padded", "shorter"]


@record(eq=False)
class Chunk:
    """`body` for every `size` neighbouring elements of a loop's variable.

    vector: the elements are the lanes of a vector. straight: one after the other without a loop,
    at positions that are numbers where the first one is.
    """

    size: int
    body: Node
    vector: bool = False
    tail: Tail = "none"
    straight: bool = False


@record(eq=False)
class Loop:
    """Covers the elements of `var` by chunks: as many of the first kind as there are, then of the
    next."""

    var: Var
    chunks: tuple[Chunk, ...]


@record(eq=False)
class Groups:
    """Covers the groups of a split axis that the part has which was handed down."""

    split: Split
    runs: tuple[Run, ...]


@record(eq=False)
class Run:
    """`body` for each of the groups from `first` to the one before `last`, all of `size` units.
    ragged: the last unit of the last group has fewer elements: the position has a mask of it."""

    size: int
    first: int
    last: int
    body: Node
    ragged: bool = False


@record(eq=False)
class Parallel:
    """`body` for each item: loops, outermost first, flattened into numbers that threads share; of
    a variable in blocks, or of an axis in parts. together: items that are one share of the work: of
    which each has a thread of its own, or some threads, of a block. apart: the threads of an item
    do not follow each other, but first one of each item, then the next ones. before, last: shares
    of other nests of the kernel that come first, None where there is no other nest; whether none
    follow."""

    loops: tuple[tuple[Var, int] | Split, ...]
    body: Node
    together: int = 1
    apart: bool = False
    before: int | None = None
    last: bool = True

    @property
    def items(self) -> int:
        return math.prod(map(trips, self.loops))

    @property
    def shares(self) -> int:
        return -(-self.items // self.together)


@record(eq=False)
class At:
    """`body` at fixed places: so many elements after where the loops stand, or after the first.

    vector, lanes, used: of a vector, its lanes and how many of them exist. again: what is evaluated
    at these places is remembered until the `Emitter` is told to forget.
    """

    steps: tuple[tuple[Var, int], ...]
    body: Node
    vector: Var | None = None
    lanes: int = 0
    used: int = 0
    again: bool = False


@record(eq=False)
class Within:
    """`body` inside a context: a square of registers, starts that were read."""

    what: str
    enter: Callable[[], AbstractContextManager[object]]
    body: Node


@record(eq=False)
class When:
    """`body` where a condition holds, which is a register, or None where it always does."""

    what: str
    condition: Callable[[], Register | None]
    body: Node


Node = Do | Loop | Groups | Parallel | At | Within | When | tuple["Node", ...]
NODES = (Do, Loop, Groups, Parallel, At, Within, When, tuple)


def trips(loop: tuple[Var, int] | Split) -> int:
    """How often a loop of items runs."""
    return loop.parts if isinstance(loop, Split) else -(-loop[0].extent // loop[1])


def serial(variables: Sequence[Var], body: Node) -> Node:
    """Loops one inside the other, element by element."""
    for var in reversed(variables):
        body = Loop(var, (Chunk(1, body),))
    return body


def vectors(
    var: Var, lanes: int, body: Node, *, tail: Tail = "masked", straight: bool = False
) -> Loop:
    """A loop over vectors: full ones, then a masked one."""
    return Loop(var, (Chunk(lanes, body, vector=True, tail=tail, straight=straight),))


def narrowing(var: Var, lanes: int, least: int, body: Node, *, straight: bool = False) -> Loop:
    """A loop over vectors without masks: full ones, then for what is left ones of half as many
    lanes, and so on down to `least`, and single elements. What it covers is all of `var`, or
    blocks of whole vectors of it."""
    whole = Chunk(lanes, body, vector=True, straight=straight)
    chunks = [whole] if var.extent >= lanes else []
    left, size = var.extent % lanes, lanes // 2
    while size >= max(least, 2):
        if left & size:
            chunks.append(Chunk(size, body, vector=True, straight=True))
        size //= 2
    if left % max(least, 2):
        chunks.append(Chunk(1, body, straight=True))
    return Loop(var, tuple(chunks))


def pieces_of(count: int, lanes: int, least: int) -> int:
    """How many vectors and single elements `narrowing` takes for so many elements."""
    least = max(least, 2)
    whole, rest = divmod(count, lanes)
    return whole + (rest // least).bit_count() + rest % least


def blocks(var: Var, size: int, body: Node) -> Loop:
    """`body` for each block of `size` elements of `var`, the last of which may have fewer."""
    return Loop(var, (Chunk(size, body, tail="shorter"),))


def everywhere(variables: Sequence[Var], body: Node) -> tuple[At, ...]:
    """`body` at each position of variables, without loops."""
    places = itertools.product(*(range(var.extent) for var in variables))
    return tuple(At(tuple(zip(variables, steps, strict=True)), body) for steps in places)


def bodies_of(node: Node) -> Sequence[Node]:
    """What stands right inside of one, in order."""
    match node:
        case Do():
            return ()
        case tuple():
            return node
        case Loop(_, parts) | Groups(_, parts):
            return [part.body for part in parts]
        case _:
            return (node.body,)


def cells_set(node: Node) -> frozenset[Cell]:
    """The cells that statements inside set."""
    own = node.sets if isinstance(node, Do) else ()
    return frozenset(own).union(*map(cells_set, bodies_of(node)))
