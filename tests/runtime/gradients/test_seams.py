"""A JAX that is built differently is left alone; values are the same."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from typing import Any

import jax
import jax.numpy as jnp

import stagejit
from stagejit.runtime.gradients import seams

PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np
    from jax._src.interpreters import ad, batching, partial_eval
    from jax.extend.core.primitives import jit_p
    {change}
    tables = (ad.primitive_linearizations, partial_eval.custom_partial_eval_rules,
              partial_eval.partial_eval_jaxpr_custom_rules)
    known = [each[jit_p] for each in tables]
    import stagejit
    w = jnp.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4) / 9)
    f = lambda w, x: jnp.sin(x @ w).sum()
    x = jnp.ones((2, 3))
    found = jax.jit(jax.grad(stagejit.bind(f, w)))(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: f(w, x))(x), rtol=1e-5)
    from stagejit.runtime.gradients import seams
    print([a is b[jit_p] for a, b in zip(known, tables)], *seams.problems())
"""


def run(change: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(change=change)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout


def test_this_jax_has_all_that_is_used() -> None:
    assert not seams.problems()
    assert run("") == "[False, False, False]\n"


def test_another_jax_is_left_alone() -> None:
    change = "del batching.fancy_primitive_batchers[jit_p]"
    said = "fancy_primitive_batchers has no rule for the jit primitive"
    assert run(change) == f"[True, True, True] {said}\n"


def test_no_rule_keeps_what_it_was_given() -> None:
    """Weights, and the programs of functions that are gone, go."""

    def life() -> list[weakref.ref[Any]]:
        w = jnp.ones((5, 8, 8)) / 9

        def f(w: Any, x: Any) -> Any:
            x = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.T), None), x, w)[0]
            return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w[0], lambda x: x @ w[1], x)

        bound, x = stagejit.bind(f, w), jnp.ones((3, 8))
        loss = lambda x: bound(x).sum()  # noqa: E731
        for function in (loss, jax.checkpoint(loss), lambda x: jax.vmap(loss)(x[None]).sum()):
            jax.block_until_ready((jax.grad(function)(x), jax.jit(jax.grad(function))(x)))
        mapped = lambda x: jax.lax.map(loss, x[None]).sum()  # noqa: E731
        jax.block_until_ready(jax.jit(jax.grad(mapped))(x))  # JAX keeps loops outside of programs
        jax.block_until_ready(jax.jit(jax.hessian(loss))(x))
        assert bound.memory_analysis()["programs"] > 4
        return [weakref.ref(each) for each in (w, bound._weights()[0], bound._moment)]

    refs = life()
    for _ in range(3):
        gc.collect()
    assert [ref() for ref in refs] == [None] * 3
