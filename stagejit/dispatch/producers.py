"""Where elementwise ops without a dispatch of their own are evaluated.

Input: groups, the ops that they became, regions. Output: decisions. Invariant: `explain` has one
for each such op.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice

from stagejit.decisions import Decision
from stagejit.dispatch.forming.group import Group, Grouping
from stagejit.dispatch.forming.state import describe
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Op

_MOST_NAMED = 8  # dispatches, where a decision says which ones evaluate something


def explain_producers(
    grouping: Grouping,
    launched: Mapping[Group, Op],
    replaced: Mapping[Op, Op],
    regions: Sequence[Region],
) -> Iterator[Decision]:
    """Says where each elementwise op without a dispatch of its own is evaluated.

    launched: the op that each group, those inside of loops and branches too, became at first;
    replaced: what was put in place of ops since then. Those that it was divided into share its
    place.
    """

    def place(group: Group) -> int:
        op = launched[group]
        while op in replaced:
            op = replaced[op]
        return op.place

    at: dict[int, list[Region]] = {}
    for region in regions:
        at.setdefault(region.op.place, []).append(region)
    inside: dict[Op, list[Sequence[Region]]] = {}
    for group in grouping.groups:
        found = at.get(place(group), [])
        apart = _evaluating(found) if group.floating and len(found) > 1 else {}
        for op in group.floating:
            inside.setdefault(op, []).append(apart.get(_likeness(op), found))
    for op, groups in inside.items():
        reason = f"evaluated inside {_named(groups)}"
        yield Decision("fuse-producers", describe(op), True, reason, op.loc)
    for group in grouping.groups:
        if group.anchor is not None and group.anchor in grouping.bodies:
            for region in at.get(place(group), ()):  # there is none where nobody needs it
                for inner, body in zip(grouping.bodies[group.anchor], region.bodies, strict=True):
                    yield from explain_producers(inner, launched, replaced, body.regions)


def _evaluating(regions: Sequence[Region]) -> dict[Hashable, list[Region]]:
    """Which of the regions that a group became evaluates ops that are alike."""
    found: dict[Hashable, list[Region]] = {}
    for region in regions:
        for likeness in dict.fromkeys(map(_likeness, region.ops)):
            found.setdefault(likeness, []).append(region)
    return found


def _likeness(op: Op) -> Hashable:
    """What an op has in common with its clones."""
    return op.kind, op.attrs.get("fn"), op.loc, op.results[0].type


def _named(groups: Sequence[Sequence[Region]]) -> str:
    """The first few, and how many there are besides: a value may be evaluated in thousands."""
    names = [f"@{region.name}" for region in islice(chain.from_iterable(groups), _MOST_NAMED)]
    others = sum(map(len, groups)) - len(names)
    return " and ".join([*names, f"{others} others"] if others else names)
