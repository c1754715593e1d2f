"""store-weights: weights of products have fewer bytes, and are widened where they are read.

Input: a graph whose bound inputs say in which form (`Weight.form`) products read them. Output: the
products read bf16, or integers of 8 or 4 bits with a scale for each output channel. Invariants:
sums are in the type in which they were; a weight has the same elements in every program, forwards
and backwards, and in each body; what else reads it is a reason to leave it as it is.

Note [Symmetric integers]: with the largest magnitude m of a channel, 8 bits hold x as round(x / s)
for s = m / 127, 4 bits for s = m / 7. A scale that is the same for all terms of a sum multiplies
the sum; one along the axis that is summed over (a product with the transpose, as in a gradient)
multiplies the other operand. Two of 4 bits are in one byte, neighbours along the axis that is
summed over, each 8 more than the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.graph.ops.axes import separate
from stagejit.rewrites.cloning import cloned
from stagejit.rewrites.driver import Log
from stagejit.rewrites.partial import converted, mapped
from stagejit.rewrites.weights.behind import weights_behind
from stagejit.rewrites.weights.readers import OTHERS
from stagejit.trace.weights import Weight
from stagejit.types import TensorType, bf16, f32, i8, u8

NAME = "store-weights"

FEWEST_ELEMENTS = 1024
_LARGEST = {"int8": 127, "int4": 7}
_NIBBLE, _ZERO = 4, 8
_PANELS_FROM, _WIDTH = 1 << 18, 128  # elements of a matrix, columns of a panel


def store_weights(log: Log) -> None:
    """contract %x, %w  -->  map mul (contract %x, (convert %q)), (broadcast %s)"""
    if not log.graph.weights:
        return
    graph, stored = log.graph, dict[Value, _Stored]()
    first_id = graph.next_id
    for op in graph.ops():
        if op.definition.is_product and op in graph:
            _store(log, op, stored, first_id)
    for value, made in stored.items():
        before = [use for use in graph.uses(value) if use.user.id < first_id]
        others = [use for use in before if not use.user.definition.has_bodies]
        if others and value in graph.weights:  # which nobody may see in two forms
            restored = made.restored(graph)
            for use in others:
                graph.set_operand(use.user, use.operand, restored)


@dataclass(frozen=True)
class _Stored:
    """A weight as it lies in memory. channels: its axes that have scales of their own; packed: the
    axis along which two are in a byte, or None. summed: of a matrix in panels the axis that these
    have whole, see Note [Panels]; None of any other."""

    value: Value
    narrow: Value
    scale: Value | None = None
    channels: tuple[int, ...] = ()
    packed: int | None = None
    summed: int | None = None

    def wide(self, graph: Graph) -> Value:
        """Without scales, in the type of the weight. Two in a byte have an axis of 2 behind
        `packed`."""
        dtype = self.value.type.dtype
        if self.packed is None:
            return converted(graph, self.narrow, dtype)
        at, shape = self.packed, self.narrow.shape
        halves = (*shape[: at + 1], 2, *shape[at + 1 :])
        axes = (*range(at + 1), *range(at + 2, len(halves)))
        both = build(graph, "broadcast", [self.narrow], shape=halves, axes=axes)
        number = build(graph, "iota", (), shape=halves, dtype=u8, axis=at + 1)
        shift = mapped(graph, "mul", number, filled(graph, _NIBBLE, number.type))
        half = mapped(graph, "shift_right_logical", both, shift)
        number = mapped(graph, "and", half, filled(graph, 15, half.type))
        made = converted(graph, number, dtype)
        return mapped(graph, "sub", made, filled(graph, _ZERO, made.type))

    def transposed(self, graph: Graph, value: Value, order: Sequence[int]) -> _Stored:
        """Axis i of `value` is axis `order[i]` of the weight."""
        if self.summed is not None:
            summed = order.index(self.summed)
            channels = tuple(order.index(axis) for axis in self.channels)
            return replace(self, value=value, channels=channels, summed=summed)
        narrow = build(graph, "transpose", [self.narrow], permutation=tuple(order))
        channels = tuple(order.index(axis) for axis in self.channels)
        packed = None if self.packed is None else order.index(self.packed)
        return _Stored(value, narrow, self.scale, channels, packed)

    def whole(self, graph: Graph) -> Value:
        """Without scales, in the shape of the weight."""
        if self.summed is not None:
            wide = self.wide(graph)
            order = (1, 0, 2) if self.summed == 0 else (0, 2, 1)
            wide = build(graph, "transpose", [wide], permutation=order)
            return build(graph, "reshape", [wide], shape=self.value.shape)
        return build(graph, "reshape", [self.wide(graph)], shape=self.value.shape)

    def restored(self, graph: Graph) -> Value:
        """What stands for the weight in any product."""
        made = self.whole(graph)
        if self.scale is None:
            return made
        return mapped(graph, "mul", made, _along(graph, self.scale, made.shape, self.channels))


def _store(log: Log, op: Op, stored: dict[Value, _Stored], first_id: int) -> None:
    graph = log.graph
    for at, value in enumerate(op.operands):
        behind = weights_behind(graph, value)
        forms = [graph.weights[weight].form for weight in behind or ()]
        form = next((form for form in forms if form), None)
        if not behind or form is None:
            continue
        weight = graph.weights.get(value)
        reason = (weight and weight.kept) or _why_not(graph, op, at, form, first_id)
        if reason:
            log.decline(NAME, op, reason)
            if weight is not None:  # nor in any other program
                weight.kept = reason
            return
        made = _product(graph, op, at, _stored(log, op, at, form, stored))
        how = "bf16" if form == "bf16" else f"{form}, with a scale for each output channel"
        log.replace(NAME, op, made, f"operand {at} lies in memory as {how}")
        return


def _stored(log: Log, op: Op, at: int, form: str, stored: dict[Value, _Stored]) -> _Stored:
    """An operand as it is stored: a transpose of a weight as the transpose of that."""
    graph, value = log.graph, op.operands[at]
    source, order = value, tuple(range(value.type.rank))
    inner = value.op.operands[0] if value.op.operands else value
    if value.op.definition.is_view and "permutation" in value.op.attrs and inner in graph.weights:
        source, order = inner, value.op.attrs["permutation"]
    if source not in stored:
        stored[source] = _made(log, op, at, form, source, order)
    made = stored[source]
    return made if source is value else made.transposed(graph, value, order)


def _why_not(graph: Graph, op: Op, at: int, form: str, first_id: int) -> str:
    value = op.operands[at]
    if value.type.size < FEWEST_ELEMENTS:
        return f"a weight of {value.type.size} elements is small"
    if value.type.dtype is not f32:
        return f"a weight of {value.type.dtype} stays what it is"
    if op.attrs["dtype"] is not f32:
        return f"sums are kept as {op.attrs['dtype']}"
    if op.definition.is_windowed and at == 0:
        return "weights are what a window moves over"
    if weights_behind(graph, op.operands[1 - at]) is not None:
        return "weights determine the product"
    behind = weights_behind(graph, value) or ()
    if not all(_only_products_read(graph, weight, first_id) for weight in behind):
        return OTHERS
    return ""


def _only_products_read(graph: Graph, value: Value, first_id: int) -> bool:
    """first_id: ops from this one on store weights."""
    for user in graph.users(value):
        if user.definition.is_product or user.definition.is_return or user.id >= first_id:
            continue
        if user.definition.has_bodies:  # see `readers.py`
            continue
        if len(user.results) != 1:
            return False
        if weights_behind(graph, user.result) is None:
            return False
        if not _only_products_read(graph, user.result, first_id):
            return False
    return True


# -- what lies in memory --------------------------------------------------------------------------


def _made(log: Log, op: Op, at: int, form: str, value: Value, order: Sequence[int]) -> _Stored:
    """order: the axes of `value` that those of the operand are."""
    graph = log.graph
    channels, summed = _axes_of(op, at)
    channels = tuple(sorted(order[axis] for axis in channels))
    summed = None if summed is None else order[summed]
    weight = graph.weights.get(value)
    if weight is not None:  # the first program has decided
        channels, summed = weight.axes = weight.axes or (channels, summed)
    made = _narrowed(graph, value, form, channels, summed)
    name = ", ".join(sorted(graph.weights[w].name for w in weights_behind(graph, value) or ()))
    graph.measures[name] = _error(graph, value, made)
    return made


def _axes_of(op: Op, at: int) -> tuple[tuple[int, ...], int | None]:
    """The axes of an operand over which nothing is summed, and the longest of the others that is
    even."""
    rank, shape = op.operands[at].type.rank, op.operands[at].shape
    if op.definition.is_windowed:
        dims = ConvDims.of(op.attrs)
        summed = [dims.rhs_spec[1]]
        channels: tuple[int, ...] = (dims.rhs_spec[0],)
    else:
        summed = list(op.attrs["contracting"][at])
        channels = tuple(axis for axis in range(rank) if axis not in summed)
    even = [axis for axis in summed if shape[axis] % 2 == 0]
    return channels, max(even, key=lambda axis: shape[axis], default=None)


def _narrowed(
    graph: Graph, value: Value, form: str, channels: tuple[int, ...], summed: int | None
) -> _Stored:
    if form == "bf16":
        return _in_panels(graph, _Stored(value, converted(graph, value, bf16)), channels)
    if form == "int4" and summed is None:
        form = "int8"  # nothing to pair
    largest = _LARGEST[form]
    others = tuple(axis for axis in range(value.type.rank) if axis not in channels)
    magnitude = mapped(graph, "abs", value)
    if others:
        magnitude = build(graph, "reduce", [magnitude], fn="max", axes=others)
    one = filled(graph, 1.0, magnitude.type)
    some = mapped(graph, "ne", magnitude, filled(graph, 0.0, magnitude.type))
    scale = mapped(graph, "div", magnitude, filled(graph, float(largest), magnitude.type))
    scale = build(graph, "map", [some, scale, one], fn="select", dtype=f32)
    ratio = mapped(graph, "div", value, _along(graph, scale, value.shape, channels))
    rounded = build(graph, "map", [ratio], fn="round", dtype=f32, rounding="even")
    if form == "int8":
        narrow = converted(graph, rounded, i8)
        return _in_panels(graph, _Stored(value, narrow, scale, channels), channels)
    assert summed is not None
    positive = mapped(graph, "add", rounded, filled(graph, float(_ZERO), rounded.type))
    number = converted(graph, positive, u8)
    low, high = (_every_second(graph, number, summed, first) for first in (0, 1))
    high = mapped(graph, "shift_left", high, filled(graph, _NIBBLE, high.type))
    return _Stored(value, mapped(graph, "or", low, high), scale, channels, summed)


def _in_panels(graph: Graph, stored: _Stored, channels: tuple[int, ...]) -> _Stored:
    """Note [Panels]: a vector times a matrix takes as long as the matrix takes from memory, which
    is least where a core reads one line after the other. So a large matrix lies in panels of some
    columns, all of them as long as the sum: element (k, n) is (n / width, k, n % width)."""
    value, size = stored.value, stored.value.type.size
    if value.type.rank != 2 or len(channels) != 1 or size < _PANELS_FROM:
        return stored
    (axis,) = channels
    columns, steps = value.shape[axis], value.shape[1 - axis]
    if columns % _WIDTH:
        return stored
    shape = [steps, columns // _WIDTH, _WIDTH] if axis else [columns // _WIDTH, _WIDTH, steps]
    split = build(graph, "reshape", [stored.narrow], shape=tuple(shape))
    order = (1, 0, 2) if axis else (0, 2, 1)
    narrow = build(graph, "transpose", [split], permutation=order)
    return replace(stored, narrow=narrow, summed=1 - axis)


def _every_second(graph: Graph, value: Value, axis: int, first: int) -> Value:
    rank = value.type.rank
    return build(
        graph, "extract_slice", [value],
        offsets=tuple(first if at == axis else 0 for at in range(rank)),
        sizes=tuple(n // 2 if at == axis else n for at, n in enumerate(value.shape)),
        strides=tuple(2 if at == axis else 1 for at in range(rank)),
    )  # fmt: skip


def _along(graph: Graph, value: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    """Repeated, with axis i along `axes[i]` of the result."""
    order = sorted(range(len(axes)), key=lambda at: axes[at])
    if order != list(range(len(axes))):
        value = build(graph, "transpose", [value], permutation=tuple(order))
    known = [
        (axis, size) for axis, size in zip(sorted(axes), value.shape, strict=True) if size != 1
    ]
    value = build(graph, "reshape", [value], shape=tuple(size for _, size in known))
    if not known:
        return build(graph, "fill", [value], shape=tuple(shape))
    return build(graph, "broadcast", [value], shape=tuple(shape), axes=tuple(a for a, _ in known))


def _error(graph: Graph, value: Value, stored: _Stored) -> tuple[Graph, list[Weight]]:
    """|restored - w| / |w| in the Frobenius norm, as a graph, and the weights that it is of."""
    restored = stored.restored(graph)
    behind = [w for w in graph.weights if w in (weights_behind(graph, value) or ())]
    made = Graph("error")
    known = {w: made.add_input(f"w{at}", w.type) for at, w in enumerate(behind)}
    known |= cloned(made, [value, restored], known)
    lost = mapped(made, "sub", known[restored], known[value])
    everything = tuple(range(value.type.rank))
    squares = [
        build(made, "reduce", [mapped(made, "mul", x, x)], fn="add", axes=everything)
        for x in (lost, known[value])
    ]
    whole = mapped(made, "max", squares[1], filled(made, 1e-30, TensorType(f32, ())))
    made.set_outputs([mapped(made, "sqrt", mapped(made, "div", squares[0], whole))])
    return made, [graph.weights[w] for w in behind]


# -- products -------------------------------------------------------------------------------------


def _product(graph: Graph, op: Op, at: int, stored: _Stored) -> Value:
    """The same product of the weight as it is stored."""
    results = _axes_of_results(op, at)
    behind = [axis in results for axis in stored.channels]
    others = {} if op.definition.is_windowed else dict(
        zip(op.attrs["contracting"][at], op.attrs["contracting"][1 - at], strict=True)
    )  # fmt: skip
    before = [axis in others for axis in stored.channels]
    scale, other = stored.scale, op.operands[1 - at]
    if scale is None and stored.summed is not None:
        return _of_panels(graph, op, at, stored, other)
    if scale is None:
        return _with_operands(graph, op, at, stored.wide(graph), other)
    if not all(behind) and not all(before):
        return _with_operands(graph, op, at, stored.restored(graph), other)
    if not all(behind):
        axes = [others[axis] for axis in stored.channels]
        other = mapped(graph, "mul", other, _along(graph, scale, other.shape, axes))
    if stored.summed is not None:
        made = _of_panels(graph, op, at, stored, other)
    elif stored.packed in others:
        made = _of_halves(graph, op, at, stored, other)
    else:
        made = _with_operands(graph, op, at, stored.whole(graph), other)
    if not all(behind):
        return made
    axes = [results[axis] for axis in stored.channels]
    return mapped(graph, "mul", made, _along(graph, scale, made.shape, axes))


def _axes_of_results(op: Op, at: int) -> dict[int, int]:
    """The axis of the result that is an axis of the operand."""
    if op.definition.is_windowed:
        dims = ConvDims.of(op.attrs)
        return {dims.rhs_spec[0]: dims.out_spec[1]}
    found: dict[int, int] = {}
    for axis in range(op.result.type.rank):
        parts = separate(op, axis)
        own = parts[at] if parts is not None else None
        if own is not None:
            found[own] = axis
    return found


def _with_operands(
    graph: Graph, op: Op, at: int, weight: Value, other: Value, **attrs: object
) -> Value:
    operands = (weight, other) if at == 0 else (other, weight)
    return build(graph, op.kind, operands, op.loc, **{**op.attrs, **attrs})


def _of_panels(graph: Graph, op: Op, at: int, stored: _Stored, other: Value) -> Value:
    """The product of a matrix in panels: its second axis is two, those of panels and in a panel."""
    ((own,), (theirs,)) = op.attrs["contracting"][at], op.attrs["contracting"][1 - at]
    axes: list[tuple[int, ...]] = [(1,), (theirs,)]
    if own != stored.summed:
        count, _, width = stored.narrow.shape
        shape = (*other.shape[:theirs], count, width, *other.shape[theirs + 1 :])
        other = build(graph, "reshape", [other], shape=shape)
        axes = [(0, 2), (theirs, theirs + 1)]
    contracting = tuple(axes if at == 0 else axes[::-1])
    made = _with_operands(graph, op, at, stored.wide(graph), other, contracting=contracting)
    return build(graph, "reshape", [made], shape=op.result.shape)


def _of_halves(graph: Graph, op: Op, at: int, stored: _Stored, other: Value) -> Value:
    """The sum over pairs: the axis that is packed is two, in both operands."""
    assert stored.packed is not None
    contracting = op.attrs["contracting"]
    own = dict(zip(contracting[at], contracting[1 - at], strict=True))[stored.packed]
    pairs = (*other.shape[:own], other.shape[own] // 2, 2, *other.shape[own + 1 :])
    other = build(graph, "reshape", [other], shape=pairs)
    moved = {at: stored.packed, 1 - at: own}

    def renamed(axes: Mapping[int, Sequence[int]] | Sequence[Sequence[int]], pair: bool) -> object:
        made = []
        for side in (0, 1):
            split = moved[side]
            new = [axis + (axis > split) for axis in axes[side]]
            made.append(tuple([*new, split + 1] if pair else new))
        return tuple(made)

    return _with_operands(
        graph, op, at, stored.wide(graph), other,
        contracting=renamed(contracting, True), batch=renamed(op.attrs["batch"], False),
    )  # fmt: skip
