"""The object cache: what is stored comes back, and nothing that happens to the folder is fatal."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from stagejit.runtime.objects.object_cache import (
    CacheWarning,
    ObjectCache,
    cache_in,
    default_folder,
    digest,
)

KEY = digest("some", "key")


def entry_path(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / f"{key}.sjo"


def test_round_trip(tmp_path: Path) -> None:
    ObjectCache(tmp_path).put(KEY, b"code")
    assert ObjectCache(tmp_path).get(KEY) == b"code"
    assert ObjectCache(tmp_path).get(digest("other")) is None
    assert [path.name for path in entry_path(tmp_path).parent.iterdir()] == [f"{KEY}.sjo"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" + data[1:],
    ],
    ids=["cut", "cut in the header", "empty", "flipped bit", "other magic"],
)
def test_damaged_entries_are_removed(tmp_path: Path, damage: object) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, b"object code" * 100)
    path = entry_path(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"


def test_unwritable_folder_warns_once_and_names_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")  # also root cannot make a folder below a file
    cache = ObjectCache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match=r"Options\(cache_dir=\.\.\.\) or \$STAGEJIT_CACHE_DIR"):
        cache.put(KEY, b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, b"code")
    assert cache.get(KEY) is None


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_nbytes=10_000)
    keys = [digest(str(i)) for i in range(20)]
    for age, key in enumerate(keys):
        cache.put(key, bytes(1000))
        if entry_path(tmp_path, key).exists():
            os.utime(entry_path(tmp_path, key), (age, age))
    kept = [key for key in keys if cache.get(key) is not None]
    assert 5 <= len(kept) <= 9
    assert kept == keys[-len(kept) :]


def test_use_protects_from_eviction(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_nbytes=10_000)
    keys = [digest(str(i)) for i in range(9)]
    for age, key in enumerate(keys):
        cache.put(key, bytes(1000))
        os.utime(entry_path(tmp_path, key), (age, age))
    assert cache.get(keys[0]) is not None
    cache.put(digest("one"), bytes(1000))
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None


def test_folder_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("STAGEJIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_folder() == tmp_path / "stagejit"
    assert cache_in("") is None
    chosen = cache_in(str(tmp_path / "other"))
    assert chosen is not None
    assert chosen.folder == tmp_path / "other"
    assert cache_in(str(tmp_path / "other")) is chosen


def test_digest_separates_its_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
