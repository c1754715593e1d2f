"""Snapshots: all parts of a call read the weights of one moment, whatever is updated meanwhile.

Input: nothing. Output: the number of the next moment, at which tables get what is read from then
on; the tickets that calls take. Invariant: an update is a moment, at which all tables of all
programs change at once for who asks by a snapshot.

Note [Snapshots]: where XLA runs an equation between our parts of a program, each part is a call of
its own, which alone would read what a table has when it begins. So such a program begins by taking
a ticket for the moment, which is an operand of all its parts, also of those in bodies of loops and
branches that XLA runs, each of which has a table of its own; and it ends by giving the ticket back.
A table keeps what it had at each moment for which there is a ticket (`weights.py`).

Note [Calls that fail]: XLA runs nothing more of a call that fails, so its end is not reached. A
part of ours that fails gives the ticket back, and so does a callback between them, which gets the
snapshot for that (`lowering/snapshots.py`). Other failures, as of a callback in a program around
ours, tell nobody: an update by the only thread that there is waits for calls, and takes back what
tickets it has seen for `LONGEST_SECONDS`; and where all `TICKETS` are taken, the next call takes
that of another. Not at once, since it waits for no call whose results nobody keeps, of a thread
that has gone. So a call may have lost its ticket, and still run: what a part reads is there in any
case, from a moment that is kept. Each call has a number of its own, and gives back no ticket that
another one has by now.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

import numpy as np

from stagejit.base.threads.locks import new_lock

# Of the variable: the moment of now and the number of the last call; a line further how many calls
# are taking a ticket; a line further all tickets.
NOW, CALLS, TAKING, FIRST = 0, 8, 64, 128
# Of a ticket: the number of the call that has it, or 0; its moment.
CALL, MOMENT = 0, 8
TICKET_NBYTES, TICKETS = 16, 256
NBYTES = FIRST + TICKET_NBYTES * TICKETS

# Of a snapshot, as a value of XLA's: its moment, the ticket's address, the number of the call.
TICKET, NUMBER = 8, 16
SNAPSHOT_NBYTES = 24

LONGEST_SECONDS = 60.0  # of a call whose results nobody keeps

_lock = new_lock()
_now = 0
_seen: dict[int, float] = {}  # numbers of calls that had tickets when nobody else was there; when
_variable = 0  # the address of the native one, once a program takes snapshots
_give_back: Callable[[int, int], None] | None = None


def tell(variable: int, give_back: int) -> None:
    """Calls find the moment of now at this address, from now on. give_back: the native function."""
    global _variable, _give_back
    with _lock:
        _variable = variable
        _give_back = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(give_back)
        _word(NOW).value = _now


def next_moment() -> int:
    """At which tables will have what they are given now. Nobody else asks before `pass_on`."""
    return _now + 1


def pass_on() -> None:
    """The next moment has come."""
    global _now
    with _lock:
        _now += 1
        if _variable:
            _word(NOW).value = _now


def moments() -> list[int] | None:
    """Those whose weights may still be asked for, in order, that of now among them; None while a
    call may be taking an earlier one."""
    with _lock:
        if not _variable:
            return [_now]
        if _word(TAKING).value:
            return None
        tickets = _tickets()
        return sorted({_now, *tickets[tickets[:, 0] != 0, 1].tolist()})


def give_back(snapshot: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> None:
    """The call that has it has failed."""
    _, ticket, number = np.ascontiguousarray(snapshot).view(np.int64).tolist()
    if _give_back is not None:
        _give_back(ticket, number)


def last_call() -> int | None:
    """The number of the last call that took a snapshot, if only this thread may have made it."""
    if not _variable or len(sys._current_frames()) > 1:
        return None
    return _word(CALLS).value


def have_ended(last: int | None) -> None:
    """The calls up to one have been waited for, if `last_call` said which: all have ended, or
    failed, but those that nobody can wait for, which do so in `LONGEST_SECONDS`."""
    global _seen
    if last is None or _give_back is None:
        return
    now = time.monotonic()
    taken = [(at, number) for at, number in enumerate(_tickets()[:, 0].tolist()) if number]
    _seen = {number: _seen.get(number, now) for _, number in taken if number <= last}
    for at, number in taken:
        if now - _seen.get(number, now + 1) >= LONGEST_SECONDS:
            _give_back(_variable + FIRST + TICKET_NBYTES * at, number)


def _tickets() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    memory = (ctypes.c_int64 * (2 * TICKETS)).from_address(_variable + FIRST)
    return np.array(memory, np.int64).reshape(TICKETS, 2)


def _word(offset: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(_variable + offset)
