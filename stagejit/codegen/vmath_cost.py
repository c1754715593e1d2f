"""What one element of a scalar function costs, for the cost model.

Input: a primitive's name and dtype. Output: flop equivalents: 1 is one multiply-add slot of a full
vector, measured as time over the time of an addition in a loop that stays in the first-level cache
(AVX-512, one core). Invariant: an estimate; it decides chunk sizes and forks, never results.
"""

from __future__ import annotations

from stagejit.types import DType

_F32: dict[str, float] = {}
_DEFAULT = 1.0


def cost(fn_name: str, dtype: DType) -> float:
    """Flop equivalents of one element."""
    return _F32.get(fn_name, _DEFAULT)
