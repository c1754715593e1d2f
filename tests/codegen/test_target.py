"""Target descriptions: this machine's, and those of other CPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stagejit import types
from stagejit.codegen import target as module
from stagejit.codegen.cpu.instructions import byte_signs
from stagejit.codegen.ir.nodes import BF16, F32, F64, I8
from stagejit.codegen.target import Target


def test_host_is_plausible() -> None:
    host = Target.host()
    assert host is Target.host()
    assert host.vector_nbytes in (16, 32, 64)
    assert host.cores >= 1
    assert 2**12 <= host.l1_nbytes <= host.l2_nbytes
    assert 1e9 < host.peak_flops < 1e13
    assert 1e9 < host.bandwidth < 1e13
    assert host.cpu in str(host)


@pytest.mark.parametrize(
    ("target", "nbytes", "registers", "fma"),
    [
        (Target.avx512(), 64, 32, True),
        (Target.avx2(), 32, 16, True),
        (Target.sse2(), 16, 16, False),
        (Target.neon(), 16, 32, True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_other_cpus(target: Target, nbytes: int, registers: int, fma: bool) -> None:
    assert target.vector_nbytes == nbytes
    assert target.vector_registers == registers
    assert target.has_fma is fma
    assert target.has_avx512 is (nbytes == 64)


def test_lanes_count_elements_of_types_and_dtypes() -> None:
    target = Target.avx2()
    assert target.lanes(F32) == target.lanes(types.f32) == target.lanes("f32") == 8
    assert target.lanes(F64) == target.lanes(types.i64) == 4
    assert target.lanes(BF16) == target.lanes(types.u16) == 16
    assert target.lanes(I8) == target.lanes(types.bool_) == 32


@pytest.mark.parametrize(("named", "features", "core", "ports"), [
    ("rocketlake", "+avx512f,+avx512fp16,+amx-tile", "sapphirerapids", 2),  # seen
    ("rocketlake", "+avx512f,+avx512vnni,-amx-tile,-avx512fp16", "rocketlake", 1),
    ("x86-64-v4", "+avx512f,+avx512fp16", "sapphirerapids", 2),  # AMX is often kept from guests
    ("diamondrapids", "+avx512f,+avx512fp16,+amx-tile", "diamondrapids", 2),
    ("znver4", "+avx512f,+clzero,+avx512vp2intersect", "znver5", 2),
    ("znver4", "+avx512f,+clzero,+avx512bf16", "znver4", 1),
    ("tigerlake", "+avx512f,+avx512vp2intersect", "tigerlake", 1),  # a laptop's core has that, too
    ("znver3", "+avx2,+clzero", "znver3", 2),
])  # fmt: skip
def test_what_a_core_may_execute_outweighs_its_name(
    named: str, features: str, core: str, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"{module._AVX2},+avx512bw,+avx512cd,+avx512dq,+avx512vl,{features}"
    told = ("x86_64-unknown-linux-gnu", named, said)
    monkeypatch.setattr(module, "_what_llvm_says", lambda: told)
    host = Target.host.__wrapped__(Target)
    assert (host.cpu, host.fma_ports) == (core, ports)


def test_features_are_looked_up_by_name() -> None:
    assert Target.avx2().has("f16c")
    assert not Target.sse2().has("sse4.1")
    assert Target.sse2().is_x86
    assert not Target.neon().is_x86


@pytest.mark.parametrize(("like", "features", "signs"), [
    ("avx512", "", ""), ("avx512", "+avx512vnni", "us"), ("avx512", "+avxvnni", ""),
    ("avx512", "+avx512vnni,+avxvnniint8", "us"), ("avx512", "+avx512vnni,+avx10.2", "us ss uu"),
    ("avx2", "+avxvnni", "us"), ("avx2", "+avxvnni,+avxvnniint8", "us ss uu"), ("sse2", "", ""),
    ("neon", "", ""), ("neon", "+dotprod", "ss uu"), ("neon", "+dotprod,+i8mm", "us ss uu"),
])  # fmt: skip
def test_who_sums_products_of_bytes(like: str, features: str, signs: str) -> None:
    target: Target = getattr(Target, like)()
    target = replace(target, features=f"{target.features},{features}")
    assert byte_signs(target) == {(one == "s", two == "s") for one, two in signs.split()}


def test_avx512_needs_all_of_its_parts() -> None:
    """Knights Landing has avx512f alone, which has no 8- and 16-bit masks."""
    partial = module._x86("knl", "knl", "+sse,+sse2,+avx,+avx2,+fma,+avx512f,+avx512cd")
    assert not partial.has_avx512
    assert partial.vector_nbytes == 32


CACHES = [("1", "Data", "48K", 2), ("1", "Instruction", "64K", 2), ("2", "Unified", "2M", 4),
          ("3", "Unified", "32M", 8)]  # fmt: skip


def describe(root: Path, cpus: int, caches: list[tuple[str, str, str, int]], clock: str) -> None:
    """A folder like sysfs: of each cache the level, kind, size and how many neighbours share it."""
    for cpu in range(cpus):
        for number, (level, kind, size, share) in enumerate(caches):
            folder, first = root / f"cpu{cpu}/cache/index{number}", cpu // share * share
            folder.mkdir(parents=True)
            listed = f"{first}-{first + share - 1}" if share > 1 else str(first)
            texts = {"level": level, "type": kind, "size": size, "shared_cpu_list": listed}
            for name, text in texts.items():
                (folder / name).write_text(text + "\n")
        (root / f"cpu{cpu}/cache/index9").mkdir()  # unreadable, as in some containers
        (root / f"cpu{cpu}/cpufreq").mkdir()
        (root / f"cpu{cpu}/cpufreq/cpuinfo_max_freq").write_text(clock)


def test_caches_are_read_from_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has its share of what several of them use."""
    describe(tmp_path, 24, CACHES, "4100000\n")
    monkeypatch.setattr(module, "_SYSFS", tmp_path)
    every = {1: 24 << 10, 2: 512 << 10, 3: 32 << 20}
    assert module._sysfs_caches(range(24)) == (every, 3)
    assert module._sysfs_caches([0, 2, 8, 9]) == ({1: 24 << 10, 2: 1 << 20, 3: 32 << 20}, 2)
    assert module._sysfs_caches([17]) == ({1: 48 << 10, 2: 2 << 20, 3: 32 << 20}, 1)
    assert module._sysfs_clock(range(24)) == 4.1e9


