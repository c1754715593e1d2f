"""Graphs with a loop that is simplified."""

from __future__ import annotations

import numpy as np

from stagejit.graph.ir import Graph, Op
from stagejit.rewrites import loops
from stagejit.rewrites.driving.driver import GraphStep

STEP = GraphStep(loops.NAME, loops.simplify_loops)
X = np.linspace(0.1, 1.5, 256, dtype=np.float32).reshape(16, 16)


def loop(graph: Graph) -> Op:
    (found,) = [op for op in graph if op.kind == "loop"]
    return found
