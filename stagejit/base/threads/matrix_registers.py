"""Registers of matrices, which Linux gives to processes that ask for them.

Input: none. Output: whether this process has them. Invariant: threads that use none pay nothing.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# `arch_prctl`, its request for the state of AMX's tiles: Documentation/arch/x86/xstate.rst.
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18


@cache
def may_use_matrices() -> bool:
    """Asks for the registers of AMX, for all threads of the process."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0)
