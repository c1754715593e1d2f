"""The softmax of rows that come tile by tile.

Input: fragments of the scores of a tile. Output: their weights, and what sums and weights so far
have to be multiplied by. Invariant: after each tile, sums are those of exp (f - most), where most
is the largest score so far, at least the lowest number; -inf of a row without an element.

That is Milakov and Gimelshein's "Online normalizer calculation for softmax" (2018), with -inf and
what is not present told apart: a score of -inf counts as the lowest number for the maximum, so its
weight is 0, and a row that has no other is divided by 0, which gives NaN, as softmax does. A row
without an element keeps -inf, and its sums are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce

from stagejit.codegen.cuda.attention.nest import Attention
from stagejit.codegen.cuda.attention.products import Fragment, Products
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.tree import Cell
from stagejit.graph.ir import Value
from stagejit.index.affine import Var

_INFINITY = float("inf")


class Rows:
    """most, total: the cells of both, for each row of the thread. start: the first row of the
    block."""

    def __init__(self, attention: Attention, products: Products, emitter: ThreadEmitter) -> None:
        self.attention, self.products, self.emitter = attention, products, emitter
        self.b, self.elements = emitter.b, emitter.elements
        self.dtype = products.dtype
        self.elem = element_type(self.dtype)
        self.most, self.total = Cell("most"), Cell("total")
        attrs = attention.op.attrs
        self.scores, self.weights = attrs["scores"], attrs["weights"]
        self._current: Register | None = None  # what a body is evaluated of

    def first(self) -> None:
        """Of no tile."""
        count, cells = len(self.products.rows), self.emitter.cells
        cells[self.most] = (self.b.const(-_INFINITY, self.elem),) * count
        cells[self.total] = (self.b.const(0, self.elem),) * count

    # ---------------------------------------------------------------- a tile

    def weigh(self, rows: Sequence[Register], key: Register) -> Sequence[Register]:
        """Gives products the weights of the tile; returns the factors of what there is of each row.
        rows: where those of the thread are; key: the first one of the tile."""
        cells, products = self.emitter.cells, self.products
        scores, most, total = cells[products.scores], cells[self.most], cells[self.total]
        found = {
            fragment: self._score(products.score(scores, fragment), fragment, rows, key)
            for fragment in products.fragments
        }
        highest = []
        for row, before in enumerate(most):
            own = [self._highest(f, there) for fragment, (f, there) in found.items()
                   if fragment.row == row]  # fmt: skip
            highest.append(self._merged("fmaximum", before, own))
        factors = [self._factor(*pair) for pair in zip(most, highest, strict=True)]
        e = {
            fragment: self._exponential(f, there, highest[fragment.row])
            for fragment, (f, there) in found.items()
        }
        summed = []
        for row, before in enumerate(total):
            own = [each for fragment, each in e.items() if fragment.row == row]
            across = self._across("fadd", self._along("fadd", own))
            summed.append(before * factors[row] + across)
        products.weigh({
            fragment: self._weight(each, fragment, rows, key) for fragment, each in e.items()
        })  # fmt: skip
        cells[self.most], cells[self.total] = tuple(highest), tuple(summed)
        return factors

    def _score(
        self, score: Register, fragment: Fragment, rows: Sequence[Register], key: Register
    ) -> tuple[Register, Register | None]:
        """f, and which lanes are present; None: all."""
        f, *more = self._evaluated(self.scores.inputs[0], score, self.scores.outputs, fragment,
                                   rows, key)  # fmt: skip
        f = vmath.convert(self.b, f, self.scores.outputs[0].type.dtype, self.dtype)
        below, there = self._are_keys(fragment, key), more[0] if more else None
        if below is not None:
            there = below if there is None else there & below
        return f, there

    def _are_keys(self, fragment: Fragment, key: Register) -> Register | None:
        """Which lanes are not beyond the last key; None: all."""
        extent = self.attention.keys.extent
        if extent % self.products.shape.keys == 0:
            return None
        return self.b.mask_below(key + fragment.first, extent, fragment.lanes)

    def _weight(
        self, e: Register, fragment: Fragment, rows: Sequence[Register], key: Register
    ) -> Register:
        (source,), (output,) = self.weights.inputs[:1], self.weights.outputs
        if output is source:
            return e
        (weight,) = self._evaluated(source, e, [output], fragment, rows, key)
        made = vmath.convert(self.b, weight, output.type.dtype, self.dtype)
        below = self._are_keys(fragment, key)  # beyond it 0 may have become NaN
        return made if below is None else self.b.select(below, made, self.b.const(0, made.type))

    def _highest(self, f: Register, there: Register | None) -> Register:
        b = self.b
        kept = b.binary("fmaximum", f, b.const(-_largest(self.elem.elem), f.type))
        return kept if there is None else b.select(there, kept, b.const(-_INFINITY, f.type))

    def _factor(self, before: Register, now: Register) -> Register:
        """exp (before - now), of what may both be -inf."""
        less = vmath.emit(self.b, "exp", self.dtype, [before - now])
        return self.b.select(self.b.compare("eq", before, now), self.b.const(1, self.elem), less)

    def _exponential(self, f: Register, there: Register | None, most: Register) -> Register:
        e = vmath.emit(self.b, "exp", self.dtype, [f - self.b.splat(most, f.type.lanes)])
        return e if there is None else self.b.select(there, e, self.b.const(0, e.type))

    def _merged(self, opcode: str, before: Register, own: Sequence[Register]) -> Register:
        return self.b.binary(opcode, before, self._across(opcode, self._along(opcode, own)))

    def _along(self, opcode: str, own: Sequence[Register]) -> Register:
        """Of all fragments of a row."""
        join: Callable[[Register, Register], Register] = (
            (lambda x, y: x + y) if opcode == "fadd" else lambda x, y: self.b.binary(opcode, x, y)
        )
        return self.b.reduce(opcode, reduce(join, own))

    def _across(self, opcode: str, value: Register) -> Register:
        """Of all threads that have scores of the row."""
        for distance in self.products.apart:
            other = self.b.exchange("xor", value, distance)
            value = value + other if opcode == "fadd" else self.b.binary(opcode, value, other)
        return value

    # ---------------------------------------------------------------- bodies

    def bind(self) -> None:
        """What bodies read beside what they are evaluated of."""
        bound, operands = self.elements.bound, self.attention.op.operands[3:]
        for body in (self.scores, self.weights):
            bound[body.inputs[0]] = lambda _: self._given()
            for own, value in zip(body.inputs[1:], operands, strict=True):
                bound[own] = partial(self.elements.value, value)

    def _given(self) -> Register:
        assert self._current is not None
        return self._current

    def _evaluated(
        self, source: Value, given: Register, outputs: Sequence[Value], fragment: Fragment,
        rows: Sequence[Register], key: Register,
    ) -> list[Register]:  # fmt: skip
        """The outputs of a body, a lane for each key of a fragment. Beyond the end of rows the last
        one is evaluated again; beyond that of keys, nobody looks."""
        b, attention, lanes = self.b, self.attention, fragment.lanes
        row, first = rows[fragment.row], key + fragment.first
        if attention.rows.extent % self.products.shape.rows:
            row = b.binary("smin", row, attention.rows.extent - 1)
        given = vmath.convert(b, given, self.dtype, source.type.dtype)
        places = attention.rows.places(row)
        if attention.keys.only is not None:
            with self._at_keys(places, first, lanes):
                self._current = given
                return [b.splat(self._value(each), lanes) for each in outputs]
        made = [b.const(0, element_type(each.type.dtype).with_lanes(lanes)) for each in outputs]
        for lane in range(lanes):
            at = first + lane
            if attention.keys.extent % self.products.shape.keys:
                at = b.binary("smin", at, attention.keys.extent - 1)
            with self.elements.at({**places, **attention.keys.places(at)}):
                self._current = b.extract(given, lane)
                made = [b.insert(x, self._value(each), lane)
                        for x, each in zip(made, outputs, strict=True)]  # fmt: skip
        return made

    def _value(self, output: Value) -> Register:
        at = self.attention.at
        own = at.w if output in self.weights.outputs else at.f
        return self.elements.value(output, own)

    def _at_keys(
        self, places: Mapping[Var, Register], first: Register, lanes: int
    ) -> AbstractContextManager[None]:
        keys = self.attention.keys
        ragged = keys.extent % self.products.shape.keys > 0
        mask = self.b.mask_below(first, keys.extent, lanes) if ragged else None
        env = {**places, **keys.places(first)}
        return self.elements.at(env, vector=keys.only, lanes=lanes, mask=mask, within=ragged)

    # ---------------------------------------------------------------- all tiles

    def divided(self, sums: Sequence[Register]) -> tuple[Register, ...]:
        """Sums of values by those of weights."""
        b, cells, one = self.b, self.emitter.cells, self.b.const(1, self.elem)
        factors = [one / total for total in cells[self.total]]
        if len(self.scores.outputs) == 2:
            nothing = [b.compare("eq", most, -_INFINITY) for most in cells[self.most]]
            zero = b.const(0, self.elem)
            factors = [b.select(none, zero, x) for none, x in zip(nothing, factors, strict=True)]
        return self.products.scaled(sums, factors)


def _largest(elem: str) -> float:
    return {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}[elem]
