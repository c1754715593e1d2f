"""Which dispatches share a fork and its join: waves.

Input: the steps of a run in order, their plan and kernels, a target. Output: `Wave`s, the steps in
the same order, in groups. Invariant: no two dispatches of a wave depend on each other, directly or
through others, as the plan's barriers say.

Note [Waves]: neighbours that do not depend on each other need no barrier between them, so their
chunks can lie in one parallel region, however small each of them is: an optimizer's step over
hundreds of parameters is one fork. What a dispatch alone is too short for, many are worth together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.errors import InternalError
from stagejit.machine import FORK_SECONDS
from stagejit.schedule.hazards import ancestors
from stagejit.schedule.plan import Plan
from stagejit.schedule.schedule import Step

NAME = "share-forks"
# A chunk should be worth claiming, and there should be enough of them that late workers find some.
CHUNK_SECONDS = 2e-6
CHUNKS_PER_CORE = 8


@dataclass(frozen=True, eq=False)
class Wave:
    """Steps that may run at the same time; a loop, a branch or a call stays alone.

    shared: whether one parallel region runs them all. threads: why, for each step's kernels by
    region; empty where there are none.
    """

    steps: tuple[Step, ...]
    shared: bool
    threads: dict[Region, Choice]


def waves(
    steps: Iterable[Step],
    plan: Plan,
    kernel_of: Callable[[Region], Kernel],
    target: Target,
    *,
    share: bool,
) -> list[Wave]:
    """All steps, in waves. share: whether several dispatches may have one fork at all."""
    found = _independent(steps, plan) if share else [[step] for step in steps]
    return [_wave(group, kernel_of, target, share=share) for group in found]


def _wave(
    steps: Sequence[Step], kernel_of: Callable[[Region], Kernel], target: Target, *, share: bool
) -> Wave:
    parts = [part for step in steps if step.region.has_kernel for part in step.region.parts]
    kernels = [kernel_of(part) for part in parts]
    alone = [threads(kernel, target) for kernel in kernels]
    serial = [kernel.seconds for kernel in kernels if not launching(kernel, target)[1]]
    forks = len(serial) < len(kernels)
    gain = _gain(serial, target)
    # What a single launch gains on two cores where forking begins to pay.
    worthwhile = gain > FORK_SECONDS / 2
    shared = share and len(kernels) > 1 and (forks or worthwhile)
    if shared:
        why = (
            f"in a wave of {len(kernels)}, which saves {1e6 * gain:.3g} us of the "
            f"{1e6 * sum(serial):.3g} that they take one after the other"
            if worthwhile
            else f"in a wave of {len(kernels)}, some of which use several cores anyway"
        )
        alone = [Choice(choice.name, f"{choice.reason}; {why}") for choice in alone]
    return Wave(tuple(steps), shared, dict(zip(parts, alone, strict=True)))


def _gain(serial: Sequence[float], target: Target) -> float:
    """Seconds saved where the launches that stay on one core run at the same time."""
    together = max(max(serial, default=0.0), sum(serial) / target.cores)
    return sum(serial) - together


def launching(kernel: Kernel, target: Target) -> tuple[int, bool]:
    """(items a chunk, whether threads share them)."""
    grain = grain_of(kernel.total, kernel.seconds, target.cores)
    return grain, kernel.seconds > FORK_SECONDS and kernel.total > grain


def grain_of(total: int, seconds: float, workers: int) -> int:
    """Items a chunk, of `total` that take so many seconds together."""
    balanced = total // (CHUNKS_PER_CORE * workers)
    worthwhile = int(CHUNK_SECONDS / max(seconds / max(total, 1), 1e-12))
    # Not so many that a core would stay without work, and about as many if all are ready earlier.
    size = max(1, min(max(balanced, worthwhile), -(-total // workers)))
    sizes = range(size - size // 4, size + size // 2 + 1, max(size // 16, 1))
    return min(sizes, key=lambda size: _last_ready(total, size, workers))


def _last_ready(total: int, grain: int, workers: int) -> int:
    """Items of the worker that has most, if chunks are as long as they have items."""
    rounds, rest = divmod(total, grain * workers)
    return rounds * grain + min(rest, grain)


def threads(kernel: Kernel, target: Target) -> Choice:
    """Why threads share a kernel, or do not."""
    grain, parallel = launching(kernel, target)
    time = f"{1e6 * kernel.seconds:.3g} us on one core"
    if parallel:
        why = f"in chunks of {grain} items on {target.cores} cores: {time}"
    elif kernel.total <= grain:
        why = f"on one core, being one chunk: {time}"
    else:
        why = f"on one core: {time}, where forking pays from {1e6 * FORK_SECONDS:.3g}"
    return Choice("threads", why)


def beside(threads: int) -> Choice:
    """Why threads do not share a kernel of a loop whose iterations they share."""
    return Choice("threads", f"on one core, beside {threads - 1} with other iterations")


def _independent(steps: Iterable[Step], plan: Plan) -> list[list[Step]]:
    """Neighbours that may run at the same time; loops, branches and calls stay alone."""
    waits, groups = _waits(plan), list[list[Step]]()
    names: set[str] = set()  # of the last group, as far as others may join it
    for step in steps:
        name, joins = step.dispatch.name, step.region.has_kernel
        if joins and names and not names & waits.get(name, set()):
            groups[-1].append(step)
            names.add(name)
        else:
            groups.append([step])
            names = {name} if joins else set()
    return groups


def _waits(plan: Plan) -> dict[str, set[str]]:
    """For each dispatch those that a barrier orders right before it. Neighbours of a run between
    which none is are independent: a chain of barriers between two of them would lead through the
    dispatches in between."""
    waits: dict[str, set[str]] = {}
    for barrier in plan.barriers:
        waits.setdefault(barrier.dst, set()).add(barrier.src)
    return waits


def verify_waves(made: Iterable[Wave], plan: Plan) -> None:
    """Raise InternalError where the barriers order two dispatches of one wave, or the dispatches
    of a later wave before those of an earlier one. That they order all that is in conflict, the
    plan's own verifier has shown."""
    at = {dispatch.name: number for number, dispatch in enumerate(plan.dispatches)}
    edges: dict[int, int] = {}
    for src, dst in _ordered(plan):
        edges[at[dst]] = edges.get(at[dst], 0) | 1 << at[src]
    before, done = ancestors(len(at), edges), 0
    for wave in made:
        members = [at[step.dispatch.name] for step in wave.steps]
        mask = sum(1 << number for number in members)
        for number in members:
            if before[number] & mask or done >> number & 1:
                name = plan.dispatches[number].name
                raise InternalError(f"@{name} depends on a part of its wave", step="host")
        done |= mask


def _ordered(plan: Plan) -> Iterator[tuple[str, str]]:
    for barrier in plan.barriers:
        yield barrier.src, barrier.dst
