"""Applies rewrites to a graph and records every decision.

Input: a graph, the steps of `rewrites/__init__.py`, options. Output: the graph, changed in place,
and its decisions. Invariant: only the log replaces uses, copies locations and erases ops; a
rewrite looks, builds, and returns a replacement, a reason (`declined`), or None where it has
nothing to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.base.records import record
from stagejit.base.threads.locks import remembered
from stagejit.graph.ir import Graph, Value
from stagejit.options import Options
from stagejit.rewrites.driving.comparison import Meaning, require_the_same
from stagejit.rewrites.driving.log import Log, describe, verified
from stagejit.rewrites.driving.rules import (
    Declined,
    Function,
    Outcome,
    OwnRule,
    Rule,
    declined,
    require_kinds_of_ops,
    require_own,
    rewrite,
)
from stagejit.rewrites.driving.worklist import RuleTable, Sharing, Worklist
from stagejit.types import TensorType

__all__ = [
    "Declined", "Function", "GraphStep", "LocalStep", "Log", "Outcome", "OwnStep", "Rule",
    "Sharing", "Step", "declined", "describe", "rewrite", "run_steps",
]  # fmt: skip


@record
class LocalStep:
    """Rules that look at one op and its producers, on one worklist: see `worklist.py`."""

    name: str
    rules: tuple[Rule, ...]
    sharing: Sharing | None = None

    @property
    def switches(self) -> frozenset[str]:
        names = {rule.name for rule in self.rules}
        return frozenset(names | ({self.sharing.name} if self.sharing else set()))

    def run(self, log: Log, options: Options) -> None:
        table = self._table
        if options.extensions:
            own = [each.rule for each in options.parts_of(OwnRule) if each.step == self.name]
            table = RuleTable.of((*self.rules, *own)) if own else table
        shares = self.sharing is not None and options.enabled(self.sharing.name)
        kinds = map(attrgetter("kind"), log.graph.ops())
        if shares or not table.by_kind.keys().isdisjoint(kinds):
            Worklist(log, table, self.sharing if shares else None).run()

    @remembered
    def _table(self) -> RuleTable:
        return RuleTable.of(self.rules)


@record
class GraphStep:
    """A rewrite that needs the whole graph: `function(log)` calls `log.replace` and
    `log.decline`."""

    name: str
    function: Callable[[Log], None]

    @property
    def switches(self) -> frozenset[str]:
        return frozenset({self.name})

    def run(self, log: Log, options: Options) -> None:
        if options.enabled(self.name):
            self.function(log)


Step = LocalStep | GraphStep
Watch = Callable[[str, Graph, Sequence[Decision]], None]  # a step, its graph, what it decided


@dataclass(frozen=True, eq=False, repr=False)
class OwnStep(Extension):
    """A step of a user's, before or after all of that name, which is no step of rules of a name
    that others have."""

    step: Step
    anchor: str
    is_after: bool


def with_own(steps: Sequence[Step], options: Options) -> list[tuple[Step, OwnStep | None]]:
    """The steps, and those of the user's that stand beside one of them, with whose they are."""
    if not options.extensions:
        return list(zip(steps, itertools.repeat(None)))
    own = options.parts_of(OwnStep)
    mine = [rule for each in own if isinstance(each.step, LocalStep) for rule in each.step.rules]
    require_kinds_of_ops([*mine, *(each.rule for each in options.parts_of(OwnRule))])
    names = [step.name for step in steps]
    found: list[tuple[Step, OwnStep | None]] = []
    for at, step in enumerate(steps):
        near = [each for each in own if each.anchor == step.name]
        if at == names.index(step.name):
            found += [(each.step, each) for each in near if not each.is_after]
        found.append((step, None))
        if step.name not in names[at + 1 :]:
            found += [(each.step, each) for each in near if each.is_after]
    return found


def run_steps(
    graph: Graph,
    steps: Sequence[Step],
    options: Options,
    machine: Machine = SMALL_SERVER,
    watch: Watch | None = None,
) -> list[Decision]:
    """Run the steps in order on `graph` and return their decisions. watch: called after each step,
    only to look.

    Under Options(verify=True) the verifier runs before the first and after each step, and always
    after one in which code of a user's ran; a fault is an InternalError that names the step, or the
    ExtensionError of whose it is.
    """
    log = Log(graph, options, machine)
    if options.verify:
        verified(graph, "trace")
    graph.eliminate_dead()
    if not (options.extensions or options.verify or watch):  # as of most, and there are many steps
        for step in steps:
            step.run(log, options)
            graph.eliminate_dead()
        return log.decisions
    for step, own in with_own(steps, options):
        decided = len(log.decisions)
        compares = own is not None and options.verify and isinstance(step, GraphStep)
        before = Meaning(graph, graph.outputs) if compares else None
        by: Extension | None = None
        if options.extensions:
            by = _run_beside(step, own, log)
        else:
            step.run(log, options)
        graph.eliminate_dead()
        if watch is not None:
            watch(step.name, graph, log.decisions[decided:])
        if options.verify or by is not None:
            verified(graph, step.name, by)
        if before is not None and own is not None:
            require_the_same(before, Meaning(graph, graph.outputs), own)
    return log.decisions


def _run_beside(step: Step, own: OwnStep | None, log: Log) -> Extension | None:
    """Runs a step where there are extensions; returns that of which code ran in it, if any did."""
    graph, decided, promised = log.graph, len(log.decisions), returned_by(log.graph)
    if own is None:
        step.run(log, log.options)
    else:
        with own.running("failed as it rewrote a graph"):
            step.run(log, log.options)
        require_own(log.decisions[decided:], own)
    by = own or _whose(step, log.options, log.decisions[decided:])
    if by is not None:
        verify_returned(graph, promised, by)
    return by


def _whose(step: Step, options: Options, decisions: Sequence[Decision]) -> OwnRule | None:
    """Of those whose rules are in a step the first that did something, else the first."""
    own = [each for each in options.parts_of(OwnRule) if each.step == step.name]
    if not own:
        return None
    applied = {decision.rewrite for decision in decisions if decision.applied}
    return next((each for each in own if each.name in applied), own[0])


def returned_by(graph: Graph) -> tuple[list[Value], list[TensorType]]:
    """What callers of a graph know of it: its inputs, and the types that it returns."""
    return list(graph.inputs), [value.type for value in graph.outputs]


def verify_returned(
    graph: Graph, promised: tuple[list[Value], list[TensorType]], own: Extension
) -> None:
    """Raises ExtensionError where code of a user's has changed that. promised: what it was."""
    inputs, types = returned_by(graph)
    if types != promised[1]:
        now, before = (", ".join(map(str, each)) or "nothing" for each in (types, promised[1]))
        raise own.fault(f"left a graph that returns {now} instead of {before}")
    if inputs != promised[0]:
        raise own.fault("left a graph with other inputs")
