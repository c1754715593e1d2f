"""Checks what a plan says of the parts of split sums.

Input: a dispatch of a plan. Output: nothing, or a VerificationError. Invariant: parts that pass
need no barriers among each other: each stays within what its dispatch touches, and none touches
what another one writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from stagejit.errors import VerificationError
from stagejit.schedule.conflicts.access import Access, Buffer, Parts
from stagejit.schedule.plans.plan import Dispatch


def verify_parts(dispatch: Dispatch, buffers: Mapping[str, Buffer]) -> None:
    """Looks at the first two and the last of parts at one stride: others lie as these do."""
    each: list[Parts] = []
    expected = 0
    for parts in dispatch.parts:
        if parts.first != expected or parts.count < 1:
            raise VerificationError(f"plan: @{dispatch.name} has no part {expected}")
        expected += parts.count
        numbers = {parts.first, min(parts.first + 1, expected - 1), expected - 1}
        each += [parts.at(number, buffers) for number in sorted(numbers)]
    for parts in each:
        _require_within(dispatch.name, parts.reads, dispatch.reads)
        _require_within(dispatch.name, parts.writes, dispatch.writes)
    for one, other in itertools.permutations(each, 2):
        for write, access in itertools.product(one.writes, (*other.reads, *other.writes)):
            if write.overlaps(access):
                raise VerificationError(
                    f"plan: part {one.first} of @{dispatch.name} writes {write}, where part "
                    f"{other.first} touches {access}"
                )


def _require_within(name: str, accesses: Sequence[Access], whole: Sequence[Access]) -> None:
    for access in accesses:
        around = (other for other in whole if other.buffer == access.buffer)
        if not any(other.box.contains(access.box) for other in around):
            raise VerificationError(f"plan: a part of @{name} touches {access}, which it does not")
