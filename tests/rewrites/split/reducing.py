"""Reductions that are split."""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.split import reductions as split
from stagejit.trace.translate import graph_of

STEP = split.STEP


def decision(shape: tuple[int, ...], axes: Any, **options: Any) -> str:
    graph = graph_of(lambda x: x.sum(axes), np.zeros(shape, np.float32))
    (made,) = run_steps(graph, (STEP,), Options(verify=True, **options))
    assert made.applied
    return made.reason
