"""Cubins are compiled once and side by side, whatever compiles them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stagejit.runtime.cuda.code.cubins import Compiler, cubins, key_of
from stagejit.runtime.objects.object_cache import ObjectCache


class Compiling:
    """A compiler that only says what it is given."""

    def __init__(self, at_a_time: int = 1) -> None:
        self.given: list[str] = []
        self.together = threading.Barrier(at_a_time)

    def __call__(self, source: str, arch: str) -> bytes:
        self.given.append(source)
        self.together.wait(timeout=60)
        return f"{source} for {arch}".encode()


def test_each_source_has_its_code() -> None:
    compiling = Compiling()
    found = cubins(["a", "b", "a"], "sm_80", Compiler("one", compiling, compiling), None)
    assert found == [b"a for sm_80", b"b for sm_80", b"a for sm_80"]
    assert sorted(compiling.given) == ["a", "b"]
    assert cubins([], "sm_80", Compiler("one", compiling, compiling), None) == []


def test_sources_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    compiling = Compiling(at_a_time=3)  # each waits for the others
    found = cubins(["a", "b", "c"], "sm_80", Compiler("one", compiling, compiling), None)
    assert found == [b"a for sm_80", b"b for sm_80", b"c for sm_80"]


def test_code_is_kept_by_all_that_decides_it(tmp_path: Path) -> None:
    store, compiling = ObjectCache(tmp_path / "cache"), Compiling()
    kinds = [("a", "sm_80", "one"), ("a", "sm_90a", "one"), ("a", "sm_80", "another"),
             ("b", "sm_80", "one")]  # fmt: skip
    for _ in range(2):
        for source, arch, identity in kinds:
            found = cubins([source], arch, Compiler(identity, compiling, compiling), store)
            assert found == [f"{source} for {arch}".encode()]
    assert len(compiling.given) == len(kinds)
    keys = {
        key_of(source, arch, Compiler(name, compiling, compiling)) for source, arch, name in kinds
    }
    assert len(keys) == len(kinds)


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    def refuse(source: str, arch: str) -> bytes:
        raise ValueError(source)

    store = ObjectCache(tmp_path / "cache")
    with pytest.raises(ValueError, match="a"):
        cubins(["a", "b"], "sm_80", Compiler("one", refuse, refuse), store)
    assert cubins(["a"], "sm_80", Compiler("one", Compiling(), Compiling()), store) == [
        b"a for sm_80"
    ]
