"""overlay-parts: what is put together of one part and little else is evaluated where it is read.

Input: the whole graph. Output: inserts as overlays. Invariant: every element is as before; whoever
makes a part by more than an element of each operand, or who reads all of it at once, still finds
it put together in memory.

Note [Cheap parts]: differences with a border of zeros, arrays that are rolled or padded, and
fields whose inner points are updated are put together of one part, which is nearly all of it, and
of a border; or of two parts of one array. To store them takes memory and, for a border along rows,
a store for each row; what is made of several of them, with different borders, cannot be cut into
the parts of all. As a value it is chosen by place, within the kernel that reads it, which has
a loop for the places where all parts are the largest ones: see Note [Interiors] of
`codegen/places/interior.py`. On two cores of a Granite Rapids, a step of heat by four rolls of
f32[1000,1000] takes 0.33 ms, where each was stored 1.3.

Note [Updates in place]: a part of an array that nobody computes, as a row of an argument, is
written where the array lies. All of it is stored anew where it is mostly computed, or where most of
it is replaced by what is made of its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from stagejit.base.machine import Machine
from stagejit.base.numbers import nbytes_text
from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.insert_chains import is_placed
from stagejit.rewrites.moving.overlays.evaluated import FOLLOWED, as_overlays, is_evaluated

NAME = "overlay-parts"

MOST_PARTS = 8
_LARGEST = 0.75  # part of all that one of them is
_SMALL_NBYTES = 16 << 10  # what takes less time than the call
_MOST_FLOPS = 64.0  # an element, of what a part is made by


@record(eq=False)
class _Assembly:
    """Inserts one after the other, the last one at last, into `base`; nobody else reads what is
    there between."""

    inserts: tuple[Op, ...]

    @property
    def result(self) -> Value:
        return self.inserts[-1].result

    @property
    def base(self) -> Value:
        return self.inserts[0].operands[1]

    @property
    def sources(self) -> list[Value]:
        return [insert.operands[0] for insert in self.inserts]

    @property
    def made(self) -> list[Value]:
        """What it is made of."""
        return [*self.sources, *([] if self.base.op.definition.is_empty else [self.base])]


def overlay_parts(log: Log) -> None:
    """insert_slice %y into (insert_slice %x into empty) --> overlay %y, (overlay %x, (fill 0))"""
    graph = log.graph
    found = {a.result: a for a in _assemblies(graph) if _is_nearly_one_part(a, log.machine)}
    if not found:
        return
    pointwise, stored = _pointwise(graph), set(_stored(graph))
    read = _read_element_by_element(graph, pointwise, log.machine)
    while refused := [
        (assembly, why)
        for assembly in found.values()
        if (why := _why_not(assembly, pointwise, {*stored, *found}, read))
    ]:
        for assembly, why in refused:
            log.decline(NAME, assembly.result.op, why)
            del found[assembly.result]
    for assembly in [each for each in found.values() if not _pays(graph, each, found, stored)]:
        log.decline(NAME, assembly.result.op, "it is stored in any case, and rows of it are whole")
        del found[assembly.result]
    for assembly in found.values():
        saved = nbytes_text(2 * assembly.result.type.nbytes)
        why = f"evaluated where it is read, which saves storing and reading it ({saved})"
        log.replace(NAME, assembly.inserts[-1], as_overlays(graph, assembly.inserts), why)


def _assemblies(graph: Graph) -> Iterator[_Assembly]:
    for last in graph.ops():
        if is_placed(last) and not _goes_on(graph, last):
            inserts = [last]
            while is_placed(before := inserts[-1].operands[1].op) and _goes_on(graph, before):
                inserts.append(before)
            yield _Assembly(tuple(reversed(inserts)))


def _goes_on(graph: Graph, op: Op) -> bool:
    """Whether an insert has no reader but the next insert."""
    uses = graph.uses(op.result)
    return len(uses) == 1 and uses[0].operand == 1 and is_placed(uses[0].user)


def _is_nearly_one_part(assembly: _Assembly, machine: Machine) -> bool:
    """Whether to choose by place evaluates little that is not wanted there."""
    type, base = assembly.result.type, assembly.base
    if not all(isinstance(size, int) for size in type.shape) or type.nbytes < _SMALL_NBYTES:
        return False
    if len(assembly.inserts) > MOST_PARTS or machine.shuffle_cost(type.dtype.itemsize) == math.inf:
        return False
    if any(step != 1 for insert in assembly.inserts for step in insert.attrs["strides"]):
        return False
    sizes = [source.type.size for source in assembly.sources]
    known, most = base.op.definition, max(sizes) >= _LARGEST * type.size
    if known.is_empty:
        return most or len({_viewed(x) for x in assembly.sources}) == 1
    if known.is_splat:
        return most
    little = sum(sizes) <= (1 - _LARGEST) * type.size  # see Note [Updates in place]
    if known.is_elementwise or is_placed(base.op):
        return most or little
    return most and any(_is_made_of(source, base) for source in assembly.sources)


def _viewed(value: Value) -> Value:
    """What a value is a view of."""
    while value.op.definition.is_view:
        value = value.op.operands[0]
    return value


def _is_made_of(value: Value, base: Value) -> bool:
    """Whether it is made of a value, element by element, and little else."""
    pending, seen = [value], set[Value]()
    while pending and len(seen) < FOLLOWED:
        value = pending.pop()
        if value is base:
            return True
        seen.add(value)
        pending += [x for x in value.op.operands if _is_local(value.op) and x not in seen]
    return False


def _pointwise(graph: Graph) -> Collection[Value]:
    """What is made of memory element by element, or put together of that, as far as it goes back:
    nobody stores it who does more."""
    found = set(graph.inputs)
    for op in graph.ops():
        known = op.definition
        if known.stands_alone or known.is_foreign or known.has_bodies or known.is_empty:
            found.update(op.results)
        elif _is_local(op) or known.is_free or known.is_splat or is_placed(op):
            found.update(op.results if found.issuperset(op.operands) else ())
    return found


def _is_local(op: Op) -> bool:
    """Whether who reads its result may evaluate it."""
    return op.definition.is_elementwise or (op.definition.is_view and not op.definition.is_stored)


def _stored(graph: Graph) -> Iterator[Value]:
    """What is read from memory, whoever makes it."""
    for op in graph.ops():
        known = op.definition
        if known.stands_alone or known.is_foreign or known.has_bodies:
            yield from op.results
        elif known.is_elementwise and _is_returned(graph, op.result):
            yield op.result


def _is_returned(graph: Graph, value: Value) -> bool:
    return any(use.user.definition.is_return for use in graph.uses(value))


def _read_element_by_element(
    graph: Graph, pointwise: Collection[Value], machine: Machine
) -> Collection[Value]:
    """What is stored, or a part of what is, or all that is made of it element by element is, and of
    nothing else but what is pointwise. Sums of that want vectors that end where a part does."""
    found = set[Value]()

    def reads(op: Op) -> bool:
        if is_placed(op):
            return True
        known, pure = op.definition, all(x in pointwise for x in op.operands)
        if known.is_reduce:
            return pure and machine.masks_lanes
        return pure and _is_local(op) and op.result in found

    for op in reversed(graph.ops()):
        for value in op.results:
            if _is_returned(graph, value) or all(reads(use.user) for use in graph.uses(value)):
                found.add(value)
    return found


def _why_not(
    assembly: _Assembly,
    pointwise: Collection[Value],
    at_hand: Collection[Value],
    read: Collection[Value],
) -> str:
    """Why it stays in memory. at_hand: what is in memory, or a part of what may be a value."""
    if not all(x in pointwise and is_evaluated(x, at_hand, _MOST_FLOPS) for x in assembly.made):
        return "who makes a part does more than to read it, and places it"
    if assembly.result not in read:
        return "who reads it does not store it element by element"
    return ""


def _pays(
    graph: Graph,
    assembly: _Assembly,
    others: Mapping[Value, _Assembly],
    stored: Collection[Value],
) -> bool:
    """Whether what is made of it need not be stored before, or it is stored in whole rows by who
    makes its parts for nobody else."""
    if _cuts_rows(assembly) and not any(source in stored for source in assembly.sources):
        return True
    pending, seen = [assembly.result], {assembly.result}
    while pending:
        for use in graph.uses(pending.pop()):
            made = [each for each in use.user.results if each not in seen]
            cut = any(each in others and _cuts_rows(others[each]) for each in made)
            known = use.user.definition
            if known.is_elementwise or known.is_reduce or cut:
                return True
            pending += made
            seen.update(made)
    return False


def _cuts_rows(assembly: _Assembly) -> bool:
    return any(source.shape[-1] < assembly.result.shape[-1] for source in assembly.sources)
