"""Checks that nobody reads what has been overwritten: a buffer holds one version of a value.

Input: regions in order. Output: nothing, or a VerificationError. Invariant: until a region has read
a version of a value, no later version of its elements is written, also not by another part of the
same region, which runs at the same time.

A value that is updated has many versions in one buffer: the value itself, the result of each insert
or scatter into it, of each loop or branch that carries it. A store is of the version that it is
`into`; the first contents of a buffer count as the first version that is inserted into it. What one
kernel writes over its own operands is the matter of `in_place.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagejit.dispatch.accesses import reads_of, writes_of
from stagejit.dispatch.region import Draft
from stagejit.dispatch.roots import Roots
from stagejit.errors import VerificationError
from stagejit.graph.ir import Value
from stagejit.graph.ops.control import before
from stagejit.index.box_index import BoxIndex

_Write = tuple[int, int, Value]  # position of the region, number of the part, version


def verify_versions(regions: Sequence[Draft]) -> None:
    """Raises VerificationError for the first read of elements that are there no more."""
    roots = Roots(regions)
    written: dict[Value, BoxIndex[_Write]] = {}
    for at, region in enumerate(regions):
        for number, part in enumerate(_parts(region)):
            for store, touch in zip(part.stores, writes_of(part), strict=True):
                index = written.setdefault(roots[store.into], BoxIndex())
                # A border is a piece of the fill that made what it is inserted into.
                version = store.inserts[-1].operands[1] if number else store.into
                index.add(touch.box, (at, number, version))
    for at, region in enumerate(regions):
        for number, part in enumerate(_parts(region)):
            for touch in reads_of(part):
                root = roots[touch.value]
                if root not in written:
                    continue
                made_from = _made_from(touch.value, root)
                for where, other, version in written[root].overlapping(touch.box):
                    beside = where == at and other != number
                    if beside or (where < at and version not in made_from):
                        raise VerificationError(
                            f"regions: {region.name} reads {touch.value}{touch.box}, which"
                            f" {regions[where].name} overwrites"
                        )


def _parts(region: Draft) -> tuple[Draft, ...]:
    """The region without its borders, then these."""
    return (replace(region, borders=()), *region.borders)


def _made_from(value: Value, root: Value) -> set[Value]:
    """The versions that a value consists of, itself included."""
    found = {value}
    while value is not root:
        earlier = before(value)
        assert earlier is not None  # as in `Roots`
        value = earlier
        found.add(value)
    return found
