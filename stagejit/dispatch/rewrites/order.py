"""Which ops of a graph of dispatches come before which, and making it so.

Input: a graph of dispatches. Output: what its edges say of the order in which ops run. Invariant:
each op that runs has a higher place than those that it waits for, while ops are replaced and joined
and edges added.

Places are a topological order that is mended where an edge goes against it: only ops between the
two ends move (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
2007), and only those before the edge or those behind it, whichever are found first (two-way search:
Bender, Fineman, Gilbert and Tarjan, "A new approach to incremental cycle detection and related
problems", 2015). A search looks only at ops whose places lie between, and through those that only
pass values on, which have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.index.places import Places

Near = Callable[[Op], Iterable[Op]]

_FEW = 8  # so many are compared, so that nobody waits for who comes before another one


class _Known:
    """What was found of who comes behind an op: `behind` it, while the graph is what it was when it
    had so many `changes`, and `apart` from it, until something has to come before something."""

    def __init__(self, first: Op, changes: int) -> None:
        self.first, self.changes = first, changes
        self.behind: set[Op] = set()
        self.apart: set[Op] = set()


class Order:
    """`_home`: the op that another one will be a part of, see `join`; `_parts`: these by homes.
    `_known`: of the op that somebody asked for last."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        runs = (op for op in graph.ops() if not op.definition.forwards)
        self._place = Places(runs)
        self._home: dict[Op, Op] = {}
        self._parts: dict[Op, list[Op]] = {}
        self._known: _Known | None = None

    def home(self, op: Op) -> Op:
        """The op that `op` will be a part of, itself by default."""
        return self._home.get(op, op)

    def comes_before(self, first: Op, second: Op) -> bool:
        """Whether `first` has run when `second` begins, in any order that the edges allow."""
        first, second = self.home(first), self.home(second)
        known = self._known_of(first)
        if second in known.behind:
            return True
        least = self._place.get(first, -1)
        found: dict[Op, Op] = {}  # those before `second`, and from whom each was reached
        pending = [second]
        while pending:
            op = pending.pop()
            for earlier in self._next(op, self.graph.links.before.__getitem__):
                if earlier is first or earlier in known.behind:
                    while op is not second:
                        known.behind.add(op)
                        op = found[op]
                    known.behind.add(second)
                    return True
                if (
                    earlier in found
                    or earlier in known.apart
                    or self._place.get(earlier, least) < least
                ):
                    continue
                found[earlier] = op
                pending.append(earlier)
        known.apart |= found.keys()
        return False

    def _known_of(self, first: Op) -> _Known:
        changes = self.graph.changes
        if self._known is None or self._known.first is not first:
            self._known = _Known(first, changes)
        elif self._known.changes != changes:
            self._known.changes = changes
            self._known.behind.clear()
        return self._known

    def put_first(self, readers: Iterable[Op], update: Value) -> None:
        """From now on the ops `readers`, none of which is behind `update`, come before it."""
        op = update.op
        waited = self._not_before(list(dict.fromkeys(readers)), op)
        if waited:
            wait(self.graph, self._last(waited), update)
            self._put_before(waited, op)

    def _not_before(self, ops: Sequence[Op], second: Op) -> list[Op]:
        """Those that do not come before `second`: one search for all of them."""
        missing, second = set(map(self.home, ops)), self.home(second)
        least = min((self._place.get(op, -1) for op in missing), default=0)
        seen, pending = {second}, [second]
        while pending and missing:
            for earlier in self._next(pending.pop(), self.graph.links.before.__getitem__):
                if earlier not in seen and self._place.get(earlier, least) >= least:
                    missing.discard(earlier)
                    seen.add(earlier)
                    pending.append(earlier)
        return [op for op in ops if self.home(op) in missing]

    def after(self, value: Value, first: Sequence[Op]) -> Value:
        """What is `value` when the ops `first` have run, for an op to be."""
        if not first:
            return value
        waited = [op.results[0] for op in self._last(first)]
        return build(self.graph, "after", [value, *waited], value.op.loc)

    def _last(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Those, of few, that come before none of the others."""
        if len(ops) > _FEW:
            return ops
        return [op for op in ops if not any(self.comes_before(op, other) for other in ops)]

    def join(self, op: Op, home: Op) -> None:
        """From now on `op` runs when `home` does; neither of them waits for what waits for the
        other."""
        self._home[op] = home
        self._parts.setdefault(home, []).append(op)
        self._place.drop(op)
        self.look_at(op)
        for user in self.graph.links.after[op]:
            self._put_before([home], user)

    def replace(self, old: Op, new: Op) -> None:
        """`new` is what `old` was, and what was joined with it; nobody uses these any more."""
        self._place.replace(old, new)
        for op in self._parts.pop(old, ()):
            del self._home[op]
        self.look_at(new)

    def look_at(self, op: Op) -> None:
        """Has an op come after its operands as they are now."""
        self._put_before([operand.op for operand in op.operands], op)

    def _put_before(self, firsts: Iterable[Op], second: Op) -> None:
        """Moves what has to move so that those, who are not behind `second`, have lower places."""
        self._known = None
        seconds = list(self._placed([second], self.graph.links.after.__getitem__))
        for first in self._placed(firsts, self.graph.links.before.__getitem__) if seconds else ():
            for op in seconds:
                if self._place[first] > self._place[op]:
                    self._swap(first, op)

    def _swap(self, first: Op, second: Op) -> None:
        """Moves `first` and those that it waits for before `second`, or that and those that wait
        for it behind `first`: two searches take turns, until one of them has found all."""
        low, high = self._place[second], self._place[first]
        before = _Search(first, partial(self._next, near=self.graph.links.before.__getitem__))
        behind = _Search(second, partial(self._next, near=self.graph.links.after.__getitem__))

        def is_between(op: Op) -> bool:
            return low <= self._place.get(op, low) <= high

        while before.pending and behind.pending:
            before.go_on(is_between)
            behind.go_on(is_between)
        if before.pending:
            self._place.move_after([*behind.found], first)
        else:
            self._place.move_before([*before.found], second)

    def _next(self, op: Op, near: Near) -> Iterator[Op]:
        """Who is right before or right behind an op, or what is joined with it."""
        for part in (op, *self._parts.get(op, ())):
            for other in near(part):
                other = self._home.get(other, other)
                if other is not op:
                    yield other

    def _placed(self, ops: Iterable[Op], near: Near) -> Iterator[Op]:
        """The ops that have a place, and the first ones behind those that only pass values on."""
        pending = list(ops)
        while pending:
            op = self.home(pending.pop())
            if op.definition.forwards:
                pending += near(op)
            elif op in self._place:
                yield op


class _Search:
    """Who is reached from an op, step by step. pending: those from which nobody has looked on."""

    def __init__(self, start: Op, near: Near) -> None:
        self.near = near
        self.found, self.pending = {start: None}, [start]

    def go_on(self, wanted: Callable[[Op], bool]) -> None:
        """Looks on from one op."""
        for other in self.near(self.pending.pop()):
            if other not in self.found and wanted(other):
                self.found[other] = None
                self.pending.append(other)


def wait(graph: Graph, readers: Iterable[Op], update: Value) -> None:
    """Adds the op that has an update come after `readers`, none of which is behind it."""
    op = update.op
    at = op.definition.tied_operand(op, update.index)
    assert at is not None
    after = build(graph, "after", [op.operands[at], *(one.results[0] for one in readers)], op.loc)
    graph.put_at(op, after.op)
    graph.set_operand(op, at, after)
