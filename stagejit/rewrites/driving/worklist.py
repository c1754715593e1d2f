"""Applies the rules of one step to a graph until none has anything to say.

Input: a log, rules, and which ops are one op. Output: the graph of the log, changed. Invariant: the
order depends on the graph alone.

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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from stagejit.base.extension import Extension
from stagejit.base.numbers import a_type
from stagejit.base.records import record
from stagejit.base.symbolic import Undecided
from stagejit.errors import InternalError, StagejitError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.wrong_constants import makes_wrong
from stagejit.graph.text.printer import as_text
from stagejit.rewrites.driving.comparison import Meaning, require_the_same
from stagejit.rewrites.driving.log import Log, describe, verified
from stagejit.rewrites.driving.rules import Declined, Outcome, Rule, declined

MAX_VISITS = 64  # of one op and the ops that replaced it, on average


@record
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


@record
class RuleTable:
    """Rules by the kinds that they look at, and the kinds of which one asks who reads them."""

    by_kind: Mapping[str, Sequence[Rule]]
    counting: frozenset[str]
    found: dict[tuple[str, object, bool], Sequence[Rule]] = field(
        default_factory=dict, compare=False
    )

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> RuleTable:
        by_kind: dict[str, list[Rule]] = {}
        for rule in rules:
            for kind in sorted(rule.roots):
                by_kind.setdefault(kind, []).append(rule)
        return cls(by_kind, frozenset().union(*(rule.roots for rule in rules if rule.counts)))

    def of_function(self, kind: str, function: object, has_weights: bool) -> Sequence[Rule]:
        """Those that look at ops of a kind and a function, in a graph that has weights or none."""
        known = self.found.get((kind, function, has_weights))
        if known is None:
            known = [
                rule
                for rule in self.by_kind.get(kind, ())
                if (not rule.functions or function in rule.functions)
                and (has_weights or not rule.weights)
            ]
            self.found[kind, function, has_weights] = known
        return known


class Worklist:
    """One run of a step. See Note [Worklist] and Note [Sharing]."""

    def __init__(self, log: Log, table: RuleTable, sharing: Sharing | None) -> None:
        self.log, self.graph, self.sharing = log, log.graph, sharing
        self.table, self.rules = table, table.by_kind
        self.has_weights = any(log.graph.bound)
        self.by_function: dict[tuple[str, object], Sequence[Rule]] = {}
        self.counting = table.counting | (sharing.counted if sharing else frozenset())
        # Places in topological order when the step began; of a new op that of what it replaced.
        self.place = {op: index for index, op in enumerate(self.graph.ops())}
        self.heap: list[tuple[int, int, Op]] = []
        self.queued: set[Op] = set()
        self.keys: dict[Op, Hashable] = {}  # of what has been seen, as its operands are now
        self.first: dict[Hashable, Op] = {}

    def run(self) -> None:
        self.log.less_used.clear()
        budget = MAX_VISITS * (len(self.place) + 1)
        rules, shares = self.rules, self.sharing is not None
        places = self.place.items()
        self.heap = [(at, op.id, op) for op, at in places if shares or op.kind in rules]
        self.queued = {op for _, _, op in self.heap}
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
            known, options = self.table.of_function(*key, self.has_weights), self.log.options
            if options.disable or options.checks:
                known = [rule for rule in known if options.enabled(rule.name)]
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
                    near = [op, *self.graph.links.after[op]]
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
    first_new = log.graph.next_id
    for rule in rules:
        if rule.of and not rule.fits(op):
            continue
        outcome = _outcome(rule, log.graph, op)
        if isinstance(outcome, Declined):
            log.decline(rule.name, op, outcome.reason)
        elif outcome is not None and _hides_wrong(log, op, outcome):
            log.decline(rule.name, op, "it makes a NaN or an infinity, which the checks tell of")
        elif outcome is not None:
            made = log.located(first_new, op)
            if outcome.type != op.result.type:
                raise _of_another_type(rule, log.graph, op, outcome)
            if rule.extension is not None and log.options.verify:
                return made, _compared(log, rule, rule.extension, op, outcome)
            return made, log.replace(rule.name, op, outcome, rule.before_after)
    return [], []


def _hides_wrong(log: Log, op: Op, outcome: Value) -> bool:
    """Whether checks could not tell any more which line made a constant wrong."""
    options = log.options
    if not options.checks or not outcome.op.definition.is_constant or op is outcome.op:
        return False
    given = [v.op.attrs["value"] for v in op.operands if v.op.definition.is_constant]
    return makes_wrong(op, outcome.op.attrs["value"], given, infs=options.check_infs)


def _compared(log: Log, rule: Rule, own: Extension, op: Op, made: Value) -> list[Op]:
    """The users of what a rule of a user's replaced, by what is verified to be the same."""
    said, before = describe(op), Meaning(log.graph, [op.result])
    users = log.replace(rule.name, op, made, rule.before_after)
    verified(log.graph, rule.name, own)
    require_the_same(before, Meaning(log.graph, [made]), own, f" at {said}")
    return users


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
        f"returned {a_type(outcome)} for {describe(op)}; a rewrite returns a Value of the "
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
