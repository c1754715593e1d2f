"""Scalars that the host knows when a call, or an iteration, starts: what offsets are made of.

Input: a graph. Output: for each of its integer and bool scalars the value as an `Int` over symbols,
or None. Invariant: a value is one of scalar inputs and constants alone, through integer functions;
whatever a dispatch computes from arrays is not known. Symbols are named by formulas over `x0`,
`x1`, ..., the inputs by number; truth is 1 and 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from stagejit.base.formulas import wrapped, written
from stagejit.base.symbolic import Int, Symbol, at_most, bounds, expr
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.dispatches import destination, inside, parts_of
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.moving.slices import boxed, source_of_element
from stagejit.graph.ops.moving.views import is_alias
from stagejit.index.affine import Affine, delinearize, linearize
from stagejit.index.box import Box
from stagejit.rewrites.integers.intervals import of_function, whole, within
from stagejit.types import DType, bool_, i64

# A longer formula is neither cheap for the host nor plain to a reader.
LONGEST_FORMULA = 240


class Scalars:
    """See the module's docstring. ops: operands before users. inputs: those that are known."""

    def __init__(self, ops: Iterable[Op], inputs: Mapping[Value, Int]) -> None:
        self._known = dict(inputs)
        self._operand: dict[Value, Value] = {}  # that an input of a dispatch's part stands for
        self._border: dict[Value, Value] = {}  # that lies beside what a part places in its input
        for op in ops:
            self.look_at(op)

    def look_at(self, op: Op) -> None:
        """Takes in an op whose operands are known as far as they can be."""
        if op.definition.is_dispatch:
            self._look_into(op)
        elif is_alias(op):
            self._pass(op.operands[0], op.result)  # whatever it comes after
        elif len(op.results) == 1 and op.result.shape == () and _is_integer(op.result.type.dtype):
            value = self._evaluate(op)
            if value is not None and len(str(value)) <= LONGEST_FORMULA:
                self._known[op.result] = value

    def _look_into(self, op: Op) -> None:
        for part in parts_of(op):
            for own, operand in zip(part.inputs, op.operands, strict=True):
                self._operand[own] = operand
                self._pass(operand, own)
            for inner in part.ops():
                self.look_at(inner)
        self._look_beside(op)
        for result in op.results:
            self._pass(inside(result), result)

    def _look_beside(self, op: Op) -> None:
        """Each border is placed in the same operand as what comes before it."""
        first, *borders = parts_of(op)
        under: dict[int, Graph] = {}  # the last part so far that is placed in an operand
        for border in borders:
            into = destination(border, 0)
            if into is not None:
                at = border.inputs.index(into)
                self._border[under.get(at, first).inputs[at]] = border.outputs[0]
                under[at] = border

    def _pass(self, value: Value, to: Value) -> None:
        known = self._known.get(value)
        if known is not None:
            self._known[to] = known

    def origin(self, value: Value) -> Value:
        """The value that an op computes which is `value`, in whatever dispatch."""
        while True:
            passed = self._operand.get(value) or inside(value)
            if is_alias(passed.op):
                passed = passed.op.operands[0]
            if passed is value:
                return value
            value = passed

    def __getitem__(self, value: Value) -> Int | None:
        return self._known.get(value)

    def start(self, value: Value, room: int) -> Int | None:
        """The offset that `value` gives, clamped to `range(room)`."""
        known = self[value]
        if known is None:
            return None
        return _applied("clamp", i64, 0, known, room - 1)

    def index(self, vector: Value, component: int, room: int, mode: str) -> Int | None:
        """The offset that a component of the only index vector of a gather or scatter gives.

        In mode "fill" a window that is not within the array is not touched at all; so the symbol
        is in `range(room)` though the formula may not be.
        """
        known = self._component(vector, component)
        if known is None:
            return None
        if mode != "fill":
            return _applied("clamp", i64, 0, known, room - 1)
        low, high = bounds(known)
        if low >= 0 and high < room:
            return known
        return expr(Symbol(str(known), 0, room - 1))

    # ------------------------------------------------------------------ boxes

    def knows(self, op: Op) -> bool:
        """Whether the box of an op is exact: all its starts are known."""
        if op.definition.is_scatter:
            return self._window(op) is not None
        return all(self[start] is not None for start in boxed(op)[2])

    def box(self, op: Op) -> Box:
        """What an `extract_slice` reads, an `insert_slice` or a `scatter` writes: all of a
        dimension where its start is not known."""
        if op.definition.is_scatter:
            return self._window(op) or Box.whole(op.result.shape)
        whole, sizes, computed = boxed(op)
        starts = iter(computed)
        dims: list[tuple[Int, int, int]] = []
        for offset, size, stride, extent in zip(
            op.attrs["offsets"], sizes, op.attrs["strides"], whole.shape, strict=True
        ):
            if offset is None:
                offset = self.start(next(starts), extent - max(size - 1, 0) * stride)
            dims.append((0, extent if size else 0, 1) if offset is None else (offset, size, stride))
        return Box.of(dims)

    def may_drop(self, op: Op) -> bool:
        """Whether a scatter may leave windows out: those that are not within its operand."""
        x, indices, updates = op.operands
        if op.attrs["mode"] != "fill" or not indices.type.size:
            return False
        dims = ScatterDims.of(op.attrs)
        if indices.type.size != len(dims.start_axes):
            return True
        window = dims.window(x.type.rank, updates.shape)
        for component, axis in enumerate(dims.start_axes):
            known = self._component(indices, component)
            low, high = bounds(known) if known is not None else (-1, 0)
            if low < 0 or high > x.shape[axis] - window[axis]:
                return True
        return False

    def _window(self, op: Op) -> Box | None:
        """The one window that a scatter writes, None where it is not known."""
        x, indices, updates = op.operands
        dims = ScatterDims.of(op.attrs)
        window = dims.window(x.type.rank, updates.shape)
        starts = self.starts(dims, indices, x.shape, window, op.attrs["mode"])
        offsets = [offset for offset in starts or () if offset is not None]
        if len(offsets) < len(window):
            return None
        return Box(tuple(offsets), window, (1,) * len(window))

    def starts(
        self,
        dims: GatherDims | ScatterDims,
        indices: Value,
        shape: Sequence[int],
        window: Sequence[int],
        mode: str,
    ) -> list[Int | None] | None:
        """Where the one window of a gather or scatter starts, None along an axis where that is not
        known; None for all where there are several windows."""
        if indices.type.size != len(dims.start_axes) or dims.operand_batch_axes:
            return None
        found: list[Int | None] = [0] * len(shape)
        for component, axis in enumerate(dims.start_axes):
            found[axis] = self.index(indices, component, shape[axis] - window[axis] + 1, mode)
        return found

    def _component(self, vector: Value, component: int) -> Int | None:
        """Element `component` of a vector, seen through what assembled it."""
        while (vector := self._placed(vector)).shape != ():
            index = delinearize(Affine((), component), vector.shape)
            source = source_of_element(vector, [part.const for part in index])
            if source is None:
                return None
            vector, at = source
            component = linearize([Affine((), part) for part in at], vector.shape).const
        return self[vector]

    def _placed(self, vector: Value) -> Value:
        """The same as an op makes it: of what borders complete, the part that comes first."""
        vector = self.origin(self._border.get(vector, vector))
        while vector.op.definition.is_dispatch:
            vector = self.origin(parts_of(vector.op)[0].outputs[vector.index])
        return vector

    # -------------------------------------------------------------- functions

    def _evaluate(self, op: Op) -> Int | None:
        if op.definition.is_constant:
            return int(op.attrs["value"])
        operands = [self[operand] for operand in op.operands]
        known = [operand for operand in operands if operand is not None]
        if not known or len(known) < len(operands):
            return None
        dtype = op.result.type.dtype
        if op.definition.keeps_order or op.definition.is_splat:
            return known[0]
        if op.definition.is_conversion:
            return _wrapped(known[0], dtype) if dtype is not bool_ else None
        fn, of_bools = function_of(op), op.operands[-1].type.dtype is bool_
        if (fn in _LOGIC) != of_bools and fn not in _EITHER:
            return None
        return _applied(fn, dtype, *known)


