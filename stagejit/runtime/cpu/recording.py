"""Times of the programs that run, as long as somebody records them.

Input: records of programs (see `loader.py`). Output: `ProgramTimes`, plain data in ticks, and the
clock that makes seconds of them. Invariants: outside of recordings no program has a log, and calls
are those without stamps; a log is read when no call writes it any more.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.base.threads.locks import new_lock
from stagejit.runtime.cpu import encoding
from stagejit.runtime.cpu.native import entry, sheets, support
from stagejit.runtime.hosting.program import HostProgram, Iterations

EVENTS = 1 << 14  # of each thread of a program, the last ones
_CALIBRATION_SECONDS = 0.02
_WORD = np.dtype(np.int64)

Words = np.ndarray[Any, np.dtype[np.int64]]


@record
class Slot:
    """Sums of what is at one place, of one thread; all but `count` in ticks. See `stamps`."""

    count: int
    total: int
    least: int
    most: int
    outside: int
    longest: int
    busy: int


@record
class Event:
    """What a thread (by its number in the system) did from begin to end. place: see
    `encoding.places_of`; 0 is that of a whole call. run: the number of XLA's execution."""

    begin: int
    end: int
    thread: int
    place: int
    run: int


@record
class ProgramTimes:
    """Of one program: what its threads did at each place, one after the other; the last events, and
    how many there were before them."""

    name: str
    program: HostProgram
    slots: dict[int, list[Slot]]
    events: list[Event]
    lost_events: int
    threads: int


