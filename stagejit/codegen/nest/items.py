"""How many items the loops of a kernel become, and how wide the panel of each is.

Input: loops, outermost first, and what runs inside. Output: their tree and the number of items.
Invariant: items are independent; which thread runs one never changes a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.kernel import Choice, Kernel, KernelArg
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.text import text_of
from stagejit.codegen.nest.tree import Blocks, Chunk, Loop, Node, Parallel
from stagejit.index.affine import Var

# Enough items that two or a few dozen cores balance, few enough that an item is worth claiming.
ENOUGH_ITEMS = 64

# Elements along the lanes that one item takes where it goes through many rows of them: wide enough
# to stream, narrow enough that a few running values of each stay in the nearest cache.
WIDEST_PANEL, NARROWEST_PANEL = 512, 128


def panel_width(extent: int, lanes: int, others: int, cores: int) -> int:
    """How many of `extent` elements along the lanes one item takes, in whole vectors, if there are
    `others` items beside it."""
    wanted = -(-4 * cores // others)  # a few items a core
    width = max(min(-(-extent // wanted), WIDEST_PANEL), NARROWEST_PANEL)
    return min(-(-width // lanes), -(-extent // lanes)) * lanes


def in_items(
    loops: Sequence[tuple[Var, int]],
    body: Node,
    before: int | None = None,
    *,
    last: bool = True,
) -> tuple[Node, int]:
    """`body` inside loops over variables, in blocks of so many elements: as many leading loops as
    give enough items, and the others inside an item; the number of items. before: items of the
    kernel that come first, None where it has no other loops; last: whether none follow."""
    count, items = 0, 1
    while count < len(loops) and items < ENOUGH_ITEMS:
        var, size = loops[count]
        items *= -(-var.extent // size)
        count += 1
    for var, size in reversed(loops[count:]):
        body = Loop(var, (Chunk(1, body),)) if size == 1 else Blocks(var, size, body)
    own = None if before is None else (before, items)
    return Parallel(tuple(loops[:count]), body, own, last), items


def emitted(
    emitter: Emitter,
    tree: Node,
    items: int,
    args: tuple[KernelArg, ...],
    seconds: float,
    choices: Sequence[Choice],
) -> Kernel:
    """The kernel of a tree. seconds: what all items take on one core."""
    emitter.emit(tree)
    return finished(emitter.b, [tree], items, args, seconds, choices)


def finished(
    b: Builder,
    trees: Sequence[Node],
    items: int,
    args: tuple[KernelArg, ...],
    seconds: float,
    choices: Sequence[Choice],
) -> Kernel:
    """The kernel of trees that have been emitted, one after the other."""
    loops = "\n".join(map(text_of, trees))
    return Kernel(b.finish(), args, (), items, seconds, (*choices, shared(items, seconds)), loops)


def shared(items: int, seconds: float) -> Choice:
    """How many items there are for all threads."""
    return Choice("items", f"{items}, about {1e6 * seconds / items:.2g} us each")
