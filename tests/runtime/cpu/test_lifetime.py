"""Code lives as long as something can call it, and not longer."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import stagejit
from stagejit.runtime.cpu import loader
from stagejit.runtime.hosting.program import HostProgram, Launch
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.runtime.objects.code_memory import code_memory
from stagejit.runtime.objects.engine import engine

X = np.linspace(0, 1, 24, dtype=np.float32)
_numbers = itertools.count(1)


def fresh_function() -> tuple[Any, Callable[[Any], Any]]:
    """A staged function whose program nobody had before, and its NumPy twin."""
    number = np.float32(next(_numbers) / 7)
    return stagejit.jit(
        lambda x: jnp.tanh(x * number) + number
    ), lambda x: np.tanh(x * number) + number


def check(f: Callable[..., Any], expected: Callable[[Any], Any], x: Any = X) -> None:
    np.testing.assert_allclose(f(x), expected(x), rtol=1e-5)


def records() -> set[str]:
    """Names of the programs whose code is in memory."""
    return {record.name for record in loader._all_programs()._records.values()}


class Alive:
    """Names of the programs that came to life during the test and are alive."""

    def __init__(self) -> None:
        jax.clear_caches()
        gc.collect()
        self.before = records()

    def __call__(self) -> set[str]:
        gc.collect()
        return records() - self.before

    def are_none(self) -> bool:
        """A thread of XLA holds what it ran for a moment after the result is there."""
        for _ in range(200):
            if not self():
                return True
            time.sleep(0.02)
        return False


@pytest.fixture
def alive() -> Alive:
    return Alive()


def test_dropping_a_function_frees_its_code(alive: Alive) -> None:
    f, expected = fresh_function()
    check(f, expected)
    assert len(alive()) == 1
    nbytes = code_memory().used_nbytes
    del f
    jax.clear_caches()
    assert alive.are_none()
    assert code_memory().used_nbytes < nbytes


@pytest.mark.parametrize("clear", [lambda f: f.clear_cache(), lambda f: jax.clear_caches()])
def test_clearing_caches_frees_and_the_next_call_makes_anew(
    clear: Callable[[Any], None], alive: Alive
) -> None:
    f, expected = fresh_function()
    check(f, expected)
    (name,) = alive()
    clear(f)
    assert alive.are_none()
    check(f, expected)
    assert alive() == {name}


def test_a_lowered_function_keeps_the_code_it_will_call(alive: Alive) -> None:
    f, expected = fresh_function()
    lowered = jax.jit(lambda x: f(x) * 1).lower(X)
    f.clear_cache()
    jax.clear_caches()
    assert len(alive()) == 1
    check(lowered.compile(), expected)


@pytest.mark.parametrize("serialized", [False, True])
def test_a_compiled_function_keeps_its_code(serialized: bool, alive: Alive) -> None:
    f, expected = fresh_function()
    compiled = jax.jit(lambda x: f(x)).lower(X).compile()
    if serialized:
        compiled = deserialize_and_load(*serialize(compiled))
    f.clear_cache()
    jax.clear_caches()
    assert len(alive()) == 1
    check(compiled, expected)
    del compiled
    assert alive.are_none()


@pytest.mark.parametrize("around", [jax.vmap, jax.jit, jax.grad], ids=["vmap", "jit", "grad"])
def test_transformed_functions_keep_theirs(around: Callable[..., Any], alive: Alive) -> None:
    f, _ = fresh_function()
    plain = jax.jit(f.__wrapped__)
    g, wanted = (jax.jit(around(lambda x, f=f: f(x).sum())) for f in (f, plain))
    x = X if around is not jax.vmap else np.stack([X, X * 2])
    for _ in range(2):
        np.testing.assert_allclose(g(x), wanted(x), rtol=1e-5)
        gc.collect()
    f.clear_cache()
    np.testing.assert_allclose(g(x), wanted(x), rtol=1e-5)
    del g
    jax.clear_caches()
    assert alive.are_none()


def test_what_was_serialized_needs_no_code_in_memory(alive: Alive) -> None:
    f, expected = fresh_function()
    stored = serialize(jax.jit(lambda x: f(x)).lower(X).compile())
    f.clear_cache()
    jax.clear_caches()
    assert alive.are_none()
    compiled = deserialize_and_load(*stored)
    check(compiled, expected)
    assert len(alive()) == 1
    del compiled
    assert alive.are_none()


def test_what_another_machine_serialized_is_refused(
    alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, _ = fresh_function()
    stored = serialize(jax.jit(lambda x: f(x)).lower(X).compile())
    f.clear_cache()
    jax.clear_caches()
    assert alive.are_none()
    monkeypatch.setattr(loader, "machine", lambda: "another")
    with pytest.raises(stagejit.StagejitError, match="another kind of processor"):
        deserialize_and_load(*stored)


def test_lost_code_that_calls_python_is_an_error_that_says_so(
    alive: Alive,
) -> None:
    def twice(x: Any) -> Any:
        return np.float32(x * 2)

    def body(c: Any, x: Any) -> Any:
        return jax.pure_callback(twice, jax.ShapeDtypeStruct((), np.float32), c + x), None

    f = stagejit.jit(lambda x: jax.lax.scan(body, np.float32(0), x)[0])
    stored = serialize(jax.jit(lambda x: f(x)).lower(X).compile())
    f.clear_cache()
    jax.clear_caches()
    assert alive.are_none()
    with pytest.raises(jax.errors.JaxRuntimeError, match="lower the same function with stagejit"):
        deserialize_and_load(*stored)


def test_a_call_in_flight_keeps_its_code(alive: Alive) -> None:
    """Dispatch is asynchronous: everything may be dropped before the call has begun."""
    x = np.ones((300, 300), np.float32)
    for k in range(20):
        f = stagejit.jit(lambda x, k=k: jnp.cos(jnp.sin(x @ x) * (k + 0.37)).sum(0))
        y = f(x)
        del f
        jax.clear_caches()
        gc.collect()
        wanted = np.cos(np.sin(x.astype(np.float64) @ x) * (k + 0.37)).sum(0)
        np.testing.assert_allclose(y, wanted, rtol=2e-3)
    del y
    assert alive.are_none()


def test_caches_are_cleared_while_threads_call(alive: Alive) -> None:
    functions = [fresh_function() for _ in range(4)]
    kept = functions[0][0]
    compiled = jax.jit(lambda x: kept(x)).lower(X).compile()
    stop = threading.Event()

    def work(number: int) -> int:
        calls = 0
        while not stop.is_set():
            f, expected = functions[number]
            check(f, expected)
            check(compiled, functions[0][1])
            calls += 1
        return calls

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, number) for number in range(4)]
        for _ in range(40):
            jax.clear_caches()
            gc.collect()
            functions[1][0].clear_cache()
        stop.set()
        assert all(each.result() > 0 for each in done)


def test_collections_in_the_middle_of_everything(alive: Alive) -> None:
    """Finalizers and the collector's callback run wherever an object is allocated."""
    before = gc.get_threshold()
    gc.set_threshold(30, 1, 1)
    try:
        for _ in range(3):
            check(*fresh_function())
            jax.clear_caches()
    finally:
        gc.set_threshold(*before)
    assert alive.are_none()


