"""JAX's own test cases of every primitive in the op set, compiled and run.

`-m slow` runs all of them; by default a few of each group, with and without the wide types, and
one of each with bounds checks and every verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from tests.oracle import oracle_harness

# What stays with XLA although its group is native, and why.
GAPS = ("bitcast from bool to bool",)


def compiled(options: Options) -> Callable[[Any, Sequence[Any]], list[Any]]:
    def run(fn: Any, args: Sequence[Any]) -> list[Any]:
        return jax.tree.leaves(stagejit.jit(fn, options=options)(*args))

    return run


@pytest.mark.some(5)
@pytest.mark.parametrize("harness", oracle_harness.sample(3), ids=lambda h: h.fullname[:80])
def test_sampled_harness(harness: Any) -> None:
    oracle_harness.check(harness, compiled(Options()))


@pytest.mark.parametrize("harness", oracle_harness.sample(1), ids=lambda h: h.fullname[:80])
def test_sampled_harness_with_bounds_checks(harness: Any) -> None:
    oracle_harness.check(harness, compiled(Options(verify=True)))


@pytest.mark.some(2)
@pytest.mark.parametrize("harness", oracle_harness.sample(1), ids=lambda h: h.fullname[:80])
def test_sampled_harness_without_wide_types(harness: Any) -> None:
    check_narrow(harness)


def check_narrow(harness: Any) -> None:
    """`oracle_harness.check` with x64 off: wide arguments and results are narrowed by JAX."""
    args = oracle_harness.arguments(harness)
    expected = jax.tree.leaves(jax.jit(harness.dyn_fun)(*args))
    actual = jax.tree.leaves(stagejit.jit(harness.dyn_fun)(*args))
    for ours, theirs in zip(actual, expected, strict=True):
        oracle_harness.assert_close(np.asarray(ours), np.asarray(theirs), scale=8.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", sorted(oracle_harness.GROUPS))
def test_every_harness(group: str) -> None:
    failures = []
    for number, harness in enumerate(oracle_harness.cases(frozenset({group}))):
        try:
            oracle_harness.check(harness, compiled(Options()))
        except Exception as fault:
            failures.append(f"{harness.fullname}: {type(fault).__name__}: {fault}")
        if number % 100 == 99:
            jax.clear_caches()
    assert not failures, "\n\n".join(failures)


def test_native_groups_are_not_delegated() -> None:
    """Only what the table of gaps names is left to XLA."""
    for harness in oracle_harness.sample(4):
        with jax.enable_x64(True):
            plan = stagejit.jit(harness.dyn_fun).plan(*oracle_harness.arguments(harness))
        for delegated in plan.delegated:
            assert any(gap in delegated.reason for gap in GAPS), delegated.reason
