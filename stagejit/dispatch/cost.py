"""What evaluating an element costs, without knowing the target.

Input: ops. Output: small numbers that rank alternatives: flops of an element, bytes of a pass.
Invariant: nothing here depends on a machine, so every target gets the same dispatches.

Note [Recompute or store]: a value that k dispatches read is either evaluated k times, which costs
its flops and the reading of its own leaves each time, or stored once and read k times. One flop is
taken as `BYTES_PER_FLOP` bytes of traffic, a dispatch as `DISPATCH_NBYTES`.
"""

from __future__ import annotations

import math

from stagejit.graph.control import bodies_of
from stagejit.graph.ir import Op

BYTES_PER_FLOP = 0.5
DISPATCH_NBYTES = 4096
TRANSCENDENTAL = 16.0

# Most flops an element of a contraction's operand may cost where it is packed, see
# `fuse-producers`.
PROLOGUE_FLOPS = 8.0

_TRANSCENDENTAL = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "erf_inv", "pow",
    "atan2",
})  # fmt: skip
_DIVIDING = frozenset({"div", "rem", "sqrt", "rsqrt"})


def is_transcendental(op: Op) -> bool:
    return op.kind == "map" and op.attrs["fn"] in _TRANSCENDENTAL


def element_flops(op: Op) -> float:
    """Cost of one element of a pointwise op, its operands given."""
    if op.kind == "map":
        fn = op.attrs["fn"]
        return TRANSCENDENTAL if fn in _TRANSCENDENTAL else 4.0 if fn in _DIVIDING else 1.0
    return 4.0 if op.kind == "gather" else 0.0


def flops(op: Op) -> int:
    """Arithmetic operations of a whole op: a multiply-add counts two, any function of `map` one.
    A loop of unknown length counts once."""
    if op.kind == "map":
        return op.result.type.size
    if op.kind in ("reduce", "cumulative"):
        return op.operands[0].type.size
    if op.kind == "contract":
        axes: tuple[int, ...] = op.attrs["contracting"][0]
        depth = math.prod(op.operands[0].shape[axis] for axis in axes)
        return 2 * op.result.type.size * depth
    if op.kind == "conv":
        rhs = op.operands[1].type
        features: int = rhs.shape[op.attrs["rhs_spec"][0]]
        return 2 * op.result.type.size * (rhs.size // features if features else 0)
    if op.kind == "loop":
        return (op.attrs["trip"] or 1) * sum(
            flops(inner) for body in bodies_of(op) for inner in body
        )
    if op.kind == "branch":
        return max(sum(map(flops, branch)) for branch in bodies_of(op))
    if op.kind == "scatter" and op.attrs["fn"] != "set":
        return op.operands[2].type.size
    return 0
