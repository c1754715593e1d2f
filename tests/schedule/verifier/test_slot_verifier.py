"""Buffers that share memory are apart: what a look at each pair says."""

from __future__ import annotations

import random

import pytest

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.schedule.conflicts.hazards import ancestors
from stagejit.schedule.memory.packing import finished_before
from stagejit.schedule.plans.plan import Access, Buffer, Dispatch, Plan
from stagejit.schedule.verifier.slots import _Check
from stagejit.types import u8
from tests.schedule.lives import apart


def random_plan(draw: random.Random) -> Plan:
    """Dispatches that write some of the transients, which lie anywhere in the arena."""
    buffers = [
        Buffer(f"t{n}", (draw.choice([1, 2, 5]),), u8, "transient", slot=draw.randrange(12))
        for n in range(draw.randrange(2, 5))
    ]
    dispatches = []
    for at in range(8):
        number = at * len(buffers) // 8  # one after the other, most often
        touched = buffers[draw.randrange(len(buffers)) if draw.random() < 0.05 else number]
        write = Access.of(touched, Box.whole(touched.shape))
        dispatches.append(Dispatch(f"d{at}", "map", (), (), (write,)))
    return Plan("f", tuple(dispatches), (), tuple(buffers))


def test_one_sweep_finds_what_a_look_at_each_pair_finds() -> None:
    verdicts = set()
    for seed in range(400):
        draw = random.Random(seed)
        plan, in_a_row = random_plan(draw), draw.random() < 0.6
        kept = [draw.getrandbits(at) | (1 << at >> 1 if in_a_row else 0) for at in range(8)]
        before = ancestors(8, dict(enumerate(kept)))
        check = _Check(plan, before)
        finished = finished_before(list(check.lives.values()), before)
        used = [buffer for buffer in plan.buffers if buffer.name in check.lives]
        wrong = any(
            (a.slot or 0) < (b.slot or 0) + b.nbytes
            and (b.slot or 0) < (a.slot or 0) + a.nbytes
            and not apart(check.lives[a.name], check.lives[b.name], finished)
            for number, a in enumerate(used)
            for b in used[:number]
        )
        verdicts.add(wrong)
        if wrong:
            with pytest.raises(VerificationError, match="share memory and are alive together"):
                check.apart()
        else:
            check.apart()
    assert verdicts == {False, True}
