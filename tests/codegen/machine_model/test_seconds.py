"""How long kernels are said to take on machines that are not here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from stagejit.codegen.target import Target
from stagejit.runtime.hosting.launching import launching
from tests.codegen.machine_model.machines import MANY, kernel, kernels, server


def test_one_core_has_no_more_than_its_own_bandwidth() -> None:
    """However many there are: what it takes on one core does not depend on the others."""
    seconds = [
        kernel(lambda x: x + 1, (1 << 24,), target=server("znver4", cores)).seconds
        for cores in MANY
    ]
    assert len(set(seconds)) == 1
    assert seconds[0] == pytest.approx(2 * 4 * 2**24 / 20e9)


def test_stores_go_to_the_caches_of_all_cores() -> None:
    """Of eight last caches, each shared by eight cores, a core's part of a map lies in its own."""
    one, eight = server("znver4", 64), replace(server("znver4", 64), l3s=8)
    made = [kernel(lambda x: x + 1, (1 << 24,), target=target) for target in (one, eight)]
    found = [next(c.reason for c in k.choices if c.name == "stream") for k in made]
    assert found[0].startswith("1 of 1 stores bypass the caches")
    assert found[1] == "stores go to the caches: 128 MiB of traffic, 256 MiB of cache"
    assert made[0].seconds == made[1].seconds  # one core has one of them


def test_sorting_is_no_work_for_multipliers() -> None:
    """Digits are counted one by one, however many ports there are."""
    seconds = {
        kernel(lambda x: jnp.sort(x), (1 << 16,), target=target).seconds
        for target in (server("znver4"), server("znver5"), Target.sse2())
    }
    assert len(seconds) == 1


PICKED: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda x, _: x,
    "slice": lambda x, _: x[8:16],
    "slice found out": lambda x, at: jax.lax.dynamic_slice_in_dim(x, at[0], 8),
    "rows": lambda x, at: x[at],
    "slice of rows": lambda x, at: x[at][:, :1024],
    "repeated": lambda x, _: jnp.broadcast_to(x[5], (8, x.shape[1])),
}
USED: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: jnp.exp(x) * 2,
    "row sums": lambda x: x.sum(1),
    "column sums": lambda x: x.sum(0),
    "softmax": jax.nn.softmax,
    "running sums": lambda x: jnp.cumsum(x, 1),
    "sort": lambda x: jnp.sort(x, 1),
    "product": lambda x: x @ jnp.ones((x.shape[1], 8)),
    "transpose": lambda x: x.T + 0,
}


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("picked", PICKED)
def test_a_part_of_an_array_takes_what_it_takes_alone(picked: str, used: str) -> None:
    """To read some rows of a table had been as long as to read all of it, so that it was forked."""

    def f(x: Any, at: Any) -> Any:
        return USED[used](PICKED[picked](x, at))

    target, at = server("znver4", 8), jax.ShapeDtypeStruct((8,), jnp.int32)
    part, rows = (8, 1024), 8 if picked == "all" else 1 << 16
    alone = kernels(USED[used], jax.ShapeDtypeStruct(part, jnp.float32), target=target)
    made = kernels(f, jax.ShapeDtypeStruct((rows, 1024), jnp.float32), at, target=target)
    assert sum(each.seconds for each in made) < 3 * sum(each.seconds for each in alone) + 2e-6


@pytest.mark.parametrize("fn", ["add", "set", "max"])
def test_updates_take_what_is_updated(fn: str) -> None:
    def f(x: Any, at: Any, y: Any) -> Any:
        return getattr(x.at[at], fn)(y)

    target, at = server("znver4", 8), jax.ShapeDtypeStruct((8,), jnp.int32)
    table, rows = (jax.ShapeDtypeStruct((n, 1024), jnp.float32) for n in (1 << 16, 8))
    (made,) = kernels(f, table, at, rows, target=target, donated=(0,))
    assert made.seconds < 10e-6
    assert not launching(made, target)[1]


def test_elements_far_apart_take_their_lines() -> None:
    """Not the array, nor their own bytes alone."""
    target, x = server("znver4", 8), jax.ShapeDtypeStruct((1 << 24,), jnp.float32)
    at = jax.ShapeDtypeStruct((1 << 14,), jnp.int32)
    (strided,) = kernels(lambda x: x[::1024] + 1, x, target=target)
    (found,) = kernels(lambda x, at: x[at] + 1, x, at, target=target)
    line = target.line_nbytes / target.cache_bandwidth
    assert 0.9 < strided.seconds / (line * (1 << 14)) < 1.2
    assert 0.9 < found.seconds / (line * (1 << 14)) < 1.3
