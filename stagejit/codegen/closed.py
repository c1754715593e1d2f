"""`ClosedRegion`: all that a generator may look at, and the key by which equal ones are known.

Input: a region of a graph of dispatches. Output: the `ClosedRegion` that generators get, and its
text. Invariant: no op or value that a closed region reaches lies outside of its part; the text says
all of it.

Note [What a generator may see]: regions of equal keys share one kernel, whichever came first. So
nothing that decides about a kernel may stay out of the key. The part of a dispatch is closed by
construction: what it reads and what it writes are inputs of its own. Of the outside the key, and
the closed region, say which stores share a buffer, and which inputs lie in memory that is written.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from stagejit.base.records import record
from stagejit.dispatch.regions import Region, Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import memory_of
from stagejit.graph.ops.dispatches import destination
from stagejit.graph.text.printer import as_text, op_text
from stagejit.types import DType


@record(eq=False)
class ClosedRegion:
    """A region as a generator sees it; the fields that it shares with `Region` mean the same.

    inputs: in the order in which ops read them first.
    buffers: for each store the number of the buffer that it writes; stores of equal number share
        one. mutable: inputs that lie in memory which the kernel writes, or may write.
    calls: whether long functions are called; the key decides about it, see `shared_code`.
    touched: what `costs.touched_nbytes` found, by the length of lines.
    """

    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    stores: tuple[Store, ...]
    buffers: tuple[int, ...]
    mutable: frozenset[Value]
    anchor: Op | None
    aligned: bool
    calls: bool = False
    touched: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def anchor_op(self) -> Op:
        """The anchor. Raises InternalError for a region that has none."""
        if self.anchor is None:
            raise InternalError(f"a {self.kind} has no anchor", step="codegen")
        return self.anchor


def closed(
    region: Region,
    overwritten: frozenset[Value] = frozenset(),
    memories: dict[Value, Value] | None = None,
) -> ClosedRegion:
    """What a generator sees of `region`; stores may take over the memory of the operands
    `overwritten`. memories: what is known of the values of all regions, see `memory_of`."""
    held = {memory_of(value, memories) for value in region.results}
    mutable = (
        own
        for own, value in zip(region.inputs, region.operands, strict=True)
        if value in overwritten or memory_of(value, memories) in held
    )
    results = list(dict.fromkeys(region.results))
    return ClosedRegion(
        region.kind,
        region.ops,
        _as_read(region),
        region.stores,
        tuple(results.index(value) for value in region.results),
        frozenset(mutable),
        region.anchor,
        region.aligned,
    )


def _as_read(region: Region) -> tuple[Value, ...]:
    """The inputs in the order in which ops read them: regions that differ in the order of what is
    in memory are equal."""
    given = dict.fromkeys(region.inputs)
    read = [value for op in region.ops for value in op.operands if value in given]
    return tuple(dict.fromkeys((*read, *given)))


def key_of(region: Region, made: ClosedRegion) -> str:
    """All that a generator may look at, as text."""
    text = text_of(region, made)
    mutable = [f"%a{at}" for at, value in enumerate(made.inputs) if value in made.mutable]
    return f"{text}; mutable {', '.join(mutable)}" if mutable else text


def text_of(region: Region, made: ClosedRegion) -> str:
    """The text of a closed region, but for which inputs are mutable: that of the part of the
    dispatch, without inputs that it does not use."""
    if region.part is None:
        raise InternalError(f"{region.name} has no kernel", step="codegen", loc=region.loc)
    first = region.alike or region
    if not first.text:
        object.__setattr__(first, "text", _text_of(region.part, made, region.aligned))
    return first.text


def _text_of(part: Graph, made: ClosedRegion, aligned: bool) -> str:
    names = {value: f"%a{at}" for at, value in enumerate(made.inputs)}
    reads = ", ".join(f"{name}: {value.type}" for value, name in names.items())
    ends = (destination(part, number) for number in range(len(part.outputs)))
    into = [value for value in ends if value is not None]
    names |= {value: f"%d{at}" for at, value in enumerate(into)}
    writes = ", ".join(f"{names[value]}: {value.type}" for value in into)
    lines = [f"({reads}) into ({writes}){'' if aligned else ' anywhere'}"]
    for op in part.ops():
        _require_text(op)
        for result in op.results:
            names[result] = f"%{len(names)}"
        lines += [op_text(op, names), *map(as_text, op.definition.bodies(op))]
    outputs = ", ".join(names[value] for value in part.outputs)
    return "\n".join((*lines, f"return {outputs}"))


_PLAIN = (bool, int, float, str, DType, np.ndarray, np.generic, type(None))


def _require_text(op: Op) -> None:
    """Raises InternalError for an attribute of which the text does not say everything."""
    for name, value in op.attrs.items():
        if not _has_text(value) and all(value is not body for body in op.definition.bodies(op)):
            raise InternalError(
                f"a kernel's key has no text for {name}, a {type(value).__name__}", step="codegen"
            )


def _has_text(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_has_text, value))
    return isinstance(value, _PLAIN)
