"""scale-weights: a factor of the outputs of a product is one of its weights, which are scaled once.

Input: a product of something and weights (see `bind`), whose result is multiplied by a value for
each output channel that weights determine, too. Output: the product of weights that are multiplied.
Invariant: only the place of a rounding changes, where multiples of weights are normal numbers. So
it is the one rewrite that may change more than the last bits, where a multiple of f32 or bf16 is
above 3e38 or below 1e-38 and the program's own products are not (`stagejit/docs/numbers.md`); f16,
which has no such room, is left alone. Whoever reads the product reads the multiple.

A normalization whose statistics are weights (`batch norm` at inference) thus becomes a part of the
convolution before it: what is subtracted in between is multiplied by the same factor.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.errors import GoneError, OptionsError
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.graph.ops.axes import separate
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.text.printer import as_text
from stagejit.rewrites.cloning import copied, values_behind
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.split.partial import mapped
from stagejit.rewrites.weights.behind import (
    is_determined,
    is_known,
    is_widened,
    weights_behind,
)
from stagejit.rewrites.weights.made import base_of
from stagejit.trace.contents import Content, content_of
from stagejit.trace.weights import Weight, changing
from stagejit.types import f16

NAME = "scale-weights"

_ADDS = ("add", "sub")
# Of what a factor is computed from, to be evaluated while compiling; what an op takes beside them.
_MOST_ELEMENTS, _LOOK = 1 << 21, 1 << 10


@rewrite(NAME, roots="map", functions="mul div", counts=True, weights=True)
def scaled_product(graph: Graph, op: Op) -> Outcome:
    """map mul (conv %x, %w), (broadcast %s)  -->  conv %x, (map mul %w, (broadcast %s))"""
    for value, factor in _orders(op):
        if _product_behind(graph, value) is None or not is_known(graph, factor):
            continue
        return _scaled(graph, op, value, factor)
    return None


def _orders(op: Op) -> list[tuple[Value, Value]]:
    x, y = op.operands
    return [(x, y)] if op.attrs["fn"] == "div" else [(x, y), (y, x)]


def _product_behind(graph: Graph, value: Value) -> Op | None:
    """The product that a value is, but for what weights add to it."""
    while not value.op.definition.is_product:
        at = _shifted(graph, value.op)
        if at is None:
            return None
        value = value.op.operands[at]
    return value.op if any(is_determined(graph, x) for x in value.op.operands) else None


def _shifted(graph: Graph, op: Op) -> int | None:
    """The operand that weights are added to, or taken from."""
    if function_of(op) not in _ADDS:
        return None
    return next((at for at in (0, 1) if is_known(graph, op.operands[1 - at])), None)


def _scaled(graph: Graph, op: Op, value: Value, factor: Value) -> Outcome:
    """`value`, times or divided by `factor` as in `op`."""
    shifts = list[tuple[Op, int]]()
    while (at := _shifted(graph, value.op)) is not None:
        if len(graph.uses(value)) > 1:
            return declined("the product is read elsewhere, too")
        shifts.append((value.op, at))
        value = value.op.operands[at]
    if len(graph.uses(value)) > 1:
        return declined("the product is read elsewhere, too")
    made = _with_weights(graph, op, value.op, factor)
    if not isinstance(made, Value):
        return made
    for shift, at in reversed(shifts):
        other = _applied(graph, op, shift.operands[1 - at], factor)
        operands = (made, other) if at == 0 else (other, made)
        made = mapped(graph, str(function_of(shift)), *operands)
    return made


def _with_weights(graph: Graph, op: Op, product: Op, factor: Value) -> Outcome:
    if factor.op.definition.is_splat:
        return declined("a number is as cheap where results are stored")
    source, axes = _repeated(graph, factor)
    at = next(at for at, x in enumerate(product.operands) if is_determined(graph, x))
    weights = product.operands[at]
    if weights.type.dtype is not factor.type.dtype or not factor.type.dtype.is_float:
        return declined(f"weights of {weights.type.dtype} would be rounded once more")
    if factor.type.dtype is f16:
        return declined("multiples of f16 may be too large or too small for it")
    if is_widened(weights):
        return declined("the weights have fewer bytes in memory")
    if _is_read_otherwise(graph, product, weights, source):
        return declined("the weights are read without the factor, too: there would be two copies")
    if graph.of_gradient:
        return declined("the two programs of a gradient read one copy of the weights, without it")
    seen = Factor.of(graph, op, source)
    if seen is None or not seen.is_finite({}):
        return declined(
            "the factor is not finite, or nobody can see: times a weight of 0 that is NaN"
        )
    own = [weight_axis(product, at, axis) for axis in axes]
    if None in own:
        return declined("the factor is not one for each output channel")
    known = [axis for axis in own if axis is not None]
    if known != sorted(known):
        return declined("the weights have these axes in another order")
    wide = build(graph, "broadcast", [source], shape=weights.shape, axes=tuple(known))
    operands = list(product.operands)
    operands[at] = _applied(graph, op, weights, wide)
    graph.factors[seen.key, seen.weights, seen.loops] = seen
    return build(graph, product.kind, operands, product.loc, **product.attrs)


@record(eq=False)
class Factor:
    """What weights are multiplied by, or divided, in each slice that is meant. fn: which of both;
    alone: of inputs for `weights`, the factor; loops: along how many of the first axes of these
    each has slices. seen: the arrays that somebody looked at."""

    fn: str
    alone: Graph
    weights: tuple[Weight, ...]
    loops: tuple[int, ...]
    seen: list[Content] = field(default_factory=list)

    @staticmethod
    def of(graph: Graph, op: Op, factor: Value) -> Factor | None:
        """None where nobody can look, or it would take long."""
        factor = base_of(factor)
        of, values = weights_behind(graph, factor), values_behind([factor])
        known = [graph.weights.get(value) or graph.sliced.get(value) for value in of]
        weights = tuple(weight for weight in known if weight is not None)
        if len(weights) < len(of) or not all(value.type.has_numbers for value in values):
            return None
        found = Factor(
            str(function_of(op)), copied(graph, of, [factor], ()), weights,
            tuple(w.aval.ndim - v.type.rank for v, w in zip(of, weights, strict=True)),
        )  # fmt: skip
        size = sum(_LOOK + value.type.size for value in values)
        return found if found.turns * size <= _MOST_ELEMENTS else None

    @property
    def _outer(self) -> list[tuple[int, ...]]:
        """The axes of each weight along which it has slices. Weights that have the same ones are
        taken to be in the same slice at a time, others in any."""
        both = zip(self.weights, self.loops, strict=True)
        return [weight.aval.shape[:loops] for weight, loops in both]

    @property
    def turns(self) -> int:
        return math.prod(math.prod(outer) for outer in set(self._outer))

    def _slices(self, arrays: Sequence[Any]) -> Iterator[list[Any]]:
        kinds = sorted(set(self._outer))
        for places in itertools.product(*map(np.ndindex, kinds)):
            at = dict(zip(kinds, places, strict=True))
            both = zip(arrays, self._outer, strict=True)
            yield [x[at[outer]] if outer else x for x, outer in both]

    @property
    def key(self) -> tuple[str, str]:
        return self.fn, as_text(self.alone)

    def is_finite(self, new: Mapping[Weight, Any]) -> bool:
        """Of the weights of this moment, but for `new` ones. Where these are gone, what was seen
        of them counts."""
        of = [weight.content for weight in self.weights]
        try:
            arrays = [weight.elements_of(new.get(weight)) for weight in self.weights]
        except GoneError:
            return all(weight.finite.get(self.key) for weight in self.weights)
        found = all(map(self._has_finite, self._slices(arrays)))
        if not new:
            with changing:
                self.seen[:] = of
                for weight, content in zip(self.weights, of, strict=True):
                    if weight.content is content:
                        weight.finite[self.key] = found
        return found

    def _has_finite(self, arrays: Sequence[Any]) -> bool:
        (found,) = interpret(self.alone, arrays)
        wide = found.astype(np.float64)
        with np.errstate(all="ignore"):
            return bool(np.isfinite(1 / wide if self.fn == "div" else wide).all())

    def require_finite(self, new: Mapping[Weight, Any]) -> None:
        """For a program that has it in its weights. Raises OptionsError. What was looked at is not
        looked at again."""
        now = [content_of(new[w]) if w in new else w.content for w in self.weights]
        is_known = len(now) == len(self.seen) and all(map(operator.is_, now, self.seen))
        if is_known or self.is_finite(new):
            with changing:
                for weight in self.weights:
                    weight.factors.add(self)
            return
        names = ", ".join(weight.name for weight in self.weights)
        what, does = ("a zero", "divided") if self.fn == "div" else ("an Inf", "multiplied")
        raise OptionsError(
            f"{names} would give {what} or a NaN that weights of products are {does} by, before"
            " any call: one of them that is 0 would become a NaN",
            next_step='bind anew with these weights, or with Options(disable="scale-weights")',
        )


class _Readers:
    """Of weights and a factor: `scaled` products, which read all of the weights that calls read
    where these were looked at, each for its multiple; `other`, one that reads them otherwise. So
    many products of one weight are looked at once, not once for each of them."""

    def __init__(self) -> None:
        self.scaled = dict[tuple[Value, Value], set[Op]]()
        self.other = dict[tuple[Value, Value], Op]()

    @classmethod
    def of(cls, graph: Graph) -> _Readers:
        found: _Readers = graph.analyses.setdefault(cls, cls())
        return found


def _is_read_otherwise(graph: Graph, product: Op, weights: Value, factor: Value) -> bool:
    """Whether a call reads what the weights are a view of, and not for such a multiple. What is
    computed of it alone is made before any call."""
    base, known = _viewed(weights), _Readers.of(graph)
    key = base, _in_order(factor)
    if product in known.scaled.get(key, ()):
        return False
    other = known.other.get(key)
    if other is not None and other in graph and other is not product:
        reads = any(_viewed(x) is base for x in other.operands)
        if reads and not _is_multiple(graph, other, factor):
            return True
    pending, scaled = [base], {product}
    while pending:
        for user in graph.users(pending.pop()):
            if user.definition.is_view:
                pending.append(user.result)
            elif user is not product and not _is_multiple(graph, user, factor):
                known.other[key] = user
                return True
            else:
                scaled.add(user)
    known.scaled[key] = scaled
    return False


def _viewed(value: Value) -> Value:
    while value.op.definition.is_view:
        value = value.op.operands[0]
    return value


def _is_multiple(graph: Graph, user: Op, factor: Value) -> bool:
    """Whether what is read of it in a call is a multiple, if anything is."""
    if user.definition.is_product:
        return _is_scaled(graph, user, factor)
    return _is_made(graph, user)


def _is_made(graph: Graph, op: Op) -> bool:
    return bool(op.results) and all(is_known(graph, x) for x in op.results)


def _is_scaled(graph: Graph, product: Op, factor: Value) -> bool:
    """Whether all that is read of another product is its multiple, too."""
    value = product.result
    while True:
        users = graph.users(value)
        if len(users) != 1 or len(users[0].operands) != 2:
            return False
        (user,) = users
        other = user.operands[user.operands[0] is value]
        if function_of(user) in ("mul", "div"):
            return _repeats(other, factor)
        if function_of(user) not in _ADDS or not is_known(graph, other):
            return False
        value = user.result


def _repeats(value: Value, source: Value) -> bool:
    """Whether both come from one value, axes of one element aside."""
    first = value.op.operands[0] if value.op.definition.repeats else value
    return _in_order(first) is _in_order(source)


def _in_order(value: Value) -> Value:
    """What has the same elements in the same order."""
    while value.op.definition.keeps_order:
        value = value.op.operands[0]
    return value


def _repeated(graph: Graph, value: Value) -> tuple[Value, tuple[int, ...]]:
    """What a broadcast repeats, without axes of one element, and along which axes that lies. What
    is none is repeated along none: where there is one row, a factor for each column."""
    source, along = value, tuple(range(value.type.rank))
    if value.op.definition.repeats:
        source, along = value.op.operands[0], value.op.attrs["axes"]
    wide = [at for at, size in enumerate(source.shape) if size != 1]
    axes = tuple(along[at] for at in wide)
    if len(wide) < source.type.rank:
        shape = tuple(source.shape[at] for at in wide)
        source = build(graph, "reshape", [source], shape=shape)
    return source, axes


def _applied(graph: Graph, op: Op, value: Value, factor: Value) -> Value:
    return mapped(graph, str(function_of(op)), value, factor)


def weight_axis(product: Op, operand: int, axis: int) -> int | None:
    """The axis of one operand that is this axis of the result, and of no other operand."""
    if product.definition.is_windowed:
        dims = ConvDims.of(product.attrs)
        is_feature = operand == 1 and axis == dims.out_spec[1] and dims.split is None
        return dims.rhs_spec[0] if is_feature else None
    parts: Sequence[int | None] | None = separate(product, axis)
    if parts is None or parts[1 - operand] is not None:
        return None
    return parts[operand]


@rewrite(NAME, roots="map", functions="add sub", counts=True, weights=True)
def summed_shifts(graph: Graph, op: Op) -> Outcome:
    """map add (map add (conv %x, %w), %a), %b  -->  map add (conv %x, %w), (map add %a, %b)

    For weights %a and %b. Of anything else this could undo what somebody adds and takes away again
    in order to round."""
    if not op.result.type.dtype.is_float:
        return None
    outer = _shift(graph, op)
    inner = outer and _shift(graph, outer[0].op)
    if not outer or not inner or len(graph.uses(outer[0])) > 1:
        return None
    (_, b, plus_b), (y, a, plus_a) = outer, inner
    if not y.op.definition.is_product or op.result.type.dtype is f16 or a is b:
        return None
    if plus_a == plus_b:
        return mapped(graph, "add" if plus_a else "sub", y, mapped(graph, "add", a, b))
    more, less = (a, b) if plus_a else (b, a)
    return mapped(graph, "add", y, mapped(graph, "sub", more, less))


def _shift(graph: Graph, op: Op) -> tuple[Value, Value, bool] | None:
    """What is no weight, the weight that is added to it, and whether it is added, not taken."""
    fn = function_of(op)
    if fn not in _ADDS:
        return None
    x, y = op.operands
    if is_determined(graph, y) and not is_determined(graph, x):
        return x, y, fn == "add"
    if fn == "add" and is_determined(graph, x) and not is_determined(graph, y):
        return y, x, True
    return None


@rewrite(NAME, roots="map", weights=True)
def repeated_weights(graph: Graph, op: Op) -> Outcome:
    """map fn (broadcast %a), (broadcast %b)  -->  broadcast (map fn %a, %b), for weights"""
    if not all(x.op.definition.repeats for x in op.operands):
        return None
    if not is_determined(graph, op.result):
        return None
    repeated = [_repeated(graph, x) for x in op.operands]
    sources, axes = [source for source, _ in repeated], {axes for _, axes in repeated}
    if len(axes) > 1:
        return None
    narrow = build(graph, "map", sources, op.loc, **op.attrs)
    return build(graph, "broadcast", [narrow], shape=op.result.shape, axes=axes.pop())


RULES = (scaled_product, summed_shifts, repeated_weights)
