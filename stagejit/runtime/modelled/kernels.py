"""What a kernel takes by the model that chose it.

Input: a kernel, the machine. Output: seconds. Invariant: a model: it knows no caches that are cold,
no clock that changes, no other programs. `Kernel.seconds` are those of one core or multiprocessor,
which as many share as have some of its items.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagejit.base.machine import CALL_SECONDS, HOT_FORK_SECONDS, Machine
from stagejit.base.records import record
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.runtime.hosting import launching
from stagejit.schedule.plans.turns import Carried, counted_once

# Of a dispatch: its name, behind those of the loops and branches around it and the numbers of their
# bodies, as ("loop.1", 0, "map.2").
Path = tuple[str | int, ...]


@record
class Modelled:
    """seconds: by the model. is_known: whether they are all of it; where not, there is more that
    nobody knows: what XLA or a library does, or how often a loop turns, of which one turn is
    counted."""

    seconds: float
    is_known: bool = True


def core_seconds(kernel: Kernel, target: Target, *, alone: bool) -> tuple[float, int]:
    """From its call to its end on the core that has most of its items, and how many cores have any;
    without the fork, but with those between passes. alone: it has one core, as others run other
    iterations."""
    grain, shared = launching.launching(kernel, target)
    if alone or not shared:
        return len(kernel.passes) * CALL_SECONDS + kernel.seconds, 1
    most = launching.most_items(kernel.total, grain, target.cores)
    cores = min(-(-kernel.total // grain), target.cores)
    begun = len(kernel.passes) * CALL_SECONDS + (len(kernel.passes) - 1) * HOT_FORK_SECONDS
    together = kernel.far_nbytes / target.bandwidth  # however many cores there are
    return begun + max(kernel.seconds * most / kernel.total, together), cores


def launch_seconds(kernel: Kernel, device: Machine) -> float:
    """Of one launch on a GPU, whose multiprocessors share the blocks."""
    each = kernel.seconds / max(len(kernel.passes), 1)
    return device.start_seconds + each / max(min(device.cores, kernel.total), 1)


def copying_seconds(carries: Iterable[Carried], target: Machine) -> float:
    """Of carries in a run of their dispatch, in one turn where only the call knows how many there
    are: they come from where a kernel has just written them."""
    return sum(
        counted_once(each.times) * (CALL_SECONDS + 2 * nbytes / _bandwidth(2 * nbytes, target))
        for each in carries
        for nbytes in each.nbytes
    )


def _bandwidth(nbytes: int, machine: Machine) -> float:
    """Bytes a second of one core, of what has been used just now."""
    if nbytes <= machine.l2_nbytes:
        return machine.l2_bandwidth
    return machine.rate_of_core(nbytes)
