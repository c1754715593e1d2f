"""What attention in one kernel saves, and what it may cost.

Input: sizes, a machine. Output: modelled seconds of both ways. Invariant: nothing is decided here.

In kernels of their own, products and passes over the scores share all workers, and what each leaves
the next one reads: from a cache that all share, or from memory. In one, workers share queries only:
with few of these most have nothing to do.
"""

from __future__ import annotations

from stagejit.base.machine import Machine
from stagejit.base.records import record

_KERNEL_SECONDS = 2.5e-6  # until a kernel's workers run, behind another one
_KERNELS = 3  # that it saves
_PASSES = 4  # over the scores: written and read by the softmax, written and read again
_ROWS = 64  # of queries that a worker takes; fewer where that leaves others without


@record
class Cost:
    """rows: of queries, of all batches. flops: of both products. nbytes: of what is read and
    written anyway; scores_nbytes: of all scores."""

    rows: int
    batches: int
    flops: int
    nbytes: int
    scores_nbytes: int

    def together(self, machine: Machine) -> float:
        """In one kernel."""
        each = -(-self.rows // self.batches)
        pieces = self.batches * -(-each // min(_ROWS, max(each // 4, 1)))
        workers = min(pieces, machine.cores)
        arithmetic = self.flops / (workers * machine.peak_flops)
        moved = self.nbytes / min(machine.bandwidth, workers * machine.core_bandwidth)
        return max(arithmetic, moved)

    def apart(self, machine: Machine) -> float:
        """In several."""
        near = self.scores_nbytes <= machine.l3s_nbytes // 2
        shared = machine.cores * machine.cache_bandwidth if near else machine.bandwidth
        arithmetic = self.flops / (machine.cores * machine.peak_flops)
        moved = self.nbytes / machine.bandwidth + _PASSES * self.scores_nbytes / shared
        return max(arithmetic, moved) + _KERNELS * _KERNEL_SECONDS
