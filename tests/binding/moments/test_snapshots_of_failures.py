"""A call that fails half-way lets its snapshot of the weights go."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import stagejit
from stagejit.runtime.cpu import snapshots
from stagejit.trace.weights import tables_of
from tests.binding.moments.test_snapshots import FUNCTIONS, TRANSFORMED, XLA_LOOPS, X, params

Call = Callable[[Any], Any]


def raises(error: BaseException) -> Callable[[Any], Any]:
    def failing(_: Any) -> Any:
        raise error

    return failing


FAILURES: dict[str, Callable[[Any], Any]] = {
    "error": raises(ValueError("on purpose")),
    "interrupt": raises(KeyboardInterrupt("on purpose")),
    "shape": lambda x: np.zeros((*x.shape, 2), x.dtype),
    "dtype": lambda x: np.asarray(x).astype(np.int16),
    "results": lambda x: (x, x),
}


class Failing:
    """A function of an array that returns it, and fails the n-th time. A call of XLA's."""

    def __init__(self, kind: str, failure: str) -> None:
        self.kind, self.failure = kind, FAILURES[failure]
        self.count, self.fails_at = 0, -1

    def __call__(self, x: Any) -> Any:
        def called(x: Any) -> Any:
            if self.kind == "debug":
                jax.debug.callback(self._maybe, x)
                return x
            if self.kind == "pure":
                return jax.pure_callback(self._maybe, x, x, vmap_method="sequential")
            return io_callback(self._maybe, x, x, ordered=self.kind == "ordered")

        both = jax.custom_vjp(called)
        both.defvjp(lambda x: (called(x), None), lambda _, y: (called(y),))
        return both(x)

    def _maybe(self, x: Any) -> Any:
        self.count += 1
        return self.failure(x) if self.count == self.fails_at else np.asarray(x)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody looks whether anybody waits for a call: it has to tell."""
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "_may_run", lambda *_: True)
        yield
    snapshots.moments()


def lists_of(bound: Any) -> set[int]:
    return {len(table.table._lists) for table in tables_of(bound._weights())}


def ended(function: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, when all of it is done; None where it fails."""
    try:
        return jax.tree.map(np.asarray, function(*args))
    except (Exception, KeyboardInterrupt):
        return None
    finally:
        try:
            jax.effects_barrier()  # type: ignore[no-untyped-call]
        except Exception:
            jax._src.dispatch.runtime_tokens.clear()


KINDS = [
    *(("pure", f) for f in FAILURES),
    ("io", "error"),
    ("ordered", "error"),
    ("debug", "error"),
]