NOTHING = Scalars((), {})


def known_arguments(graph: Graph) -> dict[Value, Int]:
    """All integer and bool scalars among the arguments of a call, whatever their values."""
    return {
        value: known_input(value, *whole(value.type.dtype))
        for value in graph.inputs
        if value.shape == () and _is_integer(value.type.dtype) and not graph.is_bound(value)
    }


def known_input(value: Value, low: int, high: int) -> Int:
    """An input that the host knows to be between `low` and `high`."""
    return expr(Symbol(f"x{value.op.attrs['index']}", low, high))


def _is_integer(dtype: DType) -> bool:
    return dtype.is_native and (dtype.is_integer or dtype is bool_)


# ------------------------------------------------------------ integer functions

_EXACT: dict[str, Callable[..., Int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
}  # fmt: skip
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_LOGIC = frozenset({"and", "or", "not"})  # of bools only
_EITHER = frozenset({"eq", "ne", "select"})  # of bools and integers
_OTHERS = frozenset({"min", "max", "clamp", "rem", "div"})


def _wrapped(value: Int, dtype: DType) -> Int:
    """What an integer type makes of an exact result."""
    if isinstance(value, int):
        return wrapped(value, dtype.name)
    if within(bounds(value), whole(dtype)):
        return value
    return expr(Symbol(written(dtype.name, value), *whole(dtype)))


def _applied(fn: str, dtype: DType, *operands: Int) -> Int | None:
    """What a function makes of known operands: one of them, if that is the same, or a number, or a
    symbol; None for a function that the host does not compute."""
    if fn in _EXACT:
        return _wrapped(_EXACT[fn](*operands), dtype)
    if fn not in _COMPARISONS | _LOGIC | _EITHER | _OTHERS:
        return None
    ends = [bounds(operand) for operand in operands]
    match fn, operands:
        case "min" | "max", (a, b) if at_most(a, b) or at_most(b, a):
            return a if at_most(a, b) == (fn == "min") else b
        case "clamp", (low, x, high):
            if at_most(low, x) and at_most(x, high):
                return x
            if not (isinstance(low, int) and isinstance(high, int)):
                least = _applied("max", dtype, x, low)
                return None if least is None else _applied("min", dtype, least, high)
        case "select", (p, a, b) if a == b or isinstance(p, int):
            return a if a == b or p else b
        case "rem" | "div", (a, b):
            if not isinstance(b, int) or b <= 0:
                return None
            if b == 1 if fn == "div" else within(ends[0], (1 - b, b - 1)):
                return a
        case "and" | "or", (a, b) if isinstance(a, int) or isinstance(b, int):
            number, other = (a, b) if isinstance(a, int) else (b, a)
            return other if bool(number) == (fn == "and") else number
        case "not", (a,):
            return 1 - a
        case _, (a, b) if fn in _COMPARISONS:
            ends = [bounds(a - b), (0, 0)]
    low, high = of_function(fn, dtype, ends)
    return low if low == high else expr(Symbol(written(fn, *operands), low, high))
