"""The text of a tree: what a kernel's loops are, outermost first.

Input: a tree. Output: one line a loop, chunk or statement, indented by what is around it.
Invariant: equal trees give equal text; variables are numbered by first appearance.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.tree import (
    At,
    Blocks,
    Chunk,
    Do,
    Groups,
    Interleaved,
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


class _Text:
    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def lines(self, node: Node, indent: str) -> Iterator[str]:
        inner = indent + "  "
        match node:
            case tuple():
                for part in node:
                    yield from self.lines(part, indent)
            case Do():
                yield indent + node.what
            case Loop():
                for number, chunk in enumerate(node.chunks):
                    word = "then" if number else "for"
                    yield f"{indent}{word} {self._of(node.var)}: {_chunk(chunk)}"
                    yield from self.lines(chunk.body, inner)
            case Blocks():
                yield f"{indent}for {self._of(node.var)}: blocks of {node.size}"
                yield from self.lines(node.body, inner)
            case Groups():
                for number, run in enumerate(node.runs):
                    word = "then" if number else "for"
                    yield f"{indent}{word} {self._of(node.split.var)}: {_run(node.split, run)}"
                    yield from self.lines(run.body, inner)
            case Parallel():
                loops = map(self._shared, node.loops)
                yield indent + " ".join(("parallel", ", ".join(loops))).rstrip()
                yield from self.lines(node.body, inner)
            case At():
                steps = ", ".join(f"{self._name(var)} + {step}" for var, step in node.steps)
                yield f"{indent}at {steps}"
                yield from self.lines(node.body, inner)
            case Interleaved():
                yield indent + "interleaved"
                yield from self.lines(node.body, inner)
            case Within() | When():
                word = "if " if isinstance(node, When) else ""
                yield indent + word + node.what
                yield from self.lines(node.body, inner)

    def _shared(self, loop: tuple[Var, int] | Split) -> str:
        if isinstance(loop, Split):
            return self._of(loop.var) + (f" in {loop.parts} parts" if loop.parts > 1 else "")
        var, size = loop
        return self._of(var) + (f" in blocks of {size}" if size > 1 else "")

    def _of(self, var: Var) -> str:
        return f"{self._name(var)} of {var.extent}"

    def _name(self, var: Var) -> str:
        return self._names.setdefault(var, f"{var.name}{len(self._names)}")


_TAILS = {"none": "", "masked": ", the last masked", "all masked": ", masked", "padded": ", padded"}


def _chunk(chunk: Chunk) -> str:
    what = f"vectors of {chunk.size}" if chunk.vector else f"by {chunk.size}"
    return what + _TAILS[chunk.tail] + (", unrolled" if chunk.straight else "")


def _run(split: Split, run: Run) -> str:
    what = f"{run.size} vectors of {split.unit}" if split.unit > 1 else f"by {run.size}"
    return what + (", the last masked" if run.ragged else "")
