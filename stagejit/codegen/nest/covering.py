"""What loops of a user's may leave out.

Input: a tree, as a schedule of a user's made it. Output: what is wrong with it, in words, or "".
Invariant: nothing is said of a tree that covers each element once. It says nothing, either, of what
a statement of the user's own does, nor of loops inside of contexts, which may hand down anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

from stagejit.codegen.nest.tree import (
    NODES,
    At,
    Chunk,
    Do,
    Groups,
    Loop,
    Node,
    Parallel,
    Within,
    bodies_of,
)
from stagejit.index.affine import Var

STORE = "store"  # the statement of `writing.stored`

# How many elements of a variable loops may have handed down; None for what nobody knows.
Handed = Mapping[Var, frozenset[int] | None]


def left_out(tree: object, threads: int = 1) -> str:
    """What the tree does not reach. threads: of those that share an item's work."""
    if not isinstance(tree, Parallel):
        return f"the tree is of type {type(tree).__name__}: give items(...)"
    if tree.before is not None or not tree.last or (threads == 1 and tree.together != 1):
        return "some items belong to nobody: give items(...), which shares them all out"
    for other in _others(tree.body):
        return (
            f"what a loop runs is of type {type(other).__name__}: give a statement, such as "
            "Do('double', function), a loop, or a tuple of these"
        )
    blocks = [loop for loop in tree.loops if isinstance(loop, tuple)]
    for var, size in blocks:
        if type(size) is not int or size < 1:
            return f"an item takes {size!r} elements of {var}: give at least 1"
    for var in _bare(tree.body, frozenset(var for var, size in blocks if size > 1)):
        return f"of several elements of {var} that are handed down, one is stored: loop over them"
    handed = {var: _blocks_of(frozenset({var.extent}), size) for var, size in blocks}
    for var in sorted(_over(tree.body, handed) or (), key=str):
        return f"elements of {var} are left over by its last chunk: give a tail, or a chunk of 1"
    return ""


def _others(node: Node) -> Iterator[object]:
    """What stands where a statement or a loop is to stand, and is neither."""
    if not isinstance(node, NODES):
        yield node
        return
    for each in bodies_of(node):
        yield from _others(each)


def _bare(node: Node, open: frozenset[Var]) -> Iterator[Var]:
    """Variables of which several elements are handed down to a store. open: those around it."""
    match node:
        case Do():
            if node.what == STORE:
                yield from sorted(open, key=str)
        case tuple():
            for each in node:
                yield from _bare(each, open)
        case Loop(var, chunks):
            for chunk in chunks:
                yield from _bare(chunk.body, _inside(chunk, var, open))
        case At(steps):
            yield from _bare(node.body, open - {var for var, _ in steps})
        case Groups():
            for run in node.runs:
                yield from _bare(run.body, open)
        case _:
            yield from _bare(node.body, open)


def _inside(chunk: Chunk, var: Var, open: frozenset[Var]) -> frozenset[Var]:
    return open - {var} if chunk.vector or chunk.size == 1 else open | {var}


def _over(node: Node, handed: Handed) -> frozenset[Var] | None:
    """Variables of which a store misses elements, as their loop ends before them; None where there
    is no store. Of stores next to each other one may reach what others miss."""
    match node:
        case Do():
            return frozenset() if node.what == STORE else None
        case tuple():
            found = [made for each in node if (made := _over(each, handed)) is not None]
            return reduce(frozenset.intersection, found) if found else None
        case Loop():
            return _over_loop(node, handed)
        case At(steps):
            return _over(node.body, {**handed, **{var: None for var, _ in steps}})
        case Groups():
            return _joined(_over(run.body, {**handed, node.split.var: None}) for run in node.runs)
        case Within():
            return None if _over(node.body, handed) is None else frozenset()
        case _:
            return _over(node.body, handed)


def _over_loop(loop: Loop, handed: Handed) -> frozenset[Var] | None:
    var, inside = loop.var, list[frozenset[Var] | None]()
    counts = handed.get(var, frozenset({var.extent}))
    for chunk in loop.chunks:
        own = _blocks_of(counts, chunk.size)
        if chunk.tail != "shorter":
            own = frozenset({chunk.size})
        found = _over(chunk.body, {**handed, var: own})
        runs = counts is None or chunk.tail != "none" or max(counts, default=0) >= chunk.size
        inside.append(found if runs or found is None else frozenset())
        if counts is not None:
            left = {count % chunk.size for count in counts} if chunk.tail == "none" else {0}
            counts = frozenset(left)
    missed = frozenset({var}) if counts and counts != {0} else frozenset[Var]()
    reached = _joined(inside)
    return None if reached is None else reached | missed


def _blocks_of(counts: frozenset[int] | None, size: int) -> frozenset[int] | None:
    """How many elements blocks have."""
    if counts is None:
        return None
    whole = {size for count in counts if count >= size}
    return frozenset(whole | {count % size for count in counts if count % size})


def _joined(parts: Iterable[frozenset[Var] | None]) -> frozenset[Var] | None:
    found = [part for part in parts if part is not None]
    return frozenset[Var]().union(*found) if found else None