@pytest.mark.some(60)
@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("how", [h for h in TRANSFORMED if h != "jvp"])
@pytest.mark.parametrize("off", [(), XLA_LOOPS], ids=["native", "loops of XLA"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_kept(name: str, off: tuple[str, ...], how: str, kind: tuple[str, str]) -> None:
    has_branches = name in ("branches", "nested")
    if how == "vmap" and (kind[0] == "ordered" or (kind[0] == "io" and has_branches)):
        pytest.skip("JAX has no such program")
    if how == "grad" and name == "whiles":
        pytest.skip("JAX reverses no while loop")
    failing = Failing(*kind)
    options = stagejit.Options(disable=off, verify=True)
    bound = stagejit.bind(lambda p, x: FUNCTIONS[name](failing, p, x), params(1.0), options=options)
    function = TRANSFORMED[how](bound)
    ended(function, X)
    failing.count = 0
    wanted = ended(function, X)
    assert wanted is not None
    count = failing.count
    for number in sorted({1, count // 2 + 1, count}):
        failing.count, failing.fails_at = 0, number
        given = params(2.0)
        bound.update(given)
        gone = [weakref.ref(array) for array in given.values()]
        assert ended(function, X) is None
        del given
        bound.update(params(1.0))
        assert snapshots.moments() == [snapshots.next_moment() - 1]
        assert lists_of(bound) == {1}
        gc.collect()
        assert not any(ref() is not None for ref in gone)
    failing.fails_at = -1
    jax.tree.map(np.testing.assert_array_equal, ended(function, X), wanted)


@pytest.mark.usefixtures("told")
def test_a_part_of_ours_that_fails() -> None:
    """By a check, also where it reads no weights, or looks at what XLA made for XLA."""
    options = stagejit.Options(check_nans=True)
    for at in range(4):

        def f(p: Any, x: Any, at: int = at) -> Any:
            inverse = [jnp.log(x - 2) if at == number else x for number in range(3)]
            y = jax.pure_callback(np.asarray, x, inverse[0] * p["a"])
            z = jnp.sin(y + inverse[1])
            made = jax.pure_callback(np.log if at == 3 else np.asarray, x, z - 9 * (at == 3))
            return jax.pure_callback(np.asarray, x, made) * p["b"] * inverse[2]

        bound = stagejit.bind(f, params(1.0), options=options)
        assert ended(bound, X) is None
        bound.update(params(2.0))
        assert snapshots.moments() == [snapshots.next_moment() - 1]
        assert lists_of(bound) == {1}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("off", [(), ("leave-bodies",)], ids=["left", "pieces"])
def test_a_condition_that_fails(off: tuple[str, ...]) -> None:
    failing = Failing("io", "error")
    bound = stagejit.bind(lambda p, x: x * p["a"] / p["a"], params(1.0))

    def whiles(x: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return (state[0] < 3) & (failing(bound(state[1])).sum() < 1e9)

        return lax.while_loop(goes_on, lambda s: (s[0] + 1, s[1] * 2), (0, x))

    f = stagejit.jit(lambda x: (bound(x), whiles(x)), options=stagejit.Options(disable=off))
    assert ended(f, X) is not None
    failing.count, failing.fails_at = 0, 2
    assert ended(f, X) is None
    assert snapshots.moments() == [snapshots.next_moment() - 1]


def with_one_part_between(failing: Any) -> Any:
    def f(p: Any, x: Any) -> Any:
        return failing(x * p["a"]) * p["b"]

    return stagejit.bind(f, params(1.0))


CALLERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "this thread": lambda call: call(),
    "another one": lambda call: ThreadPoolExecutor(1).submit(call).result(),
    "one that has gone": lambda call: _in_thread(call),
}


def _in_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "around", [lambda f: f, lambda f: jax.jit(lambda x: f(x) + 1)], ids=["alone", "in a program"]
)
@pytest.mark.parametrize("caller", CALLERS)
def test_where_nobody_waits_for_a_call_it_has_gone(
    caller: str, around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "give_back", lambda snapshot: None)  # nobody learns of it
    failing = Failing("pure", "error")
    bound = with_one_part_between(failing)
    f = around(bound)
    wanted = ended(f, X)
    for number in range(4):
        failing.count, failing.fails_at = 0, 1
        CALLERS[caller](lambda: ended(f, X))
        bound.update(params(number + 1.0))
        assert snapshots.moments() == [snapshots.next_moment() - 1]
        assert lists_of(bound) == {1}
    failing.fails_at = -1
    bound.update(params(1.0))
    np.testing.assert_array_equal(ended(f, X), wanted)


MANY = 30


@pytest.mark.parametrize("where", ["in it", "on another thread"])
@pytest.mark.parametrize("meanwhile", ["nothing", "calls", "failures", "failures nobody tells"])
def test_a_call_that_runs_reads_what_it_began_with(
    meanwhile: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens before it goes on: many updates, and calls of others between them."""
    monkeypatch.setattr("stagejit.runtime.cpu.weights._MOST_SECONDS", 0.0)
    if where != "in it":  # which waits for the thread
        monkeypatch.setattr("stagejit.binding.wait_for_calls", lambda: None)
    if meanwhile == "failures nobody tells":
        monkeypatch.setattr(snapshots, "give_back", lambda snapshot: None)
    failing = Failing("pure", "error")
    other = with_one_part_between(failing)
    bound: Any = None

    def happens() -> None:
        for number in range(MANY):
            failing.count, failing.fails_at = 0, 1 if meanwhile.startswith("failures") else -1
            if meanwhile != "nothing":
                ended(other, X)
            bound.update(params(float(number)))

    def called(x: Any) -> Any:
        if bound is not None:
            CALLERS["this thread" if where == "in it" else "one that has gone"](happens)
        return np.asarray(x)

    def f(p: Any, x: Any) -> Any:
        return jax.pure_callback(called, x, x * p["a"]) * p["b"]

    made = stagejit.bind(f, params(3.0))
    ended(made, X)
    bound = made
    np.testing.assert_allclose(made(X), X * 12)
    bound = None
    np.testing.assert_allclose(made(X), X * (MANY - 1) * MANY)
    made.update(params(1.0))
    assert lists_of(made) == {1}
