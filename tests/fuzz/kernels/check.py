"""One case from its graph to the verdict on each of its kernels.

Input: a case, targets, the kernel caches that it shares with other cases. Output: `Job`s, each a
kernel with the memory that it is run on, and for each the fault, if any. Invariant: what is done is
decided by the case alone, so that a case that fails fails again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stagejit.base.machine import Machine
from stagejit.codegen.generate import Generated, KernelCache
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.dispatch.regions import Region, regions_of
from stagejit.errors import UnsupportedOpError
from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops.control import memory_of
from stagejit.graph.verifier import verify as verify_graph
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.normal_form import normalize
from tests.expected.dispatches import dispatches_of
from tests.fuzz.kernels.case import Case
from tests.fuzz.kernels.reference import Reference, interpret_over_zeros
from tests.fuzz.kernels.running.inputs import inputs_of
from tests.fuzz.kernels.running.machines import machine_of
from tests.fuzz.kernels.running.scene import Array, Frame, Scene

_POISONS = (0xFF, 0xFF, 0xA5, 0x7F)


@dataclass(frozen=True)
class Job:
    """One kernel to run. region: its text; level: of LLVM's code generation."""

    target: str
    region: str
    symbol: str
    llvm: str
    level: int
    kernel: Kernel
    frame: Frame
    scene: Scene

    def fault(self, after: Array) -> str:
        """What is wrong with the memory after the run; empty where nothing is."""
        return self.scene.fault(self.frame, after)


class Kind(NamedTuple):
    """What kernels of a region depend on beside it. machine: its number, see `machines.py`."""

    target: str
    machine: int
    verify: bool


@dataclass
class Caches:
    """One kernel cache for each target, machine and mode, and what came out of them so far.

    seen: what made a template first, by the identity of its text.
    """

    targets: Mapping[str, Machine]
    caches: dict[Kind, KernelCache] = field(default_factory=dict)
    seen: dict[int, object] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    origin: object = None  # what makes templates now

    def generate(
        self, kind: Kind, region: Region, overwritten: frozenset[Value]
    ) -> tuple[Generated, bool]:
        """The kernel, and whether the cache had it."""
        if kind not in self.caches:
            self.caches[kind] = self._empty(kind)
        made = self.caches[kind].generate(region, overwritten)
        known = id(made.text) in self.seen
        if not known:
            self.seen[id(made.text)] = self.origin
            self.kept.append(made.text)  # so that its identity stays its own
        return made, known

    def fresh(self, kind: Kind, region: Region, overwritten: frozenset[Value]) -> Generated:
        """The kernel as a process makes it that has made no other."""
        return self._empty(kind).generate(region, overwritten)

    def _empty(self, kind: Kind) -> KernelCache:
        target = self.targets[kind.target]
        known = machine_of(target, kind.machine) if isinstance(target, Target) else target
        return KernelCache(known, verify=kind.verify)


class CaseFault(Exception):
    """A case that failed before any kernel ran. target: of the kernel, where there is one. first:
    the origin of the kernel that was given out for another one."""

    def __init__(self, what: str, target: str = "", first: object = None) -> None:
        super().__init__(what)
        self.target, self.first = target, first


def jobs_of(
    case: Case, caches: Caches, targets: Sequence[str], kinds: Container[str] | None = None
) -> Iterator[Job]:
    """The kernels of a case, of all kinds or of some, for each target. Raises CaseFault; no jobs
    where the case is one that the compiler refuses."""
    setting, graph = case.setting, case.graph
    options = setting.options
    inputs = inputs_of(graph, setting.seed)
    try:
        verify_graph(graph)
        if setting.rewrites:
            rewrite_graph(graph, options)
        normalize(graph)
        dispatches, _ = dispatches_of(graph, options)
        regions = regions_of(dispatches, options, aligned=setting.aligned)
    except UnsupportedOpError:
        return
    except Exception as error:
        raise CaseFault(f"forming regions: {type(error).__name__}: {error}") from error
    # A loop, as of tiles, has none: those of its body run on the host's steps only.
    parts = [part for region in regions if region.has_kernel for part in region.parts]
    reference = Reference(dispatches, inputs)
    _require_meaning(graph, dispatches, inputs, reference)
    for number, part in enumerate(parts):
        wanted = kinds is None or part.kind in kinds
        if wanted and any(store.value.type.size for store in part.stores):
            yield from _region_jobs(case, caches, targets, part, reference, number)


