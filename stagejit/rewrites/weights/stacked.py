"""evaluate-weights, of layers: what slices of weights determine in a loop is made before it, of all
of them.

Input: a graph with loops that read slices of bound inputs, their bodies rewritten. Output: the
same, where a body reads slices of what another loop makes, one that weights alone determine: so it
runs before any call, see `evaluate.py`. Invariant: as there, nothing is made that is larger than
what it is made of, and of all views of one value, one is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import LoopOperands, unchanging
from stagejit.rewrites.cloning import copied, values_behind
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.weights.behind import ReadFrom, is_determined
from stagejit.rewrites.weights.determined import add_determined, settle
from stagejit.rewrites.weights.evaluate import NAME, grows
from stagejit.rewrites.weights.inside import slices_of
from stagejit.rewrites.weights.made import applied, base_of, undone, views_of
from stagejit.types import TensorType


def stack_weights(log: Log) -> None:
    """loop %w (body: %s: g (f %s))  -->  %m = loop %w (body: %s: f %s); loop %m (body: %s: g %s)"""
    for op in log.graph.ops():
        if op.definition.is_loop and op in log.graph and slices_of(op):
            _Loop(log, op).run()


def _in_order(value: Value, base: Value) -> Value:
    """What `value` is, a view of `base`, before views that leave elements where they are."""
    while value is not base and value.op.definition.keeps_order:
        value = value.op.operands[0]
    return value


class _Loop:
    """leaves: what weights determine in the body, and the inputs that each value is made of.
    chosen: what is made, with the views of it that are read."""

    def __init__(self, log: Log, op: Op) -> None:
        self.log, self.graph, self.op = log, log.graph, op
        self.body: Graph = op.attrs["body"]
        self.parts = LoopOperands.of(op)
        self.slices = {
            inner: operand
            for inner, operand in slices_of(op).items()
            if is_determined(self.graph, operand)
        }
        constants = ((op.operands[at], inputs) for at, inputs in unchanging(op).items())
        self.constants = {
            inner: operand
            for operand, inputs in constants
            for body, inner in inputs
            if body is self.body and is_determined(self.graph, operand)
        }
        self.leaves = self._determined() if self.slices else {}
        self.chosen: dict[Value, list[Value]] = {}
        self.read = ReadFrom()

    def _determined(self) -> dict[Value, frozenset[Value]]:
        found = {inner: frozenset({inner}) for inner in (*self.slices, *self.constants)}
        for op in self.body.ops():
            add_determined(op, found)
        return found

    def run(self) -> None:
        settle(self._read(), self._behind)
        if not self.chosen:
            return
        made = {value: self._made(value) for value in self._arranged()}
        what = f"{len(made)} values that slices of weights determine are made before it"
        self.log.replace_results(NAME, self.op, self._rebuilt(made).results, what)

    def _read(self) -> Iterator[Value]:
        """What is read by anything that weights do not determine."""
        for user in (*self.body.ops(), self.body.return_op):
            if user.definition.is_return or not all(x in self.leaves for x in user.results):
                yield from user.operands

    def _behind(self, value: Value) -> Sequence[Value]:
        """Make `value`, or tell what it is computed from."""
        behind = self.leaves.get(value, frozenset())
        if value in self.slices or behind.isdisjoint(self.slices):
            return ()
        known = value.op.definition
        stays = known.is_splat or not value.type.dtype.is_native
        stays = stays or (known.is_view and not self._is_arranged(value))
        if not stays and not grows(value, behind, self.read):
            self.chosen.setdefault(base_of(value), []).append(value)
            return ()
        return value.op.operands

    def _is_arranged(self, value: Value) -> bool:
        base = value
        while base.op.definition.is_view:
            base = base.op.operands[0]
        same = base.type.nbytes == value.type.nbytes
        return same and base not in self.leaves.get(base, ()) and not base.op.definition.is_constant

    def _arranged(self) -> Iterator[Value]:
        """Of each value that is chosen the view that is made: as a product reads it, if one does,
        and the value itself if one reads that, so that a program and its gradient agree; else as
        the first reader does, but for axes of one element and the like, which are others where a
        batch has more rows. Other views are read against its order."""
        body = self.body
        for base, readers in self.chosen.items():
            products = [x for x in readers if any(u.definition.is_product for u in body.users(x))]
            if products:
                value = base if base in products else products[0]
            else:
                value = _in_order(readers[0], base)
            views, chain = views_of(value, base), {value.op}
            at = value
            while at is not base:
                at = at.op.operands[0]
                chain.add(at.op)
            for other in [base, *readers] if views else ():
                uses = [use for use in body.uses(other) if use.user not in chain]
                if other is not value and uses:
                    again = undone(body, value, views, base.type)
                    again = applied(body, again, views_of(other, base))
                    for use in uses:
                        body.set_operand(use.user, use.operand, again)
            yield value

    def _made(self, value: Value) -> Value:
        """The loop that makes a value of all slices."""
        behind = self.leaves[value]
        slices = [inner for inner in self.slices if inner in behind]
        constants = [inner for inner in self.constants if inner in behind]
        operands = [*(self.slices[x] for x in slices), *(self.constants[x] for x in constants)]
        trip = self.op.attrs["trip"]
        type = TensorType(value.type.dtype, (trip, *value.shape))
        loop = self.graph.add(
            "loop", operands, type, self.op.loc,
            body=copied(self.body, [*slices, *constants], [value], (), name="layer"),
            condition=None, trip=trip, carries=0, xs=len(slices), reverse=False,
        )  # fmt: skip
        return loop.result

    def _rebuilt(self, made: Mapping[Value, Value]) -> Op:
        """The loop, which reads slices of what was made."""
        body, carries, attrs = self.body, self.op.attrs["carries"], self.op.attrs
        needed = values_behind(body.outputs, made)
        xs = dict(zip(body.inputs[carries:], self.parts.xs, strict=False))
        xs = {inner: x for inner, x in xs.items() if inner in needed} | dict(made)
        last = body.inputs[carries + len(self.parts.xs) :]
        constants = dict(zip(last, self.parts.constants, strict=True))
        constants = {inner: x for inner, x in constants.items() if inner in needed}
        order = [*body.inputs[:carries], *xs, *constants]
        operands = [*self.parts.inits, *xs.values(), *constants.values()]
        types = [result.type for result in self.op.results]
        changed = copied(body, order, body.outputs, range(carries))
        return self.graph.add(
            "loop", operands, types, self.op.loc, **{**attrs, "body": changed, "xs": len(xs)}
        )
