"""Reductions in parts: how many are asked for, and what they cover."""

from __future__ import annotations

import itertools
from typing import Any

from stagejit.options import Options
from stagejit.schedule.plans.plan import Dispatch, Plan

ALL = {"reduce": 7, "contract": 7, "conv": 7}


def asked(parts: int, **others: Any) -> Options:
    return Options(verify=True, split=dict.fromkeys(ALL, parts), **others)


def one_sum(plan: Plan) -> Dispatch:
    first, merge = plan.dispatches
    assert (merge.kind, merge.parts) == ("reduce", ())
    return first


def parts_cover(plan: Plan) -> None:
    """No two parts write the same, and together they touch what the dispatch does."""
    first = one_sum(plan)
    count = sum(parts.count for parts in first.parts)
    each = [plan.part(first, number) for number in range(count)]
    for one, other in itertools.combinations(each, 2):
        assert not any(a.overlaps(b) for a, b in itertools.product(one.writes, other.writes))
    for index, access in enumerate(first.writes):
        boxes = [part.writes[index].box for part in each]
        assert sum(box.count for box in boxes) == access.box.count
    for access in first.reads:
        mine = [a for part in each for a in part.reads if a.buffer == access.buffer]
        assert all(access.box.contains(a.box) for a in mine)
        assert max(a.box.count for a in mine) <= access.box.count
