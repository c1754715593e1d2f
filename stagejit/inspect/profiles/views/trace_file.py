"""Spans as a file of Chrome's trace format, which Perfetto reads, too.

Input: spans. Output: JSON. Invariant: there is a "complete" event for each span, in microseconds,
and a name for each thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from stagejit.inspect.profiles.spans import Span


def events(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """All events of the file; thread 0 is that of the first span."""
    process = os.getpid()
    threads: dict[str, int] = {}
    made: list[dict[str, Any]] = []
    for span in sorted(spans, key=lambda span: (span.start_seconds, -span.seconds)):
        thread = threads.setdefault(span.thread, len(threads))
        made.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "ts": 1e6 * span.start_seconds,
                "dur": 1e6 * span.seconds,
                "pid": process,
                "tid": thread,
                "args": {"function": span.function, "line": str(span.loc) if span.loc else ""},
            }
        )
    named = [_metadata("thread_name", process, at, name) for name, at in threads.items()]
    return [_metadata("process_name", process, 0, "stagejit"), *named, *made]


def _metadata(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def content(spans: Sequence[Span]) -> str:
    """Of the file."""
    return json.dumps({"traceEvents": events(spans), "displayTimeUnit": "ms"})
