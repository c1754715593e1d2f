"""Weights that bodies read have the form that `bind` was told, or no body sees them in it.

Input: a program as it was traced. Output: of each weight that a loop or branch reads whether it is
kept as it is (`Weight.kept`); why one has no form of which no product says so. Invariant: told
before any body is rewritten: one that is alone would not know who else reads the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stagejit.base.decisions import Decision
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops.control import bodies_of
from stagejit.rewrites.weights.behind import is_known
from stagejit.rewrites.weights.inside import handed_on, tell_bound
from stagejit.rewrites.weights.made import base_of
from stagejit.trace.weights import Weight

OTHERS = "others than products read it, too"
NO_PRODUCT = "no product reads it"
COMPUTED = "a loop or branch is given what is computed of it outside, which bodies read as it is"


def picks(op: Op, value: Value) -> bool:
    """Whether an op reads some elements of a value at places that only a call knows, as that of an
    embedding does: it widens what it reads, and nothing else."""
    known = op.definition
    return (known.is_gather or known.is_extract) and op.operands[0] is value


def keep_what_others_read(graph: Graph) -> dict[Weight, str]:
    """Decides it for all weights that bodies read. Returns why products will not say of a weight in
    which form they read it."""
    found = dict[Weight, str]()
    if not any(weight.form for weight in graph.weights.values()):
        return found
    _tell_all(graph)
    for value, weight in graph.weights.items():
        if weight.form:
            readers = _Readers()
            readers.look(graph, value)
            if readers.bodies and (readers.others or readers.returned):
                weight.keep(OTHERS)
            if reason := readers.reason:
                found[weight] = reason
    return found


def not_stored(name: str, graph: Graph, why: Mapping[Weight, str]) -> list[Decision]:
    """Of each weight that has not the form that it should have in a rewritten program."""
    stored = {weight for of, _ in graph.measures for weight in of}
    return [
        Decision(name, repr(weight), False, reason, about=graph)
        for weight, reason in why.items()
        if weight not in stored
    ]


def _tell_all(graph: Graph) -> None:
    for op in graph.ops():
        if op.definition.has_bodies:
            tell_bound(graph, op)
            for body in bodies_of(op):
                _tell_all(body)


@dataclass
class _Readers:
    """Whether products read a weight, whether bodies do, or what is computed of it outside of them;
    whether they return it, which gives what stands for it where it is stored, and whether anything
    but products does."""

    products: bool = False
    bodies: bool = False
    outside: bool = False
    returned: bool = False
    others: bool = False
    _seen: set[Value] = field(default_factory=set)
    _pending: list[tuple[Graph, Value, Op | None]] = field(default_factory=list)

    @property
    def reason(self) -> str:
        if self.outside:
            return COMPUTED
        return "" if self.products else NO_PRODUCT

    def look(self, graph: Graph, value: Value) -> None:
        """At all that read a weight, or what is computed of it."""
        self._look_at(graph, value, None)
        while self._pending:
            self._read(*self._pending.pop())

    def _look_at(self, graph: Graph, value: Value, around: Op | None) -> None:
        """Once. around: whose body the graph is."""
        if value not in self._seen:
            self._seen.add(value)
            self._pending.append((graph, value, around))

    def _read(self, graph: Graph, value: Value, around: Op | None) -> None:
        for use in graph.uses(value):
            known = use.user.definition
            if known.is_product:
                self.products = True
            elif known.is_return:
                self.returned |= around is not None and not _passes_on(around, use.operand, value)
            elif known.has_bodies:
                self._look_inside(graph, use, around)
            elif len(use.user.results) == 1 and is_known(graph, use.user.result):
                self._look_at(graph, use.user.result, around)
            else:
                self.others |= not picks(use.user, value)

    def _look_inside(self, graph: Graph, use: Use, around: Op | None) -> None:
        op, value = use.user, use.user.operands[use.operand]
        inside = [(body, inner) for operand, body, inner in handed_on(op) if operand is value]
        self.bodies = True
        if not value.op.definition.is_input:
            self.outside = True
            self.others |= base_of(value).op.definition.is_input  # a copy of the weight
        self.others |= not inside
        for body, inner in inside:
            self._look_at(body, inner, op)
        if op.definition.is_loop and use.operand < op.attrs["carries"] and inside:
            self._look_at(graph, op.results[use.operand], around)


def _passes_on(loop: Op, output: int, value: Value) -> bool:
    """Whether this output of its body is a carry that does not change, which is `value`."""
    is_carry = loop.definition.is_loop and output < loop.attrs["carries"]
    return is_carry and loop.attrs["body"].inputs[output] is value
