"""Looking after the object cache: what is in it, whether that is whole, and emptying it.

Input: a folder. Output: counts, as plain data. Invariants: only what `ObjectCache` stores is
counted, removed or judged; looking at an entry does not make it one that was used.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from stagejit.base.numbers import nbytes_text
from stagejit.base.records import record
from stagejit.runtime.objects.object_cache import DEFAULT_LIMIT_NBYTES, ObjectCache, default_folder
from stagejit.runtime.objects.private_folder import opened_folder


@record
class Contents:
    """entries: kernels. nbytes: of their files. limit_nbytes: beyond it the oldest go. oldest,
    newest: seconds since the last use of the one that was not used longest, and of the last."""

    folder: Path
    entries: int = 0
    nbytes: int = 0
    limit_nbytes: int = DEFAULT_LIMIT_NBYTES
    oldest: float = 0.0
    newest: float = 0.0
    exists: bool = True

    def __str__(self) -> str:
        if not self.exists:
            return f"{self.folder}: not made yet; the first program that is compiled makes it"
        size = f"{nbytes_text(self.nbytes)} of at most {nbytes_text(self.limit_nbytes)}"
        used = f"; last used {_ago(self.newest)}, the oldest {_ago(self.oldest)}"
        return f"{self.folder}: {self.entries:,} entries, {size}{used if self.entries else ''}"


@record
class Removed:
    """What was removed."""

    entries: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.entries:,} entries of {nbytes_text(self.nbytes)}"


@record
class Verified:
    """How many entries are what was stored, and the names of those that were not, and are gone."""

    whole: int
    damaged: tuple[str, ...]

    def __str__(self) -> str:
        said = f"{self.whole:,} entries are whole"
        if self.damaged:
            return f"{said}; damaged, and removed: {', '.join(self.damaged)}"
        return said


def folder_of(chosen: Path | None) -> Path | None:
    """The folder that is meant: the default one where none is chosen; None where that is off."""
    return default_folder() if chosen is None else chosen.expanduser()


def look_at(folder: Path) -> Contents:
    """What is in it. Raises OSError where it may not be used, as `opened_folder` does."""
    if not _exists(folder):
        return Contents(folder, exists=False)
    entries = ObjectCache(folder)._entries()
    now = time.time()
    ages = [now - used for used, _, _ in entries] or [0.0]
    nbytes = sum(size for _, size, _ in entries)
    return Contents(folder, len(entries), nbytes, oldest=max(ages), newest=min(ages))


def clear(folder: Path) -> Removed:
    """Remove all entries; the folder and its secret stay. Raises OSError as `look_at`."""
    if not _exists(folder):
        return Removed(0, 0)
    count = nbytes = 0
    for _, size, path in ObjectCache(folder)._entries():
        with contextlib.suppress(OSError):
            path.unlink()
            count, nbytes = count + 1, nbytes + size
    return Removed(count, nbytes)


def verify(folder: Path) -> Verified:
    """Read all entries; those that are not what was stored are removed. Raises OSError as
    `look_at`."""
    if not _exists(folder):
        return Verified(0, ())
    cache, damaged, whole = ObjectCache(folder), [], 0
    for _, _, path in cache._entries():
        before = path.lstat()
        if cache.get(path.stem) is None:
            damaged.append(path.name)
            continue
        whole += 1
        with contextlib.suppress(OSError):  # reading it was no use of it
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns), follow_symlinks=False)
    return Verified(whole, tuple(damaged))


def _exists(folder: Path) -> bool:
    try:
        with opened_folder(folder, create=False):
            return True
    except FileNotFoundError:
        return False


def _ago(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "just now"
