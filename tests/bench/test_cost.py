"""Unavoidable work, counted by hand for each form that contributes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.bench.cost import Cost, cost_of
from stagejit.bench.workloads import bound
from stagejit.bench.workloads.catalogue import WORKLOADS

F32 = np.float32


def zeros(*shape: int) -> Any:
    return np.zeros(shape, F32)


def test_matrix_product() -> None:
    assert cost_of(jnp.matmul, (zeros(3, 5), zeros(5, 7))) == Cost(210, 4 * (15 + 35 + 21))


def test_batched_product() -> None:
    found = cost_of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (zeros(2, 3, 5), zeros(2, 5, 7)))
    assert found.flops == 2 * 210


@pytest.mark.parametrize(("dtype", "flops"), [(np.int8, 0), (jnp.bfloat16, 210), (F32, 210)])
def test_products_of_integers_are_no_flops(dtype: Any, flops: int) -> None:
    args = (jnp.zeros((3, 5), dtype), jnp.zeros((5, 7), dtype))
    assert cost_of(jnp.matmul, args).flops == flops


def conv(x: Any, w: Any, **keywords: Any) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), ((0, 0), (0, 0)), dimension_numbers=numbers, **keywords
    )


def test_convolution() -> None:
    found = cost_of(conv, (zeros(1, 10, 10, 4), zeros(3, 3, 4, 8)))
    assert found.flops == 2 * 8 * 8 * 8 * 3 * 3 * 4


def test_grouped_convolution_counts_one_group_a_channel() -> None:
    found = cost_of(
        lambda x, w: conv(x, w, feature_group_count=4), (zeros(1, 10, 10, 4), zeros(3, 3, 1, 8))
    )
    assert found.flops == 2 * 8 * 8 * 8 * 3 * 3


def test_dilated_input_counts_only_positions_that_hold_values() -> None:
    found = cost_of(
        lambda x, w: conv(x, w, lhs_dilation=(2, 2)), (zeros(1, 5, 5, 4), zeros(2, 2, 4, 8))
    )
    assert found.flops == 2 * (8 * 8 * 8) * (2 * 2 * 4) // 4


def test_scan_counts_every_iteration() -> None:
    def run(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=9)[0]

    assert cost_of(run, (zeros(2, 3), zeros(3, 3))).flops == 9 * 2 * 2 * 3 * 3


def test_cond_counts_its_largest_branch() -> None:
    def run(p: Any, x: Any) -> Any:
        return jax.lax.cond(p, lambda a: a @ a, lambda a: a @ a @ a, x)

    assert cost_of(run, (np.bool_(True), zeros(3, 3))).flops == 2 * 2 * 27


def test_nested_jit_is_entered() -> None:
    assert cost_of(jax.jit(jnp.matmul), (zeros(3, 5), zeros(5, 7))).flops == 210


def test_elementwise_work_is_free_and_bytes_are_not() -> None:
    assert cost_of(lambda x: jnp.exp(x) + 1, (zeros(10),)) == Cost(0, 80)


def test_what_is_read_of_donated_arguments_is_said() -> None:
    """One element of eight is overwritten; five others are read, as the program says."""
    found = cost_of(lambda c, x: (c.at[0].set(x), c[1:6].sum()), (zeros(8), zeros()), (0,), 20)
    assert found.nbytes == 20 + 4 + 4
    assert bound.nbytes_up_to(bound.CACHES[3]) == zeros(*bound.CACHES).nbytes
    assert bound.nbytes_up_to(0) == zeros(*bound.CACHES).nbytes // 2  # all values


# Milliseconds in the column `floor` of the published table, at its 233 GFLOP/s and 45 GB/s.
@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("dense_block", 11.5),
        ("gemm_1024", 9.2),
        ("gemv_1x4096x4096", 1.5),
        ("conv3x3_56_64", 0.99),
        ("softmax_4096x1024", 0.75),
        ("transformer_block_256", 16.4),
        ("transformer_grad_256", 49.0),
        ("lstm_256x16x128", 4.6),
    ],
)
def test_floors_are_those_of_the_published_table(name: str, floor: float) -> None:
    workload = WORKLOADS[name]
    found = cost_of(workload.function, workload.shapes())
    assert max(found.flops / 233e9, found.nbytes / 45e9) * 1e3 == pytest.approx(floor, rel=0.01)
