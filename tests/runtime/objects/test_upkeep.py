"""Looking after the object cache, from the command line and by functions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stagejit.bench import cli
from stagejit.errors import OptionsError
from stagejit.runtime.objects.object_cache import ObjectCache, digest
from stagejit.runtime.objects.upkeep import clear, folder_of, look_at, verify

KEYS = [digest(name) for name in ("a", "b", "c")]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    cache = ObjectCache(folder)
    for key in KEYS:
        cache.put(key, b"object" * 100)
    return folder


def test_what_is_in_it(folder: Path) -> None:
    found = look_at(folder)
    assert found.entries == len(KEYS)
    assert found.nbytes == sum(path.stat().st_size for path in folder.glob("*/*.sjo"))
    assert 0 <= found.newest <= found.oldest < 60
    assert "3 entries, 1,950 bytes of at most 512 MiB; last used just now" in str(found)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    assert "not made yet" in str(look_at(folder))
    assert clear(folder).entries == 0
    assert verify(folder).whole == 0
    assert not folder.exists()


def test_clearing_removes_entries_and_nothing_else(folder: Path) -> None:
    (folder / "mine.txt").write_text("mine")
    assert clear(folder).entries == len(KEYS)
    assert look_at(folder).entries == 0
    assert (folder / "mine.txt").exists()
    ObjectCache(folder).put(KEYS[0], b"object")  # the secret is still there
    assert ObjectCache(folder).get(KEYS[0]) == b"object"


def test_damaged_entries_are_found_and_removed(folder: Path) -> None:
    assert verify(folder).damaged == ()
    path = folder / KEYS[0][:2] / f"{KEYS[0]}.sjo"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = verify(folder)
    assert found.damaged == (path.name,)
    assert found.whole == len(KEYS) - 1
    assert not path.exists()


def test_verifying_is_no_use_of_entries(folder: Path) -> None:
    path = folder / KEYS[0][:2] / f"{KEYS[0]}.sjo"
    os.utime(path, (1e9, 1e9))
    verify(folder)
    assert path.stat().st_mtime == 1e9


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli.app, ["cache", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(folder))
    assert "3 entries" in run()
    assert "3 entries are whole" in run("verify")
    path = folder / KEYS[0][:2] / f"{KEYS[0]}.sjo"
    path.write_bytes(b"")
    assert CliRunner().invoke(cli.app, ["cache", "verify"]).exit_code == 1
    assert "2 entries" in run("clear")
    for action in ("show", "clear", "verify"):
        assert run(action, "--folder", str(tmp_path / "other")).count("not made yet") == 1
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", "")
    assert folder_of(None) is None
    assert "switched off" in run()


def test_a_folder_that_others_may_write_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    result = CliRunner().invoke(cli.app, ["cache", "show", "--folder", str(folder)])
    assert isinstance(result.exception, OptionsError)
    assert "others may write it" in str(result.exception)
