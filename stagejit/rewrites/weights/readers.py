"""Weights that bodies read have the form that `bind` was told, or no body sees them in it.

Input: a program as it was traced. Output: of each weight that a loop or branch reads whether it is
kept as it is (`Weight.kept`). Invariant: told before any body is rewritten: one that is alone would
not know who else reads the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops.control import bodies_of
from stagejit.rewrites.weights.behind import is_known
from stagejit.rewrites.weights.inside import handed_on, slices_of, tell_bound

OTHERS = "others than products read it, too"


def picks(op: Op, value: Value) -> bool:
    """Whether an op reads some elements of a value at places that only a call knows, as that of an
    embedding does: it widens what it reads, and nothing else."""
    known = op.definition
    return (known.is_gather or known.is_extract) and op.operands[0] is value


def keep_what_others_read(graph: Graph) -> None:
    """Decides it for all weights that bodies read."""
    if not any(weight.form for weight in graph.weights.values()):
        return
    _tell_all(graph)
    for value, weight in graph.weights.items():
        if weight.form and not weight.kept:
            readers = _Readers()
            readers.look(graph, value)
            if readers.bodies and (readers.others or readers.returned):
                weight.keep(OTHERS)


def _tell_all(graph: Graph) -> None:
    for op in graph.ops():
        if op.definition.has_bodies:
            tell_bound(graph, op)
            for body in bodies_of(op):
                _tell_all(body)


@dataclass
class _Readers:
    """Whether bodies read a weight, whether they return it, which gives what stands for it where it
    is stored, and whether anything but products does."""

    bodies: bool = False
    returned: bool = False
    others: bool = False
    _seen: set[tuple[Value, bool]] = field(default_factory=set)
    _pending: list[tuple[Graph, Value, Op | None, bool]] = field(default_factory=list)

    def look(self, graph: Graph, value: Value) -> None:
        """At all that read a weight, or what is computed of it."""
        self._look_at(graph, value, None, False)
        while self._pending:
            self._read(*self._pending.pop())

    def _look_at(self, graph: Graph, value: Value, around: Op | None, sliced: bool) -> None:
        """Once. around: whose body the graph is. sliced: it is a slice of the weight, which a body
        does not hand on whole, see `inside.py`."""
        if (value, sliced) not in self._seen:
            self._seen.add((value, sliced))
            self._pending.append((graph, value, around, sliced))

    def _read(self, graph: Graph, value: Value, around: Op | None, sliced: bool) -> None:
        for use in graph.uses(value):
            known = use.user.definition
            if known.is_product:
                continue
            if known.is_return:
                self.returned |= around is not None and not _passes_on(around, use.operand, value)
            elif known.has_bodies:
                self._look_inside(graph, use, around, sliced)
            elif len(use.user.results) == 1 and is_known(graph, use.user.result):
                self._look_at(graph, use.user.result, around, sliced)
            else:
                self.others |= not picks(use.user, value)

    def _look_inside(self, graph: Graph, use: Use, around: Op | None, sliced: bool) -> None:
        op, value = use.user, use.user.operands[use.operand]
        inside = [(body, inner) for operand, body, inner in handed_on(op) if operand is value]
        self.bodies = True
        self.others |= not inside
        for body, inner in inside:
            is_slice = inner in slices_of(op)
            self.others |= sliced and not is_slice
            self._look_at(body, inner, op, sliced or is_slice)
        if op.definition.is_loop and use.operand < op.attrs["carries"] and inside:
            self._look_at(graph, op.results[use.operand], around, sliced)


def _passes_on(loop: Op, output: int, value: Value) -> bool:
    """Whether this output of its body is a carry that does not change, which is `value`."""
    is_carry = loop.definition.is_loop and output < loop.attrs["carries"]
    return is_carry and loop.attrs["body"].inputs[output] is value
