"""fuse-attention: a softmax of a product, and its product with values, become one op.

Input: a graph, for a machine whose workers run one kernel together. Output: an `attend` in place of
each attention of which nobody needs scores or weights. Invariant: it means the same; what is
rounded to 16 bits between the ops may not be here.

What a CPU makes tile by tile (`rewrites/tiling/`) has loops around kernels, which a GPU would run
one after the other; here the kernel itself goes tile by tile (Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.attention import Roles, linear_path, roles_of
from stagejit.rewrites.attention.bodies import body_of, counts, leaves_of, made_of
from stagejit.rewrites.attention.cost import Cost
from stagejit.rewrites.attention.softmax import Softmax, quotients_behind, softmax_of
from stagejit.rewrites.driving.driver import Log, describe
from stagejit.rewrites.tiling.surroundings import Surroundings
from stagejit.types import TensorType

NAME = "fuse-attention"


def fuse_attention(log: Log) -> bool:
    """contract (softmax (f (contract %q, %k))), %v  -->  attend %q, %k, %v, f; whether there was
    any."""
    made = False
    if log.machine.side_by_side:
        return made
    surroundings: Surroundings | None = None
    for op in log.graph.ops():
        if op not in log.graph or not _is_product(op):
            continue
        for side, weights in enumerate(op.operands):
            quotients = list(quotients_behind(weights))
            if not quotients:
                continue
            surroundings = surroundings or Surroundings(log.graph)
            if _fused(log, op, side, quotients, surroundings):
                made, surroundings = True, None  # ops have changed places
                break
    return made


def _is_product(op: Op) -> bool:
    known = op.definition
    if not known.is_product or known.is_windowed or known.applies:
        return False
    types = [value.type for value in (*op.operands, op.result)]
    return all(type.has_numbers and type.size and type.dtype.is_float for type in types)


def _fused(
    log: Log, op: Op, side: int, quotients: Sequence[Value], surroundings: Surroundings
) -> bool:
    """Whether an attend takes the place of a product whose operand `side` has the weights."""
    for quotient in quotients:
        found = softmax_of(quotient)
        made = (
            _Attention(log.graph, op, side, found, surroundings).parts()
            if isinstance(found, Softmax) else found
        )  # fmt: skip
        reason = made if isinstance(made, str) else _refuse_cost(log, made, op)
        if isinstance(made, str) or reason:
            log.decline(NAME, op, reason)
            continue
        first_new = log.graph.next_id
        value = made.built(log.graph, op)
        log.located(first_new, op)
        log.replace(NAME, op, value, f"{made.scores_type} of scores are never stored")
        return True
    return False


@record
class _Parts:
    """Of an attend. order: the axes of the product that it takes the place of, in its result."""

    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    order: tuple[int, ...]
    roles: Roles
    scores_type: TensorType

    def built(self, graph: Graph, op: Op) -> Value:
        value = build(graph, "attend", self.operands, op.loc, **self.attrs)
        if self.order != tuple(range(len(self.order))):
            value = build(graph, "transpose", (value,), op.loc, permutation=self.order)
        return value


def _refuse_cost(log: Log, parts: _Parts, op: Op) -> str:
    """Why one kernel would take longer; "" where it does not."""
    f, w = parts.scores_type, parts.attrs["weights"].outputs[0].shape
    rows = math.prod(w[axis] for axis in (*parts.roles.batch, *parts.roles.rows))
    keys = math.prod(w[axis] for axis in parts.roles.keys)
    summed = parts.attrs["contracting"][0]
    depth = math.prod(parts.operands[0].shape[axis] for axis in summed)
    cost = Cost(
        rows, math.prod(w[axis] for axis in parts.roles.batch),
        2 * f.size * depth + 2 * op.result.type.size * keys,
        sum(value.type.nbytes for value in (*parts.operands, op.result)), f.nbytes,
    )  # fmt: skip
    together, apart = cost.together(log.machine), cost.apart(log.machine)
    if together <= apart:
        return ""
    return (
        f"{rows} rows of queries keep few workers busy: {1e6 * together:.3g} us for what takes "
        f"{1e6 * apart:.3g} in several kernels"
    )


class _Attention:
    """A product, its operand that has weights, and the softmax that these are multiples of."""

    def __init__(
        self, graph: Graph, op: Op, side: int, softmax: Softmax, surroundings: Surroundings
    ) -> None:
        self.graph, self.op, self.side, self.softmax = graph, op, side, softmax
        self.surroundings = surroundings
        self.weights, self.values = op.operands[side], op.operands[1 - side]

    def parts(self) -> _Parts | str:
        """What an attend is made of, or why there is none."""
        softmax = self.softmax
        after = made_of([self.weights], [softmax.result])
        seeds = [value for value in self._products() if self._other_reader(value, after) is None]
        if not seeds:
            return self._why_none(after)
        found: _Parts | str = ""
        for seed in seeds:
            found = self._parts(seed, after)
            if isinstance(found, _Parts):
                return found
        return found

    def _products(self) -> list[Value]:
        """Products of that many elements that scores are made of, element by element."""
        f = self.softmax.f
        behind = [f, *(value for op in made_of([f], ()) for value in op.operands)]
        fits = [v for v in behind if v.type.size == f.type.size and _is_product(v.op)]
        return list(dict.fromkeys(fits))

    def _cluster(self, seed: Value, after: dict[Op, bool]) -> list[Op]:
        """Ops that will be no more."""
        softmax = self.softmax
        before = [op for op, made in made_of([softmax.f], [seed]).items() if made]
        return [seed.op, *before, *softmax.ops, *(op for op, made in after.items() if made)]

    def _other_reader(self, seed: Value, after: dict[Op, bool]) -> str | None:
        cluster = self._cluster(seed, after)
        inside = {*cluster, self.op}
        for op in cluster:
            for user in self.graph.users(op.result):
                if user not in inside:
                    what = describe(user) if user.definition.is_step else "the caller"
                    return f"{what} reads {describe(op)}, too"
        return None

    def _why_none(self, after: dict[Op, bool]) -> str:
        reasons = [self._other_reader(value, after) for value in self._products()]
        return reasons[0] or "" if reasons else "its scores are no product of queries and keys"

    def _parts(self, seed: Value, after: dict[Op, bool]) -> _Parts | str:
        softmax, surroundings = self.softmax, self.surroundings
        cluster = [*self._cluster(seed, after), self.op]
        outputs = [softmax.f] if softmax.present is None else [softmax.f, softmax.present]
        leaves = leaves_of(self.graph, outputs, seed, cluster, surroundings)
        leaves += leaves_of(self.graph, [self.weights], softmax.result, cluster, surroundings)
        leaves = list(dict.fromkeys(leaves))
        if any(leaf.op in cluster for leaf in leaves):
            return "what it reads is made of its scores"
        weights = body_of("weights", softmax.result, softmax.result.type, leaves, [self.weights])
        if linear_path(weights.outputs[0], weights.inputs[0]) is None:
            return "its weights are no multiples of a softmax"
        if softmax.present is not None and not self._leaves_out(softmax.present):
            return "rows without an element would have weights"
        return self._with_axes(seed, leaves, outputs, weights)

    def _leaves_out(self, present: Value) -> bool:
        """Whether weights of what is not present are 0 in any case."""
        path = linear_path(self.weights, self.softmax.result) or []
        return any(op.attrs.get("fn") == "select" and op.operands[0] is present for op in path)

    def _with_axes(
        self, seed: Value, leaves: list[Value], outputs: list[Value], weights: Graph
    ) -> _Parts | str:
        """With queries and keys told apart, by what a row is."""
        product, op, side = seed.op, self.op, self.side
        batches = len(product.attrs["batch"][0])
        value = {name: _flipped(op.attrs[name], side) for name in ("contracting", "batch")}
        reason = ""
        for first in (0, 1):
            q, k = product.operands[first], product.operands[1 - first]
            queries = q.type.rank - batches - len(product.attrs["contracting"][first])
            ordered = _exchanged(seed.type.rank, batches, queries, bool(first))
            shape = seed.shape
            own = TensorType(seed.type.dtype, tuple(shape[ordered.index(at)] for at in
                                                    range(len(shape))))  # fmt: skip
            attrs = {
                "contracting": _flipped(product.attrs["contracting"], first),
                "batch": _flipped(product.attrs["batch"], first),
                "value_contracting": value["contracting"], "value_batch": value["batch"],
                "scores": body_of("scores", seed, own, leaves, outputs, ordered),
                "weights": weights, "dtype": op.attrs["dtype"],
            }  # fmt: skip
            roles = roles_of(attrs, q.type)
            if isinstance(roles, Roles):
                if not self._are_rows(roles):
                    return "the product sums over other axes than the softmax"
                operands = (q, k, self.values, *(leaf for leaf in leaves if not counts(leaf)))
                return _Parts(operands, attrs, self._order(), roles, self.softmax.f.type)
            reason = reason or roles
        return reason

    def _are_rows(self, roles: Roles) -> bool:
        """Whether the softmax is one of what the product sums over."""
        summed = {roles.scores[at] for at in roles.keys}
        shape = self.softmax.f.shape
        return {axis for axis in summed if axis is not None and shape[axis] != 1} == {
            axis for axis in self.softmax.axes if shape[axis] != 1
        }

    def _order(self) -> tuple[int, ...]:
        """A product of values and weights has their axes the other way round."""
        if self.side == 0:
            return tuple(range(self.op.result.type.rank))
        batches = len(self.op.attrs["batch"][0])
        rows = self.weights.type.rank - batches - len(self.op.attrs["contracting"][1])
        return _exchanged(self.op.result.type.rank, batches, rows, True)


def _flipped(pair: tuple[Any, Any], flip: int) -> tuple[Any, Any]:
    return (pair[1], pair[0]) if flip else pair


def _exchanged(rank: int, batches: int, first: int, exchange: bool) -> tuple[int, ...]:
    """The axes [batch, others, `first`] of [batch, `first`, others], if they are exchanged."""
    if not exchange:
        return tuple(range(rank))
    batch, middle = range(batches), range(batches, batches + first)
    return (*batch, *range(batches + first, rank), *middle)
