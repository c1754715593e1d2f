"""`Bound.update` in the middle of a call: all parts of it, ours and XLA's, read weights of one
moment."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import stagejit
from stagejit.runtime.cpu import snapshots, weights
from stagejit.runtime.lowering.snapshots import BEGIN
from stagejit.trace.weights import tables_of

N = 16
X = jnp.arange(1.0, N + 1)
XLA_LOOPS = ("native-control-flow",)  # disabled: XLA runs loops and branches


PIECES = stagejit.Options(disable=(*XLA_LOOPS, "leave-bodies"))


def params(k: float) -> dict[str, Any]:
    vector = jnp.full(N, k, jnp.float32)
    return {"a": vector, "b": vector + 1, "m": jnp.diag(vector), "big": jnp.full((64, 64), k)}


class Updating:
    """A function of an array that returns it, and has another thread give a bound function other
    weights before it does. A call of XLA's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, backwards: bool = False) -> None:
        # The thread would wait for the call that waits for it.
        monkeypatch.setattr("stagejit.binding.wait_for_calls", lambda: None)
        monkeypatch.setattr(weights, "_MOST_SECONDS", 0.01)
        self.bound: Any = None
        self.backwards = backwards
        self.k, self.given = 1.0, list[Any]()

    def __call__(self, x: Any) -> Any:
        def called(x: Any) -> Any:
            return jax.pure_callback(self._update, x, x, vmap_method="sequential")

        if self.backwards:
            both = jax.custom_vjp(called)
            both.defvjp(lambda x: (called(x), None), lambda _, y: (called(y),))
            return both(x)
        forwards = jax.custom_jvp(called)
        forwards.defjvp(lambda primals, tangents: (called(*primals), called(*tangents)))
        return forwards(x)

    def _update(self, x: Any) -> Any:
        if self.bound is not None:
            self.k += 1
            self.given.append(params(self.k))
            thread = threading.Thread(target=self.bound.update, args=self.given[-1:])
            thread.start()
            thread.join()
        return np.asarray(x)


Call = Callable[[Any], Any]


def parts(call: Call, p: Any, x: Any) -> Any:
    y = call(x * p["a"])
    return x + p["b"], y * p["a"], call(y + p["b"]) * p["b"]


def made(call: Call, p: Any, x: Any) -> Any:
    y = call(x @ (p["m"] * jnp.exp(p["a"] * 0)))
    return y @ (p["m"] + 1.0), y + jnp.sqrt(p["b"])


def products(call: Call, p: Any, x: Any) -> Any:
    y = jnp.tile(x, 4) @ p["big"]
    return call(y), call(jnp.tile(x, 4)) @ p["big"]


def loops(call: Call, p: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return call(y * p["a"] / N) + p["b"]

    return x * p["a"], lax.fori_loop(0, 3, body, x), x + p["b"]


def scans(call: Call, p: Any, x: Any) -> Any:
    def body(y: Any, z: Any) -> Any:
        return call(y + z * p["a"]) / 2, p["b"] * z + call(y)

    return x - p["b"], lax.scan(body, x, jnp.stack([x, 2 * x]))


def whiles(call: Call, p: Any, x: Any) -> Any:
    def turn(state: Any) -> Any:
        i, y = state
        return i + 1, call(y / 2 + p["a"])

    first = x * p["b"]
    _, y = lax.while_loop(lambda state: state[0] < 3, turn, (0, x))
    return first, y, y + p["a"]


def branches(call: Call, p: Any, x: Any) -> Any:
    y = lax.cond(x[0] > 0, lambda x: call(x * p["a"]) + p["b"], lambda x: x - p["a"], x)
    return y * p["a"], lax.cond(y[0] < 0, lambda x: x, lambda x: call(x) * p["b"], x)


def nested(call: Call, p: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda j, z: call(z / 2) + p["a"], y)
        return lax.cond(i > 0, lambda y: call(y) + p["b"], lambda y: y * p["a"] / N, inner)

    return x * p["b"], lax.fori_loop(0, 2, body, x)


def jitted(call: Call, p: Any, x: Any) -> Any:
    part = stagejit.jit(lambda y: call(y * p["a"]) + p["b"])
    return part(x), jax.jit(lambda y: call(y + p["b"]) * p["a"])(x)


FUNCTIONS = {
    f.__name__: f for f in (parts, made, products, loops, scans, whiles, branches, nested, jitted)
}


def around(f: Call, loop: str) -> Call:
    """A loop or branch that XLA runs, with pieces of ours in its bodies, which read weights."""

    def turn(x: Any) -> Any:
        return x / 2 + sum(y.sum() for y in jax.tree.leaves(f(x))) / 1e4

    def scans(x: Any) -> Any:
        return lax.scan(lambda y, z: (turn(y + z), turn(y)), x, jnp.stack([x, 2 * x]))

    def whiles(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, turn(s[1])), (0, x))[1]

    def branches(x: Any) -> Any:
        x = lax.cond(x[0] > 0, turn, lambda x: x, x)
        return lax.switch(1, [lambda x: x, lambda x: turn(x) + 1, turn], x)

    def several(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, y: lax.cond(i > 0, turn, lambda y: turn(2 * y), y), x)

    made = {"scans": scans, "whiles": whiles, "branches": branches, "several": several}[loop]
    both: Call = stagejit.jit(lambda x: (made(x), turn(x)), options=PIECES)
    return both


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "call": lambda f: f,
    "jit": lambda f: jax.jit(lambda x: f(x)),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "ours around": lambda f: stagejit.jit(lambda x: jax.tree.map(lambda y: y + 1, f(x))),
    "jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x + 1,))),
    "grad": lambda f: stagejit.jit(
        jax.grad(lambda x: sum(y.sum() for y in jax.tree.leaves(f(x)) if y.ndim))
    ),
    **{
        f"in {loop}": functools.partial(around, loop=loop)
        for loop in ("scans", "whiles", "branches", "several")
    },
}
IRREVERSIBLE = {"whiles"}


