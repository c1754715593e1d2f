"""Every rewrite and fusion, switched off: what it saves comes back, and the values stay the same.

A new name in `options.SWITCHES` needs an entry of `of_ops.py` or of `of_dispatches.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stagejit
from stagejit.options import SWITCHES, Options
from tests.acceptance.ablations.of_dispatches import OF_DISPATCHES
from tests.acceptance.ablations.of_ops import OF_OPS
from tests.acceptance.running import plan_of, run

ABLATIONS = OF_OPS | OF_DISPATCHES


def host_of(fn: Callable[..., Any], args: list[Any], options: Options) -> str:
    text: str = stagejit.jit(fn, options=options).lower(*args).as_text("host")
    return text


def test_every_switch_has_an_ablation() -> None:
    assert set(ABLATIONS) == set(SWITCHES)


@pytest.mark.parametrize("switch", ABLATIONS)
def test_switched_off_the_costs_come_back(switch: str) -> None:
    case = ABLATIONS[switch]
    args = [np.array(x) if isinstance(x, np.ndarray) else x for x in case.args]
    plan = run(case.fn, args, case.expected(*args), off=[switch], **case.jit)
    off = plan_of(case.fn, *args, disable=[switch], **case.jit)
    paid = case.measure(plan), case.measure(off)
    if case.hosts:
        options = (Options(), Options(disable=(switch,)))
        paid = tuple(case.hosts(host_of(case.fn, args, each)) for each in options)
    assert paid == (case.on, case.off)
    assert not [d for d in off.decisions if d.rewrite == switch and d.applied]
