"""What happens to a graph under rewriting, and what is recorded of it.

Input: a graph, and what rewrites say of its ops. Output: the graph, changed in place, and its
decisions. Invariant: only `Log` replaces uses and erases ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import CycleError

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.errors import InternalError, VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites.driving.rules import checked_reason

_MOST_TYPES = 16  # of results that a decision says: a loop may carry thousands of values


@dataclass
class Log:
    """The graph under rewriting and the decisions so far. The only writer of both."""

    graph: Graph
    options: Options = field(default_factory=Options)
    machine: Machine = SMALL_SERVER
    decisions: list[Decision] = field(default_factory=list)
    less_used: dict[Op, None] = field(default_factory=dict)  # as users of them went
    _seen: set[Decision] = field(default_factory=set)

    def decline(self, name: str, op: Op, reason: str) -> None:
        """Record that a rewrite did not happen, once for each op and reason."""
        decision = Decision(name, describe(op), False, checked_reason(reason), op.loc, self.graph)
        if decision not in self._seen:
            self._seen.add(decision)
            self.decisions.append(decision)

    def apply(self, name: str, op: Op, reason: str) -> None:
        """Record a rewrite whose replacements come later, or are several."""
        self.decisions.append(
            Decision(name, describe(op), True, checked_reason(reason), op.loc, self.graph)
        )

    def located(self, first_id: int, op: Op) -> list[Op]:
        """The ops that were added since `first_id`, which come from where `op` does."""
        made = self.graph.ops_since(first_id)
        for new in made:
            new.loc = new.loc or op.loc
        return made

    def replace(self, name: str, op: Op, value: Value, reason: str) -> list[Op]:
        """Put `value` in place of the only result of `op`; returns the ops to look at again."""
        return self.replace_results(name, op, [value], reason)

    def replace_results(
        self, name: str, op: Op, values: Sequence[Value | None], reason: str
    ) -> list[Op]:
        """The same for an op of several results; None for a result without uses."""
        self.apply(name, op, reason)
        return self.put(op, values)

    def put(self, op: Op, values: Sequence[Value | None]) -> list[Op]:
        """The same as a part of what is recorded already."""
        users = self.graph.replace_results(op, values)
        self._erase_unused(op)
        return users

    def _erase_unused(self, op: Op) -> None:
        todo = [op]
        while todo:
            at = todo.pop()
            if at not in self.graph:
                continue
            if self.graph.is_used(at) or at.definition.is_return or at.attrs.get("effects"):
                self.less_used[at] = None
            elif not at.definition.is_input:
                todo += [operand.op for operand in at.operands]
                self.graph.erase(at)


def describe(op: Op) -> str:
    """A short name of an op for decisions: stable between processes."""
    fn = f" {op.attrs['fn']}" if "fn" in op.attrs else ""
    types = ", ".join(str(result.type) for result in op.results[:_MOST_TYPES])
    if len(op.results) > _MOST_TYPES:
        types += f", and {len(op.results) - _MOST_TYPES} more"
    return f"{op}{fn}: {types}"


def verified(graph: Graph, step: str, own: Extension | None = None) -> None:
    """own: who is to blame for a fault."""
    try:
        verify(graph, changed_only=True)  # the pipeline's steps verify everything at their ends
    except VerificationError as fault:
        if own is not None:
            raise own.fault(f"left a graph that is none: {fault.what}") from fault
        try:
            dump = as_text(graph)
        except CycleError:
            dump = repr(list(graph.links.nodes))
        raise InternalError(fault.what, step=step, dump=dump, loc=fault.loc) from fault
