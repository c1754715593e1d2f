"""A JAX that is built differently is left alone; values are the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from stagejit.trace.residuals import seams

PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np
    from jax._src.interpreters import ad, batching, partial_eval
    {change}
    known = ad.linearize_jaxpr, partial_eval.partial_eval_jaxpr_nounits, batching.batch_jaxpr2
    import stagejit
    from stagejit.trace.residuals import seams
    w = jnp.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4) / 9)
    f = lambda w, x: jnp.sin(x @ w).sum()
    x = jnp.ones((2, 3))
    found = jax.grad(stagejit.bind(f, w))(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: f(w, x))(x), rtol=1e-5)
    now = ad.linearize_jaxpr, partial_eval.partial_eval_jaxpr_nounits, batching.batch_jaxpr2
    print([a is b for a, b in zip(known, now)], *seams.problems())
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
    change = "made = batching.batch_jaxpr2; batching.batch_jaxpr2 = lambda *args: made(*args)"
    assert run(change) == "[True, True, True] batch_jaxpr2 takes other parameters\n"
