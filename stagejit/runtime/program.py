"""The host program: which kernels run on which buffers, in which order.

Input: the schedule, through the pipeline. Output: plain frozen data, which `encoding.py` turns into
the words that calls of XLA's run. Invariants (checked by `verify`): every buffer reference lies
inside its space, loop strides match the nesting, and a step's buffers are only ever addressed
through it.

A program is a tree of steps. `Parallel` runs its launches in one parallel region, `Iterations` its
iterations, so they must be independent; consecutive steps are ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from stagejit.errors import InternalError
from stagejit.graph import python_functions
from stagejit.schedule.memory.packing import FRAME_NBYTES, LINE_NBYTES, aligned

S = TypeVar("S")
Space = Literal["arg", "result", "arena", "fault", "bound"]


@dataclass(frozen=True)
class BufferRef:
    """The address `base + offset_nbytes + sum(iteration * stride)` at the time of a step.

    space: "arg" and "result" are numbered like the FFI call's buffers, "arena" is this call's
        private memory (index 0; on a GPU, behind it the workspace of each stream), "fault" is one
        i64 that starts at 0 (index 0): a kernel that writes anything else makes the call fail, for
        bounds checks; "bound" is numbered as the weights of the program's table, see
        `cpu/weights.py`.
    loop_strides_nbytes: bytes per iteration of each enclosing `Loop`, outermost first; shorter
        tuples mean that the inner loops do not move the buffer. `Iterations` are two loops: bytes
        per thread, then per iteration.
    """

    space: Space
    index: int = 0
    offset_nbytes: int = 0
    loop_strides_nbytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Items [0, total) of one kernel (ARCH: `void k(bufs, params, lo, hi, scratch)`).

    grain: items a chunk; the parallel loop hands out whole chunks, a serial launch gets one call.
    scratch_nbytes: private memory of each worker, 64-byte aligned.
    """

    kernel: str
    buffers: tuple[BufferRef, ...]
    params: tuple[int, ...] = ()
    total: int = 1
    grain: int = 1
    parallel: bool = False
    scratch_nbytes: int = 0


@dataclass(frozen=True)
class Parallel:
    """Independent launches whose chunks share one parallel region."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class ForeignArray:
    """An array as a foreign handler sees it. dtype: a name of `types`; dims: its shape."""

    ref: BufferRef
    dtype: str
    dims: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Call:
    """A call of an FFI handler that jaxlib brings along, by the name of its target.

    attributes: (name, dtype, value) of scalars, by name. The handler gets the frame's context; an
    error of its is this program's.
    """

    target: str
    operands: tuple[ForeignArray, ...]
    results: tuple[ForeignArray, ...]
    attributes: tuple[tuple[str, str, int | float], ...] = ()


@dataclass(frozen=True)
class Copy:
    """Copy `nbytes` bytes; the ranges are equal or do not overlap."""

    destination: BufferRef
    source: BufferRef
    nbytes: int


@dataclass(frozen=True)
class Store:
    """Store an integer of `nbytes` bytes: `first`, and `step` more in each turn of the innermost
    loop."""

    place: BufferRef
    nbytes: int
    first: int
    step: int = 0


@dataclass(frozen=True)
class Loop:
    """Run `body` `trip` times."""

    trip: int
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Iterations:
    """Run `body` `trip` times, on up to `threads` threads at once, each of which takes `grain`
    iterations at a time and runs all of their launches itself."""

    trip: int
    threads: int
    grain: int
    body: tuple[Step, ...]


@dataclass(frozen=True)
class While:
    """Run `condition`; while the byte at `predicate` is not 0, run `body` and `condition` again."""

    condition: tuple[Step, ...]
    predicate: BufferRef
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Branch:
    """Run `branches[i]` for the integer i of `index_nbytes` bytes at `index`, clamped to them."""

    index: BufferRef
    index_nbytes: int
    branches: tuple[tuple[Step, ...], ...]


Step = Launch | Parallel | Call | Copy | Store | Loop | Iterations | While | Branch


@dataclass(frozen=True)
class HostProgram:
    """Everything one FFI call does. The same value always gives the same words.

    arena_nbytes: private memory of one call, without the workers' scratch.
    aliases: (result, argument) pairs that share memory: the result starts with the argument's
        content. Where XLA gave different buffers the program copies first, so steps refer to such
        a buffer only as "result".
    faults: what the value v of the fault word says, as faults[v - 1].
    bound_nbytes: of weights, which no call passes: the program finds them in its table.
    """

    name: str
    steps: tuple[Step, ...]
    arg_nbytes: tuple[int, ...]
    result_nbytes: tuple[int, ...]
    arena_nbytes: int = 0
    aliases: tuple[tuple[int, int], ...] = ()
    faults: tuple[str, ...] = ()
    bound_nbytes: tuple[int, ...] = ()

    def launches(self) -> Iterator[Launch]:
        """Every launch, in program order."""
        for step in walk(self.steps):
            if isinstance(step, Launch):
                yield step

    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that are launched, each once, in order of first use."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches()))

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


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """All steps of the tree, each before what it contains."""
    for step in steps:
        yield step
        for body in bodies(step):
            yield from walk(body)


def bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The step lists inside a step."""
    match step:
        case Parallel(launches):
            return (launches,)
        case Loop(body=body) | Iterations(body=body):
            return (body,)
        case While(condition, _, body):
            return (condition, body)
        case Branch(branches=branches):
            return branches
        case Launch() | Call() | Copy() | Store():
            return ()


