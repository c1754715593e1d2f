"""Programs that are fused, and the kinds of their dispatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan

Fn = Callable[..., Any]


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def off(*names: str) -> Options:
    return Options(disable=names)


def kinds(plan: Plan) -> list[str]:
    return [dispatch.kind for dispatch in plan.dispatches]
