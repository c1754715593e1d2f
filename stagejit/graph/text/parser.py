"""From text back to a graph: the inverse of `printer.py`.

Input: the text form of a graph. Output: a verified `Graph` whose text is the same. Raises
ParseError for anything that is not in the grammar, and VerificationError for what cannot be, with
the line where it is that of one op.
Invariant: `as_text(parse(text)) == text`; a `delegate` comes back without its equation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagejit.errors import ParseError, VerificationError
from stagejit.graph.definition import OpDef, definition_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import infer
from stagejit.graph.text.printer import op_text
from stagejit.graph.text.syntax import read_plain
from stagejit.graph.text.tokens import Line
from stagejit.graph.verifier import verify
from stagejit.types import TensorType


def parse(text: str) -> Graph:
    """The graph that `text` describes."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2:
        raise ParseError("a graph has at least a header and a return")
    graph = _graph(_Lines(lines))
    verify(graph)
    return graph


class _Lines:
    """The lines of a text, taken from the first to the last."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self.lines, self.next = lines, 0

    def starts_with(self, word: str) -> bool:
        more = self.next < len(self.lines)
        return more and self.lines[self.next][1].lstrip().startswith(word)

    def take(self) -> Line | None:
        if self.next == len(self.lines):
            return None
        self.next += 1
        return Line(*self.lines[self.next - 1])


def _graph(lines: _Lines) -> Graph:
    header = lines.take()
    if header is None:
        raise ParseError("a graph has at least a header and a return")
    graph, values = _header(header)
    while (tokens := lines.take()) is not None:
        if tokens.accept("}"):
            break
        if tokens.accept("return"):
            graph.set_outputs(tokens.values_until(None, values))
        else:
            try:
                _op(tokens, graph, values, lines)
            except VerificationError as fault:
                raise _at(tokens, fault) from None
        tokens.end()
    return graph


def _at(tokens: Line, fault: VerificationError) -> VerificationError:
    """With the line, which that of an op inside of another one has already."""
    if fault.what.startswith("line "):
        return fault
    return VerificationError(f"{tokens.error(fault.what)}", loc=fault.loc)


def _header(tokens: Line) -> tuple[Graph, dict[str, Value]]:
    tokens.expect("graph")
    graph = Graph(tokens.take("name").removeprefix("@"))
    values: dict[str, Value] = {}
    tokens.expect("(")

    def argument() -> None:
        name = tokens.take("value")
        tokens.expect(":")
        type = tokens.type()
        donated, bound = tokens.accept("donated"), tokens.accept("bound")
        values[name] = graph.add_input(name[1:], type, donated=donated, bound=bound)

    tokens.list_until(")", argument)
    tokens.expect("{")
    tokens.end()
    return graph, values


def _op(tokens: Line, graph: Graph, values: dict[str, Value], lines: _Lines) -> None:
    names: list[str] = []
    types: list[TensorType] = []
    while tokens.kind() == "value":
        names.append(tokens.take("value"))
        tokens.expect(":")
        types.append(tokens.type())
        if not tokens.accept(","):
            break
    if names:
        tokens.expect("=")
    kind = tokens.take("name")
    definition = definition_of(kind)
    operands, attrs = (definition.read or read_plain)(tokens, definition, values, types)
    loc = tokens.loc()
    if definition.with_bodies is not None:
        attrs |= _inner_graphs(tokens, definition, lines)
    op = graph.add(kind, operands, types, loc, **attrs)
    if len(types) != len(set(names)) or any(name in values for name in names):
        raise tokens.error("a name is given twice")
    values.update(zip(names, op.results, strict=True))
    _check_types(tokens, op)
    if definition.read is not None and definition.has_bodies:
        _check_summary(tokens, op, values)


def _inner_graphs(tokens: Line, definition: OpDef, lines: _Lines) -> dict[str, Any]:
    """The graphs on the lines after an op that has them."""
    graphs = []
    while lines.starts_with("graph "):
        graphs.append(_graph(lines))
    try:
        return {} if definition.with_bodies is None else definition.with_bodies(graphs)
    except ValueError as fault:
        raise tokens.error(str(fault)) from None


def _check_summary(tokens: Line, op: Op, values: dict[str, Value]) -> None:
    """A kind that has bodies and a text of its own repeats in its line what these say."""
    given = dict.fromkeys(text for kind, text in tokens.tokens if kind == "value")
    expected = op_text(op, {values[name]: name for name in given})
    if Line(0, expected).tokens != tokens.tokens:
        raise tokens.error(f"the line should be {expected}")


def _check_types(tokens: Line, op: Op) -> None:
    expected = infer(op.kind, [value.type for value in op.operands], op.attrs)
    actual = tuple(value.type for value in op.results)
    if expected is not None and expected != actual:
        raise tokens.error(f"the type should be {', '.join(map(str, expected))}")
