"""A folder that this user alone can write, and files in it that are what they were.

Input: a path. Output: file descriptors of the folder and of plain files in it, whole files written
at once, and the folder's secret. Invariants: nothing is opened through a symbolic link, nothing
blocks (a FIFO under the name of a file is refused), nothing that another user owns or may write is
read; a reader sees a whole file or none.

Note [Who may write]: machine code from this folder is run, so who may write into it may run code as
this user. Ownership and mode are therefore checked of what was opened (`fstat`), at each use; a
check of the path would be out of date when the path is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

SECRET_NBYTES = 32
_SECRET = "secret"
_TEMPORARY = ".tmp-"
_MOVED = ".moved-"
_TRIES = 3  # of what another process may undo as it is made
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RefusedError(OSError):
    """Something lies where a file or folder of ours should be; `strerror` says what."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


@contextlib.contextmanager
def opened_folder(path: str | Path, *, create: bool, parent: int | None = None) -> Iterator[int]:
    """The descriptor of a folder of mode 0700; `path` is relative to the folder `parent`, in which
    `create` also replaces what is no folder.

    Raises FileNotFoundError where there is none (and `create` is False), RefusedError where it is
    not this user's alone, other OSErrors where it cannot be made or opened.
    """
    if create:
        _make_folder(os.fspath(path), parent)
    if stat.S_ISLNK(os.stat(path, dir_fd=parent, follow_symlinks=False).st_mode):
        raise RefusedError(f"{os.fspath(path)} is a symbolic link; give the folder it points to")
    descriptor = os.open(path, _READ | os.O_DIRECTORY, dir_fd=parent)
    try:
        _check_owner(os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _make_folder(path: str, parent: int | None) -> None:
    """Makes it, unless it is there. A link is left for who opens it, to refuse."""
    mode = 0
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return
    if parent is None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    elif mode:
        remove(path, parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=parent)


def read_file(name: str, folder: int, *, limit_nbytes: int) -> bytes:
    """The contents of a plain file. Its time of last change becomes now: it was used.

    Raises RefusedError for anything else under that name, and for more than `limit_nbytes`.
    """
    descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("not a plain file")
        _check_owner(status)
        if status.st_size > limit_nbytes:
            raise RefusedError(f"{status.st_size} bytes are too many")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(status.st_size)  # as many bytes are allocated, so not the limit
        with contextlib.suppress(OSError):
            os.utime(descriptor)
        return data
    finally:
        os.close(descriptor)  # `open` leaves it open where it refuses a folder


def write_file(name: str, folder: int, data: bytes, *, root: int, replace: bool = True) -> None:
    """Write `data` aside (in the folder `root`), then give it its name in `folder`.

    A leftover of a process that died is locked by nobody: see `sweep`. Without `replace`, raises
    FileExistsError where the name is taken.
    """
    temporary, descriptor = _new_temporary(root)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if replace:
                os.replace(temporary, name, src_dir_fd=root, dst_dir_fd=folder)
                temporary = ""  # it has moved
            else:
                os.link(temporary, name, src_dir_fd=root, dst_dir_fd=folder)
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=root)


def _new_temporary(folder: int) -> tuple[str, int]:
    """The name and the descriptor of a new file that is locked. Between the two steps another
    process may have swept it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for tries_left in reversed(range(_TRIES)):
        name = _TEMPORARY + secrets.token_hex(8)
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink or not tries_left:
            break
        os.close(descriptor)
    return name, descriptor


def remove(name: str, folder: int) -> None:
    """Remove a file, or an empty folder in its place. A folder with something in it is not ours to
    empty: it gets another name. What cannot be removed stays."""
    for way in (os.unlink, os.rmdir, _move_away):
        with contextlib.suppress(OSError):
            way(name, dir_fd=folder)
            return


def _move_away(name: str, *, dir_fd: int) -> None:
    """Under another name, in the same folder: the file system may refuse to move it out of it."""
    os.rename(name, _MOVED + secrets.token_hex(8), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def sweep(folder: int) -> None:
    """Remove temporaries that no living process is writing."""
    for name in os.listdir(folder):
        if not name.startswith(_TEMPORARY):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is held
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


def secret_of(folder: int) -> bytes:
    """The folder's secret: made by the first process that asks, replaced where it is damaged."""
    for _ in range(_TRIES):
        try:
            found = read_file(_SECRET, folder, limit_nbytes=SECRET_NBYTES)
            if len(found) == SECRET_NBYTES:
                return found
            remove(_SECRET, folder)
        except FileNotFoundError:
            pass
        except OSError:
            remove(_SECRET, folder)
        fresh = secrets.token_bytes(SECRET_NBYTES)
        try:
            write_file(_SECRET, folder, fresh, root=folder, replace=False)
        except FileExistsError:
            continue  # another process was faster: its secret is the one
        except PermissionError:  # also what file systems without hard links say
            write_file(_SECRET, folder, fresh, root=folder)
    return read_file(_SECRET, folder, limit_nbytes=SECRET_NBYTES)


def _check_owner(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise RefusedError(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise RefusedError(f"others may write it (mode {mode:04o}; it should be 0700)")
