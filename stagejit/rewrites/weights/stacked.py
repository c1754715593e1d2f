"""evaluate-weights, of layers: what slices of weights determine in a loop is made before it, of all
of them.

Input: a graph with loops that read slices of bound inputs, their bodies rewritten. Output: the
same, where a body, or one in it that it hands a slice on to, reads slices of what another loop
makes, one that weights alone determine: so it runs before any call, see `evaluate.py`. Invariant:
as there, nothing is made that is larger than what it is made of, and of all views of one value, one
is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import LoopOperands, unchanging
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.weights.behind import ReadFrom, is_determined
from stagejit.rewrites.weights.determined import Chosen, Determined, cloned_out, roots_of, settle
from stagejit.rewrites.weights.evaluate import NAME, grows
from stagejit.rewrites.weights.inside import slices_of
from stagejit.rewrites.weights.made import applied
from stagejit.rewrites.weights.rebuilt import Rebuilding
from stagejit.types import TensorType


def stack_weights(log: Log) -> None:
    """loop %w (body: %s: g (f %s))  -->  %m = loop %w (body: %s: f %s); loop %m (body: %s: g %s)"""
    for op in log.graph.ops():
        if op.definition.is_loop and op in log.graph and slices_of(op):
            _Loop(log, op).run()


class _Loop:
    """determined: what weights determine in the body, of its inputs. chosen: what is made."""

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
        self.inputs = {**self.slices, **self.constants} if self.slices else {}
        self.determined = Determined.of(self.body, self.inputs)
        self.leaves = self.determined.leaves
        self.chosen = Chosen(self.determined)
        self.read = ReadFrom(self.determined.source)

    def run(self) -> None:
        settle(self.determined.read_by_calls(), self._behind, self.determined.source)
        if not self.chosen:
            return
        self.chosen.share()
        made = {first: self._made(first) for first in self.chosen.equal}
        what = f"{len(made)} values that slices of weights determine are made before it"
        self.log.replace_results(NAME, self.op, self._rebuilt(made).results, what)

    def _behind(self, value: Value) -> Sequence[Value]:
        """Make `value`, or tell what it is computed from."""
        behind = self.leaves.get(value, frozenset())
        if value in self.slices or behind.isdisjoint(self.slices):
            return ()
        known = value.op.definition
        stays = known.is_splat or not value.type.dtype.is_native
        stays = stays or (known.is_view and not self.determined.is_arranged(value, self.inputs))
        if not stays and not grows(value, behind, self.read):
            self.chosen.read(value)
            return ()
        return value.op.operands

    def _made(self, value: Value) -> Value:
        """The loop that makes a value of all slices."""
        behind, layer = self.leaves[value], Graph("layer")
        slices = [inner for inner in self.slices if inner in behind]
        constants = [inner for inner in self.constants if inner in behind]
        inputs = [*slices, *constants]
        known = {x: layer.add_input(f"w{at}", x.type) for at, x in enumerate(inputs)}
        whole = cloned_out(layer, value, known, self.determined)
        layer.set_outputs([applied(layer, whole, self.chosen.views_read(value))])
        trip, (made,) = self.op.attrs["trip"], layer.outputs
        type = TensorType(made.type.dtype, (trip, *made.shape))
        loop = self.graph.add(
            "loop", [self.inputs[x] for x in inputs], type, self.op.loc,
            body=layer, condition=None, trip=trip, carries=0, xs=len(slices), reverse=False,
        )  # fmt: skip
        return loop.result

    def _rebuilt(self, made: Mapping[Value, Value]) -> Op:
        """The loop, which reads slices of what was made."""
        body, attrs = self.body, self.op.attrs
        needed = self.determined.behind(roots_of(body), self.chosen)
        outside = dict(zip(body.inputs, self.op.operands, strict=True))
        end = attrs["carries"] + attrs["xs"]
        slices = [x for x in body.inputs[attrs["carries"] : end] if x in needed]
        constants = [x for x in body.inputs[end:] if x in needed]
        names = dict(zip(body.inputs, body.input_names, strict=True))
        changed, known, given = Graph(body.name), dict[Value, Value](), dict[Value, Value]()
        for value in (*body.inputs[: attrs["carries"]], *slices):
            donated = body.is_donated(value)
            known[value] = changed.add_input(names[value], value.type, donated=donated)
        for number, (first, stacked) in enumerate(made.items()):
            given[first] = changed.add_input(f"made{number}", stacked.type.of_slice)
        for value in constants:
            known[value] = changed.add_input(names[value], value.type)
        views = {first: self.chosen.views_read(first) for first in made}
        known = Rebuilding.of(self.chosen, views, needed).append(body, changed, known, given)
        changed.set_outputs([known[value] for value in body.outputs])
        changed.eliminate_dead()
        operands = [*self.parts.inits, *(outside[x] for x in slices), *made.values()]
        operands += [outside[x] for x in constants]
        types, xs = [result.type for result in self.op.results], len(slices) + len(made)
        attrs = {**attrs, "body": changed, "xs": xs}
        return self.graph.add("loop", operands, types, self.op.loc, **attrs)
