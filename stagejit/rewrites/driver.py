"""Applies rewrites to a graph and records every decision.

Input: a graph, the steps of `rewrites/__init__.py`, options. Output: the graph, changed in place,
and its decisions. Invariant: only this module replaces uses, copies locations and erases ops; a
rewrite looks, builds, and returns a replacement, a reason (`declined`), or None where it has
nothing to say.

Note [Worklist]: all rules of a step share one worklist, in topological order. A replaced op puts
its users and the new ops back on it, so work is proportional to the number of ops and
replacements. Rules must make progress (fewer ops, or a more canonical one); `MAX_VISITS` catches a
pair that does not, as an InternalError.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import networkx as nx

from stagejit.decisions import Decision
from stagejit.errors import InternalError, VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.symbolic import Undecided

MAX_VISITS = 64  # of one op and the ops that replaced it, on average


@dataclass(frozen=True)
class Declined:
    """A rewrite's pattern matched, but a guard failed."""

    reason: str


def declined(reason: str) -> Declined:
    """What a rewrite returns when a guard fails: the reason, for the user to read."""
    return Declined(reason)


Outcome = Value | Declined | None
Function = Callable[[Graph, Op], Outcome]


@dataclass(frozen=True)
class Rule:
    """One rewrite. `name` is that of `Options(disable=...)`, `roots` the op kinds it looks at, `of`
    the kinds that make their operand number `operand`; any where there are none."""

    name: str
    roots: frozenset[str]
    function: Function
    of: frozenset[str] = frozenset()
    operand: int = 0

    def fits(self, op: Op) -> bool:
        """Whether the kinds are those of the pattern."""
        return not self.of or op.operands[self.operand].op.kind in self.of

    @property
    def before_after(self) -> str:
        """The first line of its docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


def rewrite(name: str, *, roots: str, of: str = "", operand: int = 0) -> Callable[[Function], Rule]:
    """Make a rule of a function `(graph, op) -> Value | declined(reason) | None`.

    roots: op kinds, separated by spaces. of: the kinds that make `operand` of it; any by default.
    """
    kinds = frozenset(roots.split()), frozenset(of.split())
    return lambda function: Rule(name, kinds[0], function, kinds[1], operand)


@dataclass(frozen=True)
class LocalStep:
    """Rules that look at one op and its producers, all on one worklist."""

    name: str
    rules: tuple[Rule, ...]

    @property
    def switches(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self.rules)

    def run(self, log: Log, options: Options) -> None:
        by_kind: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if options.enabled(rule.name):
                for kind in sorted(rule.roots):
                    by_kind.setdefault(kind, []).append(rule)
        _run_worklist(log, by_kind)


@dataclass(frozen=True)
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


def run_steps(graph: Graph, steps: Sequence[Step], options: Options) -> list[Decision]:
    """Run the steps in order on `graph` and return their decisions.

    Under Options(verify=True) the verifier runs before the first and after each step; a fault is an
    InternalError that names the step.
    """
    log = Log(graph, options)
    if options.verify:
        _verified(graph, "trace")
    for step in steps:
        step.run(log, options)
        graph.eliminate_dead()
        if options.verify:
            _verified(graph, step.name)
    return log.decisions


@dataclass
class Log:
    """The graph under rewriting and the decisions so far. The only writer of both."""

    graph: Graph
    options: Options = field(default_factory=Options)
    decisions: list[Decision] = field(default_factory=list)
    _seen: set[Decision] = field(default_factory=set)

    def decline(self, name: str, op: Op, reason: str) -> None:
        """Record that a rewrite did not happen, once for each op and reason."""
        decision = Decision(name, describe(op), False, reason, op.loc)
        if decision not in self._seen:
            self._seen.add(decision)
            self.decisions.append(decision)

    def apply(self, name: str, op: Op, reason: str) -> None:
        """Record a rewrite that builds what it replaces `op` by later, together with others."""
        self.decisions.append(Decision(name, describe(op), True, reason, op.loc))

    def replace(self, name: str, op: Op, value: Value, reason: str) -> list[Op]:
        """Put `value` in place of the only result of `op`; returns the ops to look at again."""
        self.decisions.append(Decision(name, describe(op), True, reason, op.loc))
        users = self.graph.users(op.result)
        self.graph.replace_uses(op.result, value)
        self._erase_unused(op)
        return users

    def replace_results(
        self,
        name: str,
        op: Op,
        values: Sequence[Value | None],
        reason: str,
    ) -> None:
        """The same for an op of several results; None for a result without uses."""
        self.decisions.append(Decision(name, describe(op), True, reason, op.loc))
        for result, value in zip(op.results, values, strict=True):
            if value is not None:
                self.graph.replace_uses(result, value)
        self._erase_unused(op)

    def _erase_unused(self, op: Op) -> None:
        todo = [op]
        while todo:
            dead = todo.pop()
            if dead not in self.graph.nx or self.graph.is_used(dead):
                continue
            if dead.kind in ("input", "return") or dead.attrs.get("effects"):
                continue
            producers = [operand.op for operand in dead.operands]
            self.graph.erase(dead)
            todo += producers


def describe(op: Op) -> str:
    """A short name of an op for decisions: stable between processes."""
    fn = f" {op.attrs['fn']}" if "fn" in op.attrs else ""
    types = ", ".join(str(result.type) for result in op.results)
    return f"{op}{fn}: {types}"


def _run_worklist(log: Log, by_kind: dict[str, list[Rule]]) -> None:
    graph = log.graph
    rank: dict[Op, int] = {op: index for index, op in enumerate(graph.ops())}
    heap = [(index, op.id, op) for op, index in rank.items() if op.kind in by_kind]
    queued = {op for _, _, op in heap}
    budget = MAX_VISITS * (len(rank) + 1)

    def push(ops: Iterable[Op], place: int) -> None:
        for op in ops:
            if op.kind in by_kind and op not in queued:
                queued.add(op)
                heapq.heappush(heap, (rank.setdefault(op, place), op.id, op))

    while heap:
        place, _, op = heapq.heappop(heap)
        queued.discard(op)
        if op not in graph.nx:
            continue
        budget -= 1
        if budget < 0:
            raise InternalError(
                f"rewrites of {describe(op)} do not end", step="rewrites", dump=as_text(graph)
            )
        made, users = _try_rules(log, op, by_kind[op.kind])
        push(made, place)
        push(users, place)


def _try_rules(log: Log, op: Op, rules: Iterable[Rule]) -> tuple[list[Op], list[Op]]:
    """The new ops and the users of the first rule that applies to `op`."""
    for rule in rules:
        if not rule.fits(op):
            continue
        first_new = log.graph.next_id
        outcome = _outcome(rule, log.graph, op)
        if isinstance(outcome, Declined):
            log.decline(rule.name, op, outcome.reason)
        elif outcome is not None:
            made = log.graph.ops_since(first_new)
            for new in made:
                new.loc = new.loc or op.loc
            if outcome.type != op.result.type:
                raise InternalError(
                    f"{rule.name} replaced {op.result} by {outcome}",
                    step=rule.name,
                    dump=as_text(log.graph),
                    loc=op.loc,
                )
            return made, log.replace(rule.name, op, outcome, rule.before_after)
    return [], []


def _outcome(rule: Rule, graph: Graph, op: Op) -> Outcome:
    """What a rule says of an op; what depends on symbolic sizes is not proven, so it declines."""
    try:
        return rule.function(graph, op)
    except Undecided as undecided:
        return declined(str(undecided))


def _verified(graph: Graph, step: str) -> None:
    try:
        verify(graph)
    except VerificationError as fault:
        dump = as_text(graph) if nx.is_directed_acyclic_graph(graph.nx) else repr(list(graph.nx))
        raise InternalError(fault.what, step=step, dump=dump, loc=fault.loc) from fault
