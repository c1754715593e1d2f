"""The CUDA program: which kernels are queued on which stream, and what waits for what.

Input: the schedule, through `hosting.py`. Output: plain frozen data, which `executor.py` carries
out on a `Driver`. Invariants (checked by `verify`, and by `ordering.verify_order`): every reference
lies inside its space, loop strides match the nesting; an event is recorded before something waits
for it; all that the plan's barriers order is ordered by streams and events.

The program is a tree. The host walks it and queues. Where a trip count or a branch is known on the
device only (`While`, `Branch`), a graph of the program decides on the device; what has no graph, or
has one of an older driver, waits for the stream that computes it, and the host reads it back. What
runs on the host in between (`Call`, `Delegate`) it runs itself, on copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Union

from stagejit.base.records import record
from stagejit.base.threads.locks import remembered
from stagejit.errors import InternalError
from stagejit.runtime.hosting import program_steps
from stagejit.runtime.hosting.program_steps import (
    BufferRef,
    ForeignArray,
    Language,
    Loop,
    Reference,
    Space,
    array_text,
    faults,
    ref_text,
    wrong_reference,
)


@record
class Launch:
    """Queues a kernel. buffers: its pointers; params: its numbers, behind which come 0 and
    `items`."""

    stream: int
    kernel: str
    buffers: tuple[BufferRef, ...]
    params: tuple[int, ...]
    items: int
    blocks: int
    threads: tuple[int, ...]
    shared_nbytes: int = 0


@record
class Record:
    """The event stands for what is queued on the stream by now."""

    stream: int
    event: int


@record
class Wait:
    """What is queued on the stream from now on comes after the event."""

    stream: int
    event: int


@record
class OnStream:
    """A step of all programs, on a stream."""

    stream: int


@record
class Copy(program_steps.Copy, OnStream):
    pass


@record
class Store(program_steps.Store, OnStream):
    pass


@record
class Call(program_steps.Call, OnStream):
    """On the host, with copies; also of a function of Python."""


@record
class Delegate:
    """Equation `number` of those that are left to XLA, here on the host, with copies. None: a
    literal, or a result that nobody reads."""

    stream: int
    number: int
    equation: str
    operands: tuple[ForeignArray | None, ...]
    results: tuple[ForeignArray | None, ...]


@record
class While(program_steps.While["Step"], OnStream):
    """In a graph by the device; else the host waits for the stream and reads the predicate."""


@record
class Branch(program_steps.Branch["Step"], OnStream):
    """In a graph by the device; else the host waits for the stream and reads the index."""


@record
class Dispatched:
    """The steps of a dispatch."""

    name: str
    stream: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Body:
    """The steps of one run of body `number` of the dispatch around it."""

    number: int
    steps: tuple[Step, ...]


Step = Union[
    Launch, Record, Wait, Copy, Store, Call, Delegate, "Loop[Step]", While, Branch, Dispatched,
    Body,
]  # fmt: skip


@record
class CudaProgram:
    """All of a function.

    arg_nbytes: of arguments, then of constants; the first `arguments` are arguments. result_nbytes:
    of results with memory of their own. outputs: where each result of the function is.
    overwritten: arguments that the program writes into. arena_nbytes: of transients, then of the
    workspace of each stream. streams, events: how many there are.
    """

    name: str
    steps: tuple[Step, ...]
    arg_nbytes: tuple[int, ...]
    arguments: int
    result_nbytes: tuple[int, ...]
    outputs: tuple[BufferRef, ...]
    overwritten: tuple[int, ...]
    arena_nbytes: tuple[int, ...]
    streams: int
    events: int

    @remembered
    def is_on_device(self) -> bool:
        """Whether the host runs nothing in between."""
        return not any(isinstance(step, Call | Delegate) for step in walk(self.steps))

    @remembered
    def conditions(self) -> int:
        """How many loops and branches are around each other that the device alone decides about, at
        most. Where there is none of them one call queues what another one does."""
        return _conditions(self.steps)

    def launches(self) -> Iterator[Launch]:
        """Every launch, in program order."""
        for step in walk(self.steps):
            if isinstance(step, Launch):
                yield step


def _conditions(steps: tuple[Step, ...]) -> int:
    inside = (
        isinstance(step, While | Branch) + max(map(_conditions, bodies(step)), default=0)
        for step in steps
    )
    return max(inside, default=0)


def streams_of(steps: Iterable[Step]) -> set[int]:
    """Those that steps use, without what is inside of loops and branches that the device decides
    about: these have streams of their own."""
    found: set[int] = set()
    for step in steps:
        match step:
            case Loop(body=inner) | Dispatched(steps=inner) | Body(steps=inner):
                found |= streams_of(inner)
            case _:
                found.add(step.stream)
    return found


def bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The step lists inside a step."""
    match step:
        case Dispatched(steps=steps) | Body(steps=steps):
            return (steps,)
        case _:
            return program_steps.bodies(step)