def verify(program: HostProgram) -> None:
    """Raise InternalError where a reference leaves its space or a count makes no sense."""
    for result, arg in program.aliases:
        if program.result_nbytes[result] != program.arg_nbytes[arg]:
            _broken(program, f"alias of result {result} and argument {arg}: sizes differ")
    _verify_steps(program, program.steps, ())


def _verify_steps(program: HostProgram, steps: tuple[Step, ...], trips: tuple[int, ...]) -> None:
    for step in steps:
        for ref, nbytes in _references(step):
            _verify_reference(program, ref, nbytes, trips)
        if isinstance(step, Launch) and (step.total < 0 or step.grain < 1):
            _broken(program, f"launch of {step.kernel}: total {step.total}, grain {step.grain}")
        if isinstance(step, Store) and step.step and not trips:
            _broken(program, f"{_line(step)}: no loop is around it")
        if isinstance(step, Branch):
            _verify_branch(program, step)
        if isinstance(step, Iterations):
            _verify_iterations(program, step)
        for body in bodies(step):
            _verify_steps(program, body, (*trips, *_counted(step)))


def _counted(step: Step) -> tuple[int, ...]:
    """How often what is in a step runs, one number for each loop that a reference may follow."""
    match step:
        case Loop(trip):
            return (trip,)
        case Iterations(trip, threads):
            return threads, trip
        case _:
            return ()


def _verify_iterations(program: HostProgram, step: Iterations) -> None:
    if step.threads < 1 or step.grain < 1:
        _broken(program, f"iterations on {step.threads} threads, grain {step.grain}")
    for inner in walk(step.body):
        forks = isinstance(inner, Parallel | Iterations)
        if forks or (isinstance(inner, Launch) and inner.parallel):
            _broken(program, "a thread forks that shares iterations with others")
        if isinstance(inner, Call) and inner.target == python_functions.TARGET:
            _broken(program, "a Python function is called by several threads at once")


def _verify_branch(program: HostProgram, step: Branch) -> None:
    if step.index_nbytes not in (1, 2, 4, 8):
        _broken(program, f"branch with an index of {step.index_nbytes} bytes")
    if not step.branches:
        _broken(program, "branch with no branches")


def _references(step: Step) -> list[tuple[BufferRef, int]]:
    """Each reference that a step itself makes, with the bytes it certainly touches."""
    match step:
        case Launch(buffers=buffers):
            return [(ref, 0) for ref in buffers]
        case Call(operands=operands, results=results):
            return [(array.ref, array.nbytes) for array in (*operands, *results)]
        case Copy(destination, source, nbytes):
            return [(destination, nbytes), (source, nbytes)]
        case Store(place, nbytes):
            return [(place, nbytes)]
        case While(predicate=predicate):
            return [(predicate, 1)]
        case Branch(index, index_nbytes):
            return [(index, index_nbytes)]
        case _:
            return []


def _verify_reference(
    program: HostProgram, ref: BufferRef, nbytes: int, trips: tuple[int, ...]
) -> None:
    sizes = {
        "arg": program.arg_nbytes,
        "result": program.result_nbytes,
        "arena": (program.arena_nbytes,),
        "fault": (8,),
        "bound": program.bound_nbytes,
    }[ref.space]
    if fault := wrong_reference(ref, nbytes, trips, sizes):
        _broken(program, fault)


