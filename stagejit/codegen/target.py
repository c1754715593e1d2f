"""What a kernel generator and the cost model know about a CPU.

Input: the host (LLVM's name and feature list, caches and clock from sysfs, the clock in the
processor's name where sysfs has none, the process's affinity mask, what a container grants), or the
name of a CPU to generate code for. Output: a frozen `Target`. Invariant: equal targets give equal
code; the sizes are hints for tiling and never change what a kernel computes.

Note [Long vectors]: some cores run slower from the first instruction on 64 bytes on, for as long as
others may follow. Then all that a call is besides its kernels takes longer, too: on a Cascade Lake
16.8 us instead of 14.3, on a Granite Rapids, of which only operations of floats are slow, 7.9
instead of 7.1. A program that is over in less than that has vectors of 32 bytes, and no instruction
on longer ones, whatever becomes of them in between; but for code that hardly ever runs.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from stagejit.base.machine import Machine
from stagejit.base.threads.locks import remembered
from stagejit.base.threads.matrix_registers import may_use_matrices
from stagejit.base.threads.other_threads import on_another_thread

_SYSFS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_X86_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
_ARM_CACHES = {1: 64 << 10, 2: 1 << 20, 3: 8 << 20}
_ELEM_NBYTES = {"bool": 1, "i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2,
                "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8}  # fmt: skip

_CLOCK = 3.5e9  # a second, where the system does not tell; servers run at 2.5 to 4.5
_CORE_BANDWIDTH = 20e9  # bytes a second; seen: 25 (Zen 3) to 38 (Zen 4) on idle machines
# Of all cores, however many there are: two sockets of 12 channels of DDR5-4800, 38.4 GB/s each, as
# those of Zen 4 have (460.8 GB/s a socket, by AMD's data sheets of EPYC 9004), of which streams get
# some 0.8. Machines with more memory channels for each core are seen as slower than they are.
_MOST_BANDWIDTH = 0.8 * 2 * 12 * 38.4e9
_CACHE_NBYTES_A_CYCLE = 11.5  # of maps of 1 to 16 MiB, reads and writes; seen: 11 to 13 on Zen 4
# CPUs that do other than the usual number of full-width multiply-adds in a cycle, as LLVM names
# them. Usual are two, of AVX-512 one, which is made of two halves. Sources: the optimization guides
# of AMD, Intel and Arm, LLVM's scheduling models.
_TWO_OF_512 = frozenset({
    "znver5", "skylake-avx512", "cascadelake", "cooperlake", "icelake-server", "sapphirerapids",
    "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids",
})  # fmt: skip
# What no core before the one named has. Virtual machines make up model numbers, which LLVM goes by,
# but tell as it is what a program may execute: a Granite Rapids was seen as "rocketlake", a
# desktop's core of one such unit, and products took twice as long. Sources: Intel's Instruction Set
# Extensions reference, table 1-1; AMD's optimization guide of Zen 5.
_PROVED_BY = (
    (frozenset({"avx512f", "amx-tile"}), "sapphirerapids"),
    (frozenset({"avx512fp16"}), "sapphirerapids"),
    (frozenset({"clzero", "avx512vp2intersect"}), "znver5"),  # of those with clzero, AMD's
)
# Cores that have few lines on the way to their first cache, and prefetchers that bring lines no
# further than to the second: see Note [Lines ahead] in `places/loops.py`. Seen: the last.
_ASK_AHEAD = frozenset({"skylake-avx512", "cooperlake", "cascadelake"})
# Cores of which one asks a page ahead for what a tile reads once, panel by panel, as bytes of
# weights: their prefetchers stop at the end of each. Seen: Cascade Lake, and a Granite Rapids, for
# which products with bytes read 46 GB/s so, and 26 else; it gains nothing by it with maps.
_GOLDEN_COVE = frozenset(
    {"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"}
)
_ASK_PAGES = _ASK_AHEAD | _GOLDEN_COVE
# What they lose of a call, see Note [Long vectors].
_SLOWED_SECONDS = dict.fromkeys(_ASK_AHEAD, 2.5e-6) | dict.fromkeys(_GOLDEN_COVE, 0.8e-6)
_LINES_AHEAD = 16  # 8 to 32 are alike
_ONE_OF_256 = frozenset({"znver1"})
_L1_MISSES = 24  # Zen 3 and 4; Zen 5 and cores of Apple have more, Golden Cove has 16
_FEW_MISSES = dict.fromkeys(("sandybridge", "ivybridge", "haswell", "broadwell"), 10)
_FEW_MISSES |= dict.fromkeys(
    ("skylake", "skylake-avx512", "cascadelake", "cooperlake", "cannonlake", "icelake-client",
     "icelake-server", "rocketlake", "tigerlake"), 12,
)  # fmt: skip
_FOUR_PIPES = ("neoverse-v", "neoverse-512tvb", "apple-m", "cortex-x")
_APPLE = ("apple-m", "apple-a")  # their lines have 128 bytes, and their pages 16 KiB


@dataclass(frozen=True, kw_only=True)
class Target(Machine):
    """One CPU, and what the steps above kernels know of it. `features` is LLVM's comma-separated
    list. l1_nbytes, l2_nbytes: the share of one core, which may be a thread of a physical one;
    so are peak_flops, cache_bandwidth and l2_bandwidth, for when both are at work. fma_ports:
    vectors that a physical core multiplies and adds (and loads) in a cycle. l1_misses: lines
    that it waits for at once. clock: cycles a second. slowed_seconds: what a call loses by vectors
    of 64 bytes, see Note [Long vectors]. asks_pages: whether tiles ask for panels a page ahead."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_registers: int
    has_fma: bool
    has_avx512: bool
    l1_nbytes: int
    fma_ports: int
    l1_misses: int
    clock: float
    slowed_seconds: float
    asks_pages: bool

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    def has(self, feature: str) -> bool:
        """True where LLVM's feature list switches `feature` on."""
        return feature in self.switched_on

    @property
    def switched_on(self) -> frozenset[str]:
        """The features of LLVM's list that are on."""
        return _enabled(self.features)

    def lanes(self, elem: object) -> int:
        """Elements of one vector register; `elem` is anything whose text names an element type."""
        return self.vector_nbytes // _ELEM_NBYTES[str(elem)]

    @property
    def cycles_per_second(self) -> float:
        """Of the model, in which each port finishes one multiply-add a cycle."""
        return self.peak_flops / (2 * self.lanes("f32") * self.fma_ports)

    @property
    def has_short_vectors(self) -> bool:
        """Whether they are half as long as they might be."""
        return self.has_avx512 and self.vector_nbytes < 64

    @remembered  # one object, which is found at once where things are kept for each target
    def with_short_vectors(self) -> Target:
        """The same, with vectors of half the length."""
        return self.with_vectors(self.vector_nbytes // 2)

    def with_vectors(self, nbytes: int) -> Target:
        """The same, with shorter ones: two halves of a port for the longest are ports for them."""
        ports = self.fma_ports if nbytes == self.vector_nbytes else max(self.fma_ports, 2)
        flops = self.peak_flops * nbytes * ports / (self.vector_nbytes * self.fma_ports)
        return replace(self, vector_nbytes=nbytes, fma_ports=ports, peak_flops=flops)

    @property
    def masks_lanes(self) -> bool:
        return self.has_avx512

    def table_nbytes(self, itemsize: int) -> int:
        """Four registers of a shuffle by indices, or fewer; see `cpu/llvm/lookups.py`."""
        if self.has_avx512:
            return 4 * self.vector_nbytes
        if not self.is_x86:
            return 64 if itemsize == 1 else 0
        if itemsize == 1:
            return 16 if self.has("ssse3") else 0
        return 32 if itemsize == 4 and self.has("avx2") else 0

    def shuffle_cost(self, itemsize: int) -> float:
        """Two shuffles and a blend, where there is none by indices into two registers."""
        if self.has_avx512:
            return 2.0 if itemsize >= 2 or self.has("avx512vbmi") else 8.0
        if not self.is_x86:
            return 2.0
        return 3.0 if itemsize >= 4 else 6.0 if self.has("ssse3") else 16.0

    def lane_seconds(self, itemsize: int) -> float:
        """Instructions that gather take about a cycle a lane, of elements of fewer than 4 bytes
        with what cuts these out of words. Without any, a lane is a load and an insert."""
        cycles = 2.0 if not self.has_avx512 else 1.0 if itemsize >= 4 else 1.25
        return cycles / self.clock

    @property
    def l2_nbytes_a_cycle(self) -> float:
        """What one core reads from its second cache."""
        return self.l2_bandwidth / self.clock

    @classmethod
    @cache
    def host(cls) -> Target:
        """The CPU this process runs on, with the cores it may use."""
        triple, named, features = on_another_thread(_what_llvm_says)
        cpu = _proved(named, features)
        if "amx-int8" in _enabled(features) and not may_use_matrices():
            features = features.replace("+amx", "-amx")
        caches = dict(_X86_CACHES if triple.startswith("x86_64") else _ARM_CACHES)
        cpus = _usable_cpus()
        nbytes, l3s = _sysfs_caches(cpus)
        return _make(
            cpu or platform.machine(), triple, cpu, features, caches | nbytes,
            cores=min(len(cpus), max(_granted(), 1)), physical=_sysfs_cores(cpus), l3s=l3s,
            clock=_sysfs_clock(cpus) or _named_clock(cpus) or _CLOCK,
        )  # fmt: skip

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


def _what_llvm_says() -> tuple[str, str, str]:
    """Triple, CPU and features of this machine."""
    triple, cpu = llvm.get_default_triple(), llvm.get_host_cpu_name()
    # llvmlite raises where LLVM cannot list the features (some ARM kernels); the name implies them.
    try:
        return triple, cpu, llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        return triple, cpu, ""


def _proved(cpu: str, features: str) -> str:
    """The oldest core of two full multiply-adds in a cycle that has these features, if `cpu` is
    none such; else `cpu`."""
    on = _enabled(features)
    cores = (core for needed, core in _PROVED_BY if needed <= on)
    return cpu if cpu in _TWO_OF_512 else next(cores, cpu)


def _x86(name: str, cpu: str, features: str) -> Target:
    return _make(name, "x86_64-unknown-linux-gnu", cpu, features, _X86_CACHES, cores=1)


def _make(
    name: str, triple: str, cpu: str, features: str, caches: dict[int, int], *, cores: int,
    physical: int = 0, l3s: int = 1, clock: float = _CLOCK,
) -> Target:  # fmt: skip
    """physical: how many cores those are that are threads; 0: as many."""
    alone = min(physical or cores, cores)
    share = alone / cores  # of a physical core
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
        l3s=l3s,
        cores=cores,
        fma_ports=ports,
        l1_misses=_FEW_MISSES.get(cpu, _L1_MISSES),
        clock=clock,
        slowed_seconds=_SLOWED_SECONDS.get(cpu, 0.0) if avx512 else 0.0,
        peak_flops=flops_per_cycle * clock * share,
        bandwidth=min(_CORE_BANDWIDTH * alone, 45e9 + 10e9 * alone, _MOST_BANDWIDTH),
        core_bandwidth=_CORE_BANDWIDTH,
        cache_bandwidth=_CACHE_NBYTES_A_CYCLE * clock * share,
        # Two thirds of what it may give: half of what loads may take, or 32 bytes a cycle.
        lines_ahead=_LINES_AHEAD if cpu in _ASK_AHEAD else 0,
        asks_pages=cpu in _ASK_PAGES,
        l2_bandwidth=max(32, ports * vector_nbytes / 2) * 2 / 3 * clock * share,
        line_nbytes=128 if cpu.startswith(_APPLE) else 64,
        page_nbytes=(16 << 10) if cpu.startswith(_APPLE) else 4096,
    )


