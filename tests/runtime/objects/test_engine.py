"""The engine: text in, addresses out; every module once; failures are InternalErrors."""

from __future__ import annotations

import ctypes
import itertools
import threading
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from stagejit.errors import InternalError
from stagejit.runtime.objects import engine as engine_module
from stagejit.runtime.objects.engine import Engine, disassemble, engine
from stagejit.runtime.objects.linker import libc_address
from stagejit.runtime.objects.object_cache import ObjectCache

_numbers = itertools.count(1000)


def constant(value: int) -> tuple[str, str]:
    """A function of no arguments that returns `value`, under a new name."""
    name = f"test_engine_{next(_numbers)}"
    return name, f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


def call(address: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(address)())


def test_loads_each_symbol_once() -> None:
    name, ir = constant(7)
    first = engine().load({name: ir})
    count = engine().compiled_count
    assert engine().load({name: ir}) == first
    assert engine().compiled_count == count
    assert call(first[name]) == 7
    module = engine().module(name)
    assert module is not None
    assert module.addresses == first
    assert engine().module("nothing of this name") is None


def test_many_modules_in_parallel() -> None:
    modules = dict(constant(value) for value in range(20))
    loaded = engine().load(modules)
    assert [call(loaded[name]) for name in modules] == list(range(20))


def test_modules_import_from_each_other_and_from_the_process() -> None:
    inner, inner_ir = constant(5)
    outer = f"test_engine_{next(_numbers)}"
    outer_ir = f"""
declare i64 @{inner}()
declare i64 @labs(i64)
define i64 @{outer}() {{
  %a = call i64 @{inner}()
  %b = sub i64 0, %a
  %c = call i64 @labs(i64 %b)
  ret i64 %c
}}
"""
    addresses = {**engine().load({inner: inner_ir}), "labs": libc_address("labs")}
    assert call(engine().load({outer: outer_ir}, addresses)[outer]) == 5


def test_further_symbols() -> None:
    name = f"test_engine_{next(_numbers)}"
    ir = f"@{name}.count = global i64 3\n" + constant(1)[1].replace("test_engine_", "x_", 1)
    ir += f"define void @{name}() {{\n  ret void\n}}\n"
    loaded = engine().load({name: ir})
    assert ctypes.c_int64.from_address(loaded[f"{name}.count"]).value == 3
    assert engine().load({name: ir}) == loaded


def test_objects_come_from_the_cache(tmp_path: Path) -> None:
    name, ir = constant(11)
    cache = ObjectCache(tmp_path)
    first, second = Engine(), Engine()
    first.load({name: ir}, cache=cache)
    assert (first.compiled_count, first.cached_count) == (1, 0)
    loaded = second.load({name: ir}, cache=cache)
    assert (second.compiled_count, second.cached_count) == (0, 1)
    assert call(loaded[name]) == 11
    (entry,) = tmp_path.glob("*/*")
    entry.write_bytes(entry.read_bytes()[:-8])
    third = Engine()
    assert call(third.load({name: ir}, cache=cache)[name]) == 11
    assert (third.compiled_count, third.cached_count) == (1, 0)


@pytest.mark.parametrize("ir", ["no IR", "define i64 @f() {\n  ret i32 1\n}\n"])
def test_bad_text_is_an_internal_error_with_a_dump(ir: str) -> None:
    with pytest.raises(InternalError, match="LLVM rejects a module") as caught:
        engine().load({"test_engine_bad": ir})
    assert caught.value.dump == ir
    assert caught.value.step == "llvm"


def test_missing_symbols_are_an_internal_error(capfd: pytest.CaptureFixture[str]) -> None:
    name = f"test_engine_{next(_numbers)}"
    body = "{\n  call void @nowhere()\n  ret void\n}\n"
    ir = f"declare void @nowhere()\ndefine void @{name}() {body}"
    with pytest.raises(InternalError, match="cannot link"):
        engine().load({name: ir})
    assert engine().module(name) is None


def test_disassemble() -> None:
    name, ir = constant(42)
    text = disassemble(ir)
    assert f"{name}:" in text
    assert "42" in text


def test_threads_load_at_once() -> None:
    modules = dict(constant(value) for value in range(8))
    found: dict[str, int] = {}

    def load(name: str) -> None:
        found[name] = call(engine().load({name: modules[name]})[name])

    threads = [threading.Thread(target=load, args=(name,)) for name in modules for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[name] for name in modules] == list(range(8))


def test_loops_are_left_as_written_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is on once, until the last thread is out, also where compiling fails."""
    said: list[str] = []
    monkeypatch.setattr(llvm, "set_option", lambda name, option: said.append(option))
    with pytest.raises(InternalError, match="LLVM rejects"):
        engine().load({"test_engine_wrong": "define i64 @test_engine_wrong() { ret i32 1 }"})
    assert said == ["-disable-lsr=true", "-disable-lsr=false"]
    loops = engine_module._LoopsAsWritten()
    said.clear()
    with loops, loops:
        assert said == ["-disable-lsr=true"]
    assert said == ["-disable-lsr=true", "-disable-lsr=false"]
