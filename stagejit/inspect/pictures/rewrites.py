"""Graphs before and after each rewrite, with what it removed, added and changed.

Input: graphs as they are after each step, through `Recorder.__call__`, and what the steps decided.
Output: a panel for each step that changed something. Invariant: an op is the same before and after
if it has the same number in the same graph; a step that made a new graph is told, and not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stagejit.base.decisions import Decision
from stagejit.base.numbers import counted
from stagejit.dispatch.origins.naming import named
from stagejit.graph.ir import Graph, Value
from stagejit.graph.text.printer import value_names
from stagejit.inspect.page import Markup, item, joined, table
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.drawing.nodes import WIDEST, Drawn, Edge, Node, draw
from stagejit.inspect.pictures.graphs import Nodes
from stagejit.inspect.pictures.picture import Panel
from stagejit.inspect.pictures.words import line_of

_WITH_TEXTS = ("encode", "resolve")  # steps whose graphs are those of `as_text`
_MADE = re.compile(r"%([a-z_]\w*)\.(\d+)(?:#(\d+))?")
_MOST = 60  # ops of a drawing
_WIDEST = WIDEST // 2  # nodes beside each other, on each of two sides
_WIDEST_BESIDE = 1300.0  # pixels; wider graphs stand below each other
_MOST_ROWS = 300  # of decisions of a step
_MOST_WHOLE = 24  # of a graph that is drawn as a whole, with what did not change


@dataclass(frozen=True)
class Snapshot:
    """A graph after a step. nodes: by name, in order; ends: edges between them."""

    step: str
    graph: int  # the same number for the same graph
    nodes: Mapping[str, Node]
    ends: tuple[tuple[str, str], ...]
    decisions: tuple[Decision, ...]


@dataclass
class Recorder:
    """Called after each step of a compilation: see `stagejit.rewrites.driving.driver.Watch`."""

    snapshots: list[Snapshot] = field(default_factory=list)
    _graphs: list[Graph] = field(default_factory=list)  # kept, so that no other one is taken for it
    _nodes: Nodes = field(default_factory=Nodes)

    def __call__(self, step: str, graph: Graph, decisions: Sequence[Decision]) -> None:
        if not any(graph is known for known in self._graphs):
            self._graphs.append(graph)
        number = next(at for at, known in enumerate(self._graphs) if known is graph)
        nodes, edges = self._nodes.of(graph, _names(graph))
        ends = tuple((nodes[edge.source].name, nodes[edge.target].name) for edge in edges)
        by_name = {node.name: node for node in nodes}
        self.snapshots.append(Snapshot(step, number, by_name, ends, tuple(decisions)))

    def panels(self) -> Iterator[Panel]:
        """Each step that changed the graph; what the others were is said at the end."""
        idle: list[str] = []
        last = {snapshot.graph: snapshot.step for snapshot in self.snapshots}
        texts = {n: Looked(self._graphs[n]) for n, step in last.items() if step in _WITH_TEXTS}
        known = [
            texts[each.graph].up(each) if each.graph in texts else each for each in self.snapshots
        ]
        for before, after in pairwise(known):
            if before.graph != after.graph:
                yield _new(after)
            elif before.nodes == after.nodes:
                idle.append(after.step)
            else:
                yield _changed(before, after)
        if idle:
            yield Panel("steps that changed nothing", None, ", ".join(idle), is_open=False)


class Looked:
    """Names of a graph as its text has them: of what is in it at last."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {(value.op, value.index): n for value, n in value_names(graph).items()}
        made = (op for number in range(graph.next_id) if (op := graph.made(number)) is not None)
        self.ops = {op: self.values.get((op, 0), f"%{op}") for op in made}

    def up(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with these names; what is gone keeps the one that it had."""
        nodes = {self._name(name): self._node(node) for name, node in snapshot.nodes.items()}
        ends = tuple((self._name(a), self._name(b)) for a, b in snapshot.ends)
        decisions = tuple(named(snapshot.decisions, self.ops))
        return replace(snapshot, nodes=nodes, ends=ends, decisions=decisions)

    def _node(self, node: Node) -> Node:
        lines = tuple(replace(line, text=self._name(line.text)) for line in node.lines)
        tip = tuple(map(self._name, node.tip))
        return replace(node, name=self._name(node.name), lines=lines, tip=tip)

    def _name(self, text: str) -> str:
        def name(match: re.Match[str]) -> str:
            op = self.graph.made(int(match[2]))
            if op is None or op.kind != match[1]:
                return match[0]
            return self.values.get((op, int(match[3] or 0)), match[0])

        return _MADE.sub(name, text)


def _names(graph: Graph) -> dict[Value, str]:
    """Those that stay when others go: kinds with numbers, as decisions write them."""
    named = dict(zip(graph.inputs, graph.input_names, strict=True))
    names = {value: f"%{name}" for value, name in named.items()}
    for op in graph.ops():
        for result in op.results:
            names[result] = f"%{op}" + (f"#{result.index}" if len(op.results) > 1 else "")
    return names


def _new(after: Snapshot) -> Panel:
    drawn = draw(list(after.nodes.values()), _edges(after, after.nodes))
    more = f"; {drawn.note}" if drawn.note else ""
    note = f"a new graph of {counted(len(after.nodes), 'node')}{more}"
    return Panel(f"after {after.step}", drawn.drawing, note, _decided(after.decisions))


def _changed(before: Snapshot, after: Snapshot) -> Panel:
    removed = before.nodes.keys() - after.nodes.keys()
    added = after.nodes.keys() - before.nodes.keys()
    both = before.nodes.keys() & after.nodes.keys()
    changed = {name for name in both if before.nodes[name].tip != after.nodes[name].tip}
    touched = removed | added | changed
    sides, notes = [], []
    for title, snapshot, marks in (
        ("before", before, {"sj-removed": removed, "sj-changed": changed}),
        ("after", after, {"sj-added": added, "sj-changed": changed}),
    ):
        drawn = _side(snapshot, touched, marks)
        sides.append((title, drawn.drawing))
        notes.append(drawn.note)
    counts = [
        f"{len(names)} {word}"
        for word, names in (("removed", removed), ("added", added), ("changed", changed))
        if names
    ]
    applied = sum(decision.applied for decision in after.decisions)
    note = (
        f"{', '.join(counts)} by {counted(applied, 'rewrite')}; "
        f"{len(before.nodes)} to {counted(len(after.nodes), 'op')}"
    )
    more = [f"{title}: {told}" for (title, _), told in zip(sides, notes, strict=True) if told]
    if len(before.nodes) > _MOST_WHOLE:
        more.append("what is far from a change is left out")
    whole = f"{note}; {'; '.join(more)}" if more else note
    wide = sum(drawing.width for _, drawing in sides) > _WIDEST_BESIDE
    drawing = svg.stacked(sides) if wide else svg.beside(sides)
    return Panel(after.step, drawing, whole, _decided(after.decisions))


def _side(snapshot: Snapshot, touched: set[str], marks: Mapping[str, Iterable[str]]) -> Drawn:
    """What a step touched, marked, with its neighbours; a small graph as a whole."""
    wanted = set(snapshot.nodes)
    if len(wanted) > _MOST_WHOLE:
        wanted &= touched
        near = {end for ends in snapshot.ends if not wanted.isdisjoint(ends) for end in ends}
        if len(near) <= _MOST:
            wanted = near
    marked = {name: mark for mark, names in marks.items() for name in names}
    shown = {
        name: replace(node, mark=marked.get(name, ""), label=(node.label, marked.get(name)))
        for name, node in snapshot.nodes.items()
        if name in wanted
    }
    return draw(list(shown.values()), _edges(snapshot, shown), widest=_WIDEST)


def _edges(snapshot: Snapshot, shown: Mapping[str, Node]) -> list[Edge]:
    number = {name: at for at, name in enumerate(shown)}
    return [
        Edge(number[source], number[target])
        for source, target in snapshot.ends
        if source in number and target in number
    ]


def _decided(decisions: Sequence[Decision]) -> Markup:
    """What was decided, with how often, and the first op that it was decided of."""
    alike: dict[tuple[object, ...], list[Decision]] = {}
    for decision in decisions:
        where = decision.loc.file, decision.loc.line
        key = not decision.applied, decision.rewrite, decision.reason, where
        alike.setdefault(key, []).append(decision)
    if not alike:
        return Markup("")
    groups = sorted(alike.values(), key=lambda group: not group[0].applied)
    rows = (
        ("applied" if d.applied else "declined", d.rewrite, d.op, d.reason, line_of(d.loc), count)
        for d, count in ((group[0], len(group)) for group in groups[:_MOST_ROWS])
    )
    head = ("", "rewrite", "op, or the first", "reason", "line", "times")
    more = len(groups) - _MOST_ROWS
    told = item(f"and {more} more: see `explain`", classes="sj-note") if more > 0 else ""
    return joined([_KEY, table(head, rows, numbers={5}), told])


_KEY = Markup(
    '<div class="sj-note">'
    '<span class="sj-bad">dashed red: removed</span>, '
    '<span class="sj-good">green: added</span>, '
    '<span class="sj-warn">amber: changed</span></div>'
)
