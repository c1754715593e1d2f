"""`Kernel`: what a generator returns for one region, and the work estimate the host program needs.

Input: a region's loop-nest IR. Output: everything needed to launch it. Invariant: the function
depends only on shapes, dtypes and relative layout; constant base offsets live in the arguments,
so equal computations at different places share one kernel.
"""

from __future__ import annotations

import itertools

from stagejit.base.records import record
from stagejit.codegen.ir.nodes import Function
from stagejit.graph.ir import Value

_LINE_NBYTES = 64


@record
class KernelArg:
    """One buffer argument: the memory of `value`, from element `offset` on.

    For a store, `value` is the store's `into`, and `written` is True.
    """

    value: Value
    offset: int = 0
    written: bool = False


@record
class Choice:
    """What a generator chose for a kernel, and why: modelled costs, of the alternatives too.
    packs: the operand of the product that it copies into tiles as it reads it, if it is that."""

    name: str
    reason: str
    packs: int | None = None


@record
class Kernel:
    """A launchable kernel.

    args: in the order of the function's "arg" buffers. total: number of parallel items, or of
    blocks of threads; the kernel runs any chunk `[lo, hi)` of them. seconds: estimated time of all
    items on one core, for the decision to fork. choices: see `Choice`. loops: the text of the tree
    that the code was emitted from. passes: how often it is launched, one after the other, and with
    which run-time parameters, of which each has an equal share of the time. workspaces: bytes of
    buffers that all passes share, whose contents are undefined at first; they lie in one piece of
    memory, and are the arguments behind `args`. far_nbytes: what crosses memory, where it is more
    than all last caches have.
    """

    function: Function
    args: tuple[KernelArg, ...]
    total: int
    seconds: float
    choices: tuple[Choice, ...] = ()
    loops: str = ""
    passes: tuple[tuple[int, ...], ...] = ((),)
    workspaces: tuple[int, ...] = ()
    far_nbytes: int = 0

    @property
    def workspace_nbytes(self) -> int:
        """Of all workspaces."""
        return sum(map(_in_lines, self.workspaces))

    @property
    def workspace_places(self) -> tuple[int, ...]:
        """Where each of them begins, in bytes."""
        ends = itertools.accumulate(map(_in_lines, self.workspaces), initial=0)
        return tuple(ends)[: len(self.workspaces)]

    def loops_text(self) -> str:
        """The loops as comments, a line each."""
        return "".join(f"// {line}\n" for line in self.loops.splitlines())


def _in_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_NBYTES) * _LINE_NBYTES
