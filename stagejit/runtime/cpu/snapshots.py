"""Snapshots: all parts of a call read the weights of one moment, whatever is updated meanwhile.

Input: nothing. Output: the number of the next moment, at which tables get what is read from then
on; the record that calls take. Invariant: an update is a moment, at which all tables of all
programs change at once for who asks by a snapshot.

Note [Snapshots]: where XLA runs an equation between our parts of a program, each part is a call of
its own, which alone would read what a table has when it begins. So such a program begins by taking
the record of the moment, whose address is an operand of all its parts, also of those in bodies of
loops and branches that XLA runs, each of which has a table of its own; and it ends by letting the
record go. A table keeps what it had at each moment that is still taken (`weights.py`). A call that
fails half-way lets nothing go: what it read stays as long as its programs.
"""

from __future__ import annotations

import ctypes

from stagejit.base.threads.locks import new_lock

# Of a record: the number of its moment; a line further how many calls have it. Of the variable: the
# address of the record of now; a line further how many calls are taking it. So a record that was
# replaced is taken by no more calls as soon as the last number has been 0 after that.
MOMENT, PINS = 0, 64
CURRENT, TAKING = 0, 64
NBYTES = 128


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


class _Record:
    """Of one moment."""

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self._memory = ctypes.create_string_buffer(NBYTES + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        _word(self.address + MOMENT).value = moment

    @property
    def is_taken(self) -> bool:
        return bool(_word(self.address + PINS).value)


_lock = new_lock()
_records = [_Record(0)]  # that of now is the last; of those before it, the ones that are taken
_variable = 0  # the address of the native one, once a program takes snapshots


def tell(variable: int) -> None:
    """Calls find the record of now at this address, from now on."""
    global _variable
    with _lock:
        _variable = variable
        _word(variable + CURRENT).value = _records[-1].address


def next_moment() -> int:
    """At which tables will have what they are given now. Nobody else asks before `pass_on`."""
    return _records[-1].moment + 1


def pass_on() -> None:
    """The next moment has come."""
    with _lock:
        _records.append(_Record(_records[-1].moment + 1))
        if _variable:
            _word(_variable + CURRENT).value = _records[-1].address


def moments() -> list[int] | None:
    """Those whose weights may still be asked for, in order, that of now among them; None while a
    call may be taking an earlier one."""
    with _lock:
        if _variable and _word(_variable + TAKING).value:
            return None
        _records[:-1] = [record for record in _records[:-1] if record.is_taken]
        return [record.moment for record in _records]
