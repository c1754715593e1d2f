"""reuse-arguments: results that lie in the donated argument with which JAX pairs them.

Input: what is launched, in execution order. Output: for the roots of such results the argument,
and a decision for each pair. Invariant: nobody reads the argument once the result has been written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stagejit.base.decisions import Decision
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.graph.ir import Graph, Value
from stagejit.schedule.bufferize import Launch, Memory

NAME = "reuse-arguments"

Positions = Mapping[Value, Sequence[int]]


def reused_arguments(
    graph: Graph, memory: Memory, launches: Sequence[Launch], pairs: Mapping[int, int]
) -> tuple[dict[Value, Value], list[Decision]]:
    """pairs: the argument that a result should lie in, both as numbers."""
    reused: dict[Value, Value] = {}
    decisions = []
    reading, writing = touching(memory, launches)
    made_by = {value: launch.region for launch in launches for value in launch.region.results}
    for number, argument in pairs.items():
        output, value = graph.outputs[number], graph.inputs[argument]
        root = memory.roots[output]
        if root is value:
            continue
        reason = _refuse(
            memory, launches, value, root, reading.get(value, ()), writing.get(root, ())
        )
        if not reason:
            reused[root] = value
        done = f"written into the donated argument {graph.input_names[argument]}"
        region = made_by.get(output)
        name = output.op.kind if region is None else f"@{region.name} {region.kind}"
        decisions.append(Decision(NAME, name, not reason, reason or done, root.op.loc))
    return reused, decisions


def touching(memory: Memory, launches: Iterable[Launch]) -> tuple[Positions, Positions]:
    """Positions that read, and that write, the memory of each root."""
    reading: dict[Value, list[int]] = {}
    writing: dict[Value, list[int]] = {}
    for at, launch in enumerate(launches):
        for positions, values in ((reading, launch.region.reads), (writing, launch.region.writes)):
            for root in dict.fromkeys(memory.roots[value] for value in values):
                positions.setdefault(root, []).append(at)
    return reading, writing


def _refuse(
    memory: Memory,
    launches: Sequence[Launch],
    argument: Value,
    root: Value,
    reading: Sequence[int],
    writing: Sequence[int],
) -> str:
    """Why `root`, written at the positions `writing`, cannot lie in the memory of `argument`, read
    at `reading`; empty if it can."""
    if argument in memory.outputs:
        return "another result lies in it"
    if root.op.definition.is_left:
        return "a delegated equation makes the result"
    if not reading or not writing or reading[-1] < writing[0]:
        return ""
    if any(launches[at].delegated for at in writing):
        return "a delegated equation makes the result"
    if reading[-1] > writing[0]:
        return "the argument is read after the result is written"
    region = launches[writing[0]].region
    of_root = zip(region.stores, region.results, strict=True)
    stores = [store for store, value in of_root if value is root]
    if not stores:
        return "the dispatch writes a part of the result"
    given = zip(region.inputs, region.operands, strict=True)
    read = [own for own, value in given if memory.roots[value] is argument]
    return next(filter(None, (refuse_in_place(region, own, stores[0]) for own in read)), "")
