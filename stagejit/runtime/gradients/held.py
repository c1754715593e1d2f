"""Moments that are held: gradients outside of programs read the weights of when they began.

Input: the moments of bound functions. Output: a snapshot, for both programs of a gradient.
Invariant: as long as the snapshot is there, programs that are given it read the weights that the
functions had when it was made, also those that are compiled after an update. Where nobody has what
a weight was, as the caller let it go and only another program was compiled before, they fail.

Nothing is copied: tables (`cpu/weights.py`) keep what calls read at a moment that is held, and for
programs that are compiled later, an update notes where what it replaces is.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from stagejit.base.enabling import apart
from stagejit.errors import GoneError
from stagejit.runtime.cpu import snapshots
from stagejit.trace.weights import Weight, changing, tables_of

_gone: deque[list[weakref.ref[Weight]]] = deque()  # of which a hold that is let go kept something


class _Hold:
    """moment: which is held. before: what gives the arrays of weights that are others now."""

    def __init__(self, moments: Iterable[Weight]) -> None:
        self.before: dict[Weight, Callable[[], Any] | None] = {}
        with changing:
            self.moment = snapshots.now()
            for each in moments:
                each.add_hold(self)

    def arrays(self, weights: Iterable[Weight]) -> Mapping[Weight, Any]:
        """What those of the weights were that are others now. Raises GoneError."""
        found = dict[Weight, Any]()
        for weight in weights:
            if weight in self.before:
                again = self.before[weight]
                with apart():
                    array = None if again is None else again()
                if array is None or array.is_deleted():
                    raise GoneError(
                        f"nobody has what the weight {weight.name} was when the gradient began",
                        next_step="call update() after the backward program has run",
                    )
                found[weight] = array
        return found


def keep(weight: Weight) -> None:
    """It becomes another one; for who holds `changing`."""
    if holds := [hold for hold in weight.holds if weight not in hold.before]:
        array = weight.as_it_is()
        for hold in holds:
            hold.before[weight] = array


def held_snapshot(moments: Iterable[Weight]) -> Any:
    """Of now; held as long as the array is there."""
    _forget()
    hold = _Hold(moments)
    with apart():
        snapshot = jax.device_put(snapshots.of_moment(hold.moment))
    weakref.finalize(snapshot, _let_go, hold).atexit = False
    return snapshot


def _forget() -> None:
    """What tables kept for holds that are let go."""
    with contextlib.suppress(IndexError):  # none is left, or another thread has it
        while True:
            refs = _gone.popleft()
            for table in tables_of(weight for ref in refs if (weight := ref()) is not None):
                table.free(0.0)


def _let_go(hold: _Hold) -> None:
    """In the middle of anything: what tables kept for it they forget later."""
    if hold.before:
        _gone.append([weakref.ref(weight) for weight in hold.before])
