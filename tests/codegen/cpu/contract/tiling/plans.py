"""Plans of products on this machine and on others."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from stagejit.codegen.closed import closed
from stagejit.codegen.contraction.conv_nest import conv_nests
from stagejit.codegen.contraction.nest import contract_nest
from stagejit.codegen.contraction.walk import settled
from stagejit.codegen.cpu.contract.plan import ContractPlan, make_plan
from stagejit.codegen.cpu.contract.tiles.blocks import BlockSearch, _lane_choices
from stagejit.codegen.cpu.contract.tiles.search import Problem
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.target import Target, _make
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of


def plan(
    fn: Any, *shapes: tuple[int, ...], target: Target, dtype: Any = np.float32
) -> ContractPlan:
    graph = graph_of(fn, *(np.zeros(shape, dtype) for shape in shapes))
    region = closed(region_of(graph))
    anchor = region.anchor_op
    nest = contract_nest(anchor) if region.kind == "contract" else conv_nests(anchor)[0]
    return make_plan(region, settled(region, nest), target)


def transposed(a: Any, b: Any) -> Any:
    return a.T @ b


def cpu_named(name: str) -> Target:
    caches = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
    target = Target.avx512()
    return _make(name, target.triple, name, target.features, caches, cores=2)


def _panels(w: Any, x: Any) -> Any:
    """Panels of bytes, of which each step reads the next row."""
    return jnp.einsum("bk,pkn->bpn", x, w.astype(jnp.float32))


def panels_plan(shape: tuple[int, ...], rows: int, dtype: Any, cpu: str) -> ContractPlan:
    graph = graph_of(_panels, np.zeros(shape, dtype), np.zeros((rows, shape[1]), np.float32))
    region = closed(region_of(graph))
    return make_plan(region, settled(region, contract_nest(region.anchor_op)), cpu_named(cpu))


def every_tiling(problem: Problem) -> list[Tiling]:
    """All that is proposed, in blocks and items."""
    searches = [BlockSearch(problem, lane) for lane in _lane_choices(problem)]
    return [search.complete(tile) for search in searches for tile in search.candidates()]
