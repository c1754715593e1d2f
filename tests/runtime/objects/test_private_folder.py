"""Machine trouble on purpose: what lies in the cache folder, and whose that is; nothing hangs.

Each kind of trouble is put in the way of one `ObjectCache`, which must heal or refuse the folder
with one warning.
"""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pwd
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagejit.runtime.objects.object_cache import (
    CacheWarning,
    ObjectCache,
    cache_in,
    default_folder,
    digest,
)
from tests.runtime.objects.folders import BODY, KEY, OTHER, entry, mode, run_python


def test_all_that_is_made_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "parent" / "cache").put(KEY, BODY)
    finally:
        os.umask(before)
    folder = tmp_path / "parent" / "cache"
    assert mode(folder) == mode(entry(folder).parent) == 0o700
    assert mode(entry(folder)) == mode(folder / "secret") == 0o600


# -- the folder ------------------------------------------------------------------------------------


def writable_by_others(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder


def writable_by_the_group(folder: Path) -> Path:
    folder.chmod(0o770)
    return folder


def linked(folder: Path) -> Path:
    (folder.parent / "link").symlink_to(folder)
    return folder.parent / "link"


def linked_inside(folder: Path) -> Path:
    inner = entry(folder).parent
    inner.rename(folder.parent / "moved")
    inner.symlink_to(folder.parent / "moved")
    return folder


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (writable_by_others, "others may write it"),
        (writable_by_the_group, "others may write it"),
        (linked, "is a symbolic link"),
        (linked_inside, "is a symbolic link"),
    ],
)
@pytest.mark.parametrize("first", ["get", "put"])
def test_a_folder_that_is_not_ours_alone_is_refused_with_one_warning(
    trouble: Callable[[Path], Path], reason: str, first: str, folder: Path
) -> None:
    cache = ObjectCache(trouble(folder))
    with pytest.warns(CacheWarning, match=reason):
        assert cache.get(KEY) is None if first == "get" else cache.put(KEY, b"other") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, b"other")
        assert cache.get(KEY) is None


def test_a_folder_of_somebody_else_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="belongs to user"):
        assert ObjectCache(folder).get(KEY) is None


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_full_disk_is_one_warning(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)

    def full(*args: Any, **kwargs: Any) -> Any:
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = ObjectCache(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.warns(CacheWarning, match="No space left on device"):
            cache.put(OTHER, BODY)
        cache.put(OTHER, BODY)
    assert cache.get(KEY) == BODY
    assert not list(folder.rglob(".tmp-*"))


def test_a_write_that_fails_half_way_leaves_nothing(folder: Path) -> None:
    """The file size limit of a process is the one full disk that a test can make."""
    program = textwrap.dedent("""
        import resource, sys, warnings
        from pathlib import Path
        from stagejit.runtime.objects.object_cache import ObjectCache
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        ObjectCache(Path(sys.argv[1])).put(sys.argv[2], bytes(100_000))
    """)
    run_python(program, str(folder), OTHER)
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == sorted(
        ["secret", entry(folder).name]
    )


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "file/below", "\udc80"])
def test_a_path_that_cannot_be_is_one_warning(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = ObjectCache(tmp_path / path)
    assert cache.get(KEY) is None
    if path == "\udc80":
        return  # a byte that is no UTF-8: a good file name on Linux
    with pytest.warns(CacheWarning, match="cannot write"):
        cache.put(KEY, BODY)


# -- leftovers and other processes -----------------------------------------------------------------


def test_leftovers_are_swept_and_work_in_progress_is_not(folder: Path) -> None:
    (folder / ".tmp-left").write_bytes(b"by a process that died")
    (folder / ".tmp-busy").write_bytes(b"being written")
    with (folder / ".tmp-busy").open() as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        assert ObjectCache(folder).get(KEY) == BODY
    assert [p.name for p in folder.glob(".tmp-*")] == [".tmp-busy"]
    assert ObjectCache(folder).get(KEY) == BODY
    assert not list(folder.glob(".tmp-*"))


def test_an_entry_swept_away_while_it_is_written_is_not_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def swept(source: str, *args: Any, **kwargs: Any) -> None:
        os.unlink(source, dir_fd=kwargs["src_dir_fd"])
        real(source, *args, **kwargs)

    monkeypatch.setattr(os, "replace", swept)
    cache = ObjectCache(folder)
    cache.put(OTHER, BODY)
    monkeypatch.undo()
    cache.put(OTHER, BODY)
    assert cache.get(OTHER) == BODY


def _hammer(folder: str, seed: int) -> int:
    cache, wrong = ObjectCache(Path(folder)), 0
    for i in range(60):
        key = digest(str((i * 7 + seed) % 20))
        found = cache.get(key)
        wrong += found is not None and found != key.encode() * 100
        cache.put(key, key.encode() * 100)
    return wrong + sum(cache.get(digest(str(i))) is None for i in range(20))


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Also the making of folder and secret: all start on nothing."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        wrong = pool.starmap(_hammer, [(str(tmp_path / "cache"), seed) for seed in range(6)])
    assert wrong == [0] * 6
    assert not list((tmp_path / "cache").rglob(".tmp-*"))


def test_a_secret_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    ObjectCache(tmp_path / "cache").put(KEY, BODY)
    assert ObjectCache(tmp_path / "cache").get(KEY) == BODY


def test_work_that_others_sweep_as_it_begins_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds a temporary in the moment before it is locked."""
    lock, swept = fcntl.flock, list[int]()

    def late(descriptor: int, how: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2]
        if name.startswith(".tmp-") and len(swept) % 2 == 0:
            (tmp_path / name).unlink()
        swept.append(descriptor)
        lock(descriptor, how)

    cache = ObjectCache(tmp_path)
    monkeypatch.setattr(fcntl, "flock", late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, BODY)
    assert len(swept) >= 4, "a secret and an entry, twice each"
    assert ObjectCache(tmp_path).get(KEY) == BODY


# -- the choice of a folder ------------------------------------------------------------------------


def test_an_empty_variable_means_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", "")
    assert default_folder() is None
    assert cache_in(None) is None


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STAGEJIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_folder() == tmp_path / ".cache" / "stagejit"


def test_without_a_home_there_is_one_warning_and_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("STAGEJIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr("stagejit.runtime.objects.object_cache._CACHES", {})
    with pytest.warns(CacheWarning, match="no folder"):
        assert cache_in(None) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_in(None) is None
