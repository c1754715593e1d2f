"""What a kernel takes of a GPU, as the assembler reports it.

Input: the log of a compilation with `--ptxas-options=-v`. Output: `Resources` of each kernel.
Invariant: every number was reported; nothing is assumed to be 0 that is not in the log, but for
shared memory, which the assembler does not mention where there is none.
"""

from __future__ import annotations

import re

from stagejit.base.records import record


@record
class Resources:
    """Registers of a thread; bytes of its stack frame, and of registers that are spilled to memory
    and read back; bytes of shared memory of a block; barriers."""

    registers: int
    stack_nbytes: int
    spill_store_nbytes: int
    spill_load_nbytes: int
    shared_nbytes: int

    @property
    def spills(self) -> bool:
        return self.spill_store_nbytes + self.spill_load_nbytes > 0


_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def resources(log: str) -> dict[str, Resources]:
    """Of each kernel that the log tells of."""
    return {found["name"]: _of(found) for found in _KERNEL.finditer(log)}


def _of(found: re.Match[str]) -> Resources:
    shared = re.search(r"(\d+) bytes smem", found["rest"])
    stack, stores, loads = (int(found[name]) for name in ("stack", "stores", "loads"))
    nbytes = int(shared[1]) if shared else 0
    return Resources(int(found["registers"]), stack, stores, loads, nbytes)
