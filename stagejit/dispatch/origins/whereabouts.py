"""`Whereabouts`: what became of groups, and why two dispatches are two.

Input: groups, the ops that they became at last, regions. Output: regions by groups and by ops, and
what formation said of each two groups, asked for two regions. Invariant: only looks; a region that
no group became was made by a rewrite, which says so itself.

Note [Ways between regions]: a region may read what another one makes though no group of its own
reads a group of that: what was copied is not copied any more, a producer writes where its value is
placed, and who reads a buffer reads what all have written there. So the groups in between are gone
through: those that are gone, and those that leave what they do not overwrite to others. Where that
does not lead there, inserts are gone through as well: a producer that writes where its value is
placed is read by whoever reads the larger value, whatever else the insert became.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from stagejit.base.decisions import path_inside
from stagejit.base.threads.locks import remembered
from stagejit.dispatch.groups.apart import Reason, reasons_of
from stagejit.dispatch.groups.group import Group, Grouping
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Op

Replaced = Mapping[Op, Sequence[Op]]


class Whereabouts:
    """Of a graph, or of a body of one. launched: the op that each group became at first, those of
    bodies, too. replaced: what was put in place of ops since then. origins: what ops of the regions
    were made of, where another graph has those."""

    def __init__(
        self,
        grouping: Grouping,
        launched: Mapping[Group, Op],
        replaced: Replaced,
        regions: Sequence[Region],
        origins: Mapping[Op, Op] = MappingProxyType({}),
    ) -> None:
        self.grouping, self.launched, self.replaced = grouping, launched, replaced
        self.regions, self.origins = regions, origins
        self._alike: dict[Group, dict[Hashable, list[Region]]] = {}

    def in_another_graph(self, regions: Sequence[Region], origins: Mapping[Op, Op]) -> Whereabouts:
        """The same, of regions of a graph that was made of that of dispatches."""
        return Whereabouts(self.grouping, self.launched, self.replaced, regions, origins)

    @remembered
    def by_place(self) -> dict[int, list[Region]]:
        """The regions at each place."""
        found: dict[int, list[Region]] = {}
        for region in self.regions:
            found.setdefault(self.origins.get(region.op, region.op).place, []).append(region)
        return found

    def now(self, op: Op) -> Iterator[Op]:
        """What is in place of an op."""
        pending = [op]
        while pending:
            op = pending.pop()
            if op in self.replaced:
                pending += reversed(self.replaced[op])
            else:
                yield op

    def of_group(self, group: Group) -> list[Region]:
        """What a group is now; nothing, where nobody needs it."""
        launched = self.launched[group]
        if launched not in self._regions_of:
            places = dict.fromkeys(op.place for op in self.now(launched))  # its parts share one
            found = chain.from_iterable(self.by_place.get(place, ()) for place in places)
            self._regions_of[launched] = list(dict.fromkeys(found))
        return self._regions_of[launched]

    @remembered
    def _regions_of(self) -> dict[Op, list[Region]]:
        """What was launched is now, of what was asked for: each op of a group asks."""
        return {}

    @remembered
    def groups(self) -> dict[Region, list[Group]]:
        """Of which groups each region is made."""
        found: dict[Region, list[Group]] = {}
        for group in self.grouping.groups:
            for region in self.of_group(group):
                found.setdefault(region, []).append(group)
        return found

    def inside(self) -> Iterator[tuple[Region, int, Whereabouts]]:
        """The bodies of loops and branches: the region, the number of the body, and its own."""
        for group in self.grouping.groups:
            if group.anchor is not None and group.anchor in self.grouping.bodies:
                for region in self.of_group(group):  # there is none where nobody needs it
                    bodies = zip(self.grouping.bodies[group.anchor], region.bodies, strict=True)
                    for number, (inner, body) in enumerate(bodies):
                        made = Whereabouts(
                            inner, self.launched, self.replaced, body.regions, self.origins
                        )
                        yield region, number, made

    def levels(self, path: str = "") -> Iterator[tuple[str, Whereabouts]]:
        """All graphs, each behind the names of the dispatches around it: "loop.1/"."""
        yield path, self
        for region, number, inner in self.inside():
            body = region.bodies[number].graph.name
            yield from inner.levels(path_inside(path, region.name, body))

    def levels_by_region(self) -> Iterator[tuple[tuple[Region, int], Whereabouts]]:
        """The bodies of all loops and branches, by region and number of the body."""
        for region, number, inner in self.inside():
            yield (region, number), inner
            yield from inner.levels_by_region()

    def evaluating(self, op: Op, group: Group) -> list[Region]:
        """Which of the regions that a group became evaluate an op of it."""
        regions = self.of_group(group)
        if len(regions) < 2:
            return regions
        if group not in self._alike:
            self._alike[group] = _by_likeness(regions)
        return self._alike[group].get(_likeness(op), regions)

    def all_evaluated(self) -> dict[Op, list[Region]]:
        """Where each op of the graph is evaluated: by what its group became, or where borders are
        written that it filled. What nobody needs is not there."""
        found: dict[Op, dict[Region, None]] = {}
        for group in self.grouping.groups:
            is_gone = not self.of_group(group)
            for op in group.ops:
                regions = self._borders.get(_source(op), ()) if is_gone else ()
                regions = regions or self.evaluating(op, group)
                if regions:
                    found.setdefault(op, {}).update(dict.fromkeys(regions))
        return {op: list(regions) for op, regions in found.items()}

    @remembered
    def _borders(self) -> dict[Hashable, list[Region]]:
        """The regions whose borders are made of ops from the same place of the program."""
        found: dict[Hashable, list[Region]] = {}
        for region in self.regions:
            parts = region.parts[1:]
            for source in dict.fromkeys(_source(op) for part in parts for op in part.ops):
                found.setdefault(source, []).append(region)
        return found

    # -------------------------------------------------------------- in between

    @remembered
    def _reasons(self) -> dict[Group, dict[Group, list[Reason]]]:
        found: dict[Group, dict[Group, list[Reason]]] = {}
        for (first, second), reasons in reasons_of(self.grouping).items():
            found.setdefault(first, {})[second] = reasons
        return found

    def are_one_group(self, first: Region, second: Region) -> bool:
        """Whether they were one dispatch, which was divided."""
        return not set(self.groups.get(first, ())).isdisjoint(self.groups.get(second, ()))

    def between(self, first: Region, second: Region) -> list[Reason]:
        """Why the second, which reads what the first one makes, is not one with it; see Note [Ways
        between regions]."""
        return self._on_ways(first, second) or self._on_ways(first, second, inserts=True)

    def _on_ways(self, first: Region, second: Region, *, inserts: bool = False) -> list[Reason]:
        starts, ends = self.groups.get(first, ()), set(self.groups.get(second, ()))
        pending, seen, found = list(starts), set(starts), list[Reason]()
        while pending:
            group = pending.pop()
            for other, reasons in self._reasons.get(group, {}).items():
                if other in ends:
                    found += reasons
                elif other not in seen and (
                    self._is_between(group, other, reasons)
                    or (inserts and other.anchor is not None and other.anchor.definition.is_insert)
                ):
                    seen.add(other)
                    pending.append(other)
        return found

    def _is_between(self, group: Group, other: Group, reasons: Sequence[Reason]) -> bool:
        """Whether who reads what a group stores reads it behind another one."""
        if any(reason.goes_on for reason in reasons):
            return True
        now = self.of_group(other)
        return not now or not set(now).isdisjoint(self.of_group(group))


def _by_likeness(regions: Sequence[Region]) -> dict[Hashable, list[Region]]:
    """Which of the regions that a group became evaluates ops that are alike."""
    found: dict[Hashable, list[Region]] = {}
    for region in regions:
        for like in dict.fromkeys(map(_likeness, region.ops)):
            found.setdefault(like, []).append(region)
    return found


def _likeness(op: Op) -> Hashable:
    """What an op has in common with its clones."""
    return op.kind, op.attrs.get("fn"), op.loc, op.results[0].type


def _source(op: Op) -> Hashable:
    """What an op has in common with its clones for a piece of its result."""
    return op.kind, op.attrs.get("fn"), op.loc, op.results[0].type.dtype
