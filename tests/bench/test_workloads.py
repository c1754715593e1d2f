"""Every workload runs through stagejit, right and whole; the slow test adds how fast."""

from __future__ import annotations

import pytest

import stagejit
from stagejit.bench import harness
from stagejit.bench.accuracy import error_against, reference_of
from stagejit.bench.contenders import JAX, STAGEJIT, on_device, waiting_call
from stagejit.bench.workloads import WORKLOADS

# A loop is left to XLA until the schedule can hold one; its body is staged all the same.
DELEGATED = {"lstm_256x16x128": {"scan"}}

# jax.jit's time over ours, on a quiet machine.
RATIOS = {
    "dense_block": 2.0,
    "gemm_1024": 0.9,
    "ew_chain_4M": 6.0,
    "softmax_4096x1024": 1.3,
    "layernorm_4096x1024": 1.3,
    "transpose_add_4096": 5.0,
    "tiny_add_16": 1 / 1.1,
}
LEAST_RATIO = 0.6


@pytest.mark.parametrize("name", WORKLOADS)
def test_result_is_right_and_nothing_is_left_to_xla(name: str) -> None:
    workload = WORKLOADS[name]
    args = workload.make_args()
    compiled = STAGEJIT.compile(workload.function)
    result = waiting_call(compiled, on_device(args))()
    assert error_against(reference_of(workload.function, args), result) <= workload.tolerance
    plan = stagejit.jit(workload.function).plan(*args)
    left = {delegated.equation for delegated in plan.delegated}
    assert left <= DELEGATED.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_speed_beside_jax(name: str) -> None:
    row = harness.measure(WORKLOADS[name], [STAGEJIT, JAX], seconds=2.0)
    assert not row.failure
    assert row.ratio(row.entries[1]) >= RATIOS.get(name, LEAST_RATIO)