def test_threads_of_one_core_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYSFS", tmp_path)
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert module._sysfs_cores(range(8)) == 4
    assert module._sysfs_cores([0, 1, 5]) == 2
    assert module._sysfs_cores([0, 8, 9]) == 3  # of which the kernel tells of one


def test_what_sysfs_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(tmp_path, 2, [("2", "Unified", "2M", 1), ("3", "Unified", "0", 1)], "")
    monkeypatch.setattr(module, "_SYSFS", tmp_path)
    found, l3s = module._sysfs_caches([0, 1, 5])
    assert found == {2: 2 << 20}
    assert l3s == 2
    assert module._sysfs_clock([0, 1, 5]) == 0
    assert module._sysfs_caches([7]) == ({}, 1)


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("3", {3}), ("0-2", {0, 1, 2}), ("1,4-5,9", {1, 4, 5, 9})]
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert module._listed(text) == cpus


@pytest.mark.parametrize(
    ("cpu", "asks"), [("cascadelake", True), ("skylake-avx512", True), ("znver4", False)]
)
def test_which_cores_ask_for_lines(cpu: str, asks: bool) -> None:
    assert bool(module._x86("some", cpu, Target.avx512().features).lines_ahead) is asks


@pytest.mark.parametrize(
    ("cpu", "asks"),
    [("cascadelake", True), ("sapphirerapids", True), ("graniterapids", True), ("znver4", False),
     ("znver5", False), ("icelake-server", False), ("x86-64-v4", False)],
)  # fmt: skip
def test_who_asks_for_panels_a_page_ahead(cpu: str, asks: bool) -> None:
    assert module._x86("some", cpu, Target.avx512().features).asks_pages is asks


