"""The host program: which kernels run on which buffers, in which order.

Input: the schedule, through the pipeline. Output: plain frozen data, which `encoding.py` turns into
the words that calls of XLA's run. Invariants (checked by `verify`): every buffer reference lies
inside its space, loop strides match the nesting, and a step's buffers are only ever addressed
through it.

A program is a tree of steps. `Parallel` runs its launches in one parallel region, `Iterations` its
iterations, so they must be independent; consecutive steps are ordered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Union

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.errors import InternalError
from stagejit.graph import python_functions
from stagejit.runtime.hosting import program_steps
from stagejit.runtime.hosting.program_steps import (
    Branch,
    BufferRef,
    Call,
    Copy,
    Language,
    Loop,
    Reference,
    Space,
    Store,
    While,
    faults,
    ref_text,
    site_field,
)
from stagejit.runtime.hosting.sites import Site
from stagejit.schedule.memory.packing import FRAME_NBYTES, LINE_NBYTES, aligned
from stagejit.types import dtype_named


@record
class Launch:
    """Items [0, total) of one kernel (ARCH: `void k(bufs, params, lo, hi, scratch)`).

    grain: items a chunk; the parallel loop hands out whole chunks, a serial launch gets one call.
    scratch_nbytes: private memory of each worker, 64-byte aligned.
    part: which of the launches of its dispatch it is.
    """

    kernel: str
    buffers: tuple[BufferRef, ...]
    params: tuple[int, ...] = ()
    total: int = 1
    grain: int = 1
    parallel: bool = False
    scratch_nbytes: int = 0
    site: int = site_field()
    part: int = field(default=0, compare=False, repr=False)

    @property
    def forks(self) -> bool:
        """Whether there is more than one chunk to hand out."""
        return self.parallel and self.total > self.grain

    @property
    def chunks(self) -> int:
        """How many it contributes to a parallel region."""
        if self.total == 0:
            return 0
        return -(-self.total // self.grain) if self.parallel else 1


@record
class Parallel:
    """Independent launches whose chunks share one parallel region."""

    launches: tuple[Launch, ...]


@record
class Iterations:
    """Run `body` `trip` times, on up to `threads` threads at once, each of which takes `grain`
    iterations at a time and runs all of their launches itself."""

    trip: int
    threads: int
    grain: int
    body: tuple[Step, ...]
    site: int = site_field()


@record
class LoopKernel:
    """A loop whose steps are one function, with the ABI of a kernel. loop: the `Loop` or `While`;
    buffers: what its references begin at, as the function takes them."""

    kernel: str
    buffers: tuple[BufferRef, ...]
    loop: Step
    site: int = site_field()


@record
class Clear:
    """Store zeros in `nbytes` bytes."""

    place: BufferRef
    nbytes: int


@record
class Check:
    """End the program where a float is NaN (`infs`: or infinite) in rows of `count` elements.

    axes: of the rows, from outside: how many, and how many bytes apart. said: the text of the
    program's `checks`, counted from 1, that the error has. is_note: nothing ends; an error that
    comes later has this text first, if it is the first note, and then the text behind its own.
    """

    place: BufferRef
    dtype: str
    count: int
    axes: tuple[tuple[int, int], ...] = ()
    infs: bool = False
    said: int = 0
    is_note: bool = False

    @property
    def nbytes(self) -> int:
        """From the first byte that is looked at to behind the last."""
        row = self.count * dtype_named(self.dtype).itemsize
        return row + sum((count - 1) * by for count, by in self.axes)


Step = Union[
    Launch, Parallel, Call, Copy, Store, Clear, Check,
    "Loop[Step]", Iterations, "While[Step]", "Branch[Step]", LoopKernel,
]  # fmt: skip


@record
class HostProgram:
    """Everything one FFI call does. The same value always gives the same words.

    arena_nbytes: private memory of one call, without the workers' scratch.
    aliases: (result, argument) pairs that share memory: the result starts with the argument's
        content. Where XLA gave different buffers the program copies first, so steps refer to such
        a buffer only as "result".
    faults: what the value v of the fault word says, as faults[v - 1].
    bound_nbytes: of weights, which no call passes: the program finds them in its table.
    has_snapshot: whether a call says of which moment they are, see `cpu/snapshots.py`.
    sites: what steps belong to; programs that do the same are one, whatever their sites are.
    checks: what errors of `Check`s say, by their number.
    handed_over: whether it runs in the background, where that was decided.
    """

    name: str
    steps: tuple[Step, ...]
    arg_nbytes: tuple[int, ...]
    result_nbytes: tuple[int, ...]
    arena_nbytes: int = 0
    aliases: tuple[tuple[int, int], ...] = ()
    faults: tuple[str, ...] = ()
    bound_nbytes: tuple[int, ...] = ()
    sites: tuple[Site, ...] = field(default=(), compare=False, repr=False)
    checks: tuple[str, ...] = ()
    handed_over: Decision | None = None
    has_snapshot: bool = False

    @property
    def background(self) -> bool:
        """Whether a call has an operand more, which is not read; see `background.py`."""
        return self.handed_over is not None and self.handed_over.applied

    @property
    def operands(self) -> int:
        """How many buffers a call passes before those of the results: behind those of the arguments
        a snapshot, then what makes it run in the background."""
        return len(self.arg_nbytes) + self.has_snapshot + self.background

    def launches(self) -> Iterator[Launch]:
        """Every launch, in program order, also those of a `LoopKernel`."""
        for step in walk(self.steps):
            if isinstance(step, Launch):
                yield step

    def kernels(self) -> tuple[str, ...]:
        """Names of the functions that are called, each once, in order of first use: in the place of
        those of a loop that is one function its own."""
        return tuple(dict.fromkeys(_called(self.steps)))

    def targets(self) -> tuple[str, ...]:
        """Targets of foreign handlers that are called, each once, in order of first use."""
        calls = (step for step in walk(self.steps) if isinstance(step, Call))
        return tuple(dict.fromkeys(call.target for call in calls))

    def scratch_nbytes(self) -> int:
        """Scratch of one worker: the most that any launch wants, in whole lines."""
        most = max((launch.scratch_nbytes for launch in self.launches()), default=0)
        return aligned(most, LINE_NBYTES)

    @property
    def on_stack(self) -> bool:
        """Whether the arena is on the stack."""
        return self.arena_nbytes <= FRAME_NBYTES


def bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The step lists inside a step."""
    match step:
        case Parallel(launches):
            return (launches,)
        case Iterations(body=body):
            return (body,)
        case LoopKernel(loop=loop):
            return ((loop,),)
        case _:
            return program_steps.bodies(step)