def test_an_executable_alone_keeps_code_and_what_it_calls_in_python(
    alive: Alive,
) -> None:
    """No Python object of ours or of JAX's, only XLA's executable."""

    def made() -> Callable[..., Any]:
        return lambda x: x + 1

    functions = [made()]
    gone = weakref.ref(functions[0])

    def f(x: Any) -> Any:
        host = functions[0]

        def body(c: Any, _: Any) -> tuple[Any, None]:
            return jax.pure_callback(host, jax.ShapeDtypeStruct(c.shape, c.dtype), c) * 2, None

        return jax.lax.scan(body, x, None, length=3)[0]

    compiled = stagejit.jit(f).lower(X).compile()
    executable = compiled.runtime_executable()
    check(compiled, lambda x: ((((x + 1) * 2) + 1) * 2 + 1) * 2)
    names = alive()
    del compiled, f
    functions.clear()
    jax.clear_caches()
    assert alive() == names
    assert not {program.name for program in loader.loaded_programs()} & names
    assert gone() is not None
    again = [loader.loaded_program(name) for name in names]
    assert all(program is not None for program in again)
    del executable, again
    assert alive.are_none()
    gc.collect()
    assert gone() is None


def test_throw_away_functions_leave_no_objects_behind() -> None:
    """What a compilation makes (graphs, plans, kernels, programs) goes with the function."""

    def ours() -> Counter[str]:
        jax.clear_caches()
        gc.collect()
        names = (f"{type(x).__module__}.{type(x).__name__}" for x in gc.get_objects())
        return Counter(name for name in names if name.startswith("stagejit."))

    def throw_away(count: int) -> None:
        for _ in range(count):
            check(*fresh_function())

    throw_away(20)  # templates of the last kernels stay
    before = ours()
    throw_away(20)
    grown = ours() - before
    assert sum(grown.values()) < 100, grown


def add_program(name: str, number: int) -> tuple[HostProgram, dict[str, str]]:
    kernel = f"lifetime_{number}"
    text = (
        f"define void @{kernel}(ptr %b, ptr %p, i64 %lo, i64 %hi, ptr %s) nounwind {{\n"
        f"  %x = add i64 %lo, {number}\n  ret void\n}}\n"
    )
    launch = Launch(kernel, (BufferRef("arg"), BufferRef("result")), (len(name),))
    return HostProgram(name, (launch,), (8,), (8,)), {kernel: text}


def test_a_shared_kernel_goes_with_the_last_program() -> None:
    first = loader.load_program(*add_program("lifetime one", 77))
    other = loader.load_program(*add_program("lifetime another", 77))
    assert first.name != other.name
    del first
    gc.collect()
    assert engine().module("lifetime_77") is not None
    del other
    gc.collect()
    assert engine().module("lifetime_77") is None


def test_one_program_is_one_object() -> None:
    first = loader.load_program(*add_program("lifetime twice", 5))
    assert loader.load_program(*add_program("lifetime twice", 5)) is first
    assert loader.loaded_program(first.name) is first
    assert first in loader.loaded_programs()


def test_calls_are_counted_beyond_the_life_of_a_program(alive: Alive) -> None:
    before = loader.call_count()
    f, expected = fresh_function()
    check(f, expected)
    check(f, expected)
    del f
    jax.clear_caches()
    assert alive.are_none()
    assert loader.call_count() == before + 2


def mapping_count() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_many_programs_are_few_mappings() -> None:
    """LLVM's own linker takes six or more for a program and its kernel."""
    held = [loader.load_program(*add_program(f"lifetime many {n}", n)) for n in range(10)]
    before = mapping_count()
    held += [loader.load_program(*add_program(f"lifetime many {n}", n)) for n in range(10, 90)]
    assert mapping_count() - before < 20
    assert len({program.name for program in held}) == 90
