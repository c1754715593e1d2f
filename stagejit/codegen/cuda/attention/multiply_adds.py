"""Products of tiles by multiply-adds: 16 by 16 threads, each with a few rows and a vector of keys.

Input, output, invariant: see `products.py`. Queries and keys lie with their depth outermost, so
that a step takes a vector of each; weights go through shared memory, with keys outermost, for the
same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stagejit.base.threads.locks import remembered
from stagejit.codegen.cuda.attention.nest import Attention
from stagejit.codegen.cuda.attention.products import Fragment, Products
from stagejit.codegen.cuda.attention.shapes import PAD, SIDE, Shape
from stagejit.codegen.cuda.attention.staging import Side
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.types import DType

_UNROLLED = 4  # steps


class MultiplyAdds(Products):
    """down: rows of a thread; along: keys; vectors: of features of each row."""

    apart = (8, 4, 2, 1)

    def __init__(
        self, attention: Attention, shape: Shape, dtype: DType, emitter: ThreadEmitter
    ) -> None:
        super().__init__(attention, shape, dtype, emitter)
        self.down, self.along = shape.rows // SIDE, shape.keys // SIDE
        self.vectors = shape.features // (SIDE * shape.lanes)
        self.pitches = {"q": shape.rows + PAD, "k": shape.keys + PAD, "v": shape.features + PAD}
        self.q = self._shared("queries", shape.depth * self.pitches["q"])
        self.k = self._shared("keys", shape.depth * self.pitches["k"])
        self.v = self._shared("values", shape.sums * self.pitches["v"])
        self.w = self._shared("weights", shape.keys * self.pitches["q"])

    @remembered
    def place(self) -> tuple[Register, Register]:
        """This thread's row and column among all."""
        me = self.b.thread_of_block()
        return me // SIDE, me % SIDE

    @property
    def rows(self) -> Sequence[Register]:
        return [self.place[0] * self.down + at for at in range(self.down)]

    @remembered
    def fragments(self) -> Sequence[Fragment]:
        first = self.place[1] * self.along
        return [Fragment(row, first, self.along) for row in range(self.down)]

    def tiles(self) -> Mapping[str, tuple[Buffer, tuple[Side, Side]]]:
        a, shape = self.attention, self.shape
        depth = {name: Side(a.depth, shape.depth, self.pitches[name]) for name in "qk"}
        return {
            "q": (self.q, (depth["q"], Side(a.rows, shape.rows, 1))),
            "k": (self.k, (depth["k"], Side(a.keys, shape.keys, 1))),
            "v": (self.v, (Side(a.features, shape.features, 1),
                           Side(a.keys, shape.sums, self.pitches["v"]))),
        }  # fmt: skip

    def no_scores(self) -> tuple[Register, ...]:
        return self._zeros(self.down, self.along)

    def no_sums(self) -> tuple[Register, ...]:
        return self._zeros(self.down * self.vectors, self.shape.lanes)

    def multiply(self, scores: Sequence[Register]) -> tuple[Register, ...]:
        row, column = self.place

        def step(at: Register, made: Sequence[Register]) -> list[Register]:
            queries = self._of_rows(self.q, at * self.pitches["q"] + row * self.down)
            keys = self._vector(self.k, at * self.pitches["k"] + column * self.along, self.along)
            return [self.b.fma(q, keys, s) for q, s in zip(queries, made, strict=True)]

        return self._steps(self.shape.depth, scores, step)

    def score(self, scores: Sequence[Register], fragment: Fragment) -> Register:
        return scores[fragment.row]

    def weigh(self, weights: Mapping[Fragment, Register]) -> None:
        b, (row, column) = self.b, self.place
        for lane in range(self.along):
            own = [b.extract(weights[fragment], lane) for fragment in self.fragments]
            at = (column * self.along + lane) * self.pitches["q"] + row * self.down
            if self.down == 1:
                b.store(own[0], self.w, at)
                continue
            vector = b.const(0, self.elem.with_lanes(self.down))
            for number, each in enumerate(own):
                vector = b.insert(vector, each, number)
            b.store(vector, self.w, at, alignment=self._nbytes(self.down))

    def add(self, sums: Sequence[Register], first: Register) -> tuple[Register, ...]:
        row, column = self.place
        lanes = self.shape.lanes

        def step(at: Register, made: Sequence[Register]) -> list[Register]:
            weights = self._of_rows(self.w, (first + at) * self.pitches["q"] + row * self.down)
            line = at * self.pitches["v"] + column * lanes
            values = [
                self._vector(self.v, line + number * (SIDE * lanes), lanes)
                for number in range(self.vectors)
            ]
            pairs = [(w, v) for w in weights for v in values]
            return [self.b.fma(w, v, s) for (w, v), s in zip(pairs, made, strict=True)]

        return self._steps(self.shape.sums, sums, step)

    def scaled(self, sums: Sequence[Register], factors: Sequence[Register]) -> tuple[Register, ...]:
        return tuple(s * factors[at // self.vectors] for at, s in enumerate(sums))

    def results(self, sums: Sequence[Register]) -> Sequence[tuple[Fragment, Register]]:
        lanes, (_, column) = self.shape.lanes, self.place
        made = []
        for at, total in enumerate(sums):
            row, number = divmod(at, self.vectors)
            first = column * lanes + number * (SIDE * lanes)
            made.append((Fragment(row, first, lanes), total))
        return made

    # ---------------------------------------------------------------- shared memory

    def _steps(
        self, count: int, made: Sequence[Register],
        step: Callable[[Register, Sequence[Register]], Sequence[Register]],
    ) -> tuple[Register, ...]:  # fmt: skip
        def several(first: Register, *carried: Register) -> Sequence[Register]:
            now: Sequence[Register] = carried
            for at in range(_UNROLLED):
                now = step(first + at, now)
            return now

        return self.b.loop(0, count, _UNROLLED, tuple(made), several)

    def _of_rows(self, buffer: Buffer, at: Register) -> list[Register]:
        vector = self._vector(buffer, at, self.down)
        if self.down == 1:
            return [vector]
        return [self.b.extract(vector, row) for row in range(self.down)]

    def _vector(self, buffer: Buffer, at: Register, lanes: int) -> Register:
        if lanes == 1:
            return self.b.load(buffer, at)
        return self.b.load(buffer, at, lanes, alignment=self._nbytes(lanes))

    def _nbytes(self, lanes: int) -> int:
        return lanes * self.shape.dtype.itemsize
