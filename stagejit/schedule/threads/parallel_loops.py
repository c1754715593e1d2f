"""Which loops run their iterations on several threads at once.

Input: a loop, and where the buffers of its bodies lie. Output: on how many threads it runs, and a
`Decision`. Invariant: threads share only iterations that do not depend on each other; each has a
part of the workspace of its own.

Note [Threads or forks]: the kernels of an iteration may fork, too. Iterations side by side fork
once, and no core waits for the last chunk of each kernel; but all wait for the longest share of
iterations, and the transients of every thread want room in the caches.
"""

from __future__ import annotations

from dataclasses import replace

from stagejit.base.decisions import Decision
from stagejit.base.machine import FORK_SECONDS, HOT_FORK_SECONDS, Machine
from stagejit.dispatch.bodies import counted_inside
from stagejit.dispatch.regions import Region
from stagejit.options import Options
from stagejit.schedule.bodies import Bodies, PlacedBody, with_threads
from stagejit.schedule.schedule import Schedule, Step
from stagejit.schedule.threads.independent import dependence
from stagejit.schedule.threads.seconds import step_seconds

NAME = "parallel-loops"
_UNEVEN = 1.1  # a kernel that forks takes so much longer than its share of the work


def shared(
    region: Region, bodies: Bodies, machine: Machine, options: Options
) -> tuple[Bodies, Decision]:
    """The bodies of a loop, whose iterations threads share where they may and where it pays."""
    threads = min(machine.cores, bodies.each[0].trip or 1)
    reason = _alone(bodies, machine, options)
    if reason:
        return bodies, declined(region, reason)
    made = with_threads(bodies, threads, _counted(region, bodies))
    (body,) = made.each
    reason = dependence(region, body) or _too_large(made, machine, options)
    if reason:
        return bodies, declined(region, reason)
    pays, reason = _pays(body, machine)
    decision = replace(declined(region, reason), applied=pays)
    return (made if pays else bodies), decision


def declined(region: Region, reason: str) -> Decision:
    """Why one thread runs a loop."""
    return Decision(NAME, f"@{region.name} {region.kind}", False, reason, region.loc)


def _alone(bodies: Bodies, machine: Machine, options: Options) -> str:
    """Why there is nothing to share."""
    body, *condition = bodies.each
    if condition:
        return "a condition ends it"
    if body.trip == 1:
        return "it has one iteration"
    if machine.cores == 1:
        return "there is one core"
    if not machine.side_by_side:
        return "kernels of all iterations run one after the other"
    if options.full_barriers:
        return "all dispatches run one after the other"
    return "sizes are not known" if body.schedule.plan.sizes else ""


def _counted(region: Region, bodies: Bodies) -> dict[str, tuple[int, int]]:
    """The arguments of a loop's body that count its iterations, see `with_threads`."""
    assert region.anchor is not None
    names = bodies.each[0].schedule.buffer_of
    found = counted_inside(region.anchor, region.scalars).items()
    return {names[value]: counts for value, counts in found if value in names}


def _too_large(bodies: Bodies, machine: Machine, options: Options) -> str:
    """Why there is no room for the transients of all threads."""
    nbytes, threads = bodies.nbytes, bodies.each[0].threads
    what = f"{nbytes} bytes of transients for {threads} threads"
    if options.memory_budget is not None and nbytes > options.memory_budget:
        return f"{what} are over the memory budget"
    if nbytes > max(machine.l3s_nbytes, threads * machine.l2_nbytes):
        return f"{what} do not fit in the caches"
    return ""


def _pays(body: PlacedBody, machine: Machine) -> tuple[bool, str]:
    trip, threads = body.trip or 1, body.threads
    one = _seconds(body.schedule, machine, 1)
    kernels = trip * _seconds(body.schedule, machine, machine.cores)
    rounds = -(-trip // threads)
    iterations = FORK_SECONDS + rounds * one
    side_by_side = f"{trip} iterations of {1e6 * one:.3g} us on {threads} threads"
    times = f"{1e6 * iterations:.3g} us, one after the other {1e6 * kernels:.3g}"
    return iterations < kernels, f"{side_by_side}: {times}"


def _seconds(schedule: Schedule, machine: Machine, cores: int) -> float:
    """Of one execution of a body, whose kernels fork on so many cores."""
    return sum(_step_seconds(step, machine, cores) for step in schedule.steps())


def _step_seconds(step: Step, machine: Machine, cores: int) -> float:
    inner = [_seconds(body, machine, cores) for body in step.bodies]
    if step.region.definition.is_branch:
        return max(inner)
    if inner:  # a loop of unknown length counts once
        return (step.dispatch.bodies[0].trip or 1) * sum(inner)
    seconds = step_seconds(step, machine)
    if cores == 1 or seconds <= FORK_SECONDS:
        return seconds
    return seconds / cores * _UNEVEN + HOT_FORK_SECONDS
