"""Applies rewrites to a graph and records every decision.

Input: a graph, the steps of `rewrites/__init__.py`, options. Output: the graph, changed in place,
and its decisions. Invariant: only this module replaces uses, copies locations and erases ops; a
rewrite looks, builds, and returns a replacement, a reason (`declined`), or None where it has
nothing to say.

Note [Worklist]: all rules of a step share one worklist, in topological order. A replaced op puts
its users and the new ops back on it, so work is proportional to the number of ops and
replacements. Where an op goes, others have fewer users: what rules that ask for users (`counts`)
say of them, they are asked again when the rest is done. Rules must make progress (fewer ops, or a
more canonical one); `MAX_VISITS` catches a pair that does not, as an InternalError.

Note [Sharing]: a step that shares keeps a table of the ops that it has seen, by what they compute
of which operands (hash-consing). An op of which no rule has anything to say is replaced by the one
that is there already, the newer by the older. So what rules make equal is one op at once, and what
is one op at last meets the rules that look for that: both reach a fixed point together.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import networkx as nx

from stagejit.decisions import Decision
from stagejit.errors import InternalError, StagejitError, VerificationError
from stagejit.extension import Extension
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.machine import SMALL_SERVER, Machine
from stagejit.options import Options
from stagejit.rewrites.rules import (
    Declined,
    Function,
    Outcome,
    OwnRule,
    Rule,
    declined,
    require_known_kinds,
    rewrite,
)
from stagejit.symbolic import Undecided
from stagejit.types import TensorType

__all__ = [
    "Declined", "Function", "GraphStep", "LocalStep", "Log", "Outcome", "OwnStep", "Rule",
    "Sharing", "Step", "declined", "describe", "rewrite", "run_steps",
]  # fmt: skip

MAX_VISITS = 64  # of one op and the ops that replaced it, on average


@dataclass(frozen=True)
class Sharing:
    """Which ops are one op.

    key: a hashable value, equal for two ops that compute the same of the same operands; None for
        an op that is never shared.
    refuse: why the first op may not be replaced by the second all the same; "" where it may.
    counted: kinds of which `refuse` asks who reads them.
    """

    name: str
    key: Callable[[Op], Hashable]
    refuse: Callable[[Graph, Op], str]
    counted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LocalStep:
    """Rules that look at one op and its producers, all on one worklist; see Note [Sharing]."""

    name: str
    rules: tuple[Rule, ...]
    sharing: Sharing | None = None

    @property
    def switches(self) -> frozenset[str]:
        names = {rule.name for rule in self.rules}
        return frozenset(names | ({self.sharing.name} if self.sharing else set()))

    def run(self, log: Log, options: Options) -> None:
        own = [each.rule for each in options.parts_of(OwnRule) if each.step == self.name]
        rules = [rule for rule in (*self.rules, *own) if options.enabled(rule.name)]
        shares = self.sharing is not None and options.enabled(self.sharing.name)
        _Worklist(log, rules, self.sharing if shares else None).run()


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
    own = options.parts_of(OwnStep)
    mine = [rule for each in own if isinstance(each.step, LocalStep) for rule in each.step.rules]
    require_known_kinds([*mine, *(each.rule for each in options.parts_of(OwnRule))])
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
        _verified(graph, "trace")
    graph.eliminate_dead()
    for step, own in with_own(steps, options):
        decided, promised = len(log.decisions), returned_by(graph)
        if own is None:
            step.run(log, options)
        else:
            with own.running("failed as it rewrote a graph"):
                step.run(log, options)
        by = own or _whose(step, options, log.decisions[decided:])
        if by is not None:
            verify_returned(graph, promised, by)
        graph.eliminate_dead()
        if watch is not None:
            watch(step.name, graph, log.decisions[decided:])
        if options.verify or by is not None:
            _verified(graph, step.name, by)
    return log.decisions


def _whose(step: Step, options: Options, decisions: Sequence[Decision]) -> OwnRule | None:
    """Of those whose rules are in a step the first that did something, else the first."""
    own = [each for each in options.parts_of(OwnRule) if each.step == step.name]
    applied = {decision.rewrite for decision in decisions if decision.applied}
    return next((each for each in own if each.name in applied), own[0] if own else None)


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


@dataclass
class Log:
    """The graph under rewriting and the decisions so far. The only writer of both."""

    graph: Graph
    options: Options = field(default_factory=Options)
    machine: Machine = field(default_factory=Machine)
    decisions: list[Decision] = field(default_factory=list)
    less_used: dict[Op, None] = field(default_factory=dict)  # as users of them went
    _seen: set[Decision] = field(default_factory=set)

    def decline(self, name: str, op: Op, reason: str) -> None:
        """Record that a rewrite did not happen, once for each op and reason."""
        decision = Decision(name, describe(op), False, reason, op.loc, self.graph)
        if decision not in self._seen:
            self._seen.add(decision)
            self.decisions.append(decision)

    def apply(self, name: str, op: Op, reason: str) -> None:
        """Record a rewrite whose replacements come later, or are several."""
        self.decisions.append(Decision(name, describe(op), True, reason, op.loc, self.graph))

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
    types = ", ".join(str(result.type) for result in op.results)
    return f"{op}{fn}: {types}"


class _Worklist:
    """One run of a step. See Note [Worklist] and Note [Sharing]."""

    def __init__(self, log: Log, rules: Sequence[Rule], sharing: Sharing | None) -> None:
        self.log, self.graph, self.sharing = log, log.graph, sharing
        self.rules: dict[str, list[Rule]] = {}
        self.by_function: dict[tuple[str, object], list[Rule]] = {}
        for rule in rules:
            for kind in sorted(rule.roots):
                self.rules.setdefault(kind, []).append(rule)
        counting = {kind for rule in rules if rule.counts for kind in rule.roots}
        self.counting = counting | (sharing.counted if sharing else frozenset())
        # Places in topological order when the step began; of a new op that of what it replaced.
        self.place = {op: index for index, op in enumerate(self.graph.ops())}
        self.heap: list[tuple[int, int, Op]] = []
        self.queued: set[Op] = set()
        self.keys: dict[Op, Hashable] = {}  # of what has been seen, as its operands are now
        self.first: dict[Hashable, Op] = {}

    def run(self) -> None:
        self.log.less_used.clear()
        budget = MAX_VISITS * (len(self.place) + 1)
        wanted = [op for op in self.place if self.sharing or op.kind in self.rules]
        self.heap = [(self.place[op], op.id, op) for op in wanted]
        self.queued = set(wanted)
        while self.heap or self._push_less_used():
            place, _, op = heapq.heappop(self.heap)
            self.queued.discard(op)
            if op not in self.graph:
                continue
            budget -= 1
            if budget < 0:
                raise self._endless(op)
            made, users = _try_rules(self.log, op, self._rules_of(op))
            if self.sharing and op in self.graph:
                users = [*users, *self._share(self.sharing, op)]
            for user in users:
                self.keys.pop(user, None)
            self._push(made, place)
            self._push(users, place)

    def _endless(self, op: Op) -> StagejitError:
        """What to raise where rules go in a circle: it is the user's, if there is one, for those of
        the package alone do not."""
        what = f"rewrites of {describe(op)} do not end"
        found = [*self._rules_of(op), *itertools.chain.from_iterable(self.rules.values())]
        own = next((rule.extension for rule in found if rule.extension is not None), None)
        if own is not None:
            return own.fault(f"is one of those whose {what}")
        return InternalError(what, step="rewrites", dump=as_text(self.graph))

    def _rules_of(self, op: Op) -> Sequence[Rule]:
        """Those that look at ops of its kind, and of its function."""
        key = op.kind, op.attrs.get("fn")
        known = self.by_function.get(key)
        if known is None:
            rules = self.rules.get(op.kind, [])
            known = [rule for rule in rules if not rule.functions or key[1] in rule.functions]
            self.by_function[key] = known
        return known

    def _push(self, ops: Iterable[Op], place: int) -> None:
        for op in ops:
            wanted = op.kind in self.rules or (self.sharing and not op.definition.is_return)
            if wanted and op not in self.queued:
                self.queued.add(op)
                heapq.heappush(self.heap, (self.place.setdefault(op, place), op.id, op))

    def _push_less_used(self) -> bool:
        """Puts back whom rules ask about users that are fewer now; whether there is any."""
        fewer, self.log.less_used = self.log.less_used, {}
        if self.counting:
            for op in fewer:
                if op in self.graph:
                    near = [op, *self.graph.nx.successors(op)]
                    self._push([one for one in near if one.kind in self.counting], 0)
        return bool(self.heap)

    def _share(self, sharing: Sharing, op: Op) -> list[Op]:
        """Makes one of `op` and an equal one; returns the users of the one that goes."""
        key = self.keys.get(op) or sharing.key(op)
        if key is None:
            return []
        self.keys[op] = key
        other = self.first.setdefault(key, op)
        if other is op:
            return []
        if self.keys.get(other) != key or other not in self.graph:
            self.first[key] = op
            return []
        older, newer = sorted((op, other), key=lambda one: one.id)
        self.first[key] = older
        refused = sharing.refuse(self.graph, newer)
        if refused:
            self.log.decline(sharing.name, newer, refused)
            return []
        return self.log.replace_results(sharing.name, newer, older.results, f"equal to {older}")


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
            made = log.located(first_new, op)
            if outcome.type != op.result.type:
                raise _of_another_type(rule, log.graph, op, outcome)
            users = log.replace(rule.name, op, outcome, rule.before_after)
            if rule.extension is not None and log.options.verify:
                _verified(log.graph, rule.name, rule.extension)
            return made, users
    return [], []


def _outcome(rule: Rule, graph: Graph, op: Op) -> Outcome:
    """What a rule says of an op; what depends on symbolic sizes is not proven, so it declines."""
    try:
        if rule.extension is None:
            return rule.function(graph, op)
        where = f" ({op.loc})" if op.loc else ""
        with rule.extension.running(f"failed at {describe(op)}{where}"):
            return _checked(rule.extension, graph, op, rule.function(graph, op))
    except Undecided as undecided:
        return declined(str(undecided))


def _checked(extension: Extension, graph: Graph, op: Op, outcome: Outcome) -> Outcome:
    """What a rule of a user's returned, if it is what rules return."""
    if outcome is None or isinstance(outcome, Declined):
        return outcome
    if isinstance(outcome, Value):
        if outcome.op not in graph:
            raise extension.fault(f"returned a value of another graph for {describe(op)}")
        if len(op.results) != 1:
            raise extension.fault(
                f"returned a value for {describe(op)}, which has {len(op.results)} results; "
                "extending.graph_rewrite replaces those, by log.replace_results"
            )
        return outcome
    raise extension.fault(
        f"returned a {type(outcome).__name__} for {describe(op)}; a rewrite returns a Value of the "
        "graph, declined(reason), or None"
    )


def _of_another_type(rule: Rule, graph: Graph, op: Op, made: Value) -> StagejitError:
    if rule.extension is not None:
        what = f"replaced a {op.result.type}, {describe(op)}, by a {made.type}, {describe(made.op)}"
        return rule.extension.fault(what)
    return InternalError(
        f"{rule.name} replaced {op.result} by {made}",
        step=rule.name,
        dump=as_text(graph),
        loc=op.loc,
    )


def _verified(graph: Graph, step: str, own: Extension | None = None) -> None:
    """own: who is to blame for a fault."""
    try:
        verify(graph, changed_only=True)  # the pipeline's steps verify everything at their ends
    except VerificationError as fault:
        if own is not None:
            raise own.fault(f"left a graph that is none: {fault.what}") from fault
        dump = as_text(graph) if nx.is_directed_acyclic_graph(graph.nx) else repr(list(graph.nx))
        raise InternalError(fault.what, step=step, dump=dump, loc=fault.loc) from fault
