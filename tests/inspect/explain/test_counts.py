"""Counts of one program are the same wherever they are told."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.inspect.explain.rendering.text import scratch_of
from stagejit.schedule.plans.turns import dispatches_text

X = np.ones((8, 8), np.float32)


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), c.sum()), x, None, length=3)


def straight(x: Any) -> Any:
    return jnp.tanh(x @ x) @ x


def bordered(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), jnp.pad(c, 1)), jnp.pad(x, 2), None, length=3)


@pytest.mark.parametrize("f", [scanned, straight, bordered])
def test_dispatches_and_copies_count_alike_everywhere(f: Any) -> None:
    staged = stagejit.jit(f)
    plan, explanation = staged.plan(X), staged.explain(X)
    totals, inner = plan.totals(), len([*plan.all_dispatches()]) - len(plan.dispatches)
    assert totals.inner == inner == sum(each.is_inner for each in explanation.dispatches)
    assert (inner > 0) == (f is not straight)
    said = dispatches_text(len(plan.dispatches), inner)
    assert (" in bodies of loops and branches" in said) == (inner > 0)
    assert str(explanation).startswith(f"{f.__name__}: {said}")
    lowered = staged.lower(X)
    assert lowered.picture("dispatches").note.startswith(f"{said}, ")
    assert lowered.picture("dispatches").panels[0].note.startswith(f"{said}, ")
    assert lowered.picture("timeline").panels[0].note.startswith(f"{said} in ")
    assert explanation.copied_nbytes == totals.copied_nbytes
    assert explanation.filled_nbytes == totals.filled_nbytes
    assert explanation.barriers == totals.barriers


def test_scratch_of_threads_is_told_beside_the_peak_where_kernels_are() -> None:
    staged = stagejit.jit(lambda x, w: jnp.tanh(x @ w) @ w)
    x = np.ones((256, 256), np.float32)
    explanation = staged.explain(x, x)
    nbytes = staged.lower(x, x).compile().memory_analysis()["scratch_nbytes_per_worker"]
    assert explanation.scratch_nbytes_per_worker == nbytes > 0
    line = scratch_of(explanation)
    assert line not in str(explanation)  # it depends on the machine
    assert explanation.as_text(kernels=True).splitlines()[-1] == line
    assert line in explanation.as_html()
    assert explanation.as_json()["summary"]["scratch_nbytes_per_worker"] == nbytes
    none = stagejit.jit(jnp.sin).explain(X)
    assert none.scratch_nbytes_per_worker == 0
    assert "scratch of kernels" not in none.as_text(kernels=True)
