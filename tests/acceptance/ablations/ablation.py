"""What a rewrite saves, by switching it off in a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagejit.schedule.plans.plan import Plan
from tests.acceptance.running import f32

Measure = Callable[[Plan], int]


@dataclass(frozen=True)
class Ablation:
    """measure: what a plan of `fn` pays; on, off: how much with and without the rewrite. hosts:
    what its host program pays, in place of `measure`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Callable[..., Any]
    measure: Measure
    on: int
    off: int
    jit: dict[str, Any] = field(default_factory=dict)
    hosts: Callable[[str], int] | None = None


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


X, Y = f32(64, 64), f32(64, 64, seed=1)
