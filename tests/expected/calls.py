"""How much Python runs: calls or lines are counted, for seconds differ from run to run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def calls_of(work: Callable[[], object]) -> int:
    """Calls of Python and C functions while `work` runs."""
    return _counted(work, ("call", "c_call"), sys.getprofile, sys.setprofile)


def lines_of(work: Callable[[], object]) -> int:
    """Lines that run, as often as a loop comes to them: a comprehension over all that is carried is
    one call."""
    return _counted(work, ("line",), sys.gettrace, sys.settrace)


def _counted(
    work: Callable[[], object],
    events: Sequence[str],
    hook: Callable[[], Any],
    set_hook: Callable[[Any], None],
) -> int:
    """How many of these events a hook of Python's sees, which stands in for the one of before."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal found
        found += event in events
        return count

    before = hook()
    set_hook(count)
    try:
        work()
    finally:
        set_hook(before)
    return found
