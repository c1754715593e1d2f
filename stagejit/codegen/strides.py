"""Lanes that stand a few elements apart: whole vectors cross memory, shuffles deal out their lanes.

Input: a wide register of `stride` vectors, or `stride` registers. Output: the lanes of one phase,
or the wide register in which the phases alternate. Invariant: element k of phase p is at `k *
stride + p`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.builder import Builder
from stagejit.codegen.ir import Value

# Dealing out one phase takes about `stride` shuffles; beyond this, other accesses are cheaper.
WIDEST_STRIDE = 8


def dealt(b: Builder, wide: Value, stride: int, phase: int) -> Value:
    """Every `stride`-th lane of `wide`, from lane `phase` on."""
    lanes = wide.type.lanes // stride
    return b.shuffle(wide, None, [lane * stride + phase for lane in range(lanes)])


def interleaved(b: Builder, phases: Sequence[Value]) -> Value:
    """The register whose lanes are lane 0 of every phase, then lane 1, and so on."""
    count, lanes = len(phases), phases[0].type.lanes
    whole = list(phases)
    while len(whole) > 1:
        if len(whole) % 2:
            whole.append(whole[-1])  # its copy is never picked
        whole = [_joined(b, whole[k], whole[k + 1]) for k in range(0, len(whole), 2)]
    return b.shuffle(whole[0], None, [phase * lanes + lane for lane in range(lanes)
                                      for phase in range(count)])


def _joined(b: Builder, first: Value, second: Value) -> Value:
    return b.shuffle(first, second, range(2 * first.type.lanes))
