"""Lines of the user's: equal, whoever called them, and kept without what JAX knows of that."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp

from stagejit.base.loc import Loc
from stagejit.compat import callers_of, loc_of


def helper(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


def both(x: jax.Array) -> jax.Array:
    y = helper(x)
    return helper(y)


def test_lines_know_who_called_them_and_are_equal() -> None:
    first, second = map(loc_of, jax.make_jaxpr(both)(1.0).eqns)
    assert first == second
    line = both.__code__.co_firstlineno
    assert [callers_of(loc)[0].line for loc in (first, second)] == [line + 1, line + 2]


def test_what_is_kept_is_the_line_alone() -> None:
    (loc, _) = map(loc_of, jax.make_jaxpr(both)(1.0).eqns)
    for kept in (pickle.loads(pickle.dumps(loc)), copy.deepcopy(loc)):
        assert kept == loc
        assert kept.source is None
    inside = Loc("net.py", 7, call=loc)
    assert pickle.loads(pickle.dumps(inside)).call is None
