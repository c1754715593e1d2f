"""What evaluating an element costs against storing it, without knowing the target.

Input: ops. Output: small numbers that rank alternatives: flops of an element, bytes of a pass.
Invariant: nothing here depends on a machine, so every target gets the same dispatches.

Note [Recompute or store]: a value that k dispatches read is either evaluated k times, which costs
its flops and the reading of its own leaves each time, or stored once and read k times. One flop is
taken as `BYTES_PER_FLOP` bytes of traffic, a dispatch as `DISPATCH_NBYTES`.
"""

from __future__ import annotations

from stagejit.graph.functions import TRANSCENDENTAL_FLOPS
from stagejit.graph.ir import Op

BYTES_PER_FLOP = 0.5
DISPATCH_NBYTES = 4096
# What is no larger stays in a near cache, and is not worth spreading over workers.
SMALL_SPACE_NBYTES = 64 << 10
# What is as large is not expected to be near when its lines are met again; a line of memory.
FAR_NBYTES = 1 << 20
LINE_NBYTES = 64

# Most flops an element of a contraction's operand may cost where it is packed, see
# `fuse-producers`.
PROLOGUE_FLOPS = 8.0


def is_transcendental(op: Op) -> bool:
    """Whether an element costs too much to be evaluated twice without need."""
    return op.definition.element_flops(op) >= TRANSCENDENTAL_FLOPS
