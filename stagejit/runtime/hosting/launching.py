"""How threads share the work of one kernel.

Input: a generated kernel, a target. Output: how many items a chunk has, and whether there is a
fork. Invariant: numbers alone; what depends on what is known before.
"""

from __future__ import annotations

from stagejit.base.machine import FORK_SECONDS
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.target import Target

# A chunk should be worth claiming, and there should be enough of them that late workers find some.
CHUNK_SECONDS = 2e-6
CHUNKS_PER_CORE = 8


def launching(kernel: Kernel, target: Target) -> tuple[int, bool]:
    """(items a chunk, whether threads share them): one core has nobody to share with."""
    if target.cores == 1:
        return max(kernel.total, 1), False
    seconds = kernel.seconds / max(len(kernel.passes), 1)
    grain = grain_of(kernel.total, seconds, target.cores)
    return grain, seconds > FORK_SECONDS and kernel.total > grain


def grain_of(total: int, seconds: float, workers: int) -> int:
    """Items a chunk, of `total` that take so many seconds together."""
    balanced = total // (CHUNKS_PER_CORE * workers)
    worthwhile = int(CHUNK_SECONDS / max(seconds / max(total, 1), 1e-12))
    # Not so many that a core would stay without work, and about as many if all are ready earlier.
    size = max(1, min(max(balanced, worthwhile), -(-total // workers)))
    sizes = range(size - size // 4, size + size // 2 + 1, max(size // 16, 1))
    return min(sizes, key=lambda size: most_items(total, size, workers))


def most_items(total: int, grain: int, workers: int) -> int:
    """Items of the worker that has most, if chunks are as long as they have items."""
    rounds, rest = divmod(total, grain * workers)
    return rounds * grain + min(rest, grain)


def threads(kernel: Kernel, target: Target) -> Choice:
    """Why threads share a kernel, or do not."""
    grain, parallel = launching(kernel, target)
    time = f"{1e6 * kernel.seconds:.3g} us on one core"
    if target.cores == 1:
        why = f"on one core, as there is no other: {time}"
    elif parallel:
        why = f"in chunks of {grain} items on {target.cores} cores: {time}"
    elif kernel.total <= grain:
        why = f"on one core, being one chunk: {time}"
    else:
        why = f"on one core: {time}, where forking pays from {1e6 * FORK_SECONDS:.3g}"
    return Choice("threads", why)


def beside(threads: int) -> Choice:
    """Why threads do not share a kernel of a loop whose iterations they share."""
    return Choice("threads", f"on one core, beside {threads - 1} with other iterations")
