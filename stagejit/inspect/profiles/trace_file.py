"""Spans as a file of Chrome's trace format, which Perfetto reads, too.

Input: spans. Output: JSON: a "complete" event for each span, in microseconds, and names of threads.
Invariant: the file is there as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
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


def save(path: str | os.PathLike[str], spans: Sequence[Span]) -> None:
    """Writes the file. Raises OSError."""
    target = Path(path)
    text = json.dumps({"traceEvents": events(spans), "displayTimeUnit": "ms"})
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)  # what a file has that is simply written
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
