"""Copies of bound functions: by `copy` and by `pickle`."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import GoneError
from tests.binding.networks import X, array, assert_close, layers, network

COPIED = {
    "pickle": lambda f: pickle.loads(pickle.dumps(f)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "deepcopy of what has it": lambda f: copy.deepcopy({"model": [f]})["model"][0],
}


@pytest.mark.parametrize("how", COPIED)
@pytest.mark.parametrize("weights", [None, "int8"])
def test_a_copy_computes_the_same_and_is_updated_apart(how: str, weights: Any) -> None:
    options = stagejit.Options(verify=True)
    params = layers()
    bound = stagejit.bind(network, params, weights=weights, options=options)
    for called in (False, True):
        if called:
            bound(X)
        other = COPIED[how](bound)
        assert other.__name__ == "network"
        assert inspect.signature(other) == inspect.signature(bound)
        np.testing.assert_array_equal(other(X), bound(X))
    before = bound(X)
    other.update(layers(seed=5))
    assert_close(bound(X), before)
    assert np.abs(other(X) - before).max() > 0.1
    shares = how == "copy"
    assert (bound._leaves[0].content is COPIED[how](bound)._leaves[0].content) == shares


def test_a_copy_has_what_its_function_was_updated_with() -> None:
    bound = stagejit.bind(network, layers())
    bound(X)
    other = layers(seed=5)
    bound.update(other)
    assert_close(copy.deepcopy(bound)(X), network(other, X))


def test_what_is_gone_cannot_be_copied() -> None:
    bound = stagejit.bind(lambda p, x: x @ (p * 2), jnp.asarray(array(64, 64)))
    bound(jnp.ones((2, 64)))
    gc.collect()
    with pytest.raises(GoneError, match="keep the arrays that you bind"):
        copy.deepcopy(bound)


def test_doubles_of_arrays_that_are_deleted_stay_doubles() -> None:
    with jax.enable_x64(True):
        params = {"w": jnp.asarray(array(64, 64).astype(np.float64) / 3), "s": jnp.arange(64.0) / 7}
        bound = stagejit.bind(lambda p, x: (x * p["s"]) @ p["w"], params)
        wanted = bound(jnp.ones((3, 64)))
    for leaf in params.values():
        leaf.delete()
    other = copy.deepcopy(bound)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(other(jnp.ones((3, 64))), wanted)
