"""How many dispatches well-known programs become, and what comes back when a fusion is off.

Numbers of dispatches are part of the design: a program whose count grows has lost a fusion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.bench.workloads.residual_block import residual_block
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.agreement import close
from tests.randomness import RNG


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def plan_of(f: Callable[..., Any], *args: Any, disable: tuple[str, ...] = ()) -> Plan:
    return stagejit.jit(f, options=Options(disable=disable)).plan(*args)


def kinds(plan: Plan) -> list[str]:
    return [d.kind for d in plan.dispatches]


def same_values(f: Callable[..., Any], *args: Any, disable: tuple[str, ...] = ()) -> None:
    options = Options(disable=disable, verify=True)
    close(stagejit.jit(f, options=options)(*args), jax.jit(f)(*args), rtol=2e-4)


X = numbers(48, 96)
ROW = numbers(96)


def layernorm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


# ------------------------------------------------------------------------ rows


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_is_one_dispatch(axis: int) -> None:
    def f(x: Any) -> Any:
        return jax.nn.softmax(x * 2.0, axis)

    assert kinds(plan_of(f, X)) == ["reduce"]
    same_values(f, X)
    apart = plan_of(f, X, disable=("fuse-rows",))
    assert len(apart.dispatches) > 1
    same_values(f, X, disable=("fuse-rows",))


def test_layernorm_is_one_dispatch() -> None:
    assert kinds(plan_of(layernorm, X, ROW, ROW)) == ["reduce"]
    assert plan_of(layernorm, X, ROW, ROW).transient_nbytes == 0
    same_values(layernorm, X, ROW, ROW)
    same_values(layernorm, X, ROW, ROW, disable=("fuse-rows", "fuse-producers"))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jax.nn.log_softmax(x, -1),
        lambda x: jax.nn.logsumexp(x, -1),
        lambda x: (x.sum(-1), x.max(-1), (x * x).mean(-1)),
        lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-5),
        lambda x: jnp.sqrt(jnp.sum(x * x, 0)),
    ],
)
def test_reductions_of_the_same_rows_share_a_dispatch(f: Any) -> None:
    assert kinds(plan_of(f, X)) == ["reduce"]
    same_values(f, X)


def test_a_reduction_over_other_rows_declines_with_a_reason() -> None:
    def f(x: Any) -> Any:
        return x.sum(0), x.max(1)

    plan = plan_of(f, X)
    assert kinds(plan) == ["reduce", "reduce"]
    same_values(f, X)


# ------------------------------------------------------- prologues and epilogues


def test_gelu_epilogue_is_part_of_the_product() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(x @ w + b)

    args = (X, numbers(96, 32), numbers(32))
    assert kinds(plan_of(f, *args)) == ["contract"]
    assert plan_of(f, *args).transient_nbytes == 0
    same_values(f, *args)
    apart = plan_of(f, *args, disable=("fuse-epilogues",))
    assert len(apart.dispatches) >= 2
    assert apart.transient_nbytes >= 48 * 32 * 4
    same_values(f, *args, disable=("fuse-epilogues",))


def test_relu_and_residual_are_part_of_the_convolution() -> None:
    def f(x: Any, k: Any) -> Any:
        return jax.nn.relu(lax.conv_general_dilated(x, k, (1, 1), "SAME")) + x

    args = (numbers(2, 8, 12, 12), numbers(8, 8, 3, 3))
    assert kinds(plan_of(f, *args)) == ["conv"]
    same_values(f, *args)
    same_values(f, *args, disable=("fuse-epilogues", "fuse-producers"))


def test_a_conversion_is_part_of_what_reads_or_writes_it() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x.astype(jnp.float32), 1).astype(jnp.bfloat16)

    assert kinds(plan_of(f, X.astype(jnp.bfloat16))) == ["reduce"]


def test_attention_is_three_dispatches() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

    q, k, v = numbers(2, 3, 20, 16), numbers(2, 3, 20, 16), numbers(2, 3, 20, 16)
    plan = plan_of(attention, q, k, v)
    assert kinds(plan) == ["contract", "reduce", "contract"]
    assert not plan.copies
    same_values(attention, q, k, v)


# ------------------------------------------------------------------ elementwise


def test_a_chain_is_one_dispatch() -> None:
    def f(x: Any) -> Any:
        return jnp.tanh(jnp.exp(x) * 2 + jnp.sin(x)).T[::-1, 1:]

    assert kinds(plan_of(f, X)) == ["map"]
    same_values(f, X)
    same_values(f, X, disable=("fuse-producers", "fold-views"))


def test_results_of_one_shape_share_a_dispatch() -> None:
    def f(x: Any) -> Any:
        y = jnp.tanh(x)
        return y, y * 2, y + x

    assert kinds(plan_of(f, X)) == ["map"]
    same_values(f, X)


def test_a_transpose_is_part_of_the_addition() -> None:
    x = numbers(64, 64)
    plan = plan_of(lambda x: x.T + x, x)
    assert kinds(plan) == ["map"]
    assert not plan.copies
    same_values(lambda x: x.T + x, x)


# ---------------------------------------------------------------------- inserts


@pytest.mark.parametrize("axis", [0, 1])
def test_producers_write_into_the_concatenation(axis: int) -> None:
    """ACCEPTANCE A3, A4: no copies, no transients, no barriers, disjoint exact writes."""
    shapes = (
        ((256, 512), (128, 512), (64, 512)) if axis == 0 else ((512, 256), (512, 128), (512, 64))
    )

    def f(a: Any, b: Any, c: Any) -> Any:
        return jnp.concatenate([a * 2, jnp.exp(b), c + 1], axis)

    args = [numbers(*shape) for shape in shapes]
    plan = plan_of(f, *args)
    assert len(plan.dispatches) == 3
    assert not plan.copies
    assert not plan.barriers
    assert plan.transient_nbytes == 0
    writes = [w for d in plan.dispatches for w in d.writes]
    assert all(w.exact for w in writes)
    assert not any(a.overlaps(b) for a in writes for b in writes if a is not b)
    if axis == 0:
        assert sorted(w.hull for w in writes) == [(0, 524288), (524288, 786432), (786432, 917504)]
    same_values(f, *args)
    apart = plan_of(f, *args, disable=("fuse-insert",))
    assert len(apart.copies) == 3
    same_values(f, *args, disable=("fuse-insert",))


def test_padding_takes_no_copy() -> None:
    def f(x: Any) -> Any:
        return jnp.pad(jax.nn.relu(x), ((2, 3), (1, 1)), constant_values=1.0)

    plan = plan_of(f, X)
    assert not plan.copies
    assert plan.transient_nbytes == 0
    same_values(f, X)
    same_values(f, X, disable=("fuse-insert",))


# --------------------------------------------------------------- whole programs


def test_dense_block_in_one_buffer() -> None:
    """Five convolutions and one copy of the input; the 192-channel buffer serves all (C2)."""
    workload = WORKLOADS["dense_block"]
    plan = plan_of(workload.function, *workload.shapes())
    assert not plan.delegated
    assert len(plan.dispatches) <= 6
    assert kinds(plan).count("conv") == 5
    assert plan.transient_nbytes == 4_285_440
    moved = sum(barrier.nbytes for barrier in plan.barriers)
    assert moved <= 5 * 4_285_440
    apart = plan_of(workload.function, *workload.shapes(), disable=("fuse-insert",))
    assert len(apart.copies) > len(plan.copies)


@pytest.mark.parametrize("disable", [(), ("fuse-insert",), ("fuse-epilogues", "pack-slots")])
def test_small_dense_block_agrees(disable: tuple[str, ...]) -> None:
    growth, features = 4, 8
    convolutions = [
        (numbers(growth if i < 4 else features, features + growth * i, 3, 3) / 9, numbers(
            growth if i < 4 else features))
        for i in range(5)
    ]  # fmt: skip
    same_values(residual_block, numbers(1, features, 10, 7), convolutions, disable=disable)


def test_transformer_block_has_no_copies_and_nothing_delegated() -> None:
    for name, most in (("transformer_block_256", 10), ("transformer_grad_256", 26)):
        workload = WORKLOADS[name]
        plan = plan_of(workload.function, *workload.shapes())
        assert not plan.delegated
        assert not plan.copies
        assert len(plan.dispatches) <= most


def test_transients_whose_lives_do_not_overlap_share_memory() -> None:
    def f(x: Any) -> Any:
        for _ in range(6):
            x = jnp.tanh(x @ x)
        return x

    x = numbers(32, 32)
    plan = plan_of(f, x)
    assert plan.transient_nbytes == 5 * x.nbytes
    assert plan.peak_nbytes == 2 * x.nbytes
    apart = plan_of(f, x, disable=("pack-slots",))
    assert apart.peak_nbytes >= 5 * x.nbytes
    same_values(f, x / 8, disable=("pack-slots",))
