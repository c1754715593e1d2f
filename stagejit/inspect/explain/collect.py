"""From what was compiled to what is said of it.

Input: the schedule of a function, its kernels, the machine. Output: `Facts`. Invariant: no
dispatch, delegated equation, pack, decision, placement or choice of a kernel is left out, of loops
and branches neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stagejit.base.loc import Loc
from stagejit.base.machine import Machine
from stagejit.base.numbers import counted
from stagejit.codegen.generate import Generated
from stagejit.codegen.kernel import Choice
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.inspect.explain.notes import (
    Chosen,
    Facts,
    Launched,
    Left,
    Packed,
    Placement,
)
from stagejit.runtime.hosting import launching
from stagejit.runtime.hosting.sites import inside
from stagejit.runtime.modelled.kernels import Path
from stagejit.runtime.modelled.model import Model, model_of
from stagejit.schedule.bodies import why_copied
from stagejit.schedule.plans.plan import Dispatch, Plan
from stagejit.schedule.plans.turns import carried_by, times_inside
from stagejit.schedule.schedule import Run, Schedule, Step, Wave

if TYPE_CHECKING:
    from stagejit.runtime.cuda.programs.program import CudaProgram


@dataclass(frozen=True, eq=False)
class _At:
    """A step, and where it stands: in which loops and branches (prefix: as names have them), run
    how often in a call, in which plan, and how many threads share its iterations."""

    step: Step
    around: Path
    prefix: str
    times: int | None
    plan: Plan
    threads: int

    @property
    def path(self) -> Path:
        return (*self.around, self.step.dispatch.name)

    @property
    def name(self) -> str:
        return f"{self.prefix}{self.step.dispatch.name}"


def facts_of(
    schedule: Schedule,
    kernels: Mapping[Region, Generated],
    target: Machine,
    name: str,
    program: CudaProgram | None = None,
) -> Facts:
    """What is said of a schedule. kernels: as far as there are any, none for symbolic sizes. name:
    of the target. program: of a GPU."""
    plan, places = schedule.plan, list(_places(schedule))
    threads = dict[Region, Choice]()  # of a CPU; blocks of a GPU's kernels run wherever they can
    if kernels and isinstance(target, Target):
        threads = _threads(schedule, schedule.waves, kernels, target)
    model = model_of(schedule, kernels, target, program) if kernels else None
    return Facts(
        plan.name,
        plan.decisions,
        tuple(note for at in places for note in _placements_of(at)),
        tuple(note for at in places for note in _chosen(at, kernels, threads)),
        tuple(_launched(at, model) for at in places if not at.step.delegated),
        tuple(_left(at) for at in places if at.step.delegated),
        tuple(_packs(plan, places, kernels)),
        target=name,
        barriers=sum(len(inner.barriers) for inner in _plans(plan)),
        transient_nbytes=plan.transient_nbytes,
        peak_nbytes=plan.peak_nbytes,
        peak=None if plan.sizes else plan.peak,
        seconds=None if model is None else model.whole.seconds,
        uncounted=() if model is None or model.whole.is_known else tuple(_uncounted(places)),
    )


def _places(
    schedule: Schedule,
    around: Path = (),
    prefix: str = "",
    times: int | None = 1,
    threads: int = 1,
) -> Iterator[_At]:
    """Every step, each before those inside of it."""
    for segment in schedule.segments:
        for step in segment.steps if isinstance(segment, Run) else (segment.step,):
            yield _At(step, around, prefix, times, schedule.plan, threads)
            bodies = zip(step.dispatch.bodies, step.bodies, strict=True)
            for number, (body, made) in enumerate(bodies):
                each = times_inside(step.dispatch, number, times)
                inner = (*around, step.dispatch.name, number)
                behind = inside(prefix, step.dispatch, body)
                yield from _places(made, inner, behind, each, threads * body.threads)


def _plans(plan: Plan) -> Iterator[Plan]:
    yield plan
    for dispatch in plan.dispatches:
        for body in dispatch.bodies:
            yield from _plans(body.plan)


def _launched(at: _At, model: Model | None) -> Launched:
    dispatch, region = at.step.dispatch, at.step.region
    seconds = None if model is None else model.seconds(at.path)
    times = (1 if at.times is None else at.times) / at.threads
    own = None if seconds is None or dispatch.bodies else seconds * times
    return Launched(
        at.name,
        dispatch.kind,
        dispatch.ops,
        dispatch.flops,
        _nbytes(dispatch, written=False),
        _nbytes(dispatch, written=True),
        at.times,
        seconds,
        own,
        region.loc,
        tuple(_other_lines(region)),
        filled_nbytes=dispatch.filled_nbytes,
        carried_nbytes=sum(carried.run_nbytes for carried in carried_by(dispatch)),
        carried=_why_carried(at.step) if carried_by(dispatch) else "",
    )


def _why_carried(step: Step) -> str:
    """Why carries are copied, of all bodies that have some."""
    found = dict[str, None]()
    for body in step.dispatch.bodies:
        if body.carries:
            large = sum(body.plan.buffer(carry.result).nbytes for carry in body.carries)
            reason = why_copied(step.region, large)
            often = "" if body.trip is not None else "in each turn: " if reason else "at most: "
            reason = reason or "buffers change places, and come to where they began by this"
            found[f"{often}{reason}"] = None
    return "; ".join(found)


def _uncounted(places: Sequence[_At]) -> Iterator[str]:
    """What modelled seconds do not have."""
    dispatches = [at.step.dispatch for at in places]
    loops = sum(d.kind == "loop" and d.bodies[0].trip is None for d in dispatches)
    if loops:
        yield f"one turn counted of {counted(loops, 'loop')} that a condition ends"
    for kind, what in (("delegate", "equation"), ("call", "call")):
        count = sum(d.kind == kind for d in dispatches)
        whose = "left to XLA" if kind == "delegate" else "of a library or of Python"
        if count:
            yield f"{counted(count, what)} {whose} not counted"


def _nbytes(dispatch: Dispatch, *, written: bool) -> int:
    return sum(access.nbytes for access in (dispatch.writes if written else dispatch.reads))


def _other_lines(region: Region) -> Iterator[Loc]:
    """Lines whose ops a dispatch evaluates, besides its own."""
    seen = {(region.loc.file, region.loc.line)}
    for part in region.parts:
        for op in part.ops:
            line = op.loc.file, op.loc.line
            if op.loc and line not in seen:
                seen.add(line)
                yield op.loc


def _left(at: _At) -> Left:
    name = at.step.dispatch.name
    for item in at.plan.delegated:
        if item.dispatch == name:
            return Left(at.name, item.equation, item.reason, item.loc)
    return Left(at.name, at.step.dispatch.kind, "", at.step.region.loc)


def _packs(
    plan: Plan, places: Sequence[_At], kernels: Mapping[Region, Generated]
) -> Iterator[Packed]:
    """Packs know their dispatch by its name in its own body, and by its line. Kernels know whether
    they pack."""
    products = [at for at in places if at.step.region.definition.is_product]
    waiting: dict[tuple[str, Loc], list[str]] = {}
    packing: dict[str, set[int | None]] = {}
    regions = {at.name: at.step.region for at in products}
    for at in products:
        key = at.step.dispatch.name, at.step.region.loc
        waiting.setdefault(key, []).append(at.name)
        if (made := kernels.get(at.step.region)) is not None:
            packing[at.name] = {choice.packs for choice in made.kernel.choices}
    seen: dict[tuple[str, Loc, int], int] = {}
    for pack in plan.packs:
        names = waiting.get((pack.dispatch, pack.loc), [pack.dispatch])
        number = seen.get((pack.dispatch, pack.loc, pack.operand), 0)
        seen[pack.dispatch, pack.loc, pack.operand] = number + 1
        name = names[min(number, len(names) - 1)]
        packs = pack.operand in packing.get(name, {pack.operand})
        widens = _widened(regions[name], pack.operand) if packs and name in regions else ""
        yield Packed(name, pack.operand, pack.layout, pack.nbytes, packs, widens, pack.loc)


def _widened(region: Region, operand: int) -> str:
    """The element type that an operand of the region's product has in memory, where that has fewer
    bytes than the product is given."""
    if region.anchor is None:
        return ""
    given = value = region.anchor.operands[operand]
    while value.op.definition.is_view or value.op.definition.is_conversion:
        value = value.op.operands[0]
    return str(value.type.dtype) if value.type.dtype.itemsize < given.type.dtype.itemsize else ""


def _threads(
    schedule: Schedule,
    waves: Mapping[Run, Sequence[Wave]],
    kernels: Mapping[Region, Generated],
    target: Target,
) -> dict[Region, Choice]:
    """Why threads share the kernels, or do not."""
    found: dict[Region, Choice] = {}
    for run in schedule.runs:
        for wave in waves[run]:
            parts = [part for step in wave.steps for part in step.region.parts if part in kernels]
            for part in parts:
                choice = launching.threads(kernels[part].kernel, target)
                reason = f"{choice.reason}; in a wave of {len(parts)}"
                found[part] = replace(choice, reason=reason) if wave.shared else choice
        for step in run.steps:
            for body, inner in zip(step.dispatch.bodies, step.bodies, strict=True):
                if body.threads > 1:
                    found |= dict.fromkeys(_kernels(inner), launching.beside(body.threads))
                else:
                    found |= _threads(inner, waves, kernels, target)
    return found


def _kernels(schedule: Schedule) -> Iterator[Region]:
    """The regions that have kernels, of bodies too."""
    for at in _places(schedule):
        if at.step.region.has_kernel:
            yield from at.step.region.parts


def _chosen(
    at: _At, kernels: Mapping[Region, Generated], threads: Mapping[Region, Choice]
) -> Iterator[Chosen]:
    for part in at.step.region.parts:
        if part in kernels:
            shared = [threads[part]] if part in threads else []
            for choice in (*kernels[part].kernel.choices, *shared):
                yield Chosen(at.name, choice.name, choice.reason, at.step.region.loc)


def _placements_of(at: _At) -> Iterator[Placement]:
    step = at.step
    if not step.region.has_kernel:
        return
    made: dict[Placement, None] = {}  # a border is one, however many boxes it has
    stores = [(part, store) for part in step.region.parts for store in part.stores]
    for (part, store), access in zip(stores, step.stored, strict=True):
        if store.inserts:
            border = f"the border of {access.buffer}"
            where = str(access) if part is step.region else border
            made[Placement(at.name, where, store.inserts[-1].loc)] = None
    yield from made
