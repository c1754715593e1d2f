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
ours, tell nobody. But such a call runs in the thread that made it: the frame of Python's that did
waits at the instruction. Where no frame of that thread waits there any more, the call has gone, and
`moments` takes its ticket back. A call on a thread of XLA's runs no Python, and fails hardly ever
so; its ticket stays. No call that runs loses its ticket, whatever others do: there are as many as
are taken at one time. Other parts of a call that has failed may still run without it: what they
read is there, from a moment that is kept, and nobody sees what comes out. Each call has a number of
its own, and gives back no ticket that another one has by now.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

import numpy as np

from stagejit.base.threads.locks import new_lock

# Of the variable: the moment of now, the number of the last call, the last ticket that was made,
# the function that notes who waits; a line further how many calls are taking a ticket.
NOW, CALLS, TICKETS, NOTE, TAKING = 0, 8, 16, 24, 64
NBYTES = 128
# Of a ticket, which stays: the number of the call that has it, or 0, or `TAKEN` while that begins;
# its moment; the ticket that was made before; who waits for the call: the thread, the frame by its
# `id`, or 0 where nobody does, and its instruction.
CALL, MOMENT, NEXT, THREAD, FRAME, INSTRUCTION = range(0, 48, 8)
TICKET_NBYTES = 48
TAKEN = -1
_TICKET = ctypes.c_int64 * (TICKET_NBYTES // 8)

# Of a snapshot, as a value of XLA's: its moment, the ticket's address, the number of the call.
TICKET, NUMBER = 8, 16
SNAPSHOT_NBYTES = 24

_lock = new_lock()
_now = 0
_variable = 0  # the address of the native one, once a program takes snapshots
_give_back: Callable[[int, int], None] | None = None
_no_ticket = ctypes.c_int64(0)


def tell(variable: int, give_back: int) -> None:
    """Calls find the moment of now at this address, from now on. give_back: the native function."""
    global _variable, _give_back
    with _lock:
        _variable = variable
        _give_back = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(give_back)
        _word(_variable + NOTE).value = ctypes.cast(_native_note, ctypes.c_void_p).value or 0
        _word(_variable + NOW).value = _now


def _note(ticket: int) -> None:
    """The caller of a call that takes a ticket waits for it in this thread."""
    frame = sys._getframe().f_back
    if frame is not None:
        _word(ticket + THREAD).value = threading.get_ident()
        _word(ticket + INSTRUCTION).value = frame.f_lasti
        _word(ticket + FRAME).value = id(frame)


_native_note = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_note)


def next_moment() -> int:
    """At which tables will have what they are given now. Nobody else asks before `pass_on`."""
    return _now + 1


def pass_on() -> None:
    """The next moment has come."""
    global _now
    with _lock:
        _now += 1
        if _variable:
            _word(_variable + NOW).value = _now


def now() -> int:
    """The moment of now, as long as the caller keeps updates away."""
    return _now


def of_moment(moment: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """A snapshot that no call has taken, for tables that are told to keep what they had then. There
    is no ticket, so a call that fails gives none back."""
    return np.array([moment, ctypes.addressof(_no_ticket), 0], np.int64).view(np.uint32)


def moments() -> list[int] | None:
    """Those whose weights may still be asked for, in order, that of now among them; None while a
    call may be taking an earlier one."""
    with _lock:
        if not _variable:
            return [_now]
        if _word(_variable + TAKING).value:
            return None
        asked, at = {_now}, _word(_variable + TICKETS).value
        while at:
            call, moment, before, *waiting = _TICKET.from_address(at)
            if call > 0 and _may_run(*waiting):
                asked.add(moment)
            elif call > 0 and _give_back is not None:
                _give_back(at, call)
            at = before
        return sorted(asked)


def _may_run(thread: int, frame: int, instruction: int) -> bool:
    """Whether a call still may for which this frame waits at this instruction. A later one that
    has the same `id`, as another turn of the same loop, could be it."""
    waiting = sys._current_frames().get(thread) if frame else None
    while waiting is not None and (id(waiting), waiting.f_lasti) != (frame, instruction):
        waiting = waiting.f_back
    return not frame or waiting is not None


def give_back(snapshot: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> None:
    """The call that has it has failed."""
    _, ticket, number = np.ascontiguousarray(snapshot).view(np.int64).tolist()
    if _give_back is not None:
        _give_back(ticket, number)


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)
