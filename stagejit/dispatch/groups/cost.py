"""What evaluating an element costs against storing it, without knowing the target.

Input: ops. Output: small numbers that rank alternatives: flops of an element, bytes of a pass.
Invariant: nothing here depends on a machine, so every target gets the same dispatches.

Note [Recompute or store]: a value that k dispatches read is either evaluated k times, which costs
its flops and the reading of its own leaves each time, or stored once and read k times. One flop is
taken as `BYTES_PER_FLOP` bytes of traffic, a dispatch as `DISPATCH_NBYTES`. What is found at a
computed place comes with the rest of its line, from memory or from a cache, of which a core reads
`NEAR` times as much in the same time.
"""

from __future__ import annotations

from stagejit.base.symbolic import at_most
from stagejit.graph.dims import GatherDims
from stagejit.graph.functions import TRANSCENDENTAL_FLOPS
from stagejit.graph.ir import Op

BYTES_PER_FLOP = 0.5
DISPATCH_NBYTES = 4096
# What is no larger stays in a near cache, and is not worth spreading over workers.
SMALL_SPACE_NBYTES = 64 << 10
# What is as large is not expected to be near when its lines are met again; a line of memory.
FAR_NBYTES = 1 << 20
LINE_NBYTES = 64
NEAR = 8.0

# Most flops an element of a contraction's operand may cost where it is packed, see
# `fuse-producers`.
PROLOGUE_FLOPS = 8.0


def is_transcendental(op: Op) -> bool:
    """Whether an element costs too much to be evaluated twice without need."""
    return op.definition.element_flops(op) >= TRANSCENDENTAL_FLOPS


def element_nbytes(op: Op) -> float:
    """What an element takes, in bytes of traffic, its operands given."""
    return op.definition.element_flops(op) * BYTES_PER_FLOP + _around_nbytes(op)


def _around_nbytes(op: Op) -> float:
    """Bytes of lines that come along with an element that a gather finds."""
    if not op.definition.is_gather:
        return 0.0
    x, dims = op.operands[0].type, GatherDims.of(op.attrs)
    row, reach_nbytes = dims.row_size(op.result.shape), dims.reach(x.shape) * x.dtype.itemsize
    if not isinstance(row, int) or at_most(reach_nbytes, SMALL_SPACE_NBYTES):
        return 0.0
    around = -row * x.dtype.itemsize % LINE_NBYTES / row
    return around / NEAR if at_most(reach_nbytes, FAR_NBYTES) else around
