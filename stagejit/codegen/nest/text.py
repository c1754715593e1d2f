"""The text of a tree: what a kernel's loops are, outermost first.

Input: a tree. Output: one line a loop, chunk or statement, indented by what is around it.
Invariant: equal trees give equal text; variables are numbered by first appearance.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import groupby

from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.tree import (
    At,
    Chunk,
    Do,
    Groups,
    Loop,
    Node,
    Parallel,
    Run,
    When,
    Within,
)
from stagejit.index.affine import Var


def text_of(tree: Node) -> str:
    """For example
    parallel i0 of 4096
      for i1 of 1000: vectors of 16, the last masked
        store
    """
    return "\n".join(_Text().lines(tree, ""))


def _repeated(node: Node) -> str:
    """What is said of a node that one of several is numbered by; "" of others."""
    what, _, number = node.what.rpartition(" ") if isinstance(node, Within) else ("", "", "")
    return what if number.isdigit() else ""


class _Text:
    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def lines(self, node: Node, indent: str) -> list[str]:
        if isinstance(node, Do):
            return [indent + node.what]
        found: list[str] = []
        if isinstance(node, tuple):
            for first, parts in groupby(node, _repeated):
                texts = [self.lines(part, indent) for part in parts]
                if first and len(texts) > 1 and all(x[1:] == texts[0][1:] for x in texts):
                    texts = [[f"{texts[0][0]} to {texts[-1][0].split()[-1]}", *texts[0][1:]]]
                found += itertools.chain(*texts)
            return found
        for head, body in self._parts(node):
            found.append(indent + head)
            found += self.lines(body, indent + "  ")
        return found

    def _parts(self, node: Node) -> Iterator[tuple[str, Node]]:
        """What a node says, a line for each of its bodies."""
        match node:
            case Loop():
                for number, chunk in enumerate(node.chunks):
                    yield f"{_nth(number)} {self._of(node.var)}: {_chunk(chunk)}", chunk.body
            case Groups():
                for number, run in enumerate(node.runs):
                    of = self._of(node.split.var)
                    yield f"{_nth(number)} {of}: {_run(node.split, run)}", run.body
            case Parallel():
                loops = ", ".join(map(self._shared, node.loops))
                yield f"parallel {loops}".rstrip(), node.body
            case At():
                steps = ", ".join(f"{self._name(var)} + {step}" for var, step in node.steps)
                yield f"at {steps}", node.body
            case Within():
                yield node.what, node.body
            case When():
                yield f"if {node.what}", node.body

    def _shared(self, loop: tuple[Var, int] | Split) -> str:
        if isinstance(loop, Split):
            return self._of(loop.var) + (f" in {loop.parts} parts" if loop.parts > 1 else "")
        var, size = loop
        return self._of(var) + (f" in blocks of {size}" if size > 1 else "")

    def _of(self, var: Var) -> str:
        return f"{self._name(var)} of {var.extent}"

    def _name(self, var: Var) -> str:
        return self._names.setdefault(var, f"{var.name}{len(self._names)}")


_TAILS = {"masked": ", the last masked", "all masked": ", masked", "padded": ", padded"}


def _nth(number: int) -> str:
    return "then" if number else "for"


def _chunk(chunk: Chunk) -> str:
    what = "vectors of" if chunk.vector else "blocks of" if chunk.tail == "shorter" else "by"
    straight = ", unrolled" if chunk.straight else ""
    return f"{what} {chunk.size}{_TAILS.get(chunk.tail, '')}{straight}"


def _run(split: Split, run: Run) -> str:
    what = f"{run.size} vectors of {split.unit}" if split.unit > 1 else f"by {run.size}"
    return what + (", the last masked" if run.ragged else "")
