"""propagate-encodings: encodings move to where they cost nothing, or the least.

Input: a graph of which products are encoded. Output: the same graph; where one product reads what
another one has made, the value between them is encoded once; what is encoded of a constant is the
constant itself, behind the views of it. Invariant: each move is a rule by what an op is declared to
be, and leaves a reason where it stops.

Note [Both ways]: what a product gives is carried down, `unset` before it, through whatever keeps
elements apart, until another product wants it. What a product wants is carried up, through views,
to where it is made, and ends at a constant or nowhere (`elide.py`).

Note [Sums of products]: the gradient of a weight that is used again and again is a long sum of
products. The first one is carried past all of it; the others end where they meet its way: behind
that, they would do the same, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagejit.graph.ir import Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine
from stagejit.index.coordinates import coordinates
from stagejit.index.encoding import Encoding
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.encodings.choose import encoded_and_back

NAME = "propagate-encodings"


def propagate_encodings(log: Log) -> None:
    """map f (unset (set %x))  -->  unset (set (map f %x)); set (transpose %w)  -->  transpose (set
    %w)"""
    passed: dict[Op, Encoding] = {}
    for op in log.graph.ops():
        if is_set(op) and op in log.graph and op.operands[0].op.definition.is_product:
            _carry_down(log, op, passed)
    for op in log.graph.ops():
        if is_set(op) and op in log.graph and encoding_of(op).role != "result":
            _carry_up(log, op)


def is_set(op: Op) -> bool:
    """Whether its result is encoded in memory, and its operand is not."""
    return op.definition.is_encoding and op.definition.is_stored


def encoding_of(op: Op) -> Encoding:
    """What `set_encoding` sets."""
    encoding: Encoding = op.attrs["encoding"]
    return encoding


# ------------------------------------------------------------------ down


def _carry_down(log: Log, set_op: Op, passed: dict[Op, Encoding]) -> None:
    """Moves a pair of `set` and `unset` past its readers, as far as there is one reader only.
    passed: readers behind which there was such a pair, see Note [Sums of products]."""
    graph = log.graph
    while True:
        (unset,) = graph.users(set_op.result)
        readers = list(dict.fromkeys(graph.users(unset.result)))
        if _meets(log, set_op, unset, readers):
            return
        if len(readers) != 1 or readers[0].definition.is_return:
            reason = "its value is returned" if len(readers) == 1 else "several read it"
            log.decline(NAME, unset, f"{reason}, not all of them products that tile it alike")
            return
        (reader,) = readers
        encoding = past(reader, unset.result, encoding_of(set_op))
        if isinstance(encoding, str):
            log.decline(NAME, unset, encoding)
            return
        log.apply(NAME, reader, "its result may be tiled as what it is applied to is")
        uses = graph.uses(reader.result)
        for use in graph.uses(unset.result):
            graph.set_operand(reader, use.operand, set_op.operands[0])
        graph.erase(unset)
        graph.erase(set_op)
        if passed.get(reader) == encoding:
            return
        passed[reader] = encoding
        after = encoded_and_back(log, reader, encoding)
        for use in uses:
            graph.set_operand(use.user, use.operand, after)
        set_op = after.op.operands[0].op


def _meets(log: Log, set_op: Op, unset: Op, readers: Sequence[Op]) -> bool:
    """set (unset (set %x))  -->  set %x, where all that read it want the same tiles."""
    if not readers or not all(is_set(reader) for reader in readers):
        return False
    if not all(encoding_of(set_op).becomes(encoding_of(reader)) for reader in readers):
        return False
    for reader in readers:
        log.replace(NAME, reader, set_op.result, "made by a product as the next one reads it")
    return True


def past(op: Op, value: Value, encoding: Encoding) -> Encoding | str:
    """How the result of `op` is encoded if its operand `value` is; a reason where it cannot be."""
    known = op.definition
    if known.is_encoding:
        return "another product wants other tiles"
    if known.is_elementwise:
        types = (*encoding.types[:2], op.result.type.dtype.name)
        return replace(encoding, types=types)
    if known.is_view and op.operands[0] is value:
        axes = _kept_axes(op)
        if isinstance(axes, str):
            return axes
        letters = ("b" if axis is None else encoding.axes[axis] for axis in axes)
        return replace(encoding, axes="".join(letters))
    if known.accumulates:
        return f"{op.kind} sums over axes that are tiled"
    return f"{op.kind} reads it as it lies"


def _kept_axes(view: Op) -> list[int | None] | str:
    """`axes_behind`; a reason where a view does not keep what lies in a tile."""
    axes = axes_behind(view)
    if axes is None:
        return f"{view.kind} changes what lies in a tile"
    if any(axis is None and size > 1 for axis, size in zip(axes, view.result.shape, strict=True)):
        return f"{view.kind} repeats what lies in a tile"
    return axes


def axes_behind(op: Op) -> list[int | None] | None:
    """For each axis of the result of a view the axis of the operand that runs along it, if any; one
    of a single element may have none. None for a view that is more than a permutation."""
    operand, result = op.operands[0], op.result
    own = coordinates(result.shape)
    found: list[int | None] = [None] * len(own)
    if any(value.type.size == 0 for value in (operand, result)):
        return None
    for axis, part in enumerate(pull_view(op, own)):
        if operand.shape[axis] == 1:
            continue
        if part not in own or operand.shape[axis] != result.shape[own.index(part)]:
            return None
        at = own.index(part)
        if found[at] is not None or part == Affine():
            return None
        found[at] = axis
    return found


# -------------------------------------------------------------------- up


def _carry_up(log: Log, op: Op) -> None:
    """Moves a `set` above the views of what it encodes; a fill has no order."""
    graph = log.graph
    while is_set(op):
        value, encoding = op.operands[0], encoding_of(op)
        view = value.op
        if view.definition.is_splat:
            log.replace(NAME, op, value, "what is the same everywhere has no order")
            return
        if not view.definition.is_view or _is_encoded(view):
            return
        axes = _kept_axes(view)
        if isinstance(axes, str):
            log.decline(NAME, op, axes)
            return
        source = view.operands[0]
        letters = ["b"] * source.type.rank
        for letter, axis in zip(encoding.axes, axes, strict=True):
            if axis is not None:
                letters[axis] = letter
        above = replace(encoding, axes="".join(letters))
        made = build(graph, "set_encoding", [source], op.loc, encoding=above)
        moved = build(graph, view.kind, [made, *view.operands[1:]], view.loc, **view.attrs)
        graph.put_at(op, made.op, moved.op)
        log.replace(NAME, op, moved, f"{view.kind} of what is tiled")
        op = made.op


def _is_encoded(op: Op) -> bool:
    return any(value.type.encoding is not None for value in op.operands)
