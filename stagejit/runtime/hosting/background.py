"""Which programs run in the background: a call returns before they are done, as those of JAX do.

Input: what a program takes by the model, how many results it has. Output: a decision, where there
is anything to decide. Invariant: it changes nothing but when a call returns.

Note [In the background]: XLA's client of CPUs runs what it takes for cheap where it is called, and
hands over to a thread of its own what has 1000 operations, while its caller goes on: Python makes
the arrays of the results, and dispatches what comes next. It cannot look into a custom call, of
which it counts none. So a call that takes long has an operand more, a product of small matrices,
which XLA computes by so many operations, and which the program does not read. To hand over takes
time, too: on two virtual cores of a Cascade Lake 60 us until the result of a call is waited for.
There an Adam step over 200 parameters, of 600 results, takes 2.64 ms in the background and 3.11 ms
where it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.base.decisions import Decision
from stagejit.base.numbers import seconds_text

NAME = "run-in-background"

WORK_SIZE = 8  # rows and columns; the product takes twice the third power: 1024 operations
_LONG_SECONDS = 5e-3  # beside which handing over is nothing
_HAND_OVER_SECONDS = 60e-6
_RESULT_SECONDS = 2e-6  # of Python's, for an array


def handed_over(
    program: str, seconds: float, results: int, refusal: Callable[[], str]
) -> Decision | None:
    """Whether a program of so many seconds and results leaves its caller at once; None where
    nothing would be gained. refusal: why it may not; "" where it may."""
    meanwhile = min(seconds, results * _RESULT_SECONDS)
    if seconds < _LONG_SECONDS and meanwhile < 2 * _HAND_OVER_SECONDS:
        return None
    reason = f"it takes {seconds_text(seconds)} by the model"
    if seconds < _LONG_SECONDS:
        reason += f", in which Python makes the arrays of {results} results"
    refused = refusal()
    return Decision(NAME, f"@{program}", not refused, refused or reason)
