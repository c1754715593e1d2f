"""The picture of a graph of ops, or of dispatches.

Input: a graph. Output: nodes and edges, and panels: of the graph, and of the graphs inside of its
loops, branches and dispatches. Invariant: text is that of the dump (`lowered.as_text("graph")`),
but that constants of one element, and what is filled with one, stand where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from stagejit.base.loc import Loc
from stagejit.base.numbers import counted
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.literals import element_text
from stagejit.graph.text.printer import op_text, value_names
from stagejit.inspect.page import item, joined
from stagejit.inspect.pictures.drawing.nodes import Edge, Line, Node, draw
from stagejit.inspect.pictures.picture import Panel
from stagejit.inspect.pictures.words import color_of, key_of, line_of, short

_MOST_BODIES = 24  # graphs inside of a graph that are drawn
_LONGEST = 400  # letters of an op in a tooltip


def panels(graph: Graph, title: str = "") -> Iterator[Panel]:
    """The graph, then those inside of it."""
    title = title or graph.name
    nodes, edges = Nodes().of(graph)
    drawn = draw(nodes, edges)
    ops = graph.ops()
    note = counted(len(ops), "op") + (f"; {drawn.note}" if drawn.note else "")
    colors = dict.fromkeys((kind_of(op), color_of(kind_of(op))) for op in ops)
    key = key_of((name, color) for name, color in colors if color != "gray")
    yield Panel(f"graph of {title}", drawn.drawing, note, key)
    if drawn.nodes < drawn.of - drawn.left_out or drawn.left_out:
        lines = joined(item("  ".join(node.tip[:1]), tag="pre") for node in nodes)
        yield Panel(f"all ops of {title}", None, f"{len(nodes)}, as text", lines, is_open=False)
    bodies = [(op, number, body) for op in ops for number, body in enumerate(_bodies(op))]
    for op, number, body in bodies[:_MOST_BODIES]:
        yield from panels(body, _body_title(op, number, len(_bodies(op))))
    if len(bodies) > _MOST_BODIES:
        more = f"{len(bodies)} graphs, of which the first {_MOST_BODIES} are drawn above"
        yield Panel(f"inside of {title}", None, more, is_open=False)


def _bodies(op: Op) -> tuple[Graph, ...]:
    return tuple(op.definition.bodies(op)) if op.definition.has_bodies else ()


def _body_title(op: Op, number: int, count: int) -> str:
    return f"{kind_of(op)}.{op.id}" + (f", body {number}" if count > 1 else "")


def kind_of(op: Op) -> str:
    """That of a dispatch, or of an op."""
    return str(op.attrs["kind"]) if op.definition.is_dispatch and "kind" in op.attrs else op.kind


@dataclass
class Nodes:
    """Makes nodes of graphs. known: those that were made, so that a graph that is seen again costs
    what is new in it."""

    known: dict[tuple[Op, tuple[str, ...]], Node] = field(default_factory=dict)

    def of(
        self, graph: Graph, names: Mapping[Value, str] | None = None
    ) -> tuple[list[Node], list[Edge]]:
        """A node for each op that does not stand in the text of its users, and for the return."""
        named = dict(names if names is not None else value_names(graph))
        number: dict[Op, int] = {}
        nodes: list[Node] = []
        edges: list[Edge] = []
        for op in _in_reading_order(graph):
            literal = _literal(op, named)
            if literal:
                named[op.result] = literal
                continue
            number[op] = len(nodes)
            key = op, tuple(named[value] for value in op.operands)
            if key not in self.known:
                self.known[key] = _node(op, named)
            nodes.append(self.known[key])
            sources = dict.fromkeys(value.op for value in op.operands)
            edges += (Edge(number[source], number[op]) for source in sources if source in number)
        return nodes, edges


def _in_reading_order(graph: Graph) -> Iterator[Op]:
    """That of the dump, but for what is made of no op, such as views of arguments: it comes right
    before its first user."""
    late: set[Op] = set()
    done: set[Op] = set()
    for op in (*graph.ops(), graph.return_op):
        known = op.definition
        made_of_none = all(v.op.definition.is_input or v.op in late for v in op.operands)
        free = known.is_view or known.is_free or known.is_splat or known.is_empty
        if made_of_none and (free or known.is_constant) and not known.is_return:
            late.add(op)
            continue
        todo = [op]
        while todo:
            if todo[-1] in done:
                todo.pop()
                continue
            first = [v.op for v in todo[-1].operands if v.op in late and v.op not in done]
            if first:
                todo += reversed(first)
            else:
                done.add(todo[-1])
                yield todo.pop()


def _literal(op: Op, names: Mapping[Value, str]) -> str:
    """How a constant of one element, or what is filled with one, is written; "" for other ops."""
    if op.definition.is_constant:
        value = op.attrs["value"]
        return element_text(value.reshape(-1)[0]) if value.size == 1 else ""
    if op.definition.is_splat and not names[op.operands[0]].startswith("%"):
        return names[op.operands[0]]
    return ""


def _node(op: Op, names: Mapping[Value, str]) -> Node:
    """Name, what it computes of what, type and line."""
    if op.definition.is_return:
        text = f"return {', '.join(names[value] for value in op.operands)}"
        return Node("return", (Line(text, "sj-strong"),), "gray", (text,), ("return", op.id))
    results = [names[result] for result in op.results] or [str(op)]
    name = ", ".join(results) if len(results) < 4 else f"{results[0]} … {results[-1]}"
    types = ", ".join(str(result.type) for result in op.results)
    if op.definition.is_constant:
        text = "const"  # its elements may be many
    else:
        whole = op_text(op, names)
        text = whole.partition(" = ")[2] if op.results else whole
    text = text.removeprefix("map ")
    lines = [Line(name, "sj-strong"), Line(text), Line(types, "sj-soft")]
    if op.loc:
        lines.append(Line(short(op.loc), "sj-soft"))
    tip = (f"{name}: {types} = {text}"[:_LONGEST], line_of(op.loc))
    label = _label(text, types, op.loc)
    return Node(name, tuple(lines), color_of(kind_of(op)), tip, label)


def _label(text: str, types: str, loc: Loc) -> Hashable:
    """Equal for ops that do the same with other values."""
    return re.sub(r"%[\w.\[\]]+", "%", text), types, loc
