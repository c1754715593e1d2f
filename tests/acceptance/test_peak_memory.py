"""Temporary memory at most that of XLA, on every workload of the benchmarks."""

from __future__ import annotations

import pytest

from stagejit.bench.contenders import JAX, STAGEJIT
from stagejit.bench.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_peak_memory_is_at_most_that_of_xla(name: str) -> None:
    workload = WORKLOADS[name]
    args = workload.make_args()
    ours, theirs = (
        contender.footprint(workload.function, args, workload.donated).peak_nbytes
        for contender in (STAGEJIT, JAX)
    )
    assert ours is not None
    assert theirs is not None
    assert ours <= theirs
