"""Which kernel each dispatch of a plan launches.

Input: a plan, its regions, their kernels. Output: the plan with names of kernels, as they are in
the texts of `Compiled.as_text`. Invariant: nothing else of it changes, in bodies of loops and
branches neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stagejit.base.records import replace
from stagejit.codegen.generate import Generated
from stagejit.dispatch.regions import Region
from stagejit.schedule.plans.plan import Dispatch, Plan


def with_kernels(
    plan: Plan, regions: Iterable[Region], kernels: Mapping[Region, Generated]
) -> Plan:
    """`plan`, whose dispatches have the symbols of their regions' kernels."""
    known = {region.name: region for region in regions}

    def named(dispatch: Dispatch) -> Dispatch:
        region = known[dispatch.name]
        bodies = tuple(
            replace(body, plan=with_kernels(body.plan, inner.regions, kernels))
            for body, inner in zip(dispatch.bodies, region.bodies, strict=True)
        )
        symbol = kernels[region].symbol if region in kernels else ""
        return replace(dispatch, kernel=symbol, bodies=bodies)

    return replace(plan, dispatches=tuple(map(named, plan.dispatches)))
