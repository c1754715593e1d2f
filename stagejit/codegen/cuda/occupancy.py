"""How many blocks of a kernel a multiprocessor holds, and what that makes of memory and arithmetic.

Input: what a kernel takes of a multiprocessor: threads, registers, shared memory. Output:
`Occupancy`, and modelled seconds. Invariant: a model: nothing here was measured on a GPU.

The rules of residency are those of NVIDIA's occupancy calculator: registers go to warps in units of
256, and to four warps at a time, one of each scheduler; shared memory to blocks in units of 1 KiB,
of which each block takes one more for the system.

Note [What a kernel reaches]: to stream at full bandwidth, as many bytes have to be on their way as
pass in the time that one takes (Little's law): threads that are there, times the bytes that each
asks for before it waits. To multiply at full speed, each of the four schedulers needs as many
independent operations as one takes cycles. A kernel takes the time of its slowest part, and its
last wave, which fills only some multiprocessors, as long as a full one.
"""

from __future__ import annotations

import math

from stagejit.base.machine import floor_seconds
from stagejit.base.records import record
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.ir.grid.matrix_tiles import WARP

_REGISTERS_A_UNIT, _SHARED_A_UNIT = 256, 1 << 10
_LATENCY = 650e-9  # seconds until a sector comes from memory, seen on A100 and H100: 500 to 750
_SCHEDULERS, _CYCLES = 4, 4  # of a multiprocessor; until the result of a multiply-add is there


@record
class Occupancy:
    """blocks: of a multiprocessor at once; warps: of these, of `most_warps`. limit: what there
    would have to be more of for more blocks."""

    blocks: int
    warps: int
    most_warps: int
    limit: str

    @property
    def share(self) -> float:
        return self.warps / self.most_warps


def occupancy(device: Device, threads: int, registers: int, shared_nbytes: int) -> Occupancy:
    """Of blocks of so many threads, each with so many registers. Blocks of none fit where a block
    asks for more than there is."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // _REGISTERS_A_UNIT) * _REGISTERS_A_UNIT
    of_block = (-(-shared_nbytes // _SHARED_A_UNIT) + 1) * _SHARED_A_UNIT
    fit = {
        "threads": device.threads_a_core // WARP // warps,
        "registers": device.registers // max(of_warp, 1) // _SCHEDULERS * _SCHEDULERS // warps,
        "shared memory": device.shared_nbytes // of_block,
        "blocks": device.blocks_a_core,
    }
    limit = min(fit, key=lambda name: fit[name])
    return Occupancy(fit[limit], fit[limit] * warps, device.threads_a_core // WARP, limit)


@record
class Work:
    """What a kernel does. flops: multiply-adds count two. nbytes: that cross memory. blocks: of all
    of it. asked_nbytes: that a thread asks for before it waits. independent: multiply-adds of a
    thread that do not wait for each other. tensor: whether matrix tiles do the arithmetic."""

    flops: float
    nbytes: float
    blocks: int
    asked_nbytes: float = 4.0
    independent: float = 1.0
    tensor: bool = False


def work_floor_seconds(device: Device, work: Work) -> float:
    """The least that a GPU takes, however it is done."""
    return floor_seconds(work.flops, work.nbytes, _peak_flops(device, work), device.bandwidth)


def resident_seconds(device: Device, work: Work, held: Occupancy) -> float:
    """What so many resident threads reach, see Note [What a kernel reaches]: another model than
    that of the compiler, which knows no registers. Infinite where no block fits."""
    if not held.blocks:
        return math.inf
    at_once = held.blocks * device.cores
    waves = work.blocks / at_once
    filled = min(waves, 1.0)
    moved = held.warps * WARP * filled * device.cores * work.asked_nbytes / _LATENCY
    bandwidth = min(device.bandwidth, moved)
    ready = held.warps * work.independent / (_SCHEDULERS * _CYCLES)
    late = math.ceil(waves) / waves if waves > 1 else 1 / max(filled, 1e-9)
    arithmetic = work.flops / _peak_flops(device, work) / min(ready, 1.0) * late
    return max(arithmetic, work.nbytes / bandwidth) + device.start_seconds


def _peak_flops(device: Device, work: Work) -> float:
    return device.tensor_flops if work.tensor else device.f32_flops
