"""Weights in memory that arrays of JAX's share: an update sees what was written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.runtime.bound import evaluation_counts
from tests.binding.networks import array

N = 128
NETWORKS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda p, x: x @ p["w"],
    "square": lambda p, x: x @ (p["w"] * p["w"]),
    "turned": lambda p, x: jnp.tanh(x @ p["w"].T) @ p["w"],
    "scaled": lambda p, x: (x @ p["w"]) * p["s"],
    "both": lambda p, x: x @ (p["w"] * p["s"]) + p["s"],
    "loop": lambda p, x: lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y @ p["w"] + p["s"]), x),
}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "dlpack": jnp.from_dlpack,
    "device_put": lambda memory: jax.device_put(memory, may_alias=True),
}


def shared(*shape: int, seed: int, how: str) -> tuple[Any, Any]:
    """Memory, and an array of JAX's that lies there."""
    nbytes = 4 * int(np.prod(shape))
    room = np.empty(nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : start + nbytes].view(np.float32).reshape(shape)
    memory[...] = array(*shape, seed=seed)
    made = MAKERS[how](memory)
    assert made.unsafe_buffer_pointer() == memory.ctypes.data
    return memory, made


@pytest.mark.some(16)
@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("form", [None, "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_sees_what_was_written(name: str, form: Any, how: str, rows: int) -> None:
    f, x = NETWORKS[name], jnp.asarray(array(rows, N, seed=5))
    (w, a), (s, b) = shared(N, N, seed=1, how=how), shared(N, seed=2, how=how)
    bound = stagejit.bind(f, {"w": a, "s": b}, weights=form)
    bound(x)
    for seed in (3, 4):
        w[...], s[...] = array(N, N, seed=seed), array(N, seed=seed)
        bound.update({"w": a, "s": b})
        copies = {"w": jnp.array(w), "s": jnp.array(s)}
        anew = stagejit.bind(f, copies, weights=form)
        np.testing.assert_array_equal(bound(x), anew(x))
        again = stagejit.bind(f, {"w": a, "s": b}, weights=form)
        np.testing.assert_array_equal(again(x), anew(x))


def test_one_of_two_functions_is_updated_first() -> None:
    """What is made of an array is made once for both."""
    w, a = shared(N, N, seed=1, how="dlpack")
    x, f = jnp.ones((4, N)), NETWORKS["square"]
    first, second = (stagejit.bind(f, {"w": a}) for _ in range(2))
    before = np.asarray(first(x))
    np.testing.assert_array_equal(second(x), before)
    w[...] = 2
    first.update({"w": a})
    made = evaluation_counts()["evaluated"]
    np.testing.assert_array_equal(first(x), np.full((4, N), 4.0 * N))
    np.testing.assert_array_equal(second(x), before)
    second.update({"w": a})
    np.testing.assert_array_equal(second(x), np.full((4, N), 4.0 * N))
    assert evaluation_counts()["evaluated"] == made


def test_a_factor_that_was_overwritten_is_looked_at() -> None:
    w, (s, b) = jnp.asarray(array(N, N)), shared(N, seed=2, how="dlpack")
    s[...] = 1
    bound = stagejit.bind(lambda p, x: (x @ p["w"]) / p["s"], {"w": w, "s": b})
    before = np.asarray(bound(jnp.ones((2, N))))
    s[...] = 0
    with pytest.raises(stagejit.errors.OptionsError, match="before any call"):
        bound.update({"w": w, "s": b})
    np.testing.assert_array_equal(bound(jnp.ones((2, N))), before)
