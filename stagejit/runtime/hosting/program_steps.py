"""Steps that programs of all targets have: copies, calls, loops, branches, and where buffers are.

Input: none; programs are made of these and of steps of their own, which may be these with more.
Output: what is said of such a step, once: its references, bodies, faults and text. Invariant:
nothing here knows which steps a target has beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, Literal, TypeVar

from stagejit.base.records import record
from stagejit.runtime.hosting.sites import NOWHERE

S = TypeVar("S")
Space = Literal["arg", "result", "arena", "fault", "bound"]
Reference = tuple["BufferRef", int]  # with the bytes that are certainly touched


def site_field() -> Any:
    """The number of a site: what is known of a step besides what it does."""
    return field(default=NOWHERE, compare=False, repr=False)


@record
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


@record
class ForeignArray:
    """An array as a foreign handler sees it. dtype: a name of `types`; dims: its shape."""

    ref: BufferRef
    dtype: str
    dims: tuple[int, ...]
    nbytes: int


@record
class Call:
    """A call of an FFI handler that jaxlib brings along, by the name of its target.

    attributes: (name, dtype, value) of scalars, by name. The handler gets the frame's context; an
    error of its is this program's. site: of the program's sites, as in all steps that have one.
    """

    target: str
    operands: tuple[ForeignArray, ...]
    results: tuple[ForeignArray, ...]
    attributes: tuple[tuple[str, str, int | float], ...] = ()
    site: int = site_field()


@record
class Copy:
    """Copy `nbytes` bytes; the ranges are equal or do not overlap."""

    destination: BufferRef
    source: BufferRef
    nbytes: int
    site: int = site_field()


@record
class Store:
    """Store an integer of `nbytes` bytes: `first`, and `step` more in each turn of the innermost
    loop."""

    place: BufferRef
    nbytes: int
    first: int
    step: int = 0


@record
class Workspace:
    """Memory of what a loop makes and does not hand on: nobody reads there before or after it."""

    place: BufferRef
    nbytes: int


@record
class Loop(Generic[S]):
    """Run `body` `trip` times. workspace: see `Workspace`."""

    trip: int
    body: tuple[S, ...]
    workspace: Workspace | None = field(default=None, compare=False, repr=False)
    site: int = site_field()


@record
class While(Generic[S]):
    """Run `condition`; while the byte at `predicate` is not 0, run `body` and `condition` again."""

    condition: tuple[S, ...]
    predicate: BufferRef
    body: tuple[S, ...]
    workspace: Workspace | None = field(default=None, compare=False, repr=False)
    site: int = site_field()


@record
class Branch(Generic[S]):
    """Run `branches[i]` for the integer i of `index_nbytes` bytes at `index`, clamped to them."""

    index: BufferRef
    index_nbytes: int
    branches: tuple[tuple[S, ...], ...]


# -------------------------------------------------------------------- what is said of them


def bodies(step: object) -> tuple[tuple[Any, ...], ...]:
    """The step lists inside a step of these."""
    match step:
        case Loop(body=body):
            return (body,)
        case While(condition=condition, body=body):
            return (condition, body)
        case Branch(branches=branches):
            return branches
        case _:
            return ()


def references(step: object) -> list[Reference]:
    """Each reference that a step of these itself makes."""
    match step:
        case Call(operands=operands, results=results):
            return [(array.ref, array.nbytes) for array in (*operands, *results)]
        case Copy(destination=destination, source=source, nbytes=nbytes):
            return [(destination, nbytes), (source, nbytes)]
        case Store(place=place, nbytes=nbytes):
            return [(place, nbytes)]
        case While(predicate=predicate):
            return [(predicate, 1)]
        case Branch(index=index, index_nbytes=nbytes):
            return [(index, nbytes)]
        case _:
            return []


def faults(
    steps: Sequence[S],
    sizes: Mapping[Space, Sequence[int]],
    of: Language[S],
    trips: tuple[int, ...] = (),
) -> Iterator[str]:
    """What is wrong with steps inside of loops of so many turns. sizes: in bytes, of what each
    space has."""
    for step in steps:
        for ref, nbytes in of.references(step):
            if fault := wrong_reference(ref, nbytes, trips, sizes.get(ref.space, ())):
                yield fault
        if isinstance(step, Store) and step.step and not trips:
            yield f"{of.line(step)}: no loop is around it"
        if isinstance(step, Branch) and step.index_nbytes not in (1, 2, 4, 8):
            yield f"branch with an index of {step.index_nbytes} bytes"
        if isinstance(step, Branch) and not step.branches:
            yield "branch with no branches"
        yield from of.faults(step)
        for body in of.bodies(step):
            yield from faults(body, sizes, of, (*trips, *of.counted(step)))


@record
class Language(Generic[S]):
    """What a target's programs say of all of their steps. counted: how often what is in a step
    runs, one number for each loop that a reference may follow; faults: of steps of its own."""

    references: Callable[[S], list[Reference]]
    bodies: Callable[[S], tuple[tuple[S, ...], ...]]
    counted: Callable[[S], tuple[int, ...]]
    faults: Callable[[S], Iterable[str]]
    line: Callable[[S], str]

    def walk(self, steps: Iterable[S]) -> Iterator[S]:
        """All steps of the tree, each before what it contains."""
        for step in steps:
            yield step
            for body in self.bodies(step):
                yield from self.walk(body)

    def lines(self, steps: Sequence[S]) -> list[str]:
        """A line for each step, indented by nesting."""
        return nested_lines(steps, "  ", self.line, self._titled)

    def _titled(self, step: S) -> list[tuple[str, tuple[S, ...]]]:
        """The bodies of a step, with a heading for each where it has several."""
        inner = self.bodies(step)
        if isinstance(step, While):
            return [("condition", inner[0]), ("do", inner[1])]
        if isinstance(step, Branch):
            return [(f"case {i}", body) for i, body in enumerate(inner)]
        return [("", body) for body in inner]


def line(step: object) -> str:
    """Of a step of these; empty for others."""
    match step:
        case Call(target=target, operands=operands, results=results, attributes=attributes):
            taken, given = (", ".join(map(array_text, x)) for x in (operands, results))
            with_what = "".join(f" {name}={value}" for name, _, value in attributes)
            return f"call {target}({taken}) -> ({given}){with_what}"
        case Copy(destination=destination, source=source, nbytes=nbytes):
            return f"copy {ref_text(destination)} <- {ref_text(source)} {nbytes} B"
        case Store(place=place, nbytes=nbytes, first=first, step=by):
            return f"store {ref_text(place)} <- {first}{f' + {by}*i' if by else ''} {nbytes} B"
        case Loop(trip=trip):
            return f"loop {trip}:"
        case While(predicate=predicate):
            return f"while {ref_text(predicate)}:"
        case Branch(index=index):
            return f"branch {ref_text(index)}:"
        case _:
            return ""


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
