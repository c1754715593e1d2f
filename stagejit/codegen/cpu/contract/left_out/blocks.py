"""What is asked of the block of an operand of which steps may be left out.

Input: a micro-kernel, the operand's number, the axis that is summed over. Output: loops over the
item's block of it. Invariant: what is told is true of the whole block.
"""

from __future__ import annotations

from stagejit.codegen.cpu.contract.microkernel import MicroKernel
from stagejit.codegen.ir.nodes import I1
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.tree import Cell, Do, Node, serial, vectors
from stagejit.index.affine import Var


class Block:
    """What an item has of an operand: `own`, the axes that tile it, by the steps of `axis`."""

    def __init__(self, kernel: MicroKernel, axis: Var, number: int) -> None:
        self.kernel, self.b, self.emitter = kernel, kernel.b, kernel.emitter
        self.view, self.steps = kernel.operands[number], kernel.steps(axis)
        self.move, self.lanes = self.steps.moves[number], kernel.tiling.lanes
        self.splits = [s for s in kernel.tiling.splits if s.var in self.view.depends]
        self.own = [split.var for split in self.splits]
        self.unit = next(  # the axis along which elements lie side by side
            (v for v in self.own if self.lanes > 1 and self.view.strides.get(v) == 1), None
        )
        self.start = Cell("start")

    @property
    def along(self) -> bool:
        """Whether steps lie side by side, and no axis does."""
        return self.unit is None and self.lanes > 1 and self.move == 1

    def begin(self) -> Node:
        """Comes first, where the item stands."""

        def run() -> None:
            self.emitter.cells[self.start] = (self.view.origin(self.emitter.span, self.own),)

        return Do("begin", run, (self.start,))

    def over(self, body: Node, *, vector: bool) -> Node:
        """`body` for each step, or for vectors of them."""
        var = self.steps.var
        loop = vectors(var, self.lanes, body, tail="masked") if vector else serial([var], body)
        return self.emitter.within("the block", lambda: self.steps.handed(self.emitter), loop)

    @property
    def step(self) -> Register:
        """Where the loop over the steps stands."""
        return self.emitter.elements.position.env[self.steps.var]

    @property
    def length(self) -> Register:
        """How many steps there are."""
        if self.steps.axis is None:
            return self.b.const(self.steps.var.extent)
        return self.emitter.span(self.steps.axis).length

    def load(self, lanes: int, mask: Register | None, further: int = 0) -> Register:
        """The elements where the loops over the axes and the steps stand, or a little further."""
        env = self.emitter.elements.position.env
        offset = self.emitter.cells[self.start][0] + self.step * self.move
        offset = self.view.offset(offset, self.own, env)
        return self.b.load(self.view.buffer, offset + further, lanes, mask=mask if lanes else None)


class Check:
    """told: whether all of the block is finite, and whether each of its columns, the elements of
    all steps at one place, has one without a sign."""

    def __init__(self, block: Block) -> None:
        self.block, self.b, self.emitter = block, block.b, block.emitter
        self.told, self.seen = Cell("finite, signless"), Cell("nan, signs")
        wide = block.lanes if block.unit or block.along else 0
        self.type = block.kernel.elem.with_lanes(wide)

    def tree(self) -> Node:
        """Looks at all of it."""
        block, seen = self.block, (self.seen,)
        column: Node = (
            Do("clear", self._clear, seen),
            block.over(Do("look", self._look, seen), vector=block.along),
            Do("tell", self._tell, (self.told,)),
        )
        if block.unit is not None:
            column = vectors(block.unit, block.lanes, column, tail="masked")
        columns = serial([var for var in block.own if var is not block.unit], column)
        suppose = Do("suppose that all is finite", self._suppose, (self.told,))
        return (block.begin(), suppose, columns)

    def _suppose(self) -> None:
        self.emitter.cells[self.told] = (self.b.const(True, I1),) * 2

    def _clear(self) -> None:
        nothing, ones = self.b.const(0.0, self.type), self.b.const(-1, self.type.as_int)
        self.emitter.cells[self.seen] = nothing, ones

    def _look(self) -> None:
        b, block, (nan, signs) = self.b, self.block, self.emitter.cells[self.seen]
        mask = self.emitter.elements.position.mask
        raw = block.load(self.type.lanes, mask)
        number = vmath.convert(b, raw, block.view.dtype, block.kernel.dtype)
        bits = b.cast("bitcast", number, self.type.as_int.elem)
        if block.along and mask is not None:
            bits = b.select(mask, bits, -1)
        self.emitter.cells[self.seen] = b.fma(number, 0.0, nan), signs & bits

    def _tell(self) -> None:
        b, cells = self.b, self.emitter.cells
        (finite, signless), (nan, signs) = cells[self.told], cells[self.seen]
        signs = b.reduce("and", signs) if self.block.along else signs
        infinite, signed = any_lane(b.compare("uno", nan, nan)), any_lane(signs < 0)
        cells[self.told] = finite & (infinite ^ True), signless & (signed ^ True)


def any_lane(found: Register) -> Register:
    """Whether any lane is on."""
    return found.builder.reduce("or", found) if found.type.lanes else found
