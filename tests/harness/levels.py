"""How much LLVM's code generator optimizes kernels: as for users, or not at all.

Input: a level of LLVM. Output: what the process compiles from then on is made at that level. The
text of a kernel says all that it computes (no flag leaves anything to the optimizer), so values
are the same at each. Invariant: what is stored as an object says at which level it was made.
"""

from __future__ import annotations

import sys

from tests.sampling import drawn

_ONE_IN = 4
AS_SHIPPED = 2
level = AS_SHIPPED


def compile_at(wanted: int) -> None:
    """An engine that is not loaded yet starts as shipped; the next test sets it."""
    global level
    level = wanted
    engine = sys.modules.get("stagejit.runtime.objects.engine")
    if engine is not None:
        vars(engine)["_level_of"] = of


def of(ir: str) -> int:
    """The level for a module. A function that saves the registers of its caller restores the one
    with its result, too, where LLVM takes its fast path of level 0."""
    return AS_SHIPPED if "no_caller_saved_registers" in ir else level


def drawn_as_shipped(test: str) -> bool:
    """Whether LLVM optimizes in this test. What is behind a name makes this draw another one than
    those of samples (`tests/sampling.py`), whose cases would all be drawn."""
    return drawn(f"{test} as shipped", _ONE_IN)
