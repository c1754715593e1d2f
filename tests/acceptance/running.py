"""Compiles and runs a function, and compares with NumPy, with every rewrite on and some off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan

Function = Callable[..., Any]
VERIFIED = Options(verify=True)


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plan_of(
    fn: Function,
    *args: Any,
    disable: Sequence[str] = (),
    options: Options = VERIFIED,
    **jit: Any,
) -> Plan:
    chosen = replace(options, disable=tuple(disable))
    plan: Plan = stagejit.jit(fn, options=chosen, **jit).plan(*args)
    return plan


def run(
    fn: Function,
    args: Sequence[Any],
    expected: Any,
    *,
    off: Sequence[str] = (),
    options: Options = VERIFIED,
    **jit: Any,
) -> Plan:
    """The plan of `fn`, whose results must be `expected`, with each switch of `off` off too."""
    for name in ("", *off):
        chosen = replace(options, disable=(name,) if name else ())
        compiled = stagejit.jit(fn, options=chosen, **jit)
        same(compiled(*jax.tree.map(jnp.asarray, args)), expected)
    return plan_of(fn, *args, options=options, **jit)


def same(actual: Any, expected: Any) -> None:
    ours, theirs = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for a, b in zip(ours, theirs, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        tolerance = 2e-2 if a.dtype.itemsize < 4 else 1e-4
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), tolerance, tolerance)


def totals(plan: Plan) -> tuple[int, int, int, int]:
    """Dispatches, fills, copies, transient bytes."""
    return len(plan.dispatches), len(plan.fills), len(plan.copies), plan.transient_nbytes


def kinds(plan: Plan) -> list[str]:
    return [dispatch.kind for dispatch in plan.dispatches]


def writes(plan: Plan) -> list[tuple[str, tuple[int, int]]]:
    return [(access.buffer, access.hull) for d in plan.dispatches for access in d.writes]


def reasons(plan: Plan, rewrite: str, *, applied: bool) -> list[str]:
    return [d.reason for d in plan.decisions if d.rewrite == rewrite and d.applied == applied]