def verify(program: CudaProgram) -> None:
    """Raises InternalError where a reference leaves its space or a number makes no sense."""
    sizes: dict[Space, tuple[int, ...]] = {
        "arg": program.arg_nbytes,
        "result": program.result_nbytes,
        "arena": program.arena_nbytes,
    }
    for fault in faults(program.steps, sizes, _LANGUAGE):
        _broken(program, fault)
    for ref in program.outputs:
        if fault := wrong_reference(ref, 0, (), sizes.get(ref.space, ())):
            _broken(program, fault)
    recorded: set[int] = set()
    for step in walk(program.steps):
        if not 0 <= getattr(step, "stream", 0) < program.streams:
            _broken(program, f"{_line(step)}: there are {program.streams} streams")
        if isinstance(step, Record):
            recorded.add(step.event)
        elif isinstance(step, Wait) and step.event not in recorded:
            _broken(program, f"nothing has recorded event {step.event}")
    if recorded != set(range(program.events)):
        _broken(program, f"{program.events} events, of which {len(recorded)} are recorded")


def _counted(step: Step) -> tuple[int, ...]:
    return (step.trip,) if isinstance(step, Loop) else ()


def _faults(step: Step) -> Iterator[str]:
    if isinstance(step, Launch) and not 0 < step.blocks <= max(step.items, 1) < 1 << 62:
        yield f"{_line(step)}: {step.blocks} blocks"


def references(step: Step) -> list[Reference]:
    """Each reference that a step itself makes, with the bytes it certainly touches."""
    match step:
        case Launch(buffers=buffers):
            return [(ref, 0) for ref in buffers]
        case Delegate(operands=operands, results=results):
            return [(array.ref, array.nbytes) for array in (*operands, *results) if array]
        case _:
            return program_steps.references(step)


def _broken(program: CudaProgram, what: str) -> None:
    raise InternalError(what, step="cuda program", dump=as_text(program))


def as_text(program: CudaProgram) -> str:
    """One line a step, indented by nesting; streams and events are s0, s1 and e0, e1."""
    arena, *workspaces = program.arena_nbytes
    head = f"cuda @{program.name}  {program.streams} streams  {program.events} events  "
    head += f"arena {arena} B"
    if any(workspaces):
        head += f"  workspaces {', '.join(map(str, workspaces))} B"
    lines = [head, *_LANGUAGE.lines(program.steps)]
    if program.outputs:
        lines.append(f"  return {', '.join(map(ref_text, program.outputs))}")
    return "\n".join(lines) + "\n"


def _line(step: Step) -> str:
    match step:
        case Launch(_, kernel, buffers, params, _, blocks, threads):
            refs = ", ".join([*map(ref_text, buffers), *map(str, params)])
            size = " x ".join(map(str, threads))
            shared = f", {step.shared_nbytes} B shared" if step.shared_nbytes else ""
            return f"{kernel}({refs})  {blocks} blocks of {size}{shared}"
        case Record(stream, event):
            return f"s{stream} records e{event}"
        case Wait(stream, event):
            return f"s{stream} waits for e{event}"
        case Call():
            return f"{program_steps.line(step)}  // on the host, copied"
        case Delegate(_, _, equation, operands, results):
            taken, given = (
                ", ".join(map(array_text, filter(None, x))) for x in (operands, results)
            )
            return f"delegate {equation}({taken}) -> ({given})  // by jax on the host, copied"
        case While(stream) | Branch(stream):
            return f"{program_steps.line(step)}  // decided on s{stream}, or read by the host"
        case Dispatched(name, stream):
            return f"@{name} on s{stream}:"
        case Body(number):
            return f"body {number}:"
        case _:
            return program_steps.line(step)


_LANGUAGE = Language(references, bodies, _counted, _faults, _line)
walk = _LANGUAGE.walk
