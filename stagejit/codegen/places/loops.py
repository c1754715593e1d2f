"""`Loops`: the loops of a kernel over one space, where they read and write, and its vectors.

Input: a space, and a walk that tells what its elements need. Output: as few loop variables as the
views on the way and the memory allow. Invariant: loops of different groups are never joined; each
element of the space is visited once.

Note [Streamed stores]: only full, aligned cache lines are streamed, and only results that the last
cache could not keep for their readers anyway. A line that a kernel has just read at the same place
is there already. On two cores of a Granite Rapids, 256 MiB that are updated in place take 19.4 ms
by plain stores and 23.5 by such that bypass the caches, those that are written over 20.6 and 15.5.
Vectors of half a line, one after the other, fill it as well before it leaves: 22.1 and 15.8.

Note [Lines ahead]: where prefetchers bring lines to the second cache only, each load and each store
waits for its line among the few that a core may have on the way; so do stores that bypass the
caches. What does not stay in the second caches is asked for ahead there, and no store bypasses
them. GB/s of two cores of a Cascade Lake, of copies of 8, 24 and 64 MiB: stores that bypass the
caches 23, 19 and 19; plain ones 32, 19 and 17; asked for ahead 44, 28 and 24. To bring 64 MiB of
zeros to memory takes 6.5 ms; huge pages that were just zeroed lie in the caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

from stagejit.base.machine import Machine
from stagejit.base.numbers import nbytes_text
from stagejit.base.records import record, replace
from stagejit.codegen.choices import cheapest_vector
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import touched_nbytes, widest_nbytes
from stagejit.codegen.kernel import Choice
from stagejit.codegen.places.accesses import (
    in_squares,
    lanes_of,
    looking_up_cost,
    read_cost,
    vector_cost,
    write_cost,
)
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.space import Space, merge, refine
from stagejit.dispatch.regions import Store
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var

_ASKED_A_LINE = 4  # times that vectors ask for a line, at most: each takes as long as a load


@record
class Ahead:
    """Lines of these reads and these stores are asked for so many steps of a variable before the
    loops are there. far: reads do not go to the first cache, where they would push out others."""

    var: Var
    steps: int
    reads: frozenset[tuple[Value, Affine]]
    stores: frozenset[Store]
    far: bool = False

    def along(self, var: Var, steps: int) -> Ahead:
        """The same for loops that go on along another variable: rows that begin at like places
        of pages have few places in the first cache."""
        return replace(self, var=var, steps=steps, far=True)


@record(kw_only=True)
class Loops:
    """groups: the variables that loop, outermost first, by groups of axes. index: of an element of
    the space. places: of the values that are stored for it; offsets: in what they are stored into.
    compared: what tells which of several values an element is; cuts: see `Footprint`.
    vector: the variable of vectors; between: one whose elements lie between their lanes. streamed:
    the stores that bypass the caches. ahead: what is asked for ahead. written_out: whether the
    vectors go on from row to row, without a loop. cost: operations an element, by the model."""

    region: ClosedRegion
    target: Machine
    groups: tuple[tuple[Var, ...], ...]
    index: Index
    places: tuple[Index, ...]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]
    lanes: int
    compared: tuple[Affine, ...] = ()
    cuts: tuple[tuple[Affine, int], ...] = ()
    vector: Var | None = None
    between: Var | None = None
    streamed: tuple[Store, ...] = ()
    ahead: Ahead | None = None
    written_out: bool = False
    cost: float = math.inf
    choices: tuple[Choice, ...] = ()

    @property
    def forms(self) -> list[Affine]:
        """Where the loops read."""
        return [form for _, form in self.reads]

    def in_vectors(
        self,
        variables: Sequence[Var],
        cost: Callable[[Var, Var | None], float] | None = None,
        between: Sequence[tuple[Var, Var]] = (),
        *,
        neighbours: Mapping[Var, int] | None = None,
        across: Sequence[Var] = (),
        but: Value | None = None,
    ) -> Self:
        """With the cheapest vectors; see `cheapest_vector`. cost: by default that of all accesses,
        with so many neighbours along a variable, or squares along one of `across`, where none are
        `between`. but: reads of it do not count."""
        reads = [(value, form) for value, form in self.reads if value is not but]
        forms = [form for _, form in reads]

        def accesses(var: Var, gap: Var | None) -> float:
            apart = gap.extent if gap else (neighbours or {}).get(var, 0)
            tiles = () if gap else across
            looked_up = [self.looking_up_cost(*read, var) for read in reads]
            others = [form for form, at in zip(forms, looked_up, strict=True) if at is None]
            more = sum(cost for cost in looked_up if cost is not None)
            return vector_cost(others, self.offsets, var, self.lanes, apart, tiles, more)

        ranked = cheapest_vector(variables, cost or accesses, between)
        vector, gap = ranked.best
        lanes = lanes_of(forms, self.offsets, vector, self.lanes)
        choices = (*self.choices, ranked.choice)
        return replace(
            self, vector=vector, between=gap, lanes=lanes, cost=ranked.cost, choices=choices
        )

    def looking_up_cost(self, value: Value, form: Affine, var: Var) -> float | None:
        """See the function of this name."""
        itemsize = value.type.dtype.itemsize
        return looking_up_cost(form, var, self.lanes, itemsize, self.target)

    def apart_seconds(self, stride: int) -> float:
        """Of the reads and stores of one core whose lanes cross memory one by one. stride: as many
        elements lie between lanes and cross it with them."""
        vector, lanes, variables = self.vector, self.lanes, sum(self.groups, ())
        if vector is None or lanes < 2:
            return 0.0
        tiles = () if stride > 1 else variables
        moved = [
            value
            for value, form in self.reads
            if read_cost(form, vector, lanes, stride) >= lanes
            and self.looking_up_cost(value, form, vector) is None
            and all(in_squares(form, vector, lanes, tile) == math.inf for tile in tiles)
        ]
        for store, offset in zip(self.region.stores, self.offsets, strict=True):
            if write_cost(offset, vector, lanes, stride) >= lanes:
                moved.append(store.value)
        seconds = sum(self.target.lane_seconds(value.type.dtype.itemsize) for value in moved)
        return seconds * math.prod(var.extent for var in variables)

    def in_streams(
        self, *, reads: bool = True, goes_on: Callable[[Loops], bool] = lambda _: False
    ) -> Self:
        """With stores that bypass the caches where that pays, or lines that are asked for, of
        stores and perhaps of reads; see Note [Streamed stores], Note [Lines ahead]. goes_on:
        whether what is stored next of a store goes on in memory, vector after vector."""
        if self.target.lines_ahead:
            return self._asking_ahead(reads)
        region, vector, cache = self.region, self.vector, self.target.l3s_nbytes
        traffic, streamed = touched_nbytes(region, self.target), tuple[Store, ...]()
        sizes = f"{nbytes_text(traffic)} of traffic, {nbytes_text(cache)} of cache"
        if traffic <= cache:
            why = f"stores go to the caches: {sizes}"
        elif vector is None or not region.aligned:
            why = f"stores go to the caches: no whole lines ({sizes})"
        else:
            large = sum(store.value.type.nbytes for store in region.stores) >= cache // 2
            there = {form for value, form in self.reads if value in region.mutable}
            lanes = 2 * self.lanes if large and goes_on(self) else self.lanes
            streamed = tuple(
                store
                for store, offset in zip(region.stores, self.offsets, strict=True)
                if large
                and offset not in there
                and any(
                    _is_lines(store, offset, vector, count, self.target)
                    for count in {self.lanes, lanes}
                )
            )
            why = f"{len(streamed)} of {len(region.stores)} stores bypass the caches: {sizes}"
        return replace(self, streamed=streamed, choices=(*self.choices, Choice("stream", why)))

    def _asking_ahead(self, reads: bool) -> Self:
        """See Note [Lines ahead]."""
        region, vector, target = self.region, self.vector, self.target
        traffic, near = touched_nbytes(region, self.target), target.cores * target.l2_nbytes
        sizes = f"{nbytes_text(traffic)} of traffic, {nbytes_text(near)} of second caches"
        if vector is None or traffic <= near:
            choice = Choice("stream", f"no lines are asked for ahead: {sizes}")
            return replace(self, choices=(*self.choices, choice))
        stores = frozenset(
            store
            for store, offset in zip(region.stores, self.offsets, strict=True)
            if offset.coeff(vector) == 1 and store.value.type.nbytes > target.l2_nbytes
        )
        read = _first_to_arrive(self.reads, target.l2_nbytes) if reads else frozenset()
        line = target.line_nbytes // widest_nbytes(region)  # in elements, as steps are
        least = min(store.value.type.dtype.itemsize for store in region.stores)
        if (times := target.line_nbytes // (self.lanes * least)) > _ASKED_A_LINE:
            choice = Choice("stream", f"no lines are asked for ahead: each would be {times} times")
            return replace(self, choices=(*self.choices, choice))
        ahead = Ahead(vector, line * target.lines_ahead, read, stores)
        why = f"lines of {len(read)} reads and {len(stores)} stores are asked for ahead: {sizes}"
        return replace(self, ahead=ahead, choices=(*self.choices, Choice("stream", why)))


# Where the loops stand in a region, the places of what is stored for it, and the offsets of these.
Walked = tuple[Index, Sequence[Index], Sequence[Affine]]


def loops_of(
    region: ClosedRegion,
    target: Machine,
    space: Space,
    groups: Iterable[Iterable[int]],
    walk: Callable[[Footprint, Index], Walked],
    bound: Collection[Value] = (),
) -> Loops:
    """The loops over a space, whose axes are in groups. walk: of the element at an index of the
    space, all that it needs. bound: see `Footprint`."""

    def walked(strict: bool) -> tuple[Footprint, Walked]:
        footprint = Footprint(region, bound, strict=strict)
        return footprint, walk(footprint, space.index)

    footprint, (index, places, offsets) = refine(space.split, walked)
    footprint.require_elements()
    merged = [merge(space.loops(axes), footprint.forms, footprint.divided) for axes in groups]
    mapping = {var: form for _, forms in merged for var, form in forms.items()}

    def moved(parts: Iterable[Affine]) -> tuple[Affine, ...]:
        return tuple(part.substitute(mapping) for part in parts)

    return Loops(
        region=region,
        target=target,
        groups=tuple(tuple(variables) for variables, _ in merged),
        index=moved(index),
        places=tuple(map(moved, places)),
        offsets=moved(offsets),
        reads=tuple((value, form.substitute(mapping)) for value, form in footprint.reads),
        compared=moved(footprint.compared),
        cuts=tuple((form.substitute(mapping), extent) for form, extent in footprint.cuts),
        lanes=target.vector_nbytes // widest_nbytes(region),
    )


def loops_of_stores(region: ClosedRegion, target: Machine) -> Loops:
    """The loops over the shape that all stores of a region share."""
    shape = region.stores[0].value.shape

    def walk(footprint: Footprint, index: Index) -> Walked:
        offsets = [footprint.write(store, index) for store in region.stores]
        return index, [index] * len(offsets), offsets

    return loops_of(region, target, Space(shape), [range(len(shape))], walk)


def _first_to_arrive(
    reads: Iterable[tuple[Value, Affine]], least: int
) -> frozenset[tuple[Value, Affine]]:
    """Of reads that go side by side along arrays of more bytes, those that come to a line first."""
    found: dict[object, tuple[Value, Affine]] = {}
    for value, form in reads:
        if value.type.nbytes > least and form.loops_only:
            first = found.setdefault((value, form.terms), (value, form))
            if form.const > first[1].const:
                found[value, form.terms] = value, form
    return frozenset(found.values())


def _is_lines(store: Store, offset: Affine, vector: Var, lanes: int, target: Machine) -> bool:
    size, line = store.value.type.dtype.itemsize, target.line_nbytes
    steps = [offset.const, *(coeff for var, coeff in offset.terms if var is not vector)]
    lines = lanes * size == line and offset.coeff(vector) == 1 and offset.loops_only
    return lines and all(step * size % line == 0 for step in steps)
