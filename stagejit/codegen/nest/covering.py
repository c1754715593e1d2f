"""What loops of a user's may leave out.

Input: a tree, as a schedule of a user's made it. Output: what is wrong with it, in words, or "".
Invariant: nothing is said of a tree that covers each element once. It says nothing, either, of what
a statement of the user's own does.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagejit.codegen.nest.tree import At, Chunk, Do, Groups, Loop, Node, Parallel
from stagejit.index.affine import Var

STORE = "store"  # the statement of `writing.stored`


def left_out(tree: object) -> str:
    """What the tree does not reach."""
    if not isinstance(tree, Parallel):
        return f"the tree is of type {type(tree).__name__}: give items(...)"
    blocks = [loop for loop in tree.loops if isinstance(loop, tuple)]
    for var, size in blocks:
        if type(size) is not int or size < 1:
            return f"an item takes {size!r} elements of {var}: give at least 1"
    for var in _bare(tree.body, frozenset(var for var, size in blocks if size > 1)):
        return f"of several elements of {var} that are handed down, one is stored: loop over them"
    return ""


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
