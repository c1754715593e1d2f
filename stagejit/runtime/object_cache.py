"""Object code on disk, by content.

Input: a key (a digest of everything that decides the code) and the folder. Output: the object
file's bytes, or None. Invariant: an entry that is returned is the entry that was stored (a
checksum says so); nothing that happens to the folder raises: the worst outcome is that kernels
are compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path

# Entries are `magic + sha256(object) + object`: a file cut short by a full disk is detected.
_MAGIC = b"stagejit-object-1\n"
_SUFFIX = ".sjo"
DEFAULT_LIMIT_NBYTES = 512 * 1024 * 1024


class CacheWarning(RuntimeWarning):
    """The object cache cannot be used; programs are compiled again in each process."""


def default_folder() -> Path:
    """$STAGEJIT_CACHE_DIR, or `stagejit` in the user's cache folder of this system."""
    chosen = os.environ.get("STAGEJIT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "stagejit"


def digest(*parts: str) -> str:
    """sha256 of the parts, which are separated so that no two lists of parts run together."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


@dataclass
class ObjectCache:
    """One folder of object files. `limit_nbytes` bounds their sum; the oldest used go first."""

    folder: Path
    limit_nbytes: int = DEFAULT_LIMIT_NBYTES
    _used_nbytes: int | None = field(default=None, repr=False)
    _writable: bool = field(default=True, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`; None if absent, unreadable or damaged (then removed)."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[len(_MAGIC) + 32 :]
        if data[: len(_MAGIC) + 32] != _MAGIC + hashlib.sha256(body).digest():
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # eviction goes by last use
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store `body`. A folder that cannot be written gives one warning, and is left alone."""
        if not self._writable:
            return
        path = self._path(key)
        data = _MAGIC + hashlib.sha256(body).digest() + body
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, data)
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"stagejit cannot write its object cache in {self.folder} "
                f"({error.strerror or error}); kernels are compiled again in each process. "
                "Next: choose a writable folder with Options(cache_dir=...) or "
                '$STAGEJIT_CACHE_DIR, or switch the cache off with Options(cache_dir="").',
                CacheWarning,
                stacklevel=2,
            )
            return
        self._account(len(data))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + _SUFFIX)

    def _account(self, added_nbytes: int) -> None:
        with self._lock:
            if self._used_nbytes is None:
                self._used_nbytes = sum(size for _, size, _ in self._entries())
            else:
                self._used_nbytes += added_nbytes
            if self._used_nbytes > self.limit_nbytes:
                self._used_nbytes = self._evict()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(last use, size, path) of each entry, oldest first."""
        found = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return sorted(found)

    def _evict(self) -> int:
        """Remove the oldest entries down to three quarters of the limit; returns what is left."""
        entries = self._entries()
        used = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if used <= self.limit_nbytes * 3 // 4:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                used -= size
        return used


def _write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the whole entry or none: written aside, then renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


_CACHES: dict[str, ObjectCache] = {}
_CACHES_LOCK = threading.Lock()


def cache_in(folder: str | None) -> ObjectCache | None:
    """The cache of `Options.cache_dir`: None means the default folder, "" means no cache."""
    if folder == "":
        return None
    path = default_folder() if folder is None else Path(folder).expanduser()
    with _CACHES_LOCK:
        return _CACHES.setdefault(str(path), ObjectCache(path))
