"""Moments that are held: what weights were, and how long somebody keeps it."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.errors import GoneError
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.gradients.held import held_snapshot, keep
from stagejit.trace.weights import Budget, Weight, changing


def weights(*arrays: Any) -> list[Weight]:
    """The moment first."""
    moment = Weight("moment of f", jnp.zeros(3, jnp.uint32), True, Budget(0.0))
    moment.is_moment = True
    made = [Weight(f"w{n}", array, False, Budget(0.0)) for n, array in enumerate(arrays)]
    for each in made:
        each.moment = moment
    return [moment, *made]


def put(weight: Weight, array: Any) -> None:
    """As an update does."""
    with changing:
        keep(weight)
        weight.put(array, is_copy=False)


def test_a_moment_is_held_as_long_as_its_snapshot_is_there() -> None:
    moment, w = weights(jnp.arange(4.0))
    snapshot = held_snapshot([moment])
    assert np.asarray(snapshot).view(np.int64)[0] == snapshots.now()
    other = held_snapshot([moment])
    assert len(w.holds) == 2
    hold = w.holds[0]
    for value in (1.0, 2.0):
        put(w, jnp.full(4, value))
    np.testing.assert_array_equal(hold.arrays([w])[w], jnp.arange(4.0))
    assert hold.arrays([moment]) == {}  # it is what it was
    del hold, snapshot, other
    gc.collect()
    assert w.holds == []


def test_what_is_deleted_later_is_there_and_what_was_before_is_not() -> None:
    moment, w, gone = weights(jnp.arange(4.0), jnp.ones(4))
    kept = held_snapshot([moment])
    gone.array.delete()
    array = w.array
    for each in (w, gone):
        put(each, jnp.zeros(4))
    array.delete()
    (hold,) = w.holds
    np.testing.assert_array_equal(hold.arrays([w])[w], jnp.arange(4.0))
    with pytest.raises(GoneError, match="nobody has what the weight w1 was"):
        hold.arrays([w, gone])
    del kept


def test_random_keys_are_kept_as_they_are() -> None:
    moment, w = weights(jax.random.key(3))
    kept = held_snapshot([moment])
    put(w, jax.random.key(4))
    (hold,) = w.holds
    assert jax.random.key_data(hold.arrays([w])[w])[1] == 3
    del kept