@pytest.mark.parametrize(
    ("cpu", "line", "page"),
    [("apple-m1", 128, 16384), ("neoverse-n1", 64, 4096), ("znver4", 64, 4096)],
)
def test_lines_and_pages(cpu: str, line: int, page: int) -> None:
    triple = "x86_64-unknown-linux-gnu" if cpu.startswith("znver") else "aarch64-unknown-linux-gnu"
    target = module._make(cpu, triple, cpu, "", module._ARM_CACHES, cores=8)
    assert (target.line_nbytes, target.page_nbytes) == (line, page)


def test_memory_gives_no_more_than_its_channels() -> None:
    """Two sockets of 12 channels of DDR5-4800 have 922 GB/s at most; two cores have what they
    ask for."""
    given = [
        module._make("", "x86_64-unknown-linux-gnu", "znver4", "", module._X86_CACHES, cores=cores)
        for cores in (1, 2, 8, 64, 96, 192, 512)
    ]
    bandwidths = [target.bandwidth for target in given]
    assert bandwidths == sorted(bandwidths)
    assert bandwidths[1] == 2 * given[1].core_bandwidth
    assert max(bandwidths) < 2 * 12 * 8 * 4.8e9


NAMES = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor @ 2.50GHz
cpu MHz\t\t: 1200.000

processor\t: 1
model name\t: Intel(R) Core(TM) i7-1065G7 CPU @ 1300 MHz

processor\t: 12
model name\t: AMD EPYC 9R14 96-Core Processor
"""


def test_a_clock_is_read_from_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(NAMES)
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
    assert module._named_clock([0]) == 2.5e9
    assert module._named_clock([0, 1]) == 1.3e9, "of the slowest"


def test_dont_read_a_clock_that_a_name_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(NAMES)
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
    assert module._named_clock([12]) == 0
    assert module._named_clock([2]) == 0, "a processor that is not described"
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "there-is-none")
    assert module._named_clock([0]) == 0


@pytest.mark.parametrize(
    ("sysfs", "named", "clock"), [(4.1e9, 2.5e9, 4.1e9), (0.0, 2.5e9, 2.5e9), (0.0, 0.0, 3.5e9)]
)
def test_who_tells_the_clock(
    sysfs: float, named: float, clock: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_sysfs_clock", lambda cpus: sysfs)
    monkeypatch.setattr(module, "_named_clock", lambda cpus: named)
    host = Target.host.__wrapped__(Target)  # type: ignore[attr-defined]  # not what is kept
    assert host.clock == clock
    assert host.cycles_per_second == pytest.approx(clock / (1 if host.has_fma else 2))


@pytest.mark.parametrize(
    ("own", "told", "cpus"),
    [
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {}, None),
        ("", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "500000 100000", "cpu.max": "100000 100000"}, 1),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000"}, 4),
        ("4:memory:/\n1:cpu,cpuacct:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "250000",
                                                "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("9:name=systemd:/\n3:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "100000",
                                           "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "20000 100000"}, 1),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
    ],
)  # fmt: skip
def test_containers_grant_so_many_cores(
    own: str,
    told: dict[str, str],
    cpus: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None: no limit."""
    for name, text in told.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(module, "_CGROUPS", tmp_path / "root")
    monkeypatch.setattr(module, "_OWN_CGROUPS", tmp_path / "own")
    assert module._granted() == (cpus or 1 << 16)
    monkeypatch.setattr(module, "_usable_cpus", lambda: list(range(8)))
    host = Target.host.__wrapped__(Target)  # type: ignore[attr-defined]  # not what is kept
    assert host.cores == min(cpus or 8, 8)
