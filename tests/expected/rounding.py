"""How far results may be off: bounds made of sizes and element types, not of what a run gave.

Input: what a test computes. Output: relative errors. Invariant: data of any seed stays within, by
the model of Higham and Mary (A new approach to probabilistic rounding error analysis, 2019):
roundings are independent, and each is off by at most u = eps / 2 of what it rounds. Over such an
interval the root mean square is at most u / sqrt(3); bounds are six of these deviations.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from stagejit.codegen.rows.runs import MOST_ADDED

_DEVIATIONS = 6


def of_sum(count: int, dtype: Any, most_added: int = MOST_ADDED) -> float:
    """Of a sum of `count` numbers of one sign, in runs of at most `most_added`, and runs of runs.

    The partial sums of m runs are 1/m, 2/m ... 1 of the whole. Each is rounded, so the deviation
    is u / sqrt(3) * sqrt(m / 3). What is off inside of the runs averages out over them. A plain
    running sum has m = count.
    """
    deviation = eps(dtype) / 2 / math.sqrt(3) * math.sqrt(min(count, most_added) / 3)
    return _DEVIATIONS * deviation


def of_solution(matrix: np.ndarray[Any, Any]) -> float:
    """Between two solutions of `matrix @ x = b`, or two factors of it, of their largest element.

    LAPACK's rule of thumb (Users' Guide, 4.4): each is off by the condition number times n eps.
    """
    n = matrix.shape[-1]
    return 2 * n * eps(matrix.dtype) * float(np.linalg.cond(matrix))


def eps(dtype: Any) -> float:
    """From 1 to the next number."""
    return float(ml_dtypes.finfo(dtype).eps)
