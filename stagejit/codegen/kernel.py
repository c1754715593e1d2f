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
class Choice:
    """What a generator chose for a kernel, and why: modelled costs, of the alternatives too.
    packs: the operand of the product that it copies into tiles as it reads it, if it is that."""

    name: str
    reason: str
    packs: int | None = None


@dataclass(frozen=True)
class Kernel:
    """A launchable kernel.

    args: in the order of the function's "arg" buffers. total: number of parallel items, or of
    blocks of threads; the kernel runs any chunk `[lo, hi)` of them. seconds: estimated time of all
    items on one core, for the decision to fork. choices: see `Choice`. loops: the text of the tree
    that the code was emitted from. passes: how often it is launched, one after the other, and with
    which run-time parameters. workspace_nbytes: memory that all passes share, whose contents are
    undefined at first; its address is the argument behind those of `args`.
    """

    function: Function
    args: tuple[KernelArg, ...]
    total: int
    seconds: float
    choices: tuple[Choice, ...] = ()
    loops: str = ""
    passes: tuple[tuple[int, ...], ...] = ((),)
    workspace_nbytes: int = 0

    def loops_text(self) -> str:
        """The loops as comments, a line each."""
        return "".join(f"// {line}\n" for line in self.loops.splitlines())
