"""Plans of programs that put arrays together."""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.schedule.plans.plan import Plan


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def shape(*sizes: int) -> Any:
    return np.zeros(sizes, np.float32)


def declined(plan: Plan, switch: str) -> list[str]:
    return [d.reason for d in plan.decisions if d.rewrite == switch and not d.applied]