@pytest.mark.some(12)
@pytest.mark.parametrize("how", TRANSFORMED)
@pytest.mark.parametrize("off", [(), XLA_LOOPS], ids=["native", "loops of XLA"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_reads_weights_of_one_moment(
    name: str, off: tuple[str, ...], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "grad" and name in IRREVERSIBLE:
        pytest.skip("JAX reverses no while loop")
    f, transformed = FUNCTIONS[name], TRANSFORMED[how]
    updating = Updating(monkeypatch, backwards=how == "grad")
    options = stagejit.Options(disable=off, verify=True)
    bound = stagejit.bind(lambda p, x: f(updating, p, x), params(1.0), options=options)
    function = transformed(bound)
    function(X)
    updating.bound = bound
    for _ in range(2):
        k = updating.k
        found = jax.tree.map(np.asarray, function(X))
        assert updating.k > k
        wanted = transformed(lambda x, k=k: f(lambda y: y, params(k), x))(X)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, wanted
        )
    assert snapshots.moments() == [snapshots.next_moment() - 1]  # no call has one any more
    bound.update(params(1.0))
    assert lists_of(bound) == {1}


def lists_of(bound: Any) -> set[int]:
    return {len(table.table._lists) for table in tables_of(bound._weights())}


def test_a_program_that_reads_weights_once_takes_no_snapshot() -> None:
    def calls(f: Any) -> str:
        return jax.jit(stagejit.bind(f, params(1.0))).lower(X).as_text()

    call = functools.partial(jax.pure_callback, lambda x: x, X)
    assert BEGIN not in calls(lambda p, x: x * p["a"])
    assert BEGIN not in calls(lambda p, x: call(x) * p["a"])
    assert calls(lambda p, x: call(x * p["a"]) * p["a"]).count(BEGIN) == 1


def test_on_several_threads() -> None:

    def slow(x: Any) -> Any:
        time.sleep(1e-3)
        return x

    call = functools.partial(jax.pure_callback, slow, X)
    bound = stagejit.bind(lambda p, x: call(x * p["a"]) * p["a"], params(1.0))
    bound(X)
    stop, found = threading.Event(), set[float]()

    def calls() -> None:
        while not stop.is_set():
            found.update(np.unique(np.asarray(bound(X)) / X).tolist())

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        bound.update(params(float(number % 3 + 1)))
    stop.set()
    for thread in threads:
        thread.join()
    assert found <= {1.0, 4.0, 9.0}


def test_a_loop_of_effects_alone_may_outlive_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing tells when it ends; it reads weights that are there."""
    updating, seen = Updating(monkeypatch), list[Any]()
    given = params(1.0)
    bound = stagejit.bind(lambda p, x: updating(x * p["a"]) * p["b"], given)

    def turn(_: Any, nothing: Any) -> Any:
        jax.debug.callback(lambda y: seen.append(np.asarray(y)), bound(X))
        return nothing

    f = stagejit.jit(lambda x: (x * bound(X), lax.fori_loop(0, 3, turn, ())), options=PIECES)
    for number in range(4):
        np.asarray(f(X)[0])
        if not number:
            updating.bound = bound
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    assert len(seen) == 12
    assert all(np.isfinite(y).all() for y in seen)


@pytest.mark.parametrize("off", [(), ("leave-bodies",)], ids=["left", "pieces"])
@pytest.mark.parametrize("ordered", [False, True])
def test_conditions_and_small_bodies(
    ordered: bool, off: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    updating = Updating(monkeypatch)
    bound = stagejit.bind(lambda p, x: x * p["a"], params(2.0))

    def called(x: Any) -> Any:
        return io_callback(updating._update, x, x, ordered=ordered)

    def goes_on(state: Any) -> Any:
        return (state[0] < bound(jnp.ones(N))[0]) & (state[0] < 20)

    def whiles(x: Any) -> Any:
        return lax.while_loop(goes_on, lambda s: (s[0] + 1, called(s[1])), (0, x))[0]

    def loops(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, y: called(bound(y)), x)

    for f, wanted in ((whiles, lambda k: k), (loops, lambda k: X * k**3)):
        g = stagejit.jit(f, options=stagejit.Options(disable=off))
        updating.bound = None
        jax.block_until_ready(g(X))
        updating.bound, updating.k = bound, 2.0
        bound.update(params(2.0))
        np.testing.assert_allclose(g(X), wanted(2.0))
        assert updating.k >= 4
