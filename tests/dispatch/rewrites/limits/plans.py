"""What plans say of the limit of operands."""

from __future__ import annotations

from stagejit.schedule.plans.plan import Plan


def touched(plan: Plan) -> list[int]:
    return [len({a.buffer for a in (*d.reads, *d.writes)}) for d in plan.dispatches]


def reasons(plan: Plan, applied: bool = False) -> list[str]:
    found = (d for d in plan.decisions if d.rewrite == "limit-operands")
    return [d.reason for d in found if d.applied == applied]
