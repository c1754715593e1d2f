"""`Emitter`: typed construction of ops, shared by all translations.

Input: operands and attributes. Output: `Value`s of the `Graph` under construction, with the result
types computed here. Invariant: every op is canonical, so no later stage sees a second
spelling: a scalar becomes a tensor by `fill` (never `broadcast`), `broadcast` never stretches a
dimension of size 1 (a `reshape` drops it first), a `transpose` moves more than dimensions of size
1, and views that change nothing are not emitted at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.symbolic import Undecided
from stagejit.compat import size_of
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import source_of_element
from stagejit.trace.known import Knowledge
from stagejit.types import DType, TensorType, bool_, i64

PREDICATES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "is_finite"})


class Emitter:
    """Appends ops to `graph`, all at `loc` until it is changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.loc: Loc = UNKNOWN
        self._constants: dict[tuple[TensorType, bytes], Value] = {}
        self._repeated: dict[tuple[Value, tuple[int, ...]], Value] = {}  # of constants, by shape
        self._weights: dict[Any, Value] = {}
        self._knowledge = Knowledge()
        self.parts: dict[Value, tuple[Value, ...]] = {}  # of values that `complex` joined

    # ---------------------------------------------------------------- values

    def const(self, value: Any, dtype: DType) -> Value:
        """A constant array or scalar; equal small constants are emitted once."""
        array = np.asarray(value, dtype=dtype.numpy)
        if array.flags.writeable:
            array = array.copy()
            array.flags.writeable = False
        type = TensorType(dtype, array.shape)
        key = (type, array.tobytes()) if array.nbytes <= 64 else None
        if key is not None and key in self._constants:
            return self._constants[key]
        var = self._emit("const", (), type, value=array)
        if key is not None:
            self._constants[key] = var
        return var

    def opaque_const(self, value: Any, type: TensorType) -> Value:
        """A constant without a NumPy form (a PRNG key), which only delegated equations can read."""
        return self._emit("const", (), type, value=value)

    def weight(self, weight: Any, type: TensorType) -> Value:
        """What `stagejit.bind` binds, once."""
        self.graph.of_gradient |= weight.is_moment
        if weight not in self._weights:
            self._weights[weight] = self._emit("bound", (), type, weight=weight)
        return self._weights[weight]

    def full(self, value: Any, type: TensorType) -> Value:
        return self.fill(self.const(value, type.dtype), type.shape)

    def fill(self, scalar: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if not shape:
            return scalar
        return self._emit("fill", (scalar,), TensorType(scalar.type.dtype, shape), shape=shape)

    def empty(self, type: TensorType) -> Value:
        return self._emit("empty", (), type, shape=type.shape, dtype=type.dtype)

    def iota(self, type: TensorType, axis: int) -> Value:
        return self._emit("iota", (), type, shape=type.shape, dtype=type.dtype, axis=axis)

    def known(self, var: Value) -> np.ndarray[Any, Any] | None:
        """The value of `var` where it is an integer or bool computed from constants."""
        return self._knowledge[var]

    # ---------------------------------------------------------------- elementwise

    def map(self, fn: str, *operands: Value, dtype: DType | None = None, **params: Any) -> Value:
        """An elementwise function; scalars and sizes of 1 are broadcast to the other operands."""
        shapes = [v.shape for v in operands]
        if shapes.count(shapes[0]) < len(shapes):
            shape = _broadcast(shapes)
            operands = tuple([self._operand(v, shape) for v in operands])
        last = operands[-1].type
        if dtype is None:
            dtype = bool_ if fn in PREDICATES else last.dtype
        type = last if dtype is last.dtype else TensorType(dtype, last.shape)
        return self._emit("map", operands, type, fn=fn, dtype=dtype, **params)

    def stretched(self, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The operands in one shape, scalars and sizes of 1 among them repeated."""
        shape = _broadcast([v.type.shape for v in operands])
        return tuple(self._stretched(v, shape) for v in operands)

    def _operand(self, x: Value, shape: tuple[int, ...]) -> Value:
        """What `map` reads of `x`. Numbers are repeated once: nobody writes into these fills."""
        if x.type.shape == shape:
            return x
        if x.type.shape or not x.op.definition.is_constant:
            return self._stretched(x, shape)
        known = self._repeated.get((x, shape))
        if known is None:
            known = self._repeated[x, shape] = self._stretched(x, shape)
        return known

    def _stretched(self, x: Value, shape: tuple[int, ...]) -> Value:
        if x.type.shape == shape:
            return x
        axes = range(len(shape) - x.type.rank, len(shape))
        return self.broadcast(x, shape, axes)

    def convert(self, x: Value, dtype: DType) -> Value:
        if x.type.dtype is dtype:
            return x
        return self._emit("convert", (x,), TensorType(dtype, x.type.shape), dtype=dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        if x.type.dtype is dtype:
            return x
        return self._emit("bitcast", (x,), TensorType(dtype, x.type.shape), dtype=dtype)

    # ---------------------------------------------------------------- views

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if x.type.shape == shape:
            return x
        return self._emit("reshape", (x,), TensorType(x.type.dtype, shape), shape=shape)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        permutation = tuple(permutation)
        if permutation == tuple(range(x.type.rank)):
            return x
        shape = tuple(x.type.shape[axis] for axis in permutation)
        moved = [axis for axis in permutation if x.type.shape[axis] != 1]
        if moved == sorted(moved):  # only dimensions of size 1 change place
            return self.reshape(x, shape)
        return self._emit(
            "transpose", (x,), TensorType(x.type.dtype, shape), permutation=permutation
        )

    def reverse(self, x: Value, axes: Iterable[int]) -> Value:
        axes = tuple(sorted(axis for axis in axes if x.type.shape[axis] != 1))
        return self._emit("reverse", (x,), x.type, axes=axes) if axes else x

    def broadcast(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """Operand dimension i becomes result dimension `axes[i]`; sizes of 1 stretch."""
        shape, axes = tuple(shape), tuple(axes)
        kept = [i for i, axis in enumerate(axes) if x.type.shape[i] == shape[axis]]
        x = self.reshape(x, tuple(x.type.shape[i] for i in kept))
        axes = tuple(axes[i] for i in kept)
        if axes == tuple(range(len(shape))):
            return x
        if not axes:
            return self.fill(x, shape)
        if math.prod(shape) == x.type.size and list(axes) == sorted(axes):
            return self.reshape(x, shape)  # only dimensions of size 1 were added
        return self._emit(
            "broadcast", (x,), TensorType(x.type.dtype, shape), shape=shape, axes=axes
        )

    # ---------------------------------------------------------------- slices

    def extract(
        self,
        x: Value,
        offsets: Sequence[int | Value],
        sizes: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        """The box of `sizes` elements; a `Value` offset is clamped at run time as in JAX."""
        sizes = tuple(sizes)
        strides = _meaningful(strides, sizes)
        static, starts = self._split_offsets(offsets, x.type.shape, sizes, strides)
        if sizes == x.type.shape and not any(static):
            return x
        return self._emit(
            "extract_slice",
            (x, *starts),
            TensorType(x.type.dtype, sizes),
            offsets=static,
            sizes=sizes,
            strides=strides,
        )

    def insert(
        self,
        source: Value,
        destination: Value,
        offsets: Sequence[int | Value],
        strides: Sequence[int] | None = None,
    ) -> Value:
        """`destination` with `source` written at the box; nothing is emitted for an empty
        source."""
        sizes = source.type.shape
        if not source.type.size:
            return destination
        strides = _meaningful(strides, sizes)
        static, starts = self._split_offsets(offsets, destination.type.shape, sizes, strides)
        if sizes == destination.type.shape:
            return source
        return self._emit(
            "insert_slice",
            (source, destination, *starts),
            destination.type,
            offsets=static,
            strides=strides,
        )

    def _split_offsets(
        self,
        offsets: Sequence[int | Value],
        shape: Sequence[int],
        sizes: Sequence[int],
        strides: Sequence[int],
    ) -> tuple[tuple[int | None, ...], list[Value]]:
        """Static offsets (None where dynamic) and the start operands; known starts become
        static."""
        static: list[int | None] = []
        starts: list[Value] = []
        for offset, extent, size, stride in zip(offsets, shape, sizes, strides, strict=True):
            last = extent - (max(size - 1, 0) * stride + 1 if size else 0)
            if isinstance(offset, Value):
                value = self.known(offset)
                if value is None and last > 0:
                    static.append(None)
                    starts.append(self.start_index(offset))
                    continue
                offset = min(max(int(value), 0), last) if value is not None else 0
            static.append(size_of(offset) if size else 0)
        return tuple(static), starts

    def start_index(self, x: Value) -> Value:
        """An index as the i32 or i64 scalar that slices take, with the same value after
        clamping."""
        dtype = x.type.dtype
        if dtype.name in ("i32", "i64"):
            return x
        if dtype.name == "u64":  # values beyond i64 are beyond every array too
            x = self.map("min", x, self.const(np.iinfo(np.int64).max, dtype))
        return self.convert(x, i64)

    def element(self, x: Value, index: tuple[int, ...]) -> Value:
        """One element as a scalar; looks through the ops that only assembled `x` from scalars."""
        while True:
            if not x.type.shape:
                return x
            step = source_of_element(x, index)
            if step is None:
                box = self.extract(x, index, (1,) * len(index))
                return self.reshape(box, ())
            x, index = step

    # ---------------------------------------------------------------- everything else

    def build(self, kind: str, operands: Sequence[Value], **attrs: Any) -> Value:
        """An op of one result, whose type its declaration infers. Raises VerificationError for
        operands that do not fit."""
        return build(self.graph, kind, operands, self.loc, **attrs)

    def emit(self, kind: str, operands: Sequence[Value], type: TensorType, **attrs: Any) -> Value:
        """An equation with one result whose type the caller knows."""
        return self._emit(kind, tuple(operands), type, **attrs)

    def emit_many(
        self, kind: str, operands: Sequence[Value], types: Sequence[TensorType], **attrs: Any
    ) -> tuple[Value, ...]:
        return self.graph.add(kind, operands, types, self.loc, **attrs).results

    def barrier(self, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The same values, which nobody may compute before all of them are there, and which
        nobody may know to be the same. Known numbers stay known."""
        held = list(dict.fromkeys(
            x for x in operands if x.type.dtype.is_native and self.known(x) is None
        ))  # fmt: skip
        if not held:
            return tuple(operands)
        types = [x.type for x in held]
        made = dict(zip(held, self.emit_many("optimization_barrier", held, types), strict=True))
        return tuple(made.get(x, x) for x in operands)

    def _emit(
        self, kind: str, operands: tuple[Value, ...], type: TensorType, **attrs: Any
    ) -> Value:
        if not type.size and kind not in ("empty", "const"):
            return self.empty(type)  # nothing to compute, whatever the operands are
        return self.graph.add(kind, operands, type, self.loc, **attrs).result


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that sizes of 1 stretch to; symbolic sizes are equal or not proven to be."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    made: list[int] = []
    for sizes in zip(*aligned, strict=True):
        stretched = {size for size in sizes if size != 1} or {1}
        if len(stretched) > 1:
            raise Undecided(f"nothing says that {' and '.join(map(str, stretched))} are equal")
        made += stretched
    return tuple(made)


def _meaningful(strides: Sequence[int] | None, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A stride for every dimension, 1 where fewer than two elements make it irrelevant."""
    if strides is None:
        return (1,) * len(sizes)
    pairs = zip(strides, sizes, strict=True)
    return tuple(stride if stride == 1 or size > 1 else 1 for stride, size in pairs)
