"""`stagejit.profile`: what the calls inside of a block took, dispatch by dispatch.

Input: nothing; a block of the user's, in which staged functions are called on any thread. Output: a
`Profile`. Invariants: without one no call takes times; inside of a block only calls that begin in
it count, and the block ends when they have ended; profiles may overlap.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from stagejit.errors import OptionsError, StagejitError
from stagejit.inspect.files import write
from stagejit.inspect.profiles.on_gpu import rows_on_gpu
from stagejit.inspect.profiles.pieces_of_xla import gaps, outside, rows_of_gaps
from stagejit.inspect.profiles.rows import DispatchTimes, merged, rows_of
from stagejit.inspect.profiles.spans import Span, spans_of
from stagejit.inspect.profiles.taken import Taken
from stagejit.inspect.profiles.views import pages, trace_file
from stagejit.runtime.compilations.compile_times import CompileTimes, noting
from stagejit.runtime.cpu import recording
from stagejit.runtime.cpu.loader import recorder
from stagejit.runtime.cuda.programs import timing
from stagejit.runtime.lowering.embedding import staged_functions
from stagejit.runtime.peaks import Peaks, of_this_machine
from stagejit.runtime.waiting import wait_for_calls

_Open = tuple[recording.Recording, timing.Recording, ExitStack]


def require_ending(file: Path) -> None:
    """Raises OptionsError for a name that no file of a profile has."""
    if file.suffix.lower() not in (".json", ".html", ".htm", ".txt"):
        raise OptionsError(
            f"a profile cannot be written as {file.name!r}",
            next_step="choose a name that ends with .json (for Perfetto), .html or .txt",
        )


class Profile:
    """Times of the calls of staged functions in a block; made by `stagejit.profile()`.

        with stagejit.profile() as p:
            f(x)
        print(p)

    `str(p)` is a table, slowest first; notebooks show it with a timeline. Raises StagejitError for
    what is asked before the block has ended.
    """

    def __init__(self) -> None:
        self._taken: Taken | None = None
        self._open: _Open | None = None
        self._compiled: list[CompileTimes] = []

    def __enter__(self) -> Self:
        if self._open is not None or self._taken is not None:
            raise StagejitError(
                "this profile has begun already", next_step="make another stagejit.profile()"
            )
        wait_for_calls()
        with ExitStack() as begun:  # what has begun ends again, where the rest does not begin
            begun.enter_context(noting(self._compiled))
            taken = recorder().begin()
            begun.callback(recorder().end, taken)
            on_gpu = timing.begin()
            begun.callback(timing.end, on_gpu)
            self._open = taken, on_gpu, begun.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is None:
            raise StagejitError("this profile has not begun", next_step="write `with` before it")
        (taken, on_gpu, begun), self._open = self._open, None
        try:
            wait_for_calls()
        finally:  # an interrupt ends it, too, with what there is
            begun.close()
            made = _take(taken, self._compiled)
            self._taken = made
        self._taken = replace(made, on_gpu=rows_on_gpu(on_gpu.timed))

    def _known(self) -> Taken:
        if self._taken is None:
            raise StagejitError(
                "the block of this profile has not ended", next_step="look at it after the block"
            )
        return self._taken

    @property
    def dispatches(self) -> tuple[DispatchTimes, ...]:
        """A row for each dispatch of each function, slowest first. Their seconds and those of
        `around` add up to `seconds`."""
        return self._known().dispatches

    @property
    def around(self) -> tuple[DispatchTimes, ...]:
        """What calls do around dispatches: "fork-join" and "host" of each function (see
        `DispatchTimes.kind`), slowest first."""
        return self._known().around

    @property
    def calls(self) -> int:
        """How many calls of programs of ours there were; one of a function with equations that are
        left to XLA has one for each piece between them."""
        return self._known().calls

    @property
    def seconds(self) -> float:
        """Seconds of all calls together, and of XLA's pieces between them."""
        return self._known().seconds

    @property
    def block_seconds(self) -> float:
        """Wall time of the block, in seconds; the sum of `seconds` and of those of `outside`, where
        calls did not run beside each other."""
        return self._known().block_seconds

    @property
    def outside(self) -> DispatchTimes:
        """What of the block was in no call of a program of ours: Python, JAX's way to the call and
        back, compiling, and what XLA runs before the first or after the last program of a function,
        which its `ops` name. Only its `seconds` are known."""
        return self._known().outside

    @property
    def on_gpu(self) -> tuple[DispatchTimes, ...]:
        """A row for each dispatch of programs on a GPU, slowest first, by events of the device:
        what is on different streams overlaps, and a loop's row has all that is inside of it."""
        return self._known().on_gpu

    @property
    def spans(self) -> tuple[Span, ...]:
        """What each thread did when; of long blocks the end."""
        return self._known().spans

    @property
    def lost_spans(self) -> int:
        """How many there were before the first of `spans`."""
        return self._known().lost_spans

    @property
    def compiled(self) -> tuple[CompileTimes, ...]:
        """What was compiled in the block, step by step."""
        return tuple(self._compiled)

    @property
    def peaks(self) -> Peaks:
        """Of this machine: the best that was measured in this process; at first takes a second."""
        return of_this_machine()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a file, by the ending of its name: `.json` has the spans, for
        https://ui.perfetto.dev or chrome://tracing; `.html` is the page with table and timeline;
        `.txt` the table. It is there as a whole or not at all; returns its path.

        Raises OptionsError for another ending, OSError where nothing can be written."""
        target, taken = Path(path), self._known()
        endings: dict[str, Callable[[], str]] = {
            ".json": lambda: trace_file.content(taken.spans),
            ".html": self.as_html,
            ".htm": self.as_html,
            ".txt": self.as_text,
        }
        require_ending(target)
        write(target, endings[target.suffix.lower()]())
        return target

    def as_text(self, *, rows: int = 40) -> str:
        """The table. rows: how many of the slowest; the others are one line."""
        return pages.as_text(self._known(), rows)

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        """The table, which is what a prompt shows; a debugger may ask before there is one."""
        return "<a profile whose block has not ended>" if self._taken is None else str(self)

    def as_html(self) -> str:
        """A page of its own, which loads nothing."""
        return pages.page(self._known())

    def _repr_html_(self) -> str:
        return pages.fragment(self._known())


def profile() -> Profile:
    """Measure each dispatch of the staged functions that are called in a block, on any thread:

        with stagejit.profile() as p:
            f(x)

    Calls outside of such blocks cost nothing more. Programs on a GPU are
    counted as a whole, and their dispatches timed by events: they are queued launch by launch then.
    The block ends when its calls have ended; of other threads, wait for those that drop their
    results.
    """
    return Profile()


def _take(taken: recording.Recording, compiled: Sequence[CompileTimes]) -> Taken:
    clock, pieces = recording.clock(), taken.pieces
    functions = staged_functions()
    found = gaps(pieces, functions)
    rows = [row for times in pieces for row in rows_of(times, clock)]
    rows = merged([*rows, *rows_of_gaps(found, clock)])
    calls = sum(slot.count for times in pieces for slot in times.slots.get(0, ()))
    spans = spans_in(taken, clock)
    spans += [
        Span(
            ", ".join(site.path for site in gap.sites),
            "xla",
            gap.function,
            gap.sites[0].loc,
            clock.at(gap.begin) - taken.begin,
            clock.lasting(gap.end - gap.begin),
            "XLA",
        )
        for gap in found
    ]
    lost = sum(times.lost_events for times in pieces)
    seconds = sum(row.seconds for row in rows)
    block = taken.end - taken.begin
    rest = outside(pieces, found, functions, clock, block)
    dispatches = tuple(row for row in rows if row.is_dispatch)
    around = tuple(row for row in rows if not row.is_dispatch)
    return Taken(
        dispatches, around, tuple(spans), lost, calls, seconds, tuple(compiled), rest, block
    )


def spans_in(taken: recording.Recording, clock: recording.Clock) -> list[Span]:
    """Of all programs, in a recording that has ended."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    return [span for times in taken.pieces for span in spans_of(times, clock, taken.begin, threads)]
