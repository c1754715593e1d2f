"""`Backend`: how a kind of target makes kernels: which policies there are, and their text.

Input: declared by `cpu/backend.py` and `cuda/backend.py`. Output: read by `generate.py`. Invariant:
what a generator makes and what a lowering writes depend on nothing but their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.ir.nodes import Function
from stagejit.codegen.kernel import Kernel

M = TypeVar("M", bound=Machine)


@record
class Lowered:
    """A kernel under a name made from the content, so that equal kernels share machine code.
    function: as its callers see it."""

    symbol: str
    text: str
    function: Function


@record
class Backend(Generic[M]):
    """name: of the kind of machine, "cpu" or "cuda". generators: by the kind of region. lower: a
    kernel, for a target, whether accesses are to be checked. nothing: a function that does
    nothing."""

    name: str
    generators: dict[str, Callable[[ClosedRegion, M], Kernel]]
    lower: Callable[[Kernel, M, bool], Lowered]
    nothing: Callable[[], Function]