def wrong_reference(ref: BufferRef, nbytes: int, trips: Sequence[int], sizes: Sequence[int]) -> str:
    """What is wrong with a reference inside loops of so many turns; empty where nothing is. sizes:
    in bytes, of what its space has."""
    if not 0 <= ref.index < len(sizes):
        return f"{ref}: there are {len(sizes)}"
    if len(ref.loop_strides_nbytes) > len(trips):
        return f"{ref}: {len(trips)} enclosing loops"
    moving = zip(ref.loop_strides_nbytes, trips, strict=False)
    moves = [stride * max(trip - 1, 0) for stride, trip in moving]
    first = ref.offset_nbytes + sum(min(move, 0) for move in moves)
    last = ref.offset_nbytes + sum(max(move, 0) for move in moves) + nbytes
    if first < 0 or last > sizes[ref.index]:
        return f"{ref}: bytes [{first}, {last}) of {sizes[ref.index]}"
    return ""


def _broken(program: HostProgram, what: str) -> None:
    raise InternalError(what, step="host program", dump=as_text(program))


def as_text(program: HostProgram) -> str:
    """One line a step, indented by nesting."""
    lines = [f"host @{program.name}  arena {program.arena_nbytes} B"]
    lines += [f"  alias result{result} = arg{arg}" for result, arg in program.aliases]
    lines += nested_lines(program.steps, "  ", _line, _titled)
    return "\n".join(lines) + "\n"


def nested_lines(
    steps: Sequence[S],
    indent: str,
    line: Callable[[S], str],
    titled: Callable[[S], Iterable[tuple[str, Sequence[S]]]],
) -> list[str]:
    """A line for each step, and below it those of its bodies, each under its title if it has
    one."""
    lines = []
    for step in steps:
        lines.append(indent + line(step))
        for title, body in titled(step):
            lines += [f"{indent}  {title}:"] if title else []
            lines += nested_lines(body, indent + ("    " if title else "  "), line, titled)
    return lines


def _titled(step: Step) -> list[tuple[str, tuple[Step, ...]]]:
    """The bodies of a step, with a heading for each where it has several."""
    match step:
        case While(condition=condition, body=body):
            return [("condition", condition), ("do", body)]
        case Branch(branches=branches):
            return [(f"case {i}", body) for i, body in enumerate(branches)]
        case _:
            return [("", body) for body in bodies(step)]


def _line(step: Step) -> str:
    match step:
        case Launch(kernel, buffers, params, total, grain, parallel):
            how = f"parallel grain {grain}" if parallel else "serial"
            refs = ", ".join(map(ref_text, buffers))
            return f"{kernel}({refs}) params {list(params)} items {total} {how}"
        case Parallel(launches):
            return f"parallel region of {len(launches)}:"
        case Call(target, operands, results, attributes):
            taken, given = (", ".join(map(array_text, x)) for x in (operands, results))
            with_what = "".join(f" {name}={value}" for name, _, value in attributes)
            return f"call {target}({taken}) -> ({given}){with_what}"
        case Copy(destination, source, nbytes):
            return f"copy {ref_text(destination)} <- {ref_text(source)} {nbytes} B"
        case Store(place, nbytes, first, by):
            return f"store {ref_text(place)} <- {first}{f' + {by}*i' if by else ''} {nbytes} B"
        case Loop(trip):
            return f"loop {trip}:"
        case Iterations(trip, threads, grain):
            return f"loop {trip} on {threads} threads grain {grain}:"
        case While(predicate=predicate):
            return f"while {ref_text(predicate)}:"
        case Branch(index):
            return f"branch {ref_text(index)}:"


def array_text(array: ForeignArray) -> str:
    """As in `arg0: f32[2,3]`."""
    return f"{ref_text(array.ref)}: {array.dtype}[{','.join(map(str, array.dims))}]"


def ref_text(ref: BufferRef) -> str:
    """As in `arena+64+8*i0`."""
    index = "" if ref.space in ("arena", "fault") and not ref.index else str(ref.index)
    offset = f"+{ref.offset_nbytes}" if ref.offset_nbytes else ""
    strides = "".join(
        f"+{stride}*i{n}" for n, stride in enumerate(ref.loop_strides_nbytes) if stride
    )
    return f"{ref.space}{index}{offset}{strides}"
