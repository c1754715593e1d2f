"""The regions of a graph of dispatches: for each of its launches a view of what it is.

Input: a graph of dispatches. Output: a `Region` for each op that does something, in the order of
the ops. Invariant: a region says nothing that its op does not say; what the host knows of offsets
is what it can work out from arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.dispatch.bodies import has_slices_anywhere, known_inside
from stagejit.dispatch.region import Body, Region, Store
from stagejit.dispatch.scalars import NOTHING, Scalars, known_arguments
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
from stagejit.graph.ops.views import behind_aliases
from stagejit.options import Options
from stagejit.symbolic import Int


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
    for op in graph.ops():
        if op.definition.is_dispatch:
            regions.append(view_of(op, len(regions), scalars, aligned))
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
    borders = tuple(
        _of_part(op, border, evaluated(border), f"{name}.border{at}", scalars, aligned)
        for at, border in enumerate(others)
    )
    return _of_part(op, first, ops, name, scalars, aligned, borders)


def _of_part(
    op: Op,
    part: Graph,
    ops: Sequence[Op],
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
        kind_of(ops),
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
