"""Functions that are bound, updated and called in the middle of what JAX runs or traces: arrays
are bound as they are outside, and nothing of the binding becomes a part of what is around it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from tests.binding.networks import array, assert_close
from tests.transformations.test_transformations import run_with_two_devices

MESH = jax.sharding.Mesh(jax.devices()[:1], ("i",))
ROWS = jax.sharding.PartitionSpec("i")
X = jnp.asarray(array(4, 256, seed=2))


def mapped(f: Any) -> Any:
    return jax.shard_map(f, mesh=MESH, in_specs=ROWS, out_specs=ROWS)


def differentiated(f: Any) -> Any:
    return lambda x: jax.vjp(f, x)[0]


def within(context: Callable[[], Any]) -> Callable[[Any], Any]:
    def around(f: Any) -> Any:
        def called(x: Any) -> Any:
            with context():
                return f(x)

        return called

    return around


AROUND: dict[str, Callable[[Any], Any]] = {
    "shard_map": mapped,
    "jit of shard_map": lambda f: jax.jit(mapped(f)),
    "shard_map of grad": lambda f: mapped(differentiated(f)),
    "vmap": lambda f: jax.vmap(lambda x: f(x[None])[0]),
    "vjp": differentiated,
    "jit": jax.jit,
    "stagejit.jit": stagejit.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, x: (c, f(x[None])[0]), 0, x)[1],
    "disable_jit": within(jax.disable_jit),
    "enable_x64": within(lambda: jax.enable_x64(True)),
    "no transfers": within(lambda: jax.transfer_guard("disallow")),
    "a mesh": within(lambda: jax.set_mesh(MESH)),
    "debug_nans": within(lambda: jax.debug_nans(True)),
    "no leaks": within(jax.checking_leaks),
}
WEIGHTS = array(256, 128)
FORMS = {
    "as it is": ({}, lambda p, x: jnp.tanh(x @ p["w"])),
    "made": ({}, lambda p, x: jnp.tanh(x @ jnp.tanh(p["w"]))),
    "bf16": ({"weights": "bf16"}, lambda p, x: jnp.tanh(x @ p["w"])),
    "NaN": ({}, lambda p, x: 1.0 * jnp.isnan(x @ jnp.sqrt(p["w"]))),  # what is made has some
    "a key": ({}, lambda p, x: x @ p["w"] + jax.random.normal(p["key"], (1, 128), jnp.float32)),
}
ARRAYS = {"numpy": lambda: WEIGHTS, "jax": lambda: jnp.asarray(WEIGHTS)}


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", stagejit.FallbackWarning)
        yield


def near(found: Any, wanted: Any, form: str) -> None:
    tolerance = 2e-2 if form == "bf16" else 2e-5
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * 4)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arrays", ARRAYS)
def test_binding_inside(around: str, form: str, arrays: str) -> None:
    options, f = FORMS[form]
    params = {"w": ARRAYS[arrays](), "key": jax.random.key(3)}
    found = AROUND[around](lambda x: stagejit.bind(f, params, **options)(x))(X)
    near(found, f(params, X), form)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arrays", ARRAYS)
def test_updating_inside(around: str, form: str, arrays: str) -> None:
    """What is called inside reads what is then bound, and so does what is called afterwards."""
    options, f = FORMS[form]
    params = {"w": ARRAYS[arrays](), "key": jax.random.key(3)}
    other = {"w": params["w"] * 2, "key": jax.random.key(4)}
    bound = stagejit.bind(f, params, **options)
    bound(X)

    def updated(x: Any) -> Any:
        bound.update(other)
        return bound(x)

    near(AROUND[around](updated)(X), f(other, X), form)
    near(bound(X), f(other, X), form)


@pytest.mark.parametrize("around", AROUND)
def test_what_is_made_again_inside_is_an_array(around: str) -> None:
    """A copy goes when programs read it packed; those that are compiled inside make it again."""
    f = lambda p, x: (x @ p["w"]) @ jnp.tanh(p["w"]).T  # noqa: E731
    one = stagejit.bind(lambda p, x: x @ p["w"], {"w": WEIGHTS})
    assert_close(one(X), X @ WEIGHTS)
    found = AROUND[around](one)(X)
    assert_close(found, X @ WEIGHTS)
    both = stagejit.bind(f, {"w": WEIGHTS})
    wanted = f({"w": WEIGHTS}, X)
    np.testing.assert_allclose(AROUND[around](both)(X), wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(both(X[:3]), wanted[:3], rtol=1e-3, atol=1e-3)


def test_on_two_devices() -> None:
    """Arrays that each device has whole are bound as those of one; parts of arrays are not."""
    run_with_two_devices("""
        from jax.sharding import NamedSharding
        import gc
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        explicit = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
        w = np.arange(96, dtype=np.float32).reshape(3, 32) / 50
        f = lambda p, x: jnp.tanh(x @ p)
        for known in (mesh, explicit):
            for weights in (None, "int8"):
                whole = NamedSharding(known, P())
                bound = stagejit.bind(f, jax.device_put(w, whole), weights=weights)
                near = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-2)
                near(bound(x), np.tanh(x @ w))
                gc.collect()
                near(bound(x[:2]), np.tanh(x[:2] @ w))
                bound.update(jax.device_put(2 * w, whole))
                near(bound(x), np.tanh(x @ (2 * w)))
                bound.update(w)
                near(bound(x), np.tanh(x @ w))
        given = jax.device_put(w, NamedSharding(mesh, P()))
        bound = stagejit.bind(f, given)
        close(bound(x), np.tanh(x @ w))
        given.delete()
        close(bound(x), np.tanh(x @ w))
        rows = dict(mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        close(jax.shard_map(lambda x: stagejit.bind(f, w)(x), **rows)(x), np.tanh(x @ w))
        def updated(x):
            bound.update(3 * w)
            return bound(x)
        close(jax.shard_map(updated, **rows)(x), np.tanh(x @ (3 * w)))
        try:
            stagejit.bind(f, jax.device_put(w, NamedSharding(mesh, P(None, "i"))))
        except stagejit.errors.OptionsError as error:
            assert "bind arrays that one device of the CPU has whole" in str(error)
        else:
            raise AssertionError("parts of an array were bound")
        """)


# What comes first in a process, where nothing of the compiler is there yet.
FIRST = {
    "sharded": "y = bound(rows)",
    "jit of sharded": "y = jax.jit(bound)(rows)",
    "jit": "y = jax.jit(bound)(x)",
    "vmap": "y = jax.vmap(bound)(x)",
    "a mesh": "with jax.set_mesh(mesh): y = bound(x)",
    "jit in a mesh": "with jax.set_mesh(mesh): y = jax.jit(bound)(x)",
    "an update in a mesh": "bound(x)\nwith jax.set_mesh(mesh): bound.update(w)\ny = bound(x)",
    "an update before all": "with jax.set_mesh(mesh): bound.update(w)\ny = bound(x)",
    "on another thread": """
from threading import Thread
def run():
    with jax.set_mesh(mesh): bound.update(w)
one = Thread(target=run); one.start(); one.join()
y = bound(x)""",
    "export": """
try: jax.export.export(jax.jit(bound))(x)
except Exception as error: assert "the function with its parameters" in str(error), error
else: raise AssertionError
y = bound(x)""",
}


@pytest.mark.parametrize("first", FIRST)
def test_the_first_use_in_a_process(first: str) -> None:
    setup = """
from jax.sharding import NamedSharding
import threading
failed = []
threading.excepthook = failed.append
mesh = jax.make_mesh((2,), ("i",))
w = np.arange(96, dtype=np.float32).reshape(3, 32) / 50
bound = stagejit.bind(lambda p, x: jnp.tanh(x @ p), w)
rows = jax.device_put(x, NamedSharding(mesh, P("i")))
"""
    run_with_two_devices(setup + FIRST[first] + "\nclose(y, np.tanh(x @ w))\nassert not failed")
