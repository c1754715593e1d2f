"""Checks that each dispatch is of a kind that there are kernels for.

Input: regions of a graph of dispatches. Output: nothing, or a VerificationError. Invariant: what
passes is as `Region` says of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagejit.dispatch.regions import Region, with_inner
from stagejit.errors import VerificationError


def verify_kinds(regions: Iterable[Region]) -> None:
    """Raises VerificationError for the first fault, in bodies too."""
    for region in with_inner(regions):
        for part in region.parts if region.has_kernel else ():
            _check(part)


def _check(region: Region) -> None:
    anchors = [
        op for op in region.ops if not op.definition.is_pointwise and not op.definition.is_insert
    ]
    stored = [store.value for store in region.stores]
    if region.definition.is_reduce:
        _require(all(op.definition.is_reduce for op in anchors), region, "has other anchors")
        spaces = {(op.operands[0].shape, tuple(op.attrs["axes"])) for op in anchors}
        _require(len(spaces) == 1, region, "reduces different rows")
        sizes = {anchors[0].operands[0].type.size, anchors[0].result.type.size}
        fits = all(value.type.size in sizes for value in stored)
        _require(fits, region, "stores what is neither in its row space nor in its kept space")
    elif region.anchor is not None:
        _require(anchors == [region.anchor], region, "does not have its one anchor")
    else:
        shapes = {value.shape for value in stored}
        _require(len(shapes) == 1, region, "stores values of different shapes")


def _require(holds: bool, region: Region, fault: str) -> None:
    if not holds:
        raise VerificationError(f"{region.name} {fault}", loc=region.loc)
