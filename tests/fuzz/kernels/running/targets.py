"""The targets that kernels can be run for here.

Input: names. Output: `Targets`, and for each name that is missing the reason. Invariant: what is in
`names` can be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagejit.codegen.cpu.instructions import has_matrices
from stagejit.codegen.target import Target
from tests.fuzz.kernels.running.bochs import Bochs, emulated, refuse_bochs
from tests.fuzz.kernels.running.emulator import Emulator, refuse_emulator

# Like another, with instructions that add up products of bytes.
_OF_BYTES = {
    "vnni": ("avx2", "+avxvnni"), "dotprod": ("neon", "+dotprod"),
    "amx": ("avx512", "+avx512vnni,+amx-tile,+amx-int8"),
}  # fmt: skip
ALL = ("avx512", "avx2", "sse2", "neon", *_OF_BYTES)
_ARM = ("neon", "dotprod")


@dataclass(frozen=True)
class Targets:
    """cpus: by name. skipped: names with reasons. emulators: of those that are not run natively.
    interpreted: those whose machine code is made, but whose kernels run in the interpreter of the
    loop-nest IR alone, with reasons."""

    cpus: Mapping[str, Target]
    skipped: Mapping[str, str]
    emulators: Mapping[str, Emulator | Bochs] = field(default_factory=dict)
    interpreted: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.cpus)

    def only(self, name: str) -> Targets:
        """Those with this name; all where it is none."""
        if name not in self.cpus:
            return self
        return Targets({name: self.cpus[name]}, {}, self.emulators, self.interpreted)


def find_targets(names: Sequence[str] = ALL, *, interpreted: bool = False) -> Targets:
    """Those of `names` that this machine can run, natively, in an emulator or, if that is enough,
    in the interpreter of the loop-nest IR."""
    host = Target.host()
    cpus, skipped, alone = {}, {}, {}
    emulators: dict[str, Emulator | Bochs] = {}
    for name in names:
        reason = _refuse(name, host)
        if reason and interpreted and name in ALL:
            alone[name], cpus[name] = reason, cpu_named(name)
            continue
        if reason:
            skipped[name] = reason
            continue
        if name in _ARM and host.is_x86:
            emulators[name] = Emulator()
        elif name == "avx512" and not host.has_avx512:
            emulators[name] = Bochs()
        cpus[name] = _cpu(name, host)
    return Targets(cpus, skipped, emulators, alone)


def _cpu(name: str, host: Target) -> Target:
    if (name == "avx512" and host.has_avx512) or (name == "neon" and not host.is_x86):
        return host
    cpu = cpu_named(name)
    return emulated(cpu) if name == "avx512" else cpu


def cpu_named(name: str) -> Target:
    """The CPU of that name, whether it runs here or not."""
    like, features = _OF_BYTES.get(name, (name, ""))
    cpu: Target = getattr(Target, like)()
    return replace(cpu, name=name, features=f"{cpu.features},{features}") if features else cpu


def _refuse(name: str, host: Target) -> str:
    if name not in ALL:
        return f"there is no such target; there are {', '.join(ALL)}"
    if name in _ARM:
        return refuse_emulator() if host.is_x86 else ""
    if not host.is_x86:
        return "this is no x86"
    if name == "avx512" and not host.has_avx512:
        return refuse_bochs()
    if name == "avx2" and not (host.has("avx2") and host.has("fma")):
        return "this processor has no AVX2"
    if name == "vnni" and not host.has("avxvnni"):
        return "this processor has no AVX-VNNI"
    if name == "amx" and not has_matrices(host):
        return "this processor has no AMX"
    return ""
