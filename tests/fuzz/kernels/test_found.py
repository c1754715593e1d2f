"""What the lab has found, as it printed it: each was wrong once."""

from __future__ import annotations

import gc

from stagejit.codegen.generate import KernelCache
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import regions_of
from stagejit.graph.parser import parse
from tests.dispatches import dispatches_of

KEEPS_SEVERAL = """
graph @case(%x0: f32[9,64]) {
  %0: f32[9] = reduce add %x0 axes=(1)
  %1: f32[9,64] = broadcast %0 axes=(0)
  %2: f32[9,64] = map sub %x0, %1
  %3: f32[9,64] = map exp %2
  %4: f32[9] = reduce add %3 axes=(1)
  %5: f32[9,64] = broadcast %4 axes=(0)
  %6: f32[9,64] = map div %3, %5
  %7: f32[9,64] = map sin %6
  %8: f32[9] = reduce add %7 axes=(1)
  %9: f32[9,64] = broadcast %8 axes=(0)
  %10: f32[9,64] = map mul %7, %9
  %11: f32[9,64] = map tanh %10
  %12: f32[9] = reduce max %11 axes=(1)
  %13: f32[9,64] = broadcast %12 axes=(0)
  %14: f32[9,64] = map mul %11, %13
  %15: f32[9,64] = map add %14, %3
  return %15
}
"""


def symbol(text: str) -> str:
    dispatches, _ = dispatches_of(parse(text))
    (region,) = regions_of(dispatches)
    return KernelCache(Target.avx2(), verify=False).generate(region).symbol


def test_equal_regions_have_equal_kernels_wherever_their_values_lie() -> None:
    """Kept values were numbered in the order of a set, which is that of addresses."""
    rubbish, found = [], set()
    for count in range(12):
        rubbish.append([object() for _ in range(997 * count)])
        found.add(symbol(KEEPS_SEVERAL))
    gc.collect()
    assert len(found) == 1
