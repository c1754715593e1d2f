"""`Kernel`: what a generator returns for one region, and the work estimate the host program needs.

Input: a region's loop-nest IR. Output: everything needed to launch it. Invariant: the function
depends only on shapes, dtypes and relative layout; constant base offsets live in the arguments,
so equal computations at different places share one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.codegen.ir.nodes import Function
from stagejit.graph.ir import Value


@dataclass(frozen=True)
class KernelArg:
    """One buffer argument: the memory of `value`, from element `offset` on.

    For a store, `value` is the store's `into`, and `written` is True.
    """

    value: Value
    offset: int = 0
    written: bool = False


@dataclass(frozen=True)
class Kernel:
    """A launchable kernel.

    args: in the order of the function's "arg" buffers. params: values of its run-time parameters.
    total: number of parallel items; the kernel runs any chunk `[lo, hi)` of them.
    seconds: estimated time of all items on one core, for the decision to fork.
    """

    function: Function
    args: tuple[KernelArg, ...]
    params: tuple[int, ...]
    total: int
    seconds: float
