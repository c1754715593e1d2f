"""infer-layouts, channels-last: memory between dispatches lies as who writes and reads it likes.

Input: a graph of dispatches. Output: the same graph, in which some memory has another layout, and
decisions. Invariant: a layout is chosen once for each piece of memory, by all who write or read it
together, so no edge has two; no dispatch is added, and what is not row-major is read and written by
dispatches only.

Note [Materialize, then elide]: a transpose between two dispatches is a view inside of one of them
already: that one reads or writes against the grain of memory. A layout moves memory's grain, so
that fewer do. `%y = dispatch map (transpose %x)` with `%y` in the order of `%x` is a plain map.

Note [Several starts]: whether a layout pays often depends on that of the next piece of memory. So
for memory that hangs together, the search starts from row-major everywhere, and from all hints at
once; from each, one piece after the other takes the layout that costs its own dispatches least,
until nothing changes. The best end is taken, if it is much better than row-major everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stagejit.base.numbers import nbytes_text
from stagejit.dispatch.layouts import hints as hinting
from stagejit.dispatch.layouts.cost import Grain
from stagejit.dispatch.layouts.hints import Hints
from stagejit.dispatch.layouts.relay import relay
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, memory_of
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.index.wanted import LayoutHint, in_words
from stagejit.options import Options
from stagejit.rewrites.driving.driver import Log

_SWEEPS = 4
_WORTH = 0.6  # of what goes against the grain; nothing is gained by less, as costs are estimates

Layouts = dict[Value, Layout]


def lay_out(graph: Graph, options: Options) -> tuple[Log, dict[Op, Sequence[Op]]]:
    """Chooses layouts in `graph`, in place, and in the bodies of its loops and branches. Returns
    decisions, and what was put in place of ops."""
    log, replaced = Log(graph, options), dict[Op, Sequence[Op]]()
    for op in graph.ops():
        if not op.definition.is_dispatch:
            for body in bodies_of(op):
                inner, changed = lay_out(body, options)
                log.decisions += inner.decisions
                replaced |= changed
    found = _hints(graph, options)
    if found.of or found.none:
        choice = _Choice(graph, found)
        chosen = choice.best()
        _decide(log, found, choice, chosen)
        replaced |= {op: (made,) for op, made in relay(graph, chosen).items()}
    return log, replaced


def _hints(graph: Graph, options: Options) -> Hints:
    found = Hints(graph)
    values = [*graph.inputs, *(value for op in graph.ops() for value in op.results)]
    if not all(value.type.has_numbers for value in values):
        return found  # what costs less than what is not known for all sizes
    for name, hint in hinting.PASSES:
        if options.enabled(name):
            hint(graph, found)
    return found


class _Choice:
    """The search of Note [Several starts]. touching: by memory the dispatches that touch it."""

    def __init__(self, graph: Graph, found: Hints) -> None:
        self.hints = {
            memory: [hint.layout for hint in hints]
            for memory, hints in found.of.items()
            if hints and found.free.get(memory) == ""
        }
        self.touching: dict[Value, list[_Cost]] = {memory: [] for memory in self.hints}
        known: dict[Value, Value] = {}
        for number, op in enumerate(graph.ops()):
            if op.definition.is_dispatch:
                touched = (*op.operands, *op.results)
                memory = {value: memory_of(value, known) for value in touched}
                if any(own in self.hints for own in memory.values()):
                    cost = _Cost(Grain(op, number), memory)
                    for own in dict.fromkeys(memory.values()):
                        if own in self.touching:
                            self.touching[own].append(cost)

    def best(self) -> Layouts:
        found: Layouts = {}
        for together in self._components():
            found |= self._best_of(together)
        return found

    def _components(self) -> list[list[Value]]:
        """Memory that dispatches touch together, as far as hints go."""
        near: dict[Value, set[Value]] = {memory: set() for memory in self.hints}
        for memory, costs in self.touching.items():
            for cost in costs:
                near[memory].update(other for other in cost.memory.values() if other in near)
        place = {memory: at for at, memory in enumerate(self.hints)}
        found, seen = list[list[Value]](), set[Value]()
        for memory in near:
            if memory not in seen:
                together, todo = {memory}, [memory]
                while todo:
                    more = near[todo.pop()] - together
                    together |= more
                    todo += more
                seen |= together
                found.append(sorted(together, key=place.__getitem__))
        return found

    def _best_of(self, together: list[Value]) -> Layouts:
        plain = self._descend({}, together)
        hinted = self._descend({memory: self.hints[memory][0] for memory in together}, together)
        best = min((plain, hinted), key=lambda layouts: self._total(layouts, together))
        worth = self._total(best, together) <= _WORTH * self._total({}, together)
        return best if worth else {}

    def _descend(self, layouts: Layouts, together: list[Value]) -> Layouts:
        now = dict(layouts)
        for _ in range(_SWEEPS):
            before = dict(now)
            for memory in together:
                self._improve(memory, now)
            if now == before:
                break
        return now

    def _improve(self, memory: Value, now: Layouts) -> None:
        costs = []
        for layout in (ROW_MAJOR, *self.hints[memory]):
            self._set(now, memory, layout)
            costs.append((self._total(now, [memory]), layout))
        least = min(cost for cost, _ in costs)
        self._set(now, memory, next(layout for cost, layout in costs if cost == least))

    @staticmethod
    def _set(now: Layouts, memory: Value, layout: Layout) -> None:
        now.pop(memory, None)
        if not layout.is_row_major:
            now[memory] = layout

    def compared(self, memory: Value, one: Layout, other: Layout, rest: Layouts) -> str:
        """In words, what goes against the grain where memory lies in one layout or in another."""
        beside = {own for cost in self.touching[memory] for own in cost.memory.values()}
        layouts, nbytes = {own: rest[own] for own in beside if own in rest}, []
        for layout in (one, other):
            self._set(layouts, memory, layout)
            nbytes.append(nbytes_text(round(self._total(layouts, [memory]))))
        return f"{nbytes[0]} go against the grain, {nbytes[1]} in {in_words(other)}"

    def _total(self, layouts: Layouts, memory: Iterable[Value]) -> float:
        costs = dict.fromkeys(cost for own in memory for cost in self.touching[own])
        return sum(cost.nbytes(layouts) for cost in costs)


class _Cost:
    """What one dispatch costs, remembered by the layouts of the memory that it touches."""

    def __init__(self, grain: Grain, memory: Mapping[Value, Value]) -> None:
        self.grain, self.memory = grain, memory
        self._known: dict[tuple[Layout, ...], float] = {}

    def nbytes(self, layouts: Layouts) -> float:
        own = {value: layouts[memory] for value, memory in self.memory.items() if memory in layouts}
        key = tuple(own.get(value, ROW_MAJOR) for value in self.memory)
        if key not in self._known:
            self._known[key] = self.grain.nbytes(own)
        return self._known[key]


def _decide(log: Log, found: Hints, choice: _Choice, chosen: Layouts) -> None:
    for memory, hints in found.of.items():
        for hint in hints:
            if hint.layout == chosen.get(memory):
                why = choice.compared(memory, hint.layout, ROW_MAJOR, chosen)
                log.apply(hint.source, memory.op, f"lies in {in_words(hint.layout)}: {why}")
            elif memory in found.free:
                reason = found.free[memory] or _dearer(memory, hint, choice, chosen)
                log.decline(hint.source, memory.op, reason)
    for memory, reason in found.none.items():
        if memory not in chosen:
            log.decline(hinting.INFER, memory.op, reason)


def _dearer(memory: Value, hint: LayoutHint, choice: _Choice, chosen: Layouts) -> str:
    kept = chosen.get(memory, ROW_MAJOR)
    why = choice.compared(memory, hint.layout, kept, chosen)
    return f"{in_words(hint.layout)} does not pay: {why}"