def _called(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, Launch | LoopKernel):
            yield step.kernel
        else:
            yield from itertools.chain.from_iterable(map(_called, bodies(step)))


def verify(program: HostProgram) -> None:
    """Raise InternalError where a reference leaves its space or a count makes no sense."""
    for result, arg in program.aliases:
        if program.result_nbytes[result] != program.arg_nbytes[arg]:
            _broken(program, f"alias of result {result} and argument {arg}: sizes differ")
    sizes: dict[Space, tuple[int, ...]] = {
        "arg": program.arg_nbytes,
        "result": program.result_nbytes,
        "arena": (program.arena_nbytes,),
        "fault": (8,),
        "bound": program.bound_nbytes,
    }
    for fault in faults(program.steps, sizes, _LANGUAGE):
        _broken(program, fault)


def _counted(step: Step) -> tuple[int, ...]:
    match step:
        case Loop(trip):
            return (trip,)
        case Iterations(trip, threads):
            return threads, trip
        case _:
            return ()


def _faults(step: Step) -> Iterator[str]:
    if isinstance(step, Launch) and (step.total < 0 or step.grain < 1):
        yield f"launch of {step.kernel}: total {step.total}, grain {step.grain}"
    if isinstance(step, Iterations):
        yield from _faults_of_iterations(step)
    if isinstance(step, Check) and step.said < 1:
        yield "a check says nothing"


def _faults_of_iterations(step: Iterations) -> Iterator[str]:
    if step.threads < 1 or step.grain < 1:
        yield f"iterations on {step.threads} threads, grain {step.grain}"
    for inner in walk(step.body):
        forks = isinstance(inner, Parallel | Iterations)
        if forks or (isinstance(inner, Launch) and inner.parallel):
            yield "a thread forks that shares iterations with others"
        if isinstance(inner, Call) and inner.target == python_functions.TARGET:
            yield "a Python function is called by several threads at once"
        if isinstance(inner, Check):
            yield "a thread checks that shares iterations with others"


def _references(step: Step) -> list[Reference]:
    if isinstance(step, Launch | LoopKernel):
        return [(ref, 0) for ref in step.buffers]
    if isinstance(step, Clear | Check):
        return [(step.place, step.nbytes)]
    return program_steps.references(step)


def _broken(program: HostProgram, what: str) -> None:
    raise InternalError(what, step="host program", dump=as_text(program))


def as_text(program: HostProgram) -> str:
    """One line a step, indented by nesting."""
    where = "  in the background" if program.background else ""
    where += "  with a snapshot" if program.has_snapshot else ""
    lines = [f"host @{program.name}  arena {program.arena_nbytes} B{where}"]
    lines += [f"  alias result{result} = arg{arg}" for result, arg in program.aliases]
    lines += _LANGUAGE.lines(program.steps)
    return "\n".join(lines) + "\n"


def _line(step: Step) -> str:
    match step:
        case Launch(kernel, buffers, params, total, grain, parallel):
            how = f"parallel grain {grain}" if parallel else "serial"
            refs = ", ".join(map(ref_text, buffers))
            return f"{kernel}({refs}) params {list(params)} items {total} {how}"
        case Parallel(launches):
            return f"parallel region of {len(launches)}:"
        case Iterations(trip, threads, grain):
            return f"loop {trip} on {threads} threads grain {grain}:"
        case LoopKernel(kernel, buffers):
            return f"{kernel}({', '.join(map(ref_text, buffers))}) is:"
        case Clear(place, nbytes):
            return f"clear {ref_text(place)} {nbytes} B"
        case Check(place, dtype, count, axes, infs):
            rows = "".join(f" x {n} every {by} B" for n, by in axes)
            sought = "NaN, infinity" if infs else "NaN"
            return f"check {ref_text(place)} {dtype}[{count}]{rows} for {sought}"
        case _:
            return program_steps.line(step)


_LANGUAGE = Language(_references, bodies, _counted, _faults, _line)
walk = _LANGUAGE.walk
