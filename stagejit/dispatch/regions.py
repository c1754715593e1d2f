"""`Region`: what one dispatch evaluates, and how it reaches memory: a view of an op.

Input: a graph of dispatches. Output: a `Region` for each op that does something, in the order of
the ops; read by access analysis, scheduling and kernel generation. Invariant: a region says nothing
that its op does not say; every op of a region is evaluated element by element from the region's
inputs, and only `stores` reach memory; what the host knows of offsets is what it can work out from
arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.records import record
from stagejit.base.symbolic import Int
from stagejit.dispatch.bodies import has_slices_anywhere, known_inside
from stagejit.dispatch.ranges.scalars import NOTHING, Scalars, known_arguments
from stagejit.graph.definition import OpDef, no_check, states_its_types
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, carried_inputs, read_operands
from stagejit.graph.ops.dispatches import (
    anchor_of,
    destination,
    evaluated,
    kind_of,
    name_of,
    parts_of,
    written,
)
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.index.affine import Index
from stagejit.options import Options


@record(eq=False)
class Store:
    """One result of a region.

    value: what is computed, element by element, over its own shape.
    into: the value whose buffer is written: `value` itself, or the result of the last of `inserts`.
    inserts: the `insert_slice` ops that place `value` in `into`, innermost first; empty for a plain
        store. The rest of `into` is not touched by this store.
    """

    value: Value
    into: Value
    inserts: tuple[Op, ...] = ()


@dataclass(frozen=True, eq=False)
class Body:
    """A graph that a loop or a branch runs, divided into regions.

    carried: result --> input whose memory has to hold it when the body is done.
    """

    graph: Graph
    regions: tuple[Region, ...]
    carried: Mapping[int, int]


_WITHOUT_ANCHOR = OpDef(kind="map", infer=states_its_types, interpret=no_check, is_elementwise=True)


def definition_of_anchor(anchor: Op | None) -> OpDef:
    """What is known of a dispatch: what its anchor is. Without one it evaluates elementwise ops."""
    return _WITHOUT_ANCHOR if anchor is None else anchor.definition


@record(eq=False)
class Region:
    """One dispatch, as those see it who schedule and generate it.

    op: the op of the graph of dispatches that it is, or is a part of.
    kind: `map` (no anchor), `reduce` (one or more reduces over the same rows), `contract`, `conv`,
        `cumulative`, `scatter`, `sort`, `delegate`, `call`, `loop`, `branch`; `copy` and `fill`
        are maps that compute nothing.
    ops: evaluated ops in topological order, `insert_slice`s that only place a store included.
    anchor: the contract, conv, cumulative, scatter, sort, delegate, call, loop or branch op; the
        first reduce for `reduce`.
    inputs: what is read from memory, each once: values that `ops` refer to.
    stores: what is written.
    operands, results: for each input and for each store the value of the graph of dispatches whose
        memory it is.
    part: the graph of `ops`, of those that have a kernel.
    bodies: of a loop the body, then its condition if it has one; of a branch all branches.
    scalars: the offsets that the host knows.
    aligned: False where memory may start at any element, because it is a slice of a larger buffer.
    alike: the first region of the same parts, of which is remembered what these alone say.

    Kinds `map`, `copy`, `fill`: all stored values have one shape. A map may write a buffer that it
    reads, the same elements at the same index or others.
    Kind `reduce`: all reduces in `ops` reduce the same axes of operands of one shape (the row
    space). Stores are in the row space or in the kept space (the shape of the reduces' results), up
    to reshapes.
    Kinds `contract`, `conv`, `cumulative`: stored values have an element for each element of the
    anchor's result, computed from that one; they may be transposed or reshaped.
    `borders`: `fill` regions that run beside this one, and write what the pad around a store
    leaves (see `rewrites/moving/pads.py`).
    Kind `scatter`: the buffer of the result already holds the operand's elements, so operand 0 is
    not evaluated and no input. Kinds `loop`, `branch`: likewise for operands that results update.
    Kinds `call`, `loop`, `branch`: inputs are what operands are aliases of.
    """

    op: Op
    name: str
    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    stores: tuple[Store, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    anchor: Op | None = None
    part: Graph | None = None
    borders: tuple[Region, ...] = ()
    bodies: tuple[Body, ...] = ()
    scalars: Scalars = NOTHING
    aligned: bool = True
    alike: Region | None = None

    # What `ranges/accesses.py` and `closed.py` remember of it.
    indices: ClassVar[Mapping[Value, dict[Index, None]] | None] = None
    touches: ClassVar[Any] = None
    text: ClassVar[str] = ""

    @property
    def definition(self) -> OpDef:
        """What is known of it by its anchor, see `definition_of_anchor`."""
        return definition_of_anchor(self.anchor)

    @property
    def stands_alone(self) -> bool:
        """Whether it evaluates nothing but its anchor, and stores nothing but its results."""
        return self.definition.stands_alone

    @property
    def has_kernel(self) -> bool:
        """Whether it is one kernel of ours: no loop, no branch, no code of a library."""
        return not self.definition.is_foreign and not self.definition.has_bodies

    @property
    def updates(self) -> bool:
        """Whether it reads, and changes, what lies in the buffers of its results."""
        return self.definition.updates

    @property
    def parts(self) -> tuple[Region, ...]:
        """The region itself, then its borders."""
        return (self, *self.borders)

    @property
    def reads(self) -> tuple[Value, ...]:
        """Operands of all parts, in order."""
        if not self.borders:
            return tuple(self.operands)
        return tuple(value for part in self.parts for value in part.operands)

    @property
    def writes(self) -> tuple[Value, ...]:
        """Results of all parts, in order."""
        if not self.borders:
            return tuple(self.results)
        return tuple(value for part in self.parts for value in part.results)

    @property
    def loc(self) -> Loc:
        """The user's line: that of the anchor, or of the last located op."""
        if self.anchor is not None and self.anchor.loc:
            return self.anchor.loc
        return next((op.loc for op in reversed(self.ops) if op.loc), UNKNOWN)


def with_inner(regions: Iterable[Region]) -> Iterator[Region]:
    """All regions, those inside of loops and branches too, each after the one that it is in."""
    pending = [iter(regions)]
    while pending:
        for region in pending[-1]:
            yield region
            if region.bodies:
                inner = (each for body in region.bodies for each in body.regions)
                pending.append(inner)
                break
        else:
            pending.pop()


def regions_of(
    graph: Graph,
    options: Options | None = None,
    *,
    known: Mapping[Value, Int] | None = None,
    aligned: bool = True,
) -> list[Region]:
    """known: inputs that the host knows, see `Scalars`; aligned: see `Region`. The defaults are
    those of a graph that is no body."""
    options = options or Options()
    given = known_arguments(graph) if known is None else known
    scalars = Scalars(graph.ops(), given) if options.enabled("host-offsets") else NOTHING
    regions: list[Region] = []
    of_parts: dict[tuple[Graph, ...], Region] = {}
    for op in graph.ops():
        if op.definition.is_dispatch:
            first = of_parts.get(parts_of(op))
            number = len(regions)
            made = (
                view_of(op, number, scalars, aligned) if first is None else _like(first, op, number)
            )
            of_parts.setdefault(parts_of(op), made)
            regions.append(made)
        elif op.definition.stands_alone:
            regions.append(_of_others(op, len(regions), options, scalars, aligned))
    return regions


def _of_others(op: Op, number: int, options: Options, scalars: Scalars, aligned: bool) -> Region:
    """A loop, a branch, a library call, a delegated equation."""
    reads = tuple(dict.fromkeys(map(behind_aliases, read_operands(op))))
    bodies = []
    inner = aligned and not has_slices_anywhere(op)
    for at, graph in enumerate(bodies_of(op)):
        known = known_inside(op, at, scalars)
        regions = regions_of(graph, options, known=known, aligned=inner)
        bodies.append(Body(graph, tuple(regions), carried_inputs(op, at)))
    return Region(
        op,
        f"{op.kind}.{number}",
        op.kind,
        (op,),
        reads,
        tuple(Store(value, value) for value in op.results),
        reads,
        op.results,
        op,
        bodies=tuple(bodies),
        scalars=scalars,
        aligned=aligned,
    )


def view_of(op: Op, number: int, scalars: Scalars, aligned: bool = True) -> Region:
    """The view of a dispatch; number: what its name ends in."""
    first, *others = parts_of(op)
    ops = evaluated(first)
    kind = kind_of(ops)
    name = f"{name_of(kind, ops)}.{number}"
    borders = []
    for at, border in enumerate(others):
        inner, own_name = evaluated(border), f"{name}.border{at}"
        borders.append(_of_part(op, border, inner, kind_of(inner), own_name, scalars, aligned))
    return _of_part(op, first, ops, kind, name, scalars, aligned, borders)


def _like(first: Region, op: Op, number: int) -> Region:
    """The view of a further dispatch of the same parts."""
    name = f"{first.name.rpartition('.')[0]}.{number}"
    borders = tuple(
        _part_like(border, op, f"{name}.border{at}") for at, border in enumerate(first.borders)
    )
    return replace(_part_like(first, op, name), borders=borders)


def _part_like(first: Region, op: Op, name: str) -> Region:
    return replace(
        first,
        op=op,
        name=name,
        operands=tuple(op.operands[value.op.attrs["index"]] for value in first.inputs),
        results=tuple(op.results[value.index] for value in first.results),
        alike=first,
    )


def _of_part(
    op: Op,
    part: Graph,
    ops: Sequence[Op],
    kind: str,
    name: str,
    scalars: Scalars,
    aligned: bool,
    borders: Sequence[Region] = (),
) -> Region:
    read = {value for inner in part.ops() for value in inner.operands} | set(part.outputs)
    used = [
        (value, operand)
        for value, operand in zip(part.inputs, op.operands, strict=True)
        if value in read and not part.is_donated(value)
    ]
    stores, results = [], []
    ties = {operand: result for result, operand in op.attrs["carried"]}
    for number in range(len(part.outputs)):
        into = destination(part, number)
        result = op.results[number if into is None else ties[into.op.attrs["index"]]]
        for made in written(part, number):
            stores.append(Store(made.value, made.into, made.inserts))
            results.append(result)
    return Region(
        op,
        name,
        kind,
        (*ops, *(insert for store in stores for insert in store.inserts)),
        tuple(value for value, _ in used),
        tuple(stores),
        tuple(operand for _, operand in used),
        tuple(results),
        anchor_of(ops),
        part,
        tuple(borders),
        scalars=scalars,
        aligned=aligned,
    )
