"""evaluate-weights: what weights alone determine is computed before any call, not in each.

Input: a rewritten graph, what its bound inputs are. Output: a graph whose bound inputs are weights
and what is `Made` of them, and the decisions. Invariant: a value that is made is no larger than
what it is made of, so reading it costs no more than that; all of them are within the budget.

Views of weights are not made: who reads one reads the weight itself. But a part of one is that
products read: it is packed when it lies by itself, and what no part has is kept with it. What grows
is not made (a broadcast), nor anything that has an effect. What is computed in the bodies of loops
and branches is made, too, and they read it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from stagejit.base.decisions import Decision
from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.base.symbolic import at_most
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.memo import OverOperands
from stagejit.options import Options
from stagejit.rewrites.driving.driver import describe
from stagejit.rewrites.weights.behind import (
    ReadFrom,
    is_one_by_one,
    is_part_for_products,
    rests_of_parts,
)
from stagejit.rewrites.weights.determined import (
    Chosen,
    Determined,
    cloned_out,
    roots_of,
    settle,
)
from stagejit.rewrites.weights.made import Made, Source, Views, made_as, views_kept
from stagejit.rewrites.weights.measures import error_of
from stagejit.rewrites.weights.rebuilt import Rebuilding
from stagejit.trace.weights import Budget, Weight

NAME = "evaluate-weights"

GROWTH = 1.2  # of all that is kept, times the weights, where the budget does not say
FREE_NBYTES = 512  # may be made of less: a few cache lines
# The estimate that the budget is for: so many times what one core takes at its peak rates, as
# kernels that are run once reach no peak.
_SLOWER = 4.0


@record
class Split:
    """sources: what the bound inputs of `graph` are, in their order. measures: numbers.
    replaced: bodies that nobody has any more."""

    graph: Graph
    sources: tuple[Source, ...]
    measures: tuple[Made, ...] = ()
    decisions: tuple[Decision, ...] = ()
    replaced: tuple[Graph, ...] = ()


def evaluate_weights(
    graph: Graph, weights: Sequence[Weight], options: Options, machine: Machine
) -> Split:
    """f(%x, %w bound): g %x, (h %w)  -->  f(%x, %m bound): g %x, %m"""
    if not weights or not options.enabled(NAME):
        return Split(graph, tuple(weights), _measures(graph))
    bound = [value for value in graph.inputs if graph.is_bound(value)]
    rests = rests_of_parts(graph)
    found = _Choice(graph, dict(zip(bound, weights, strict=True)), machine)
    found.look(rests)
    return found.split()


class _Choice:
    """determined: what weights determine. chosen: what is made; made: the first of those that are
    equal, as the view of it that is made. read: bytes, by value; place: of each weight in the order
    of all."""

    def __init__(self, graph: Graph, weights: Mapping[Value, Weight], machine: Machine) -> None:
        self.graph, self.weights, self.machine = graph, weights, machine
        self.determined = Determined.of(graph, weights)
        self.leaves = self.determined.leaves
        self.place = {weight: at for at, weight in enumerate(weights)}
        self.chosen = Chosen(self.determined)
        self.made: dict[Value, Made] = {}
        self.decisions: list[Decision] = []
        self.read = ReadFrom(self.determined.source)

    def look(self, rests: Sequence[Value]) -> None:
        """rests: what is read by nobody, and kept with parts, see `behind.py`.

        A chain of values, each of which is read, is as many programs, each longer than the one
        before: they are made when what is too much has been given up."""
        settle(self.determined.read_by_calls(), self._behind, self.determined.source)
        for rest in rests:
            self.chosen.read(rest)
        self.chosen.share()
        self._each_within_time()
        self._within_memory()
        if self._within_time():
            self._within_memory()  # somebody reads other things instead
        needed = self._needed()
        for rest in rests:
            if rest in self.chosen and not needed.isdisjoint(self.leaves[rest]):
                self.chosen.forget(rest)
        for value in self.chosen.equal:
            made = self._made(value)
            kept = views_kept(made)
            views = self.chosen.views_read(value) if kept is None else kept
            self.made[value] = self._made(value, views) if views else made

    def _give_up(self, value: Value, reason: str) -> list[Value]:
        """And all that are equal, which are returned."""
        given_up = self.chosen.forget(value)
        for other in given_up:
            self._decline(other, reason)
        return given_up

    def _behind(self, value: Value) -> Sequence[Value]:
        """Make `value`, which a call reads, or tell what it is computed from."""
        of = self.leaves.get(value)
        if not of or value in self.weights:
            return ()
        reason = self._why_not(value, of)
        if not reason:
            self.chosen.read(value)
            return ()
        if reason != _VIEW:
            self._decline(value, reason)
        return value.op.operands

    def _why_not(self, value: Value, of: Iterable[Value]) -> str:
        known = value.op.definition
        if known.is_splat or (known.is_view and not self._is_read(value)):
            return _VIEW
        if not value.type.dtype.is_native:
            return f"elements of type {value.type.dtype} are left to XLA"
        return grows(value, of, self.read)

    def _is_read(self, view: Value) -> bool:
        """Whether it is a view of what is made, or one that is made itself."""
        is_arranged = self.determined.is_arranged(view, self.weights)
        return is_arranged or is_part_for_products(self.graph, view)

    def _each_within_time(self) -> None:
        """Give up what takes longer by itself, at least: what is computed one after the other."""
        longest = _Longest(self.determined, self.machine)
        for value in list(self.chosen.equal):
            for budget in self._budgets(value):
                if longest[value] > budget.ms:
                    self._give_up(value, _takes(longest[value], budget))
                    break

    def _within_time(self) -> bool:
        """Whether something had to be given up."""
        spent, found = Counter[int](), False  # by budget
        for value in list(self.chosen.equal):
            behind = self.determined.behind([value], self.weights)
            ms = sum(_milliseconds(op, self.machine) for op in {each.op for each in behind})
            budgets = self._budgets(value)
            over = [each for each in budgets if spent[id(each)] + ms > each.ms]
            if over:
                self._give_up(value, _takes(ms, over[0]))
                found = True
            else:
                spent.update(dict.fromkeys(map(id, budgets), ms))
        return found

    def _within_memory(self) -> None:
        """Give up the largest values of a budget as long as all that is kept for it is too much."""
        read = _Read(self.determined, self.chosen)
        read.also(roots_of(self.graph))
        kept = _Kept(self.weights, read.found)
        for value in self.chosen.equal:
            kept.add(value, self._budgets(value))
        while over := kept.over():
            value, reason = over
            kept.remove(value, self._budgets(value))
            kept.read(read.without(self._give_up(value, reason)))

    def _needed(self) -> set[Value]:
        return self.determined.behind(roots_of(self.graph), self.chosen)

    def _budgets(self, value: Value) -> list[Budget]:
        """Those of all that a value is made of: it counts in full against each."""
        of = sorted(self.leaves[value], key=self.place.__getitem__)
        return list(dict.fromkeys(self.weights[at].budget for at in of))

    def _decline(self, value: Value, reason: str) -> None:
        op = value.op
        self.decisions.append(Decision(NAME, describe(op), False, reason, op.loc, self.graph))

    # -------------------------------------------------------------- the two graphs

    def split(self) -> Split:
        needed, made = self._needed(), Graph(self.graph.name)
        known, sources = dict[Value, Value](), list[Source]()
        for value, name in zip(self.graph.inputs, self.graph.input_names, strict=True):
            weight = self.weights.get(value)
            if weight is None:
                donated = self.graph.is_donated(value)
                known[value] = made.add_input(name, value.type, donated=donated)
            elif value in needed:
                known[value] = made.add_input(name, value.type, bound=True)
                made.weights[known[value]] = weight
                sources.append(weight)
        given = dict[Value, Value]()
        for value, first in self.chosen.items():
            source = self.made[first]
            if first is value:
                name = "_".join(["made_of", *(weight.name for weight in source.weights[:2])])
                given[first] = made.add_input(name, source.type, bound=True)
                sources.append(source)
            op, what = value.op, f"is made once, of {', '.join(w.name for w in source.weights)}"
            made_once = Decision(NAME, describe(op), True, what, op.loc, self.graph)
            self.decisions.append(made_once)
        views = {first: source.views for first, source in self.made.items()}
        rebuilding = Rebuilding.of(self.chosen, views, needed)
        known = rebuilding.append(self.graph, made, known, given)
        made.set_outputs([known[value] for value in self.graph.outputs])
        made.eliminate_dead()
        measures, replaced = _measures(self.graph), tuple(rebuilding.replaced)
        return Split(made, tuple(sources), measures, tuple(self.decisions), replaced)

    def _made(self, value: Value, views: Views = ()) -> Made:
        of, graph = self.determined.leaves_in_order(value), Graph("made")
        known = {each: graph.add_input(f"w{at}", each.type) for at, each in enumerate(of)}
        inside = cloned_out(graph, value, known, self.determined)
        return made_as(graph, inside, views, tuple(self.weights[each] for each in of))


class _Read:
    """What calls read, while values that are made, `chosen`, are given up: `found`, and what is met
    of these."""

    def __init__(self, determined: Determined, chosen: Container[Value]) -> None:
        self.determined, self.chosen = determined, chosen
        self.found, self.met = set[Value](), set[object]()

    def also(self, values: Iterable[Value]) -> set[Value]:
        """What is read for `values`, and was not read before."""
        new = self.determined.behind(values, self)
        self.found |= new
        return new

    def without(self, given_up: Iterable[Value]) -> set[Value]:
        """What is read since these are not chosen any more, and was not before."""
        return self.also([value for value in given_up if value in self.met])

    def __contains__(self, value: object) -> bool:
        if value in self.chosen:
            self.met.add(value)
            return True
        return value in self.found


class _Kept:
    """What is kept for each budget, in bytes: of `weights`, those that are read, and what is made.
    largest: of what is made, by size, then in order; some of it is given up."""

    def __init__(self, weights: Mapping[Value, Weight], read: Iterable[Value]) -> None:
        self.weights = weights
        own: dict[Budget, list[int]] = {}
        for value, weight in weights.items():
            own.setdefault(weight.budget, []).append(value.type.nbytes)
        self.limits = {
            budget: int(GROWTH * sum(sizes)) + FREE_NBYTES * len(sizes)
            if budget.nbytes is None
            else budget.nbytes
            for budget, sizes in own.items()
        }
        self.nbytes = Counter[Budget]()
        self.largest: dict[Budget, list[tuple[int, int, Value]]] = {budget: [] for budget in own}
        self.made = dict[Value, int]()
        self.read(read)

    def read(self, values: Iterable[Value]) -> None:
        for value in values:
            if weight := self.weights.get(value):
                self.nbytes[weight.budget] += value.type.nbytes

    def add(self, value: Value, budgets: Iterable[Budget]) -> None:
        number = self.made[value] = len(self.made)
        for budget in budgets:
            self.nbytes[budget] += value.type.nbytes
            heapq.heappush(self.largest[budget], (-value.type.nbytes, number, value))

    def remove(self, value: Value, budgets: Iterable[Budget]) -> None:
        del self.made[value]
        self.nbytes.subtract(dict.fromkeys(budgets, value.type.nbytes))

    def over(self) -> tuple[Value, str] | None:
        """The largest value that is made for a budget of which more is kept than it has."""
        for budget, limit in self.limits.items():
            largest = self.largest[budget]
            while largest and largest[0][-1] not in self.made:
                heapq.heappop(largest)
            kept = self.nbytes[budget]
            if largest and kept > limit:
                return largest[0][-1], f"{kept} bytes would be kept, of at most {limit}"
        return None


def grows(value: Value, of: Iterable[Value], read: ReadFrom) -> str:
    """Why reading a value is more than reading what it is made of, `of` in the end; empty where it
    is not."""
    own = sum(weight.type.nbytes for weight in of)
    if is_one_by_one(value.op):  # as cheap where it is read, and may be made of less
        own = read.nbytes(read.behind(value))
    if at_most(value.type.nbytes, max(own, FREE_NBYTES)):
        return ""
    return f"{value.type.nbytes} bytes would be read instead of {own}"


def _measures(graph: Graph) -> tuple[Made, ...]:
    """Those that rewrites have asked for."""
    found, alike = list[Made](), dict[Graph, Made]()
    for lost in graph.measures.values():
        weights = tuple(graph.weights[w] for w in lost.of)
        if lost.squares not in alike:
            alike[lost.squares] = Made(error_of(lost), weights)
        found.append(alike[lost.squares].of(weights))
    return tuple(found)


_VIEW = "a view"


class _Longest(OverOperands[float]):
    """Milliseconds that a value takes at least: those of what is computed one after the other."""

    def __init__(self, of: Determined, machine: Machine) -> None:
        super().__init__()
        self.of, self.machine = of, machine

    def behind(self, value: Value) -> Sequence[Value]:
        return [self.of.source(x) for x in value.op.operands]

    def found(self, value: Value) -> float:
        before = max((self[x] for x in self.behind(value)), default=0.0)
        return before + _milliseconds(value.op, self.machine)


def _takes(ms: float, budget: Budget) -> str:
    return f"takes some {ms:.0f} ms, of a budget of {budget.ms:g} ms"


def _milliseconds(op: Op, machine: Machine) -> float:
    nbytes = float(sum(value.type.nbytes for value in (*op.operands, *op.results)))
    flops = float(op.definition.flops(op))
    return 1e3 * _SLOWER * (flops / machine.peak_flops + nbytes / machine.core_bandwidth)
