"""What plans pay: dispatches, bytes, evaluations."""

from __future__ import annotations

import itertools

from stagejit.schedule.plans.plan import Plan
from tests.acceptance.ablations.ablation import Measure


def dispatches(plan: Plan) -> int:
    return len(plan.dispatches)


def row_major_transients(plan: Plan) -> int:
    return sum(b.kind == "transient" and b.layout.is_row_major for b in plan.buffers)


def copies(plan: Plan) -> int:
    return len(plan.copies)


def fills(plan: Plan) -> int:
    return len(plan.fills)


def delegated(plan: Plan) -> int:
    return len(plan.delegated)


def transient_nbytes(plan: Plan) -> int:
    return plan.transient_nbytes


def peak_nbytes(plan: Plan) -> int:
    return plan.peak_nbytes


def weight_nbytes(plan: Plan) -> int:
    return sum(buffer.nbytes for buffer in plan.buffers if buffer.kind == "weight")


def waiting_neighbours(plan: Plan) -> int:
    """Dispatches that wait for the one right before them."""
    waits = {(barrier.src, barrier.dst) for barrier in plan.barriers}
    names = [dispatch.name for dispatch in plan.dispatches]
    return sum(pair in waits for pair in itertools.pairwise(names))


def evaluations(op: str) -> Measure:
    """How often an op is evaluated, in loops as often as they turn."""

    def count(plan: Plan) -> int:
        return sum(
            dispatch.ops.count(op)
            + sum((body.trip or 1) * count(body.plan) for body in dispatch.bodies)
            for dispatch in plan.dispatches
        )

    return count


def conservative_nbytes(plan: Plan) -> int:
    """Bytes of ranges that are the hull of what is written."""
    return sum(w.nbytes for d in plan.dispatches for w in d.writes if not w.exact)


def written_by_branches(plan: Plan) -> int:
    """Bytes of the results of branches, as far as one of them may write them."""
    return sum(w.nbytes for d in plan.dispatches if d.kind == "branch" for w in d.writes)


def encoded(plan: Plan) -> int:
    """Arrays in memory that are encoded when the target is asked how they lie."""
    tiling = (d for d in plan.decisions if d.rewrite == "data-tiling")
    return sum(d.op.startswith("set_encoding") for d in tiling)


def left_to_xla(plan: Plan) -> int:
    """Loops that XLA runs with bodies of its own."""
    return sum(d.rewrite == "leave-bodies" and d.applied for d in plan.decisions)
