"""What `Options(check_nans=True)` looks at that no program of ours reads: what XLA made for XLA, or
for the caller.

Input: a schedule. Output: programs that give on what they get, unless there is a NaN in it.
Invariant: with the checks of runs (`checking.py`) every float that comes out of a call was looked
at: what a run reads it has looked at itself, and results that are arguments or constants are
written by dispatches that copy or fill.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.options import Options
from stagejit.runtime.cpu.nans.checking import Checking, whole
from stagejit.runtime.cpu.nans.checks import check_of, is_checked
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.schedule.schedule import Delegation, Run, Schedule

# Names of buffers, and the program that takes their values and gives them on, in the same memory.
Looking = tuple[tuple[str, ...], HostProgram]


def passing_on(schedule: Schedule, options: Options) -> Mapping[Delegation, Looking]:
    """For equations that are left to XLA what looks at their results behind them."""
    if not options.checks:
        return {}
    runs = [part for part in schedule.segments if isinstance(part, Run)]
    seen = {name for run in runs for name in run.arguments}
    found = {}
    for part in schedule.segments:
        if isinstance(part, Delegation):
            names = [name for name in dict.fromkeys(part.results) if name not in seen]
            if looking := _looking(schedule, options, part, names):
                found[part] = looking
    return found


def _looking(
    schedule: Schedule, options: Options, part: Delegation, names: list[str]
) -> Looking | None:
    buffers = [schedule.plan.buffer(name) for name in names]
    some = [each for each in buffers if is_checked(each.dtype) and each.nbytes]
    if not some:
        return None
    checking, infs = Checking(schedule, options), options.check_infs
    steps = tuple(
        checking.said(
            check_of(whole(buffer), buffer, BufferRef("result", number), infs=infs),
            *checking.of_xla(part),
        )
        for number, buffer in enumerate(some)
    )
    sizes = tuple(buffer.nbytes for buffer in some)
    same = tuple((number, number) for number in range(len(some)))
    program = HostProgram(
        checking.name, steps, sizes, sizes, aliases=same, checks=tuple(checking.texts)
    )
    return tuple(buffer.name for buffer in some), program
