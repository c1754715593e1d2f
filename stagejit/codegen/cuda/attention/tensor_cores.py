"""Products of tiles by tensor cores: a warp for every 16 rows of queries.

Input, output, invariant: see `products.py`. Fragments of scores are, rounded, fragments of the left
operand of the other product: weights stay in registers (Dao et al., 2022). Lines of shared memory
are one access longer than they need to be, so that `ldmatrix` meets different banks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.base.threads.locks import remembered
from stagejit.codegen.cuda.attention.nest import Attention
from stagejit.codegen.cuda.attention.products import Fragment, Products
from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.cuda.attention.staging import Side
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.types import DType

_PAIR = 2  # neighbours of a row in a fragment of sums
_HALVES = 2  # rows of a thread in it


class TensorCores(Products):
    """Lane 4 g + m of a warp has the rows g and g + 8 of its 16, of each 8 columns the pair m."""

    apart = (2, 1)

    def __init__(
        self, attention: Attention, shape: Shape, dtype: DType, emitter: ThreadEmitter
    ) -> None:
        super().__init__(attention, shape, dtype, emitter)
        assert shape.tile is not None
        self.tile = shape.tile
        self.line, self.wide = shape.depth + shape.pad, shape.features + shape.pad
        self.q = self._shared("queries", shape.rows * self.line)
        self.k = self._shared("keys", shape.keys * self.line)
        self.v = self._shared("values", shape.keys * self.wide)
        self.operands: list[Register] = []  # weights, for each step over keys

    @remembered
    def place(self) -> tuple[Register, Register, Register]:
        """The first row of the warp, and g and m of this thread."""
        lane = self.b.lane()
        return self.b.warp() * self.tile.m, lane // 4, lane % 4

    @property
    def rows(self) -> Sequence[Register]:
        first, group, _ = self.place
        return [first + group + 8 * half for half in range(_HALVES)]

    @remembered
    def fragments(self) -> Sequence[Fragment]:
        return self._pairs(self.shape.keys)

    def _pairs(self, columns: int) -> list[Fragment]:
        member = self.place[2]
        return [
            Fragment(half, member * _PAIR + number * self.tile.n, _PAIR)
            for number in range(columns // self.tile.n)
            for half in range(_HALVES)
        ]

    def tiles(self) -> Mapping[str, tuple[Buffer, tuple[Side, Side]]]:
        a, shape = self.attention, self.shape
        depth = Side(a.depth, shape.depth, 1)
        return {
            "q": (self.q, (depth, Side(a.rows, shape.rows, self.line))),
            "k": (self.k, (depth, Side(a.keys, shape.keys, self.line))),
            "v": (self.v, (Side(a.features, shape.features, 1),
                           Side(a.keys, shape.keys, self.wide))),
        }  # fmt: skip

    def no_scores(self) -> tuple[Register, ...]:
        return self._zeros(self.shape.keys // self.tile.n, 2 * _PAIR)

    def no_sums(self) -> tuple[Register, ...]:
        return self._zeros(self.shape.features // self.tile.n, 2 * _PAIR)

    def multiply(self, scores: Sequence[Register]) -> tuple[Register, ...]:
        b, tile, made = self.b, self.tile, list(scores)
        for step in range(0, self.shape.depth, tile.k):
            own = self.place[0] * self.line + step
            queries = b.tile_load(tile, "a", self.q, own, (self.line, 1), whole=True)
            for number in range(len(made)):
                first = number * tile.n * self.line + step
                keys = b.tile_load(tile, "b", self.k, first, (1, self.line), whole=True)
                made[number] = b.tile_product(tile, queries, keys, made[number])
        return tuple(made)

    def score(self, scores: Sequence[Register], fragment: Fragment) -> Register:
        return self._half(scores[self.fragments.index(fragment) // _HALVES], fragment.row)

    def _half(self, register: Register, half: int) -> Register:
        return self.b.shuffle(register, None, range(half * _PAIR, (half + 1) * _PAIR))

    def weigh(self, weights: Mapping[Fragment, Register]) -> None:
        b, elem = self.b, self.tile.operand.elem
        rounded = [b.cast("fptrunc", weights[fragment], elem) for fragment in self.fragments]
        self.operands = []
        for first in range(0, len(rounded), 4):
            one, two, three, four = rounded[first : first + 4]
            left, right = b.shuffle(one, two, range(4)), b.shuffle(three, four, range(4))
            self.operands.append(b.shuffle(left, right, range(8)))

    def add(self, sums: Sequence[Register], first: Register) -> tuple[Register, ...]:
        b, tile, made = self.b, self.tile, list(sums)
        for step, weights in enumerate(self.operands):
            for number in range(len(made)):
                at = b.const(step * tile.k * self.wide + number * tile.n)
                values = b.tile_load(tile, "b", self.v, at, (self.wide, 1), whole=True)
                made[number] = b.tile_product(tile, weights, values, made[number])
        return tuple(made)

    def scaled(self, sums: Sequence[Register], factors: Sequence[Register]) -> tuple[Register, ...]:
        b = self.b
        upper, lower = (b.splat(factor, _PAIR) for factor in factors)
        both = b.shuffle(upper, lower, range(2 * _PAIR))
        return tuple(total * both for total in sums)

    def results(self, sums: Sequence[Register]) -> Sequence[tuple[Fragment, Register]]:
        fragments = self._pairs(self.shape.features)
        return [
            (fragment, self._half(sums[at // _HALVES], fragment.row))
            for at, fragment in enumerate(fragments)
        ]
