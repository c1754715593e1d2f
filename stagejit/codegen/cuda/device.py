"""What policies and the cost model know of a GPU.

Input: the name of a GPU, or of an architecture. Output: a frozen `Device`. Invariant: equal devices
give equal code; rates are hints and never change what a kernel computes.

The figures are NVIDIA's (architecture whitepapers, CUDA C++ Programming Guide, "Compute
capabilities"); bandwidths are what a copy reaches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stagejit.base.machine import Machine
from stagejit.codegen.ir.grid.shared_memory import STATIC_NBYTES
from stagejit.errors import OptionsError


@dataclass(frozen=True, kw_only=True)
class Device(Machine):
    """One GPU. arch: what kernels are compiled for, such as "sm_90a". cores: its multiprocessors.
    shared_nbytes: shared memory of a multiprocessor; block_shared_nbytes: what a block may have of
    it, static_shared_nbytes: without asking. registers: of a multiprocessor. tensor_flops:
    operations a second of products of 16-bit floats, of the whole GPU."""

    name: str
    arch: str
    threads_a_core: int = 2048
    blocks_a_core: int = 32
    threads_a_block: int = 1024
    registers: int = 65536
    shared_nbytes: int
    block_shared_nbytes: int
    static_shared_nbytes: int = STATIC_NBYTES
    tensor_flops: float

    @property
    def has_warpgroups(self) -> bool:
        """Whether warpgroups multiply from shared memory (`wgmma`), which only code for just this
        architecture may."""
        return self.arch == "sm_90a"

    @property
    def threads(self) -> int:
        """How many run at once at most, and so how many a kernel should have at least."""
        return self.cores * self.threads_a_core

    @property
    def tile_nbytes(self) -> int:
        """Of results of a product that the threads of a block keep in registers: 64 x 64."""
        return 4 * 64 * 64

    @property
    def rows_at_once(self) -> int:
        """All threads of a block share one."""
        return 1

    @property
    def item_seconds(self) -> float:
        """Of what a quarter of the shared memory holds."""
        return self.shared_nbytes / 4 / self.cache_bandwidth

    @property
    def owners_at_once(self) -> int:
        """Warps."""
        return self.threads // 32

    @property
    def start_seconds(self) -> float:
        """Of a launch behind another one."""
        return 3e-6

    @property
    def dots_at_once(self) -> int:
        """A warp for each, in blocks of 256 threads."""
        return 8

    @property
    def f32_flops(self) -> float:
        """Of all multiprocessors, without tensor cores."""
        return self.cores * self.peak_flops


def _device(
    name: str, arch: str, cores: int, *, clock: float, bandwidth: float, l2_nbytes: int,
    shared: int, block: int, tensor: float,
) -> Device:  # fmt: skip
    flops = 2 * 128 * clock  # 128 multiply-adds a cycle and multiprocessor
    # A third of the multiprocessors saturates memory; half of them the last cache. In a turn each
    # of 1,024 threads has asked for 16 bytes, and comes to a barrier when they are there.
    return Device(
        name=name, arch=arch, cores=cores, vector_nbytes=16, l2_nbytes=shared, l3_nbytes=l2_nbytes,
        bandwidth=bandwidth, core_bandwidth=3 * bandwidth / cores,
        cache_bandwidth=5 * bandwidth / cores, l2_bandwidth=128 * clock, peak_flops=flops,
        shared_nbytes=shared, block_shared_nbytes=block, tensor_flops=tensor, side_by_side=False,
        turn_nbytes=16 << 10, turn_seconds=1e-6,
    )  # fmt: skip


DEVICES = {
    device.name: device
    for device in (
        _device("A100", "sm_80", 108, clock=1.41e9, bandwidth=1.8e12, l2_nbytes=40 << 20,
                shared=164 << 10, block=163 << 10, tensor=290e12),
        _device("H100", "sm_90a", 132, clock=1.83e9, bandwidth=3.0e12, l2_nbytes=50 << 20,
                shared=228 << 10, block=227 << 10, tensor=790e12),
        _device("H200", "sm_90a", 132, clock=1.98e9, bandwidth=4.3e12, l2_nbytes=50 << 20,
                shared=228 << 10, block=227 << 10, tensor=790e12),
        _device("B200", "sm_100", 148, clock=1.85e9, bandwidth=7.2e12, l2_nbytes=126 << 20,
                shared=228 << 10, block=227 << 10, tensor=1500e12),
    )
}  # fmt: skip
OF_ARCHITECTURES = {"sm_80": "A100", "sm_90a": "H200", "sm_100": "B200"}
_LIKE_ANY = "A100"  # what others can do, too, but for their `Limits`


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor has of threads and blocks at once, and of bytes of shared memory; how
    many of these a block may have. Of any GPU that kernels can run on at least this."""

    threads: int = 1536
    blocks: int = 16
    shared_nbytes: int = 100 << 10
    block_shared_nbytes: int = 99 << 10


def device_named(name: str) -> Device:
    """A GPU by its name or its architecture. Raises OptionsError for others."""
    found = DEVICES.get(OF_ARCHITECTURES.get(name, name))
    if found is None:
        known = ", ".join((*DEVICES, *OF_ARCHITECTURES))
        raise OptionsError(f"unknown GPU {name!r}", next_step=f"give one of {known}")
    return found


def device_like(name: str, arch: str, cores: int, limits: Limits | None = None) -> Device:
    """A GPU of this machine. name: as its driver calls it, such as "NVIDIA H100 80GB HBM3". cores:
    how many multiprocessors there are to use, 0 if nobody knows; one of another size than we know
    of its kind has as much of everything for each of them. limits: of those of an architecture
    that we do not know, as its driver says."""
    same = [known for known in DEVICES.values() if known.arch == arch]
    usual = DEVICES[OF_ARCHITECTURES.get(arch, _LIKE_ANY)]
    known = next((known for known in same if known.name in name), usual)
    share = cores / known.cores if cores else 1.0
    made = replace(
        known, name=name, arch=arch, cores=cores or known.cores,
        bandwidth=known.bandwidth * share, tensor_flops=known.tensor_flops * share,
    )  # fmt: skip
    return made if arch in OF_ARCHITECTURES else _limited(made, limits or Limits())


def _limited(device: Device, limits: Limits) -> Device:
    return replace(
        device, threads_a_core=limits.threads, blocks_a_core=limits.blocks,
        l2_nbytes=limits.shared_nbytes, shared_nbytes=limits.shared_nbytes,
        block_shared_nbytes=limits.block_shared_nbytes,
    )  # fmt: skip
