"""Names that a reader can look up: those of the texts that `as_text` gives.

Input: decisions, which name ops as the graph that they were taken on did (`map.18`), the graph, and
what became of its groups. Output: decisions that name them as the texts do. Invariant: whatever has
a number after that is in a text under it; an op that is gone has none.

    %7           the op whose result is that, in "graph"
    %7/body/%3   one in a body of that op
    @map.2       a dispatch, in "plan"; a group that became one is it
    @loop.1/map.2  one in a body of that dispatch
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from stagejit.base.decisions import Decision
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.regions import Region
from stagejit.graph.definition import is_defined
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.printer import value_names

Names = Mapping[Op, str]
_NUMBERED = re.compile(r"(?<![\w.@%/])([a-z_][a-z_0-9]*)\.(\d+)(?![\w.])")


def names_of(where: Whereabouts) -> Names:
    """Of the ops of the graph that groups were made of, of those of dispatches, and of their
    bodies. What is gone has none."""
    names = dict(_of_values(where.grouping.graph, ""))
    regions: dict[Op, str] = {}
    for path, level in where.levels():
        for region in reversed(level.regions):
            regions[level.origins.get(region.op, region.op)] = dispatch_name(path, region)
    for op in (*where.replaced, *regions):
        now = next((regions[each] for each in where.now(op) if each in regions), None)
        if now is not None:
            names[op] = f"@{now}"
    return names


def dispatch_name(path: str, region: Region) -> str:
    """As explanations name it. path: of the loops and branches around it."""
    return f"{path}{region.name}"


def _of_values(graph: Graph, prefix: str) -> Iterator[tuple[Op, str]]:
    for value, name in named_values(graph, prefix):
        if value.index == 0:
            yield value.op, name


def named_values(graph: Graph, prefix: str = "") -> Iterator[tuple[Value, str]]:
    """Of inputs and of all results, in bodies, too, with their names."""
    for value, name in value_names(graph).items():
        yield value, f"{prefix}{name}"
        if value.index == 0:
            for body in value.op.definition.bodies(value.op):
                yield from named_values(body, f"{prefix}{name}/{body.name}/")


def described(op: Op, names: Names) -> str:
    """An op in a sentence: its name if it has one, and what it does."""
    fn = f" {op.attrs['fn']}" if isinstance(op.attrs.get("fn"), str) else ""
    return " ".join(filter(None, (names.get(op), f"{op.kind}{fn}")))


def named(decisions: Iterable[Decision], names: Names) -> Iterator[Decision]:
    """The same with names that can be looked up, and without graphs."""
    for decision in decisions:
        graph = decision.about
        if not isinstance(graph, Graph):
            yield decision
            continue
        op = renamed(decision.op, graph, names)
        reason = renamed(decision.reason, graph, names)
        yield Decision(decision.rewrite, op, decision.applied, reason, decision.loc)


def renamed(text: str, graph: Graph, names: Names) -> str:
    """A text about ops of a graph."""
    if "." not in text:  # nothing in it has a number
        return text

    def name(match: re.Match[str]) -> str:
        kind, number = match[1], int(match[2])
        op = graph.made(number)
        if op is None and is_defined(kind):  # of a graph that is gone
            return kind
        if op is None or op.kind != kind:
            return match[0]
        if op.definition.is_dispatch:
            return names.get(op, kind)
        return " ".join(filter(None, (names.get(op), kind)))

    return _NUMBERED.sub(name, text)