def _fma_ports(cpu: str, *, avx512: bool) -> int:
    """Vectors of the widest kind that one core multiplies and adds in a cycle."""
    if avx512:
        return 2 if cpu in _TWO_OF_512 else 1
    if cpu in _ONE_OF_256:
        return 1
    return 4 if cpu.startswith(_FOUR_PIPES) else 2


def _sysfs_caches(cpus: Sequence[int]) -> tuple[dict[int, int], int]:
    """Data cache bytes by level, and how many last caches these CPUs have. Of levels before the
    last one it is the share of one CPU. What the kernel does not tell is missing."""
    found: dict[int, int] = {}
    last: set[str] = set()  # which CPUs share each
    for cpu in cpus:
        for folder in sorted((_SYSFS / f"cpu{cpu}/cache").glob("index*")):
            level, kind, size, shared = (
                _text(folder / name) for name in ("level", "type", "size", "shared_cpu_list")
            )
            match = re.fullmatch(r"(\d+)([KMG]?)", size)
            if not level or not match or kind == "Instruction":
                continue
            nbytes = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
            if level == "3":
                last.add(shared)
            else:
                nbytes //= max(len(_listed(shared).intersection(cpus)), 1)
            if nbytes:  # cores may differ: choices are right for the least
                found[int(level)] = min(nbytes, found.get(int(level), nbytes))
    return found, max(len(last), 1)


