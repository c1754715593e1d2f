"""No call of a bound workload packs a weight: `bind` has laid out what tiles want."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest

import stagejit
from stagejit.bench.contenders import on_device
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.dispatch.regions import Region
from stagejit.extending import cpu
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.schedule.schedule import Schedule

BOUND = {name: workload for name, workload in WORKLOADS.items() if workload.weights is not None}


def compiled(f: Any, params: Any, *args: Any, **how: Any) -> Compilation:
    machine = cpu("two-cores", like="avx512", cores=2)
    options = Options(cache_dir="", extensions=(machine,), disable=how.pop("disable", ()))
    bound = stagejit.bind(f, params, options=options, **how)
    return Compilation.of(bound.trace(*args).compilation.request).run_until("codegen")


def packed(c: Compilation, schedule: Schedule, weights: frozenset[str]) -> Iterator[str]:
    """Weights of which a kernel copies elements into tiles as it multiplies. weights: the buffers
    of the schedule that are any."""
    for step in schedule.steps():
        for body in step.bodies:
            inside = frozenset(b.name for b in body.plan.buffers if b.kind != "transient")
            yield from packed(c, body, inside)  # may be one that a loop hands on
        for part in step.region.parts if step.region.has_kernel else ():
            for choice in c.kernels[part].kernel.choices:
                if choice.packs is not None:
                    yield from {read_by(part, choice.packs, schedule)} & weights


def read_by(part: Region, number: int, schedule: Schedule) -> str:
    """The buffer that an operand of a product is made of."""
    assert part.anchor is not None
    value, outside = (
        part.anchor.operands[number],
        dict(zip(part.inputs, part.operands, strict=True)),
    )
    while value not in outside:
        value = value.op.operands[0]
    return schedule.buffer_of[outside[value]]


def packed_weights(c: Compilation) -> list[str]:
    weights = frozenset(b.name for b in c.plan.buffers if b.kind == "weight")
    assert weights
    return list(packed(c, c.schedule, weights))


@pytest.mark.some(4)
@pytest.mark.parametrize("name", BOUND)
def test_no_call_packs_a_weight(name: str) -> None:
    workload = BOUND[name]
    weights = None if workload.weights == "f32" else workload.weights
    args = on_device(workload.make_args())
    assert not packed_weights(compiled(workload.function, *args, weights=weights))


def test_calls_pack_what_bind_leaves_as_it_is() -> None:
    w, x = jnp.ones((2304, 768)), jnp.ones((256, 768))
    c = compiled(lambda w, x: x @ w.T, w, x, disable=("data-tiling",))
    assert packed_weights(c) == ["params"]
