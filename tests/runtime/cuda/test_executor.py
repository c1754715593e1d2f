"""CUDA programs on the emulated driver: right values in whatever order streams leave open; what
lacks an event is found; what is called again is replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import NoDriverError
from stagejit.options import Options
from stagejit.runtime.cuda import drivers
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.launching import ORDERS
from stagejit.runtime.cuda.emulation.memory import EmulationError
from stagejit.runtime.cuda.programs.executor import Executable
from stagejit.runtime.objects.object_cache import cache_in
from tests.runtime.cuda.programs import EMULATED, compiled, mutants
from tests.runtime.cuda.test_programs import PROGRAMS, X

_SEEDS = 24


def emulated(seed: int = 0) -> EmulatedDriver:
    return EmulatedDriver(seed=seed, threads=ORDERS[seed % 3], cache=cache_in(None))


def same(found: Any, wanted: Any) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return all(np.allclose(x, y, 1e-5, 1e-5) for x, y in pairs)


def ordered(a: Any) -> Any:
    """Effects in an order, between kernels."""
    struct = jax.ShapeDtypeStruct(a.shape, a.dtype)
    first = jax.experimental.io_callback(lambda x: np.asarray(x) + 1, struct, a * 2, ordered=True)
    side = jnp.sin(a)
    return jax.experimental.io_callback(np.copy, struct, first + side, ordered=True) * 2


def counted(a: Any) -> Any:
    """A scan that stacks, of two carries that change places."""

    def step(carry: Any, x: Any) -> Any:
        first, second = carry
        return (second + x, first * 2), first[:3]

    return jax.lax.scan(step, (a[0], a[1]), a)


def nested(a: Any) -> Any:
    def inner(i: Any, c: Any) -> Any:
        return jnp.where(c > i, c - 0.25, jnp.roll(c, 1))

    def outer(c: Any) -> Any:
        return jax.lax.fori_loop(0, 3, inner, c) + 1

    return jax.lax.while_loop(lambda c: c[0, 0] < 4, outer, a)


MORE: dict[str, tuple[Callable[..., Any], Any]] = {
    **{name: (function, args) for name, (function, *args) in PROGRAMS.items()},
    "ordered": (ordered, [X]),
    "counted": (counted, [X]),
    "nested": (nested, [X]),
    "no arguments": (lambda: jnp.arange(70) * 2, []),
    "passed on": (lambda a: (a, a, a + 1), [X]),
    "constant": (lambda a: (a + np.arange(53, dtype=np.float32), np.ones(3)), [X]),
    "empty": (lambda a: (a[:0] + 1, a), [X]),
    "complex": (lambda a: a * 1j, [X]),
    "keys": (lambda s: jax.random.key_data(jax.random.key(s)), [3]),
    "bits": (lambda a: a > 0, [X]),
    "halves": (lambda a: a.astype(jnp.bfloat16) + 1, [X]),
    "small integers": (lambda a: a.astype(jnp.int4) + jnp.int4(1), [X]),
    "cholesky": (lambda a: jnp.linalg.cholesky(jnp.eye(5) * 9 + a[:5, :5] * 0), [X]),
    "unordered": (lambda a: jax.pure_callback(np.sin, a, a * 2) + 1, [X]),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", MORE)
def test_values(name: str) -> None:
    function, args = MORE[name]
    wanted = jax.jit(function)(*args)
    staged = stagejit.jit(function, options=EMULATED)
    for seed in range(6):  # the third call with the same memory is replayed
        with drivers.using(emulated(seed)):
            for _ in range(4 if seed == 0 else 1):
                found = staged(*args)
                for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                    assert (x.shape, x.dtype) == (y.shape, y.dtype)
                    wide = np.complex128 if x.dtype == np.complex64 else np.float64
                    np.testing.assert_allclose(
                        np.asarray(x).astype(wide), np.asarray(y).astype(wide), 1e-5, 1e-5
                    )


def run(executable: Executable, args: Any, seed: int) -> list[Any] | None:
    """None where the driver finds that something is wrong."""
    try:
        return executable.on(emulated(seed)).on_host([np.asarray(x) for x in args])
    except EmulationError:
        return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_removed_event_is_seen(name: str) -> None:
    """In one order or another, for each of them."""
    function, *args = PROGRAMS[name]
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    executable = compiled(function, *args, step="load").executable
    for seed in range(_SEEDS):
        assert same(run(executable, args, seed), wanted)
    for what, program in mutants(executable.program):
        mutant = replace(executable, program=program, loaded=WeakKeyDictionary())
        found = (run(mutant, args, seed) for seed in range(4 * _SEEDS))
        assert any(made is None or not same(made, wanted) for made in found), what


def test_what_comes_again_is_captured_once() -> None:
    function, *args = PROGRAMS["forked"]
    loaded = compiled(function, *args, step="load").executable.on(emulated())
    for _ in range(5):
        loaded.on_host(args)
    assert len(loaded.graphs) == 1


def test_dont_capture_what_the_host_does_something_for() -> None:
    for name in ("ordered", "cholesky"):
        function, args = MORE[name]
        loaded = compiled(function, *args, step="load").executable.on(emulated())
        for _ in range(5):
            loaded.on_host([np.asarray(x) for x in args])
        assert not loaded.graphs


def test_dont_capture_what_takes_very_many_launches() -> None:
    def function(a: Any, trip: int) -> Any:
        return jax.lax.fori_loop(0, trip, lambda i, c: jnp.roll(c, 1) + 1, a)

    for trip, captured in ((8, True), (8192, False)):
        made = compiled(lambda a, trip=trip: function(a, trip), X[0], step="load")
        assert made.executable.on(emulated()).is_captured is captured


def test_memory_goes_back_to_the_pool() -> None:
    function, *args = PROGRAMS["forked"]
    driver = emulated()
    loaded = compiled(function, *args, step="load").executable.on(driver)
    for _ in range(3):
        loaded.on_host(args)
        assert not driver._pieces


def test_a_fault_gives_memory_back_too() -> None:
    def fails(a: Any) -> Any:
        raise ValueError("on purpose")

    def function(a: Any) -> Any:
        return jax.pure_callback(fails, jax.ShapeDtypeStruct(a.shape, a.dtype), a * 2) + 1

    driver = emulated()
    with drivers.using(driver), pytest.raises(Exception, match="on purpose"):
        jax.block_until_ready(stagejit.jit(function, options=EMULATED)(X))
    assert not driver._pieces
    made, at = compiled(function, X, step="load"), driver.allocate(X.nbytes)
    with pytest.raises(Exception, match="on purpose"):
        made.executable.on(driver).on_device(lambda _: [at], [(X.shape, X.dtype)])
    assert set(driver._pieces) == {at}
    with drivers.using(driver):
        assert same(stagejit.jit(lambda a: a + 1, options=EMULATED)(X), X + 1)


def test_a_fault_leaves_no_stream_that_still_writes() -> None:
    """A function of Python raises in a loop, while other streams are behind; what runs next gets
    their memory."""
    small = np.arange(12, dtype=np.float32).reshape(3, 4)
    is_wrong = False

    def check(a: Any) -> Any:
        if is_wrong:
            raise ValueError("on purpose")
        return a * 0.5

    def fails(x: Any, y: Any) -> Any:
        for _ in range(5):
            y = jnp.sin(y @ y.T @ y * 0.01)
        long, other = y, x
        for _ in range(3):
            other = jnp.cos(other @ other.T @ other * 0.01)
        looped = jax.lax.fori_loop(0, 3, lambda _, c: jax.pure_callback(check, c, c) + 1, x)
        return long, other, looped

    def works(x: Any, y: Any) -> Any:
        return jnp.sin(x) @ y.T @ x, x - y, x + y

    args = [small, small + 1]
    first, second = (compiled(f, *args, step="load").executable for f in (fails, works))
    wanted = jax.jit(works)(*args)
    assert first.program.streams > 2
    for seed in range(_SEEDS):
        driver = emulated(seed)
        loaded, later = first.on(driver), second.on(driver)
        is_wrong = False
        loaded.on_host(args)
        is_wrong = True
        for _ in range(3):
            with pytest.raises(ValueError, match="on purpose"):
                loaded.on_host(args)
            assert same(later.on_host(args), wanted)


# -------------------------------------------------------------------- inside of JAX


def test_transformations() -> None:
    f = stagejit.jit(lambda a, b: jnp.sin(a) * b["k"], options=EMULATED)
    g = lambda a, b: jnp.sin(a) * b["k"]  # noqa: E731
    b = {"k": X[0]}
    v = np.linspace(0, 1, 53, dtype=np.float32)
    assert same(jax.vmap(f, (0, None))(X, b), jax.vmap(g, (0, None))(X, b))
    assert same(jax.jit(lambda a: f(a, b) + 1)(v), g(v, b) + 1)
    assert same(jax.jvp(f, (v, b), (v, b)), jax.jvp(g, (v, b), (v, b)))
    _, pull = jax.vjp(f, v, b)
    _, pull_too = jax.vjp(g, v, b)
    assert same(pull(v), pull_too(v))
    carry, ys = jax.lax.scan(lambda c, x: (f(c, {"k": x}), c), v, X)
    carry_too, ys_too = jax.lax.scan(lambda c, x: (g(c, {"k": x}), c), v, X)
    assert same((carry, ys), (carry_too, ys_too))
    assert same(jax.checkpoint(f)(v, b), g(v, b))


def test_donated_arguments_are_updated() -> None:
    f = stagejit.jit(lambda a, b: a.at[2:5].add(b), donate_argnums=0, options=EMULATED)
    found = f(jnp.asarray(X), X[:3])
    wanted = X.copy()
    wanted[2:5] += X[:3]
    assert same(found, wanted)
    f(X, X[:3])
    assert same(f(X, X[:3]), wanted)


def test_what_is_called_back_may_call_us() -> None:
    """On another thread, of XLA's, while the caller waits."""
    inner = stagejit.jit(lambda a: a * 3 + 1, options=EMULATED)

    def called(a: Any) -> Any:
        return np.asarray(inner(np.asarray(a)))

    def outer(a: Any) -> Any:
        return jax.pure_callback(called, jax.ShapeDtypeStruct(a.shape, a.dtype), a * 2) + 1

    staged = stagejit.jit(outer, options=EMULATED)
    for _ in range(3):
        assert same(staged(X), X * 6 + 2)
    again = stagejit.jit(outer, options=EMULATED)  # compiled while it is called
    assert same(again(X[:5]), X[:5] * 6 + 2)


def test_threads_share_a_device() -> None:
    f = stagejit.jit(PROGRAMS["forked"][0], options=EMULATED)
    wanted, wrong = f(X, X), list[int]()

    def work() -> None:
        for n in range(10):
            if not same(f(X, X), wanted):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_a_gpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NoDriverError("there is none", next_step="pip install 'stagejit[cuda]'")

    monkeypatch.setattr(drivers, "_real", none)
    f = stagejit.jit(lambda a: a + 1, backend="cuda")
    with pytest.raises(NoDriverError, match=r"pip install 'stagejit\[cuda\]'"):
        f(X)
    assert "__global__" in f.lower(X).as_text("cuda")
    with pytest.raises(Exception, match=r"pip install 'stagejit\[cuda\]'"):
        jax.block_until_ready(stagejit.jit(lambda a: a + 1, options=Options(target="cuda"))(X))
