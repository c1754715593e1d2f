"""Object code on disk, by content.

Input: a key (a digest of everything that decides the code) and the folder. Output: the object
file's bytes, or None. Invariants: an entry that is returned is the one that was stored under this
very key by somebody who knows the folder's secret; nothing that happens to the folder raises: the
worst outcome is one warning, and that kernels are compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import sys
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from stagejit.base.threads.locks import new_lock
from stagejit.base.users_line import warn
from stagejit.runtime.objects import private_folder
from stagejit.runtime.objects.private_folder import RefusedError, opened_folder

# An entry is `magic + HMAC-SHA256(secret, magic, key, object) + object`. So a file that was cut
# short, replaced, or stored under another key is not taken for this key's object.
_MAGIC = b"stagejit-object-2\n"
_HEADER_NBYTES = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".sjo"
DEFAULT_LIMIT_NBYTES = 512 * 1024 * 1024
# What opening or writing may raise: ValueError for a path with a zero byte or a lone surrogate.
_TROUBLE = (OSError, ValueError)


class CacheWarning(RuntimeWarning):
    """The object cache cannot be used; programs are compiled again in each process."""


def default_folder() -> Path | None:
    """$STAGEJIT_CACHE_DIR (None where that is empty), or `stagejit` in the user's cache folder.

    Raises RuntimeError where this user has no home folder.
    """
    chosen = os.environ.get("STAGEJIT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif not base.is_absolute():  # as the XDG specification wants it
        base = Path.home() / ".cache"
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
    _usable: bool = field(default=True, repr=False)
    _writable: bool = field(default=True, repr=False)
    _secret: bytes | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=new_lock, repr=False)

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`; None if absent, or not what was stored (then removed)."""
        if not self._usable:
            return None
        try:
            with (
                opened_folder(self.folder, create=False) as root,
                opened_folder(key[:2], create=False, parent=root) as folder,
            ):
                return self._read(key, root, folder)
        except RefusedError as refused:
            self._refuse(refused)
        except _TROUBLE:
            pass  # not there yet, or not readable: `put` says why it cannot be made
        return None

    def put(self, key: str, body: bytes) -> None:
        """Store `body`. A folder that cannot be written gives one warning, and is left alone."""
        if not (self._usable and self._writable):
            return
        try:
            with (
                opened_folder(self.folder, create=True) as root,
                opened_folder(key[:2], create=True, parent=root) as folder,
            ):
                data = _MAGIC + self._seal(key, body, root) + body
                try:
                    private_folder.write_file(key + _SUFFIX, folder, data, root=root)
                except FileNotFoundError:
                    return  # another process swept or removed the folder at this moment
                except IsADirectoryError:
                    private_folder.remove(key + _SUFFIX, folder)
                    with contextlib.suppress(IsADirectoryError):  # such as a mount point
                        private_folder.write_file(key + _SUFFIX, folder, data, root=root)
        except RefusedError as refused:
            self._refuse(refused)
        except _TROUBLE as trouble:
            self._writable = False
            self._warn("cannot write", trouble)
        else:
            self._account(len(data))

    def discard(self, key: str) -> None:
        """Remove an entry that proved useless, such as an object that does not link."""
        with (
            contextlib.suppress(*_TROUBLE),
            opened_folder(self.folder, create=False) as root,
            opened_folder(key[:2], create=False, parent=root) as folder,
        ):
            private_folder.remove(key + _SUFFIX, folder)

    def _read(self, key: str, root: int, folder: int) -> bytes | None:
        name = key + _SUFFIX
        try:
            data = private_folder.read_file(name, folder, limit_nbytes=self.limit_nbytes)
        except FileNotFoundError:
            return None
        except OSError:  # a symbolic link, a FIFO, a file of somebody else
            private_folder.remove(name, folder)
            return None
        body = data[_HEADER_NBYTES:]
        if hmac.compare_digest(data[:_HEADER_NBYTES], _MAGIC + self._seal(key, body, root)):
            return body
        private_folder.remove(name, folder)
        return None

    def _seal(self, key: str, body: bytes, root: int) -> bytes:
        """The digest of an entry. The first use in this process also sweeps the folder."""
        if self._secret is None:
            private_folder.sweep(root)
            self._secret = private_folder.secret_of(root)
        sealed = hmac.new(self._secret, _MAGIC + key.encode() + b"\n", "sha256")
        sealed.update(body)
        return sealed.digest()

    def _refuse(self, refused: RefusedError) -> None:
        self._usable = False
        self._warn("does not use", refused)

    def _warn(self, verb: str, trouble: Exception) -> None:
        reason = getattr(trouble, "strerror", None) or trouble
        warn(
            f"stagejit {verb} the object cache in {str(self.folder)!r} ({reason}); kernels are "
            "compiled again in each process. Next: choose a folder that only you can write with "
            "Options(cache_dir=...) or $STAGEJIT_CACHE_DIR, or switch the cache off with "
            'Options(cache_dir="").',
            CacheWarning,
        )

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
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"[0-9a-f][0-9a-f]/*{_SUFFIX}"):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    found.append((status.st_mtime, status.st_size, path))
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


_CACHES: dict[str, ObjectCache | None] = {}
_CACHES_LOCK = new_lock()


def cache_in(folder: str | None) -> ObjectCache | None:
    """The cache of `Options.cache_dir`: None means the default folder, "" means no cache.

    A user without a home folder has no default: one warning, and None.
    """
    if folder == "":
        return None
    with _CACHES_LOCK:
        try:
            path = _resolved(folder, *map(os.environ.get, _ASKED))
        except RuntimeError as no_home:
            key = f"~{folder}"
            if key not in _CACHES:
                _CACHES[key] = None
                ObjectCache(Path("~"))._warn("has no folder for", no_home)
            return None
        if path is None:
            return None
        return _CACHES.get(str(path)) or _CACHES.setdefault(str(path), ObjectCache(path))


_ASKED = ("STAGEJIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME")


@lru_cache(maxsize=16)
def _resolved(folder: str | None, *asked: str | None) -> Path | None:
    """asked: what else it depends on, the variables of the environment above."""
    return default_folder() if folder is None else Path(folder).expanduser()
