"""Machine trouble on purpose: an entry that is not what was stored heals, and is read in bounds.

Each kind of trouble is put in the way of one `ObjectCache`, which must store the entry again.
"""

from __future__ import annotations

import os
import shutil
import stat
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagejit.runtime.objects import private_folder
from stagejit.runtime.objects.object_cache import ObjectCache, digest
from tests.runtime.objects.folders import BODY, KEY, OTHER, entry, mode


def swapped(folder: Path) -> None:
    ObjectCache(folder).put(OTHER, b"code of something else")
    one, other = entry(folder).read_bytes(), entry(folder, OTHER).read_bytes()
    entry(folder).write_bytes(other)
    entry(folder, OTHER).write_bytes(one)


def sealed_elsewhere(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    ObjectCache(elsewhere).put(KEY, b"code by somebody else")
    shutil.copy(entry(elsewhere), entry(folder))


def in_place_of_the_entry(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def trouble(folder: Path) -> None:
        entry(folder).unlink()
        make(entry(folder))

    return trouble


def symbolic_link(path: Path) -> None:
    target = path.parent.parent / "target"
    shutil.copy(path, target)
    path.unlink()
    path.symlink_to(target)


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside.sjo").write_bytes(b"of somebody")


def too_large(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


ENTRY_TROUBLE: dict[str, Callable[[Path], Any]] = {
    "another key's entry": swapped,
    "an entry of another folder": sealed_elsewhere,
    "a symbolic link": lambda folder: symbolic_link(entry(folder)),
    "a link to nothing": in_place_of_the_entry(lambda p: p.symlink_to("nowhere")),
    "a FIFO": in_place_of_the_entry(os.mkfifo),
    "a folder": in_place_of_the_entry(Path.mkdir),
    "a folder with a file": in_place_of_the_entry(full_folder),
    "a terabyte": in_place_of_the_entry(too_large),
    "nothing in it": in_place_of_the_entry(Path.touch),
    "writable by others": lambda folder: entry(folder).chmod(0o666),
    "another secret": lambda folder: (folder / "secret").write_bytes(bytes(32)),
    "a short secret": lambda folder: (folder / "secret").write_bytes(b"short"),
    "no secret": lambda folder: (folder / "secret").unlink(),
}


@pytest.mark.parametrize("trouble", ENTRY_TROUBLE)
def test_an_entry_that_is_not_what_was_stored_heals(trouble: str, folder: Path) -> None:
    ENTRY_TROUBLE[trouble](folder)
    cache = ObjectCache(folder)
    assert cache.get(KEY) is None
    assert not os.path.lexists(entry(folder))
    cache.put(KEY, BODY)
    assert ObjectCache(folder).get(KEY) == BODY
    assert stat.S_ISREG(entry(folder).lstat().st_mode)


@pytest.mark.parametrize("place", ["entry", "secret"])
def test_a_folder_with_something_in_it_is_moved_away(place: str, folder: Path) -> None:
    """Nobody's files are removed, not when the cache is full either; descriptors are closed."""
    path = {"entry": entry(folder), "secret": folder / "secret"}[place]
    path.unlink()
    full_folder(path)
    cache, opened = (
        ObjectCache(folder, limit_nbytes=4 * len(BODY)),
        len(os.listdir("/proc/self/fd")),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(KEY) is None
        for k in range(20):
            cache.put(digest(str(k)), BODY)
        cache.put(KEY, BODY)
    assert len(os.listdir("/proc/self/fd")) == opened
    assert ObjectCache(folder).get(KEY) == BODY
    (moved,) = path.parent.glob(".moved-*")
    assert [file.read_bytes() for file in moved.iterdir()] == [b"of somebody"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
def test_what_is_no_folder_in_place_of_one_inside_is_replaced(
    make: Callable[[Path], Any], folder: Path
) -> None:
    shutil.rmtree(entry(folder).parent)
    make(entry(folder).parent)
    cache = ObjectCache(folder)
    assert cache.get(KEY) is None
    cache.put(KEY, BODY)
    assert ObjectCache(folder).get(KEY) == BODY
    assert mode(entry(folder).parent) == 0o700


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, full_folder, lambda path: path.symlink_to("entry")]
)
def test_a_secret_that_is_no_file_is_replaced(make: Callable[[Path], Any], folder: Path) -> None:
    (folder / "secret").unlink()
    make(folder / "secret")
    cache = ObjectCache(folder)
    assert cache.get(KEY) is None
    cache.put(KEY, BODY)
    assert ObjectCache(folder).get(KEY) == BODY
    assert mode(folder / "secret") == 0o600


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with private_folder.opened_folder(path, create=True) as descriptor:
        private_folder.write_file("name", descriptor, bytes(100), root=descriptor)
        with pytest.raises(private_folder.RefusedError, match="too many"):
            private_folder.read_file("name", descriptor, limit_nbytes=99)
        assert len(private_folder.read_file("name", descriptor, limit_nbytes=100)) == 100


def test_reading_takes_no_more_memory_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(bytes(100))
    with private_folder.opened_folder(tmp_path, create=True) as descriptor:
        tracemalloc.start()
        try:
            private_folder.read_file("name", descriptor, limit_nbytes=1 << 29)
            _, peak_nbytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_nbytes < 1 << 20