class Log:
    """The memory that calls of one program write into."""

    def __init__(self, name: str, program: HostProgram) -> None:
        self.name, self.program = name, program
        slots = -(-encoding.words_nbytes(program) // sheets.WORDS_OF_SLOT_NBYTES)
        self._memory = ctypes.create_string_buffer(sheets.LOG_NBYTES + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self.slots = slots + 1
        _words(self.address + sheets.LOG_SLOTS_NBYTES, 1)[0] = self.slots * sheets.SLOT_NBYTES
        _words(self.address + sheets.LOG_EVENTS, 1)[0] = EVENTS
        weakref.finalize(self, _free_sheets, self._memory, self.address).atexit = False

    def read(self) -> ProgramTimes | None:
        """None where it was not called."""
        places = encoding.places_of(self.program)
        numbers = {at // sheets.WORDS_OF_SLOT_NBYTES: at for at in (0, *places)}
        shared = [job_of(at) for at, step in places.items() if isinstance(step, Iterations)]
        numbers |= {at // sheets.WORDS_OF_SLOT_NBYTES: at for at in shared}
        slots: dict[int, list[Slot]] = {}
        events: list[Event] = []
        lost = threads = 0
        for sheet in _sheets(self.address):
            threads = max(threads, int(_words(sheet + sheets.SHEET_THREADS, 1)[0]))
            for part in _parts(sheet):
                table = _words(part + sheets.PART_SLOTS, 8 * self.slots).reshape(-1, 8)
                for number in np.flatnonzero(table[:, 0]).tolist():
                    slots.setdefault(numbers[number], []).append(Slot(*table[number, :7].tolist()))
                found, before = _events(part)
                events += found
                lost += before
        if not slots:
            return None
        events.sort(key=lambda event: event.begin)
        return ProgramTimes(self.name, self.program, slots, events, lost, threads)


def job_of(place: int) -> int:
    """Where the work of threads that share iterations is counted; `place` is that of the step."""
    return place + sheets.WORDS_OF_SLOT_NBYTES


def _words(address: int, count: int) -> Words:
    memory: Any = (ctypes.c_int64 * count).from_address(address)
    found: Words = np.frombuffer(memory, np.int64)
    return found


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _sheets(log: int) -> list[int]:
    found, sheet = [], _word(log + sheets.LOG_SHEETS)
    while sheet:
        found.append(sheet)
        sheet = _word(sheet + sheets.SHEET_NEXT)
    return found


def _parts(sheet: int) -> list[int]:
    stride, threads = _word(sheet + sheets.SHEET_STRIDE), _word(sheet + sheets.SHEET_THREADS)
    return [sheet + sheets.SHEET_PARTS + thread * stride for thread in range(threads)]


def _events(part: int) -> tuple[list[Event], int]:
    """Those in the ring, and how many are lost."""
    count, room = _word(part + sheets.CURSOR), _word(part + sheets.ROOM)
    some = min(count, room)
    if not some:
        return [], 0
    ring = _words(_word(part + sheets.EVENTS), sheets.EVENT_WORDS * some)
    rows = ring.reshape(-1, sheets.EVENT_WORDS).tolist()
    return [Event(*row) for row in rows], count - some


def _free_sheets(memory: Any, log: int) -> None:
    """memory: keeps the log, whose sheets are freed."""
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(support.timed_addresses()["free"])
    for sheet in _sheets(log):
        free(sheet)


# -------------------------------------------------------------------------------------- the clock


@record
class Clock:
    """Seconds of `time.perf_counter` from ticks."""

    ticks: int
    seconds: float
    seconds_per_tick: float

    def at(self, ticks: int) -> float:
        """On the clock of `time.perf_counter`."""
        return self.seconds + (ticks - self.ticks) * self.seconds_per_tick

    def lasting(self, ticks: float) -> float:
        """Of a duration."""
        return ticks * self.seconds_per_tick


_started: list[tuple[int, float]] = []  # when the first recording began


def _now() -> tuple[int, float]:
    """Both clocks at one time: the closest of some pairs."""
    ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(support.timed_addresses()["sj_ticks"])
    pairs = []
    for _ in range(5):
        before = ticks()
        seconds = time.perf_counter()
        after = ticks()
        pairs.append((after - before, (before + after) // 2, seconds))
    _, middle, seconds = min(pairs)
    return middle, seconds


def clock() -> Clock:
    """Measured since the first recording began, and at least some time."""
    if not _started:
        _started.append(_now())
    first_ticks, first_seconds = _started[0]
    wait = first_seconds + _CALIBRATION_SECONDS - time.perf_counter()
    if wait > 0:
        time.sleep(wait)
    ticks, seconds = _now()
    return Clock(first_ticks, first_seconds, (seconds - first_seconds) / (ticks - first_ticks))


# -------------------------------------------------------------------------------- who has a log


@dataclass
class Logged:
    """A record's log, and how its calls go on when it changes."""

    address: int  # of the record
    log: Log | None = None

    def change(self, log: Log | None, plain: int) -> Log | None:
        """Calls that begin from now on write into `log`; the one before. plain: the function of
        calls without one."""
        old, self.log = self.log, log
        timed = support.timed_addresses()["sj_timed_call"]
        place = ctypes.c_int64.from_address(self.address + entry.LOG)
        place.value = log.address if log else 0
        ctypes.c_int64.from_address(self.address + entry.RUN).value = timed if log else plain
        return old

    def wait(self) -> None:
        """Until no call writes into the log that was taken away."""
        while _word(self.address + entry.ACTIVE):
            time.sleep(0)


@dataclass(eq=False)
class Recording:
    """What is recorded from its begin to its end, in pieces: others begin and end meanwhile."""

    begin: float
    pieces: list[ProgramTimes] = field(default_factory=list)
    end: float = 0.0


class Recorder:
    """Recordings of all programs. cut: takes all logs away, gives new ones if it is told so, and
    returns those that were there, which nobody writes any more."""

    def __init__(self, cut: Callable[[bool], list[Log]]) -> None:
        self._cut, self._open, self._lock = cut, list[Recording](), new_lock()

    def begin(self) -> Recording:
        if not _started:
            _started.append(_now())
        with self._lock:
            self._piece(True)
            made = Recording(time.perf_counter())
            self._open.append(made)
        return made

    def end(self, recording: Recording) -> None:
        """Waits for calls that write."""
        with self._lock:
            recording.end = time.perf_counter()
            self._piece(len(self._open) > 1)
            self._open.remove(recording)

    def _piece(self, go_on: bool) -> None:
        logs = self._cut(go_on)
        if self._open:
            pieces = [times for log in logs if (times := log.read())]
            for recording in self._open:
                recording.pieces += pieces
