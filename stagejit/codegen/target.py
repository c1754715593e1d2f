"""What a kernel generator and the cost model know about a CPU.

Input: the host (LLVM's name and feature list, sysfs cache sizes, the process's affinity mask), or
the name of a CPU to generate code for. Output: a frozen `Target`. Invariant: equal targets give
equal code; the sizes are hints for tiling and never change what a kernel computes.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from stagejit.machine import Machine
from stagejit.other_threads import on_another_thread

_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
_X86_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
_ARM_CACHES = {1: 64 << 10, 2: 1 << 20, 3: 8 << 20}
_ELEM_NBYTES = {"bool": 1, "i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2,
                "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8}  # fmt: skip

_CLOCK = 3.5e9  # a second; servers run at 2.5 to 4.5
_CORE_BANDWIDTH = 20e9  # bytes a second; seen: 25 (Zen 3) to 38 (Zen 4) on idle machines
_CACHE_NBYTES_A_CYCLE = 11.5  # of maps of 1 to 16 MiB, reads and writes; seen: 11 to 13 on Zen 4
# CPUs that do other than the usual number of full-width multiply-adds in a cycle, as LLVM names
# them. Usual are two, of AVX-512 one, which is made of two halves. Sources: the optimization guides
# of AMD, Intel and Arm, LLVM's scheduling models.
_TWO_OF_512 = frozenset({
    "znver5", "skylake-avx512", "cascadelake", "cooperlake", "icelake-server", "sapphirerapids",
    "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids",
})  # fmt: skip
_ONE_OF_256 = frozenset({"znver1"})
_FOUR_PIPES = ("neoverse-v", "neoverse-512tvb", "apple-m", "cortex-x")


@dataclass(frozen=True, kw_only=True)
class Target(Machine):
    """One CPU, and what the steps above kernels know of it. `features` is LLVM's comma-separated
    list. fma_ports: vectors that one core multiplies and adds (and loads) in a cycle."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_registers: int
    has_fma: bool
    has_avx512: bool
    l1_nbytes: int
    fma_ports: int

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    def has(self, feature: str) -> bool:
        """True where LLVM's feature list switches `feature` on."""
        return feature in _enabled(self.features)

    def lanes(self, elem: object) -> int:
        """Elements of one vector register; `elem` is anything whose text names an element type."""
        return self.vector_nbytes // _ELEM_NBYTES[str(elem)]

    @property
    def cycles_per_second(self) -> float:
        """Of the model, in which each port finishes one multiply-add a cycle."""
        return self.peak_flops / (2 * self.lanes("f32") * self.fma_ports)

    @property
    def l2_nbytes_a_cycle(self) -> float:
        """What one core reads from its second cache."""
        return self.l2_bandwidth / _CLOCK

    @classmethod
    def host(cls) -> Target:
        """The CPU this process runs on, with the cores it may use."""
        return _host()

    @classmethod
    def avx512(cls) -> Target:
        """x86-64-v4: 32 registers of 64 bytes, masks."""
        features = f"{_AVX2},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
        return _x86("avx512", "x86-64-v4", features)

    @classmethod
    def avx2(cls) -> Target:
        """x86-64-v3: 16 registers of 32 bytes, fused multiply-add."""
        return _x86("avx2", "x86-64-v3", _AVX2)

    @classmethod
    def sse2(cls) -> Target:
        """The oldest x86-64: 16 registers of 16 bytes, no fused multiply-add, no rounding."""
        return _x86("sse2", "x86-64", "+sse,+sse2")

    @classmethod
    def neon(cls) -> Target:
        """A 64-bit ARM without scalable vectors."""
        return _make("neon", "aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8",
                     _ARM_CACHES, cores=1)  # fmt: skip


_SSE4 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt"
_AVX2 = f"{_SSE4},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"


@cache
def _enabled(features: str) -> frozenset[str]:
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


@cache
def _host() -> Target:
    triple, cpu, features = on_another_thread(_what_llvm_says)
    caches = dict(_X86_CACHES if triple.startswith("x86_64") else _ARM_CACHES)
    caches.update(_sysfs_caches())
    return _make(cpu or platform.machine(), triple, cpu, features, caches, cores=_usable_cores())


def _what_llvm_says() -> tuple[str, str, str]:
    """Triple, CPU and features of this machine."""
    triple, cpu = llvm.get_default_triple(), llvm.get_host_cpu_name()
    # llvmlite raises where LLVM cannot list the features (some ARM kernels); the name implies them.
    try:
        return triple, cpu, llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        return triple, cpu, ""


def _x86(name: str, cpu: str, features: str) -> Target:
    return _make(name, "x86_64-unknown-linux-gnu", cpu, features, _X86_CACHES, cores=1)


def _make(
    name: str, triple: str, cpu: str, features: str, caches: dict[int, int], *, cores: int
) -> Target:
    on = _enabled(features)
    x86 = triple.startswith("x86_64")
    # All four: without BW and VL, 8- and 16-bit masks and short vectors have no instructions.
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= on
    fma = "fma" in on or not x86
    vector_nbytes = 64 if avx512 else 32 if "avx2" in on else 16
    ports = _fma_ports(cpu, avx512=avx512)
    flops_per_cycle = vector_nbytes // 4 * ports * (2 if fma else 1)
    return Target(
        name=name,
        triple=triple,
        cpu=cpu,
        features=features,
        vector_nbytes=vector_nbytes,
        vector_registers=32 if avx512 or not x86 else 16,
        has_fma=fma,
        has_avx512=avx512,
        l1_nbytes=caches[1],
        l2_nbytes=caches[2],
        l3_nbytes=caches[3],
        cores=cores,
        fma_ports=ports,
        peak_flops=flops_per_cycle * _CLOCK,
        bandwidth=min(_CORE_BANDWIDTH * cores, 45e9 + 10e9 * cores),
        core_bandwidth=_CORE_BANDWIDTH,
        cache_bandwidth=_CACHE_NBYTES_A_CYCLE * _CLOCK,
        # Two thirds of what it may give: half of what loads may take, or 32 bytes a cycle.
        l2_bandwidth=max(32, ports * vector_nbytes / 2) * 2 / 3 * _CLOCK,
    )


def _fma_ports(cpu: str, *, avx512: bool) -> int:
    """Vectors of the widest kind that one core multiplies and adds in a cycle."""
    if avx512:
        return 2 if cpu in _TWO_OF_512 else 1
    if cpu in _ONE_OF_256:
        return 1
    return 4 if cpu.startswith(_FOUR_PIPES) else 2


def _sysfs_caches() -> dict[int, int]:
    """Data cache bytes by level; empty where the kernel does not tell."""
    found: dict[int, int] = {}
    for folder in sorted(_SYSFS.glob("index*")):
        try:
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and kind != "Instruction":
            found[int(level)] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return {level: nbytes for level, nbytes in found.items() if nbytes}


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
