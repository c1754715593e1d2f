"""Where elementwise ops without a dispatch of their own are evaluated.

Input: what became of groups. Output: decisions. Invariant: `explain` has one for each such op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from stagejit.base.decisions import Decision
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Op
from stagejit.rewrites.driving.driver import describe

_MOST_NAMED = 8  # dispatches, where a decision says which ones evaluate something


def explain_producers(where: Whereabouts) -> Iterator[Decision]:
    """Says where each elementwise op without a dispatch of its own is evaluated, in loops and
    branches too."""
    for path, level in where.levels():
        yield from _explained(path, level)


def _explained(path: str, where: Whereabouts) -> Iterator[Decision]:
    graph = where.grouping.graph
    inside: dict[Op, list[Sequence[Region]]] = {}
    for group in where.grouping.groups:
        for op in group.floating:
            inside.setdefault(op, []).append(where.evaluating(op, group))
    for op, groups in inside.items():
        reason = f"evaluated inside {_named(path, groups)}"
        yield Decision("fuse-producers", describe(op), True, reason, op.loc, graph)


def _named(path: str, groups: Sequence[Sequence[Region]]) -> str:
    """The first few, and how many there are besides: a value may be evaluated in thousands."""
    names = [f"@{path}{region.name}" for region in islice(chain.from_iterable(groups), _MOST_NAMED)]
    others = sum(map(len, groups)) - len(names)
    return " and ".join([*names, f"{others} others"] if others else names)
