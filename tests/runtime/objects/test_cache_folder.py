"""Machine trouble on purpose: whatever lies in the cache folder, values are right, nothing hangs.

Each kind of trouble is put in the way of one `ObjectCache`, which must heal (the entry is stored
again) or refuse the folder with one warning.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import pwd
import shutil
import stat
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagejit.runtime.objects import engine as engine_module
from stagejit.runtime.objects import private_folder
from stagejit.runtime.objects.engine import Engine, cache_key
from stagejit.runtime.objects.object_cache import (
    CacheWarning,
    ObjectCache,
    cache_in,
    default_folder,
    digest,
)

REPOSITORY = Path(__file__).resolve().parents[3]
KEY, OTHER = digest("one"), digest("another")
BODY = b"object code" * 50


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / f"{key}.sjo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one entry."""
    path = tmp_path / "cache"
    ObjectCache(path).put(KEY, BODY)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_all_that_is_made_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "parent" / "cache").put(KEY, BODY)
    finally:
        os.umask(before)
    folder = tmp_path / "parent" / "cache"
    assert mode(folder) == mode(entry(folder).parent) == 0o700
    assert mode(entry(folder)) == mode(folder / "secret") == 0o600


# -- entries ---------------------------------------------------------------------------------------


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


# -- objects ---------------------------------------------------------------------------------------


def call(loaded: dict[str, int], name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(loaded[name])())


def returns(value: int, name: str) -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


@pytest.mark.parametrize("kind", ["garbage", "empty", "half", "header only", "another symbol's"])
def test_a_stored_object_that_does_not_link_is_compiled_anew(kind: str, tmp_path: Path) -> None:
    """Stored under the right key, with the right seal, and still useless."""
    name = f"cache_folder_{kind.split()[0].replace(chr(39), '')}"
    ir, cache = returns(41, name), ObjectCache(tmp_path)
    first = Engine()
    first.load({name: ir, "cache_folder_other": returns(1, "cache_folder_other")}, cache=cache)
    good = cache.get(cache_key(ir)) or b""
    other = cache.get(cache_key(returns(1, "cache_folder_other"))) or b""
    bad = {
        "garbage": b"\0garbage" * 99,
        "empty": b"",
        "half": good[: len(good) // 2],
        "header only": good[:64],
        "another symbol's": other,
    }[kind]
    cache.put(cache_key(ir), bad)
    second = Engine()
    assert call(second.load({name: ir}, cache=cache), name) == 41
    assert (second.compiled_count, second.cached_count) == (1, 0)
    assert cache.get(cache_key(ir)) == good


def test_the_key_names_the_version_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key("text")
    monkeypatch.setattr(engine_module.llvm, "llvm_version_info", (99, 0, 0))
    assert cache_key("text") != before


# -- whole programs --------------------------------------------------------------------------------

WHOLE = textwrap.dedent("""
    import warnings
    warnings.simplefilter("error")
    warnings.filterwarnings("default", message="stagejit")
    import os, sys
    import jax, numpy as np, stagejit
    from stagejit.runtime.objects.engine import engine
    stagejit.jit(jax.numpy.sin, options=stagejit.Options(cache_dir=""))(1.0)  # loads the compiler
    if "nobody" in sys.argv:
        os.setuid(54321)
    for k in range(4):
        y = stagejit.jit(lambda x: x * (2 + k))(np.ones(5, np.float32))
        assert np.array_equal(y, np.full(5, 2 + k)), y
    print(engine().cached_count)
""")


def run_python(program: str, *args: str, **environment: str | None) -> tuple[str, str]:
    """What a fresh process prints and what it warns."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_whole_programs_run_from_a_folder_full_of_trouble(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    stored = sorted(folder.rglob("*.sjo"))
    assert len(stored) >= 4
    bodies = [path.read_bytes() for path in stored]
    for path, body in zip(stored, bodies[1:] + bodies[:1], strict=True):
        path.write_bytes(body)  # each under its neighbour's name
    stored[0].unlink()
    os.mkfifo(stored[0])
    assert run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder)) == ("0\n", "")
    printed, warned = run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    assert (int(printed), warned) == (len(stored), "")


def test_whole_programs_run_without_a_cache(tmp_path: Path) -> None:
    assert run_python(WHOLE, STAGEJIT_CACHE_DIR="", HOME=str(tmp_path)) == ("0\n", "")
    assert not list(tmp_path.rglob("*.sjo"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_whole_programs_run_without_a_home(tmp_path: Path) -> None:
    nobody = {"STAGEJIT_CACHE_DIR": None, "HOME": None, "XDG_CACHE_HOME": None}
    printed, warned = run_python(WHOLE, "nobody", **nobody)
    assert printed == "0\n"
    assert warned.count("stagejit has no folder") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_whole_programs_run_beside_a_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    os.chown(folder, 54321, 54321)
    printed, warned = run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    assert printed == "0\n"
    assert warned.count("belongs to user 54321") == 1


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
