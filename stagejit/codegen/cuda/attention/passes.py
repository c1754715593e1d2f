"""Tiles of keys in two passes, where a mask leaves nothing of some: those, if need be, at last.

Input: a mask, what is done for a tile. Output: the loops over all tiles. Invariant: results are
those of one pass over all tiles, but for the order of sums.

Note [What is left out]: a score that a mask takes away has the weight 0, and 0 times a value is 0,
or NaN where that is not finite. So the first pass only looks at the values of tiles of which
nothing is left. Where one is not finite, or a row of the block has no score that is much larger
than what the mask puts in place of others, the second pass does what the first left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from stagejit.codegen.cuda.attention.left_out import Mask, corners
from stagejit.codegen.cuda.attention.nest import Attention, Group
from stagejit.codegen.cuda.attention.rows import Rows
from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.cuda.attention.staging import Staged
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import I1, I32, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.tree import Cell, Chunk, Do, Loop, Node, When
from stagejit.index.affine import Var

_PASSES = 2
_VANISHING = -1000.0  # exp of what is less is 0


class Passes:
    """found: the cell of what is 0 as long as all values that were left out are finite."""

    def __init__(
        self, attention: Attention, shape: Shape, mask: Mask, rows: Rows, values: Staged,
        emitter: ThreadEmitter, first: Callable[[Group], Register],
    ) -> None:  # fmt: skip
        self.attention, self.shape, self.mask = attention, shape, mask
        self.rows, self.values, self.first = rows, values, first
        self.emitter, self.b = emitter, emitter.b
        self.found, self.var = Cell("not finite"), Var(_PASSES, "pass")
        self.warps = shape.threads // WARP
        self.flags = self.b.shared("flags", I32, _PASSES * self.warps)

    def around(self, tile: Node) -> Node:
        """All tiles of keys."""
        keys, shape = self.attention.keys.var, self.shape
        look: Node = Do("look at values", self._look, (self.found,))
        if shape.sums != shape.keys:
            look = Loop(keys, (Chunk(shape.sums, look, tail="shorter"),))
        each = (
            Do("what is left", self._ask),
            When("something is left", lambda: self.done, tile),
            When("nothing is left", lambda: self.looks, look),
        )
        inside = (
            Do("what is needed", self._needed),
            Loop(keys, (Chunk(shape.keys, each, tail="shorter"),)),
        )
        clear = Do("nothing left out", self._clear, (self.found,))
        return (clear, Loop(self.var, (Chunk(1, inside),)))

    # ---------------------------------------------------------------- statements

    def _clear(self) -> None:
        self.emitter.cells[self.found] = (self._zero,)

    @property
    def _zero(self) -> Register:
        """In the type of sums, of which IR has arithmetic."""
        lanes = self.values.type.lanes
        return self.b.const(0, element_type(self.rows.dtype).with_lanes(lanes))

    def _needed(self) -> None:
        """Whether the second pass has anything to do: what all threads of the block say."""
        b, number = self.b, self.emitter.elements.position.env[self.var]
        (found,) = self.emitter.cells[self.found]
        lanes = [b.extract(found, at) for at in range(found.type.lanes)] or [found]
        wanted = reduce(or_, (b.compare("ne", lane, 0) for lane in lanes))
        if not self.mask.certain:
            wanted = wanted | reduce(or_, map(self._is_small, range(len(self.rows.products.rows))))
        voted = b.vote("any", wanted)
        place = number * self.warps + b.warp()
        flag = b.select(voted, b.const(1, I32), b.const(0, I32))
        b.if_(b.compare("eq", b.lane(), 0), lambda: b.store(flag, self.flags, place))
        b.barrier()
        flags = [b.load(self.flags, number * self.warps + warp) for warp in range(self.warps)]
        self.again = b.compare("ne", reduce(or_, flags), 0)
        self.is_first = b.compare("eq", number, 0)

    def _is_small(self, row: int) -> Register:
        """Whether a row has no score that is much larger than what the mask gives. Those behind the
        last row are as the last one is."""
        b, most = self.b, self.emitter.cells[self.rows.most][row]
        less = b.const(self.mask.low, most.type) - most
        return b.compare("lt", less, _VANISHING) ^ b.const(1, I1)

    def _ask(self) -> None:
        b, a, shape = self.b, self.attention, self.shape
        env = self.emitter.elements.position.env
        at = {var: (env[var], env[var]) for var in a.batch if var in env}
        at |= corners(b, a.rows, self.first(a.rows), shape.rows)
        at |= corners(b, a.keys, self.first(a.keys), shape.keys)
        left = self.mask.leaves(b, at)
        nothing = left ^ b.const(1, I1)
        self.done = b.select(self.is_first, left, self.again & nothing)
        self.looks = self.is_first & nothing

    def _look(self) -> None:
        """x * 0 is 0, or NaN."""
        groups = (self.values.quick.group, self.values.slow.group)
        starts = {group: self.first(group) for group in groups}
        (found,) = self.emitter.cells[self.found]
        own, wide = self.values.dtype, self.rows.dtype

        def then(total: Register, x: Register) -> Register:
            return total + vmath.convert(self.b, x, own, wide) * self._zero

        self.emitter.cells[self.found] = (self.values.looked_at(self.emitter, starts, found, then),)
