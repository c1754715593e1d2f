"""`attend`: attention, as one op: nobody has to store a matrix of scores.

    product = contract %q, %k                       (contracting, batch)
    f[, present] = scores (product, *others)        a body: scale, masks, biases
    p = softmax of f over the elements of a row that are present; 0 for the others
    result = contract (weights (p, *others)), %v    (value_contracting, value_batch)

Input: %q, %k, %v, and what the bodies read beside the products and the softmax. Output: the sums of
values. A row is what `value_contracting` sums over: all free axes of %k. Invariant: the bodies
evaluate an element from elements at its own place (views may permute axes of the product), and
`weights` is linear in p, so that sums may be divided by the sum of a row at last.

A row of which no element is present has no weights, so its sums are 0; one whose elements are all
-inf gives NaN, as softmax does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.errors import VerificationError
from stagejit.graph.definition import Attrs, Names, OpDef, Types, define, require
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.ops.axes import separate
from stagejit.graph.ops.products import contract_type, contracted
from stagejit.graph.text.syntax import attributes_text, joined, operands_text
from stagejit.types import TensorType, bool_

_LINEAR_IN_ONE = frozenset({"mul"})  # in either operand, the other one given


def _attend(operands: Types, attrs: Attrs) -> TensorType:
    q, k, v, *others = operands
    scores, weights = attrs["scores"], attrs["weights"]
    require(len(scores.outputs) in (1, 2), "scores gives f, and may say what is present")
    first = scores.inputs[0].type
    product = contract_type((q, k), {**_of_product(attrs), "dtype": first.dtype})
    _require_inputs(scores, (product, *others))
    f = scores.outputs[0].type
    require(f.dtype.is_float, f"scores are no {f.dtype}")
    if len(scores.outputs) == 2:
        require(scores.outputs[1].type == TensorType(bool_, f.shape), "present is a bool of each")
    require(len(weights.outputs) == 1, "weights gives one result")
    p = weights.inputs[0].type
    require(p.dtype.is_float and p.shape == f.shape, f"weights takes {p}, not {f.shape} floats")
    _require_inputs(weights, (p, *others))
    (made,) = weights.outputs
    return contract_type((made.type, v), {**_of_values(attrs), "dtype": attrs["dtype"]})


def _of_product(attrs: Attrs) -> dict[str, Any]:
    return {"contracting": attrs["contracting"], "batch": attrs["batch"]}


def _of_values(attrs: Attrs) -> dict[str, Any]:
    return {"contracting": attrs["value_contracting"], "batch": attrs["value_batch"]}


def _require_inputs(body: Graph, types: Types) -> None:
    given = [value.type for value in body.inputs]
    require(given == list(types), f"{body.name} takes {given}, not {list(types)}")


def _check(op: Op) -> None:
    """Raises VerificationError for bodies that are none."""
    scores, weights = op.attrs["scores"], op.attrs["weights"]
    for body in (scores, weights):
        for inner in body:
            known = inner.definition
            fits = known.is_elementwise or known.is_view or known.is_free or known.is_constant
            fits = (
                fits and not known.splits and (not known.is_constant or inner.result.type.size == 1)
            )
            if known.is_step and not fits:
                raise VerificationError(f"{body.name} has a {inner.kind}")
    if linear_path(weights.outputs[0], weights.inputs[0]) is None:
        raise VerificationError(f"{weights.name} is not linear in its first operand")
    roles = roles_of(op.attrs, op.operands[0].type)
    if isinstance(roles, str):
        raise VerificationError(roles)


def linear_path(value: Value, source: Value) -> list[Op] | None:
    """The ops by which `value` is a multiple of `source`, the last one first, whatever else they
    read; None where it is not known to be one."""
    path: list[Op] = []
    while value is not source:
        op, fn = value.op, value.op.attrs.get("fn")
        known, operands = op.definition, op.operands
        if known.is_view and len(operands) == 1:
            path.append(op)
            (value,) = operands
            continue
        if (known.is_conversion and value.type.dtype.is_float) or fn == "neg":
            follows = operands[0] if operands[0].type.dtype.is_float else None
        elif fn == "div":
            follows = operands[0]
        elif fn in _LINEAR_IN_ONE:
            leading = [x for x in operands if depends_on(x, source)]
            follows = leading[0] if len(leading) == 1 else None
        elif fn == "select":
            follows = _other_than_zero(operands)
        else:
            follows = None
        if follows is None or not known.is_elementwise:
            return None
        if any(depends_on(x, source) for x in operands if x is not follows):
            return None
        path.append(op)
        value = follows
    return path


def _other_than_zero(operands: Sequence[Value]) -> Value | None:
    """The case of a select of which the other one is 0."""
    _, on_true, on_false = operands
    if is_number(on_false, 0.0):
        return on_true
    return on_false if is_number(on_true, 0.0) else None


def is_number(value: Value, number: float) -> bool:
    """Whether all elements are that number."""
    while value.op.definition.is_splat:
        value = value.op.operands[0]
    known = value.op.definition
    if not known.is_constant or value.type.size != 1 or not value.type.dtype.is_native:
        return False
    return bool(np.asarray(value.op.attrs["value"]).reshape(()) == number)


def depends_on(value: Value, source: Value) -> bool:
    """Whether a value is made of another one of its graph."""
    pending, seen = [value], set[Value]()
    while pending:
        each = pending.pop()
        if each is source:
            return True
        if each not in seen:
            seen.add(each)
            pending += each.op.operands
    return False


# -------------------------------------------------------------------- axes


@record
class Roles:
    """What the axes of weights are. scores, product: for each of them the axis of f, and of the
    product, that it is; None for one that those lack. batch: shared by queries, keys and values;
    rows: of queries; keys: summed over."""

    scores: tuple[int | None, ...]
    product: tuple[int | None, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]


def roles_of(attrs: Attrs, q: TensorType) -> Roles | str:
    """The roles of the axes of weights, or why they are not those of an attention."""
    scores, weights = attrs["scores"], attrs["weights"]
    made, f, product = weights.outputs[0], scores.outputs[0], scores.inputs[0]
    of_f = _axes_in(made, list(range(made.type.rank)), weights.inputs[0])
    of_product = _axes_in(f, of_f, product) if of_f is not None else None
    if of_f is None or of_product is None:
        return "scores and weights mix axes of the product"
    batches = len(attrs["batch"][0])
    free = q.rank - len(attrs["contracting"][0])  # the batch and the queries
    batch, rows, keys = list[int](), list[int](), list[int]()
    for at, axis in enumerate(of_product):
        if at in attrs["value_contracting"][0]:
            keys.append(at)
        elif axis is not None and axis < batches:
            batch.append(at)
        else:
            rows.append(at)
    for at, axis in enumerate(of_product):
        if axis is not None and (axis >= free) != (at in keys):
            return "a row is not what the keys of a query give"
        if at in attrs["value_batch"][0] and at in rows and made.type.shape[at] != 1:
            return "queries that share their keys differ in values"
    return Roles(tuple(of_f), tuple(of_product), tuple(batch), tuple(rows), tuple(keys))


def _axes_in(value: Value, axes: Sequence[int | None], source: Value) -> list[int | None] | None:
    """The axes of a source that those of a value are; None where that lacks some, or mixes them."""
    found: list[int | None] = []
    for axis in axes:
        own = axis_of(value, axis, source) if axis is not None else None
        if isinstance(own, str):
            return None
        found.append(own)
    known = [axis for axis in found if axis is not None]
    wide = {axis for axis, size in enumerate(source.type.shape) if size != 1}
    return found if len(set(known)) == len(known) and wide <= set(known) else None


def axis_of(value: Value, axis: int, source: Value) -> int | str | None:
    """The axis of `source` along which a place of `axis` needs that place only; None where it needs
    none in particular, "apart" where it needs others."""
    known: dict[tuple[Value, int], int | str | None] = {}

    def visit(value: Value, axis: int) -> int | str | None:
        if value is source:
            return axis
        if (value, axis) not in known:
            known[value, axis] = _joined(behind(value.op, axis))
        return known[value, axis]

    def behind(op: Op, axis: int) -> list[int | str | None]:
        leading = [x for x in op.operands if depends_on(x, source)]
        if not leading:
            return []
        apart = separate(op, axis)
        if apart is None:
            return ["apart"]
        pairs = zip(op.operands, apart, strict=True)
        return [
            visit(x, own) if own is not None else None if op.result.shape[axis] == 1 else "apart"
            for x, own in pairs
            if x in leading
        ]

    return visit(value, axis)


def _joined(found: Sequence[int | str | None]) -> int | str | None:
    different = set(found)
    if len(different) > 1:
        return "apart"
    return different.pop() if different else None


# ------------------------------------------------------------------ meaning


def _value_of_attend(evaluator: Evaluator, op: Op, *operands: Array) -> Array:
    q, k, v, *others = operands
    attrs, scores, weights = op.attrs, op.attrs["scores"], op.attrs["weights"]
    wide = np.dtype(np.float64)
    product = contracted(q.astype(wide), k.astype(wide), attrs["contracting"], attrs["batch"])
    stored = evaluator.stored(product, scores.inputs[0].type.dtype)
    f, *more = evaluator.graph(scores, [stored, *others])
    present = more[0] if more else np.ones(f.shape, bool)
    roles = roles_of(attrs, op.operands[0].type)
    assert isinstance(roles, Roles)
    axes = tuple(axis for at in roles.keys if (axis := roles.scores[at]) is not None)
    p = evaluator.stored(_softmax(f.astype(wide), present, axes), weights.inputs[0].type.dtype)
    (w,) = evaluator.graph(weights, [p, *others])
    last = attrs["value_contracting"], attrs["value_batch"]
    return contracted(w.astype(wide), v.astype(wide), *last)


def _softmax(f: Array, present: Array, axes: tuple[int, ...]) -> Array:
    """Along axes, over what is present; 0 elsewhere."""
    with np.errstate(invalid="ignore", divide="ignore"):
        masked = np.where(present, f, -np.inf)
        most = masked.max(axis=axes, keepdims=True, initial=-np.inf)
        e = np.where(present, np.exp(f - most), 0)
        found: Array = np.where(present, e / e.sum(axis=axes, keepdims=True), 0)
        return found


# --------------------------------------------------------- text, structure, cost


def _write(op: Op, names: Names) -> str:
    """The bodies follow on lines of their own."""
    return joined(operands_text(op, names), *attributes_text(op, {"scores", "weights"}))


def _bodies(op: Op) -> tuple[Graph, ...]:
    return op.attrs["scores"], op.attrs["weights"]


def _with_bodies(graphs: Sequence[Graph]) -> dict[str, Any]:
    if len(graphs) != 2:
        raise ValueError("an attend has scores and weights")
    return {"scores": graphs[0], "weights": graphs[1]}


def _flops(op: Op) -> int:
    q, _, v, *_ = op.operands
    products: int = op.attrs["scores"].inputs[0].type.size
    depth, each = 1, 1
    for axis in op.attrs["contracting"][0]:
        depth *= q.shape[axis]
    for axis, size in enumerate(v.shape):
        if axis not in (*op.attrs["value_contracting"][1], *op.attrs["value_batch"][1]):
            each *= size
    return 2 * products * (depth + each)


define(
    OpDef(
        kind="attend",
        infer=_attend,
        interpret=_value_of_attend,
        check=_check,
        write=_write,
        bodies=_bodies,
        with_bodies=_with_bodies,
        applies=True,
        implied=frozenset({"dtype"}),
        accumulates=True,
        is_product=True,
        flops=_flops,
    )
)
