"""Temporary memory at most that of XLA, on every workload of the benchmarks; but for the partial
results of sums that are split, which XLA has on one core: a small part of what the sums read; for
iterations that several threads share, each of which has temporary memory of its own; and for
Fourier transforms, whose library allocates for itself what XLA does not count."""

from __future__ import annotations

import jax
import pytest

import stagejit
from stagejit.bench.contenders import JAX
from stagejit.bench.workloads.catalogue import WORKLOADS

# Rows whose weights `bind` would keep in other forms are one program where nothing is bound.
ROWS = [name for name, row in WORKLOADS.items() if row.weights in (None, "f32")]


@pytest.mark.native  # XLA's memory is a CPU's
@pytest.mark.parametrize("name", ROWS)
def test_peak_memory_is_at_most_that_of_xla(name: str) -> None:
    workload = WORKLOADS[name]
    args = workload.shapes()
    plan = stagejit.jit(workload.function, donate_argnums=workload.donated).plan(*args)
    ours = plan.peak_nbytes
    theirs = JAX.footprint(workload.function, args, workload.donated).peak_nbytes
    assert theirs is not None
    shared = any(
        d.rewrite == "split-reduce" and d.applied and "scatter" in d.op for d in plan.decisions
    )
    split = [each for each in plan.dispatches if each.parts or (shared and each.kind == "scatter")]
    partial = sum(write.nbytes for dispatch in split for write in dispatch.writes)
    assert partial <= sum(read.nbytes for dispatch in split for read in dispatch.reads) / 6
    transforms = "stablehlo.fft" in jax.jit(workload.function).lower(*args).as_text()
    lines = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(args)) if transforms else 0
    threads = max((body.threads for each in plan.dispatches for body in each.bodies), default=1)
    assert ours <= threads * theirs + partial + 2 * lines