def _require_meaning(
    graph: Graph, dispatches: Graph, inputs: Sequence[Array], reference: Reference
) -> None:
    """What the dispatches compute is what the graph does, where that is not left open."""
    wanted, others = interpret(graph, inputs), interpret_over_zeros(graph, inputs)
    for number, (value, want, other) in enumerate(
        zip(dispatches.outputs, wanted, others, strict=True)
    ):
        got = reference.declared[value]
        if got.tobytes() != want.tobytes() and not (_equal(got, want) | ~_equal(want, other)).all():
            raise CaseFault(f"the dispatches give another result {number} than the graph")


def _equal(got: Array, want: Array) -> Array:
    """Where two arrays are; NaN is equal to NaN, whatever its bits."""
    same: Array = (got == want) | ((got != got) & (want != want))
    return same


def _region_jobs(
    case: Case,
    caches: Caches,
    targets: Sequence[str],
    region: Region,
    reference: Reference,
    number: int,
) -> Iterator[Job]:
    rng = random.Random(case.setting.seed * 1000 + number)
    over = _taken_over(region, rng) if rng.random() < 0.5 else {}
    shift = 0 if region.aligned else rng.randrange(16)
    scene = Scene(
        region, reference.seen_by(region), over=over, poison=rng.choice(_POISONS), shift=shift
    )
    overwritten, verify = frozenset(over.values()), rng.random() < 0.1
    for target in targets:
        try:
            kind = Kind(target, case.setting.machine, verify)
            made, known = caches.generate(kind, region, overwritten)
            if known:
                fresh = caches.fresh(kind, region, overwritten)
                _require_same(made, fresh, region, target, caches.seen[id(made.text)])
        except CaseFault:
            raise
        except Exception as error:
            what = f"generating {region.kind}: {type(error).__name__}: {error}"
            raise CaseFault(what, target) from error
        if made.kernel.total:
            chunks = _chunks(made.kernel.total, random.Random(rng.random()))
            frame = scene.frame(made.kernel, chunks, verify=verify)
            level = case.setting.level
            text = f"{region.kind} of {len(region.ops)} ops, {len(region.stores)} stores"
            yield Job(target, text, made.symbol, made.text, level, made.kernel, frame, scene)


def _require_same(
    made: Generated, fresh: Generated, region: Region, target: str, first: object
) -> None:
    old, new = made.kernel, fresh.kernel
    if (made.symbol, old.args, old.total) != (fresh.symbol, new.args, new.total):
        raise CaseFault(
            f"the kernel of a {region.kind} depends on what was compiled before: "
            f"{made.symbol}, alone {fresh.symbol}",
            target,
            first,
        )


def _taken_over(region: Region, rng: random.Random) -> dict[Value, Value]:
    """Operands whose memory a store may take, by the memory of its result."""
    used = [memory_of(value) for value in (*region.operands, *region.results)]
    given = [(own, memory_of(v), v) for own, v in zip(region.inputs, region.operands, strict=True)]
    stored = [(s, memory_of(v)) for s, v in zip(region.stores, region.results, strict=True)]
    free_inputs = [(own, value) for own, memory, value in given if used.count(memory) == 1]
    rng.shuffle(free_inputs)
    over: dict[Value, Value] = {}
    for store, memory in stored:
        for own, value in free_inputs if used.count(memory) == 1 else ():
            if value not in over.values() and not refuse_in_place(region, own, store):
                over[memory] = value
                break
    return over


def _chunks(total: int, rng: random.Random) -> list[tuple[int, int]]:
    """[0, total) in pieces, in any order."""
    cuts = sorted({0, total, *(rng.randrange(total + 1) for _ in range(rng.randrange(4)))})
    chunks = list(itertools.pairwise(cuts))
    rng.shuffle(chunks)
    return chunks