def _sysfs_cores(cpus: Sequence[int]) -> int:
    """How many physical cores these CPUs are threads of; as many where the kernel does not
    tell."""
    told = (_text(_SYSFS / f"cpu{cpu}/topology/thread_siblings_list") for cpu in cpus)
    return len({siblings or str(cpu) for cpu, siblings in zip(cpus, told, strict=True)})


def _sysfs_clock(cpus: Sequence[int]) -> float:
    """Cycles a second of the slowest of these CPUs at its best; 0 where the kernel does not
    tell."""
    clocks = [_text(_SYSFS / f"cpu{cpu}/cpufreq/cpuinfo_max_freq") for cpu in cpus]
    return 1e3 * min((int(clock) for clock in clocks if clock.isdecimal()), default=0)


def _named_clock(cpus: Sequence[int]) -> float:
    """The same, as Intel's names of processors say it: "... CPU @ 2.50GHz". It is the clock that
    all cores keep up, which virtual machines tell no other way; 0 where a name has none."""
    found = []
    for block in _text(_CPUINFO).split("\n\n"):
        told = dict(re.findall(r"^(.*\S)\s*: *(.*)$", block, re.MULTILINE))
        clock = re.search(r"@ *(\d+(?:\.\d+)?) *([GM])Hz", told.get("model name", ""))
        if clock and told.get("processor", "") in map(str, cpus):
            found.append(float(clock[1]) * {"M": 1e6, "G": 1e9}[clock[2]])
    return min(found, default=0.0)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _listed(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _usable_cpus() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return list(range(os.cpu_count() or 1))


def _granted() -> int:
    """How many CPUs a container lets its processes use at a time; it stops those that use more, all
    of them, until the next period begins. As many as anybody has where there is no limit."""
    quotas = [math.inf]
    for line in _text(_OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS  # of cgroups of version 1, of 2
        own = root / path.lstrip("/")  # which may be there under another name: the root's own
        quotas += map(_quota, (own, *(each for each in own.parents if each.is_relative_to(root))))
    return math.ceil(min(*quotas, 1 << 16))


def _quota(cgroup: Path) -> float:
    """CPUs that a cgroup may use; infinite where it has no limit, or is not there."""
    told = _text(cgroup / "cpu.max").split()
    if len(told) != 2:
        told = [_text(cgroup / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    limited = all(map(str.isdecimal, told)) and int(told[1])
    return int(told[0]) / int(told[1]) if limited else math.inf
