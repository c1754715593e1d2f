"""border-buffers: what windows read with a border lies in memory with that border.

Input: the whole graph. Output: convolutions with padding that read a buffer which has the border,
so that they need none. Invariant: only the border is new; everybody else reads the interior.

Note [Bordered buffers]: a convolution with padding copies its operand into blocks, where it adds
the border; what has the border in memory is read as it lies. The border is a `fill` that the
values are inserted into, so the dispatch that places the first of them writes it, once (fuse-pad).
All windows read one buffer with the widest border; who wants less reads a box of it.

Note [When it pays]: hardly ever, which is why it is done where `Options(borders="always")` asks for
it. It saves copies into blocks, but for the first reader of each element, whose producer has the
border to write instead; it costs the bytes of border that are written and read, and values that no
insert stores anyway. With the convolutions of `codegen` on AVX-512 a saved copy is worth nothing:
blocks are copied while they are in the nearest cache, and read without a stride. Time with padding
/ with borders, interleaved on two idle cores: dense block 90x62 1.00; four windows over one
64x90x62 with 4, 8, 16, 32 results 0.64, 0.54, 0.46, 1.00; with 4 over 128x30x30 1.10; chains over
64x56x56 0.95, over 16x128x128 0.79.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.chains import wants_memory
from stagejit.types import TensorType

NAME = "border-buffers"

Sizes = tuple[int, ...]


@record
class _Window:
    """A convolution that reads a box of the buffer, or all of it, with a border around."""

    conv: Op
    offsets: Sizes
    sizes: Sizes
    low: Sizes
    high: Sizes

    @property
    def border(self) -> int | float:
        value: int | float = self.conv.attrs.get("border", 0)
        return value


@dataclass(eq=False)
class _Buffer:
    """What windows read: one value, or all that inserts grow from an `empty`. `values`: the value,
    or the results of `inserts`, of which
    `place` says which one an op is; `windows`: by value."""

    inserts: tuple[Op, ...]
    values: tuple[Value, ...]
    windows: dict[Value, list[_Window]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {op: at for at, op in enumerate(self.inserts)}

    @property
    def type(self) -> TensorType:
        return self.values[0].type

    @property
    def last(self) -> Op:
        return self.values[-1].op

    def all_windows(self) -> list[_Window]:
        return [window for windows in self.windows.values() for window in windows]

    def border(self) -> tuple[Sizes, Sizes]:
        """The widest that a window wants, before and after each axis."""
        windows = self.all_windows()
        low = tuple(map(max, zip(*(window.low for window in windows), strict=True)))
        high = tuple(map(max, zip(*(window.high for window in windows), strict=True)))
        return low, high


def border_buffers(log: Log) -> None:
    """conv %x with padding  -->  conv (insert_slice %x into fill 0) without"""
    for buffer in _buffers(log.graph) if log.options.borders == "always" else ():
        reason = _refuse(log, buffer)
        if reason:
            log.decline(NAME, buffer.last, reason)
        else:
            log.apply(NAME, buffer.last, "its windows read it with its border")
            _rebuild(log.graph, buffer)


def _buffers(graph: Graph) -> list[_Buffer]:
    """All that windows with a border read, in program order."""
    found: dict[Value, _Buffer] = {}
    ops = graph.ops()
    for op in ops:
        if not op.definition.is_windowed or not _has_border(op):
            continue
        read, window = _window(op)
        if read not in found:
            buffer = _grown(graph, read) or _Buffer((), (read,))
            found.update(dict.fromkeys(buffer.values, buffer))
        found[read].windows.setdefault(read, []).append(window)
    rank = {op: at for at, op in enumerate(ops)}
    for buffer in dict.fromkeys(found.values()):
        if not buffer.inserts:
            _read_where_inserted(graph, buffer, found, rank)
    return [buffer for buffer in dict.fromkeys(found.values()) if buffer.windows]


def _read_where_inserted(
    graph: Graph, buffer: _Buffer, found: Mapping[Value, _Buffer], rank: Mapping[Op, int]
) -> None:
    """Windows over a value that is also a part of a buffer with windows read it there. What was
    inserted before must not depend on them: it was computed before the value."""
    (value,) = buffer.values
    for use in graph.uses(value):
        whole = found.get(use.user.result) if use.user.definition.is_insert else None
        if whole is None or use.operand or use.user not in whole.place:
            continue
        before = whole.inserts[: whole.place[use.user]]
        computed = max((rank.get(op.operands[0].op, -1) for op in before), default=-1)
        attrs, windows = use.user.attrs, buffer.windows[value]
        around = [a for a in range(value.type.rank) if any(w.low[a] or w.high[a] for w in windows)]
        dense = all(step == 1 for step in attrs["strides"])
        covers = all(value.shape[axis] == use.user.result.shape[axis] for axis in around)
        if dense and covers and computed < rank.get(value.op, -1):
            whole.windows.setdefault(use.user.result, []).extend(
                replace(window, offsets=_sum(window.offsets, attrs["offsets"]))
                for window in windows
            )
            buffer.windows.clear()
            return


def _has_border(conv: Op) -> bool:
    """Elements between those of the operand are no border."""
    sizes = [size for pair in conv.attrs["padding"] for size in pair]
    return min(sizes, default=0) >= 0 < max(sizes, default=0) and not any(
        step > 1 for step in conv.attrs["lhs_dilation"]
    )


def _window(conv: Op) -> tuple[Value, _Window]:
    """What the convolution reads, through a slice of whole rows, planes, ...: only these have the
    border around them."""
    read, (_, _, *spatial) = conv.operands[0], conv.attrs["lhs_spec"]
    low, high = [0] * read.type.rank, [0] * read.type.rank
    for axis, (before, after) in zip(spatial, conv.attrs["padding"], strict=True):
        low[axis], high[axis] = before, after
    window = _Window(conv, (0,) * read.type.rank, read.shape, tuple(low), tuple(high))
    view = read.op
    if not view.definition.is_extract or None in view.attrs["offsets"]:
        return read, window
    whole = view.operands[0]
    dense = all(step == 1 for step in view.attrs["strides"])
    if not dense or any(whole.shape[axis] != read.shape[axis] for axis in spatial):
        return read, window
    return whole, _Window(conv, view.attrs["offsets"], read.shape, tuple(low), tuple(high))


def _grown(graph: Graph, value: Value) -> _Buffer | None:
    """The buffer that `value` is a state of, if inserts grow it from an `empty`."""
    base = value
    while base.op.definition.is_insert:
        base = base.op.operands[1]
    if not base.op.definition.is_empty:
        return None
    inserts: list[Op] = []
    current = base
    while True:
        growing = [use.user for use in graph.uses(current) if _grows(use)]
        if not growing:
            break
        if len(growing) > 1 or None in growing[0].attrs["offsets"]:
            return None
        inserts.append(growing[0])
        current = growing[0].result
    values = tuple(op.result for op in inserts)
    return _Buffer(tuple(inserts), values) if value in values else None


def _grows(use: Use) -> bool:
    return use.user.definition.is_insert and use.operand == 1


# ------------------------------------------------------------------------- the choice


def _refuse(log: Log, buffer: _Buffer) -> str:
    """Why the buffer gets no border; "" where it may."""
    last = buffer.last.definition
    computed = (
        last.is_elementwise or last.is_gather or last.is_window or last.accumulates
    )  # where it is wanted
    if not buffer.inserts and not computed:
        return f"a copy would have to place it in a border: it is the result of {last.kind}"
    borders = {attribute_key(window.border) for window in buffer.all_windows()}
    if len(borders) > 1:
        return "its windows want borders of different values"
    wanted = next((use for use in _other_uses(log.graph, buffer)
                   if wants_memory(use.user)), None)  # fmt: skip
    if wanted is not None:
        return f"it is wanted in memory of its own, by {wanted.user.kind}"
    nbytes = math.prod(_bordered(buffer)) * buffer.type.dtype.itemsize
    budget = log.options.memory_budget
    if budget is not None and nbytes > budget:
        return f"{nbytes} bytes with its border are over the memory budget of {budget}"
    return ""


def _bordered(buffer: _Buffer) -> Sizes:
    """The shape with its border."""
    return _sum(buffer.type.shape, *buffer.border())


def _other_uses(graph: Graph, buffer: _Buffer) -> Iterable[Use]:
    """Uses by all but the windows and, where inserts grow it, these."""
    for value in buffer.values:
        convs = {id(window.conv) for window in buffer.windows.get(value, ())}
        for use in graph.uses(value):
            own = use.user in buffer.place and use.operand == 1
            if not own and id(use.user) not in convs:
                yield use


# ---------------------------------------------------------------------- the rewriting


def _rebuild(graph: Graph, buffer: _Buffer) -> None:
    low, high = buffer.border()
    shape = _sum(buffer.type.shape, low, high)
    number, loc = buffer.all_windows()[0].border, buffer.last.loc
    whole = filled(graph, number, TensorType(buffer.type.dtype, shape), loc)
    if not buffer.inserts:
        (value,) = buffer.values
        inner = build(graph, "insert_slice", (value, whole), loc, offsets=low,
                      strides=(1,) * len(shape))  # fmt: skip
        _read_with_border(graph, buffer.windows[value], inner, low)
        return
    for op in buffer.inserts:
        value, attrs = op.result, op.attrs
        whole = build(graph, "insert_slice", (op.operands[0], whole), op.loc,
                      offsets=_sum(attrs["offsets"], low), strides=attrs["strides"])  # fmt: skip
        _read_with_border(graph, buffer.windows.get(value, ()), whole, low)
        _read_interior(graph, buffer, value, whole, low)


def _read_with_border(
    graph: Graph, windows: Iterable[_Window], whole: Value, border: Sizes
) -> None:
    """The windows read `whole`, which has a border at least as wide as they want."""
    for window in windows:
        first = tuple(o + wide - own for o, wide, own
                      in zip(window.offsets, border, window.low, strict=True))  # fmt: skip
        box = _slice(graph, whole, first, _sum(window.sizes, window.low, window.high), window.conv)
        attrs = {name: value for name, value in window.conv.attrs.items() if name != "border"}
        attrs["padding"] = ((0, 0),) * len(attrs["padding"])
        conv = build(graph, "conv", (box, window.conv.operands[1]), window.conv.loc, **attrs)
        graph.replace_uses(window.conv.result, conv)


def _read_interior(
    graph: Graph, buffer: _Buffer, value: Value, whole: Value, border: Sizes
) -> None:
    """Everybody else reads `whole` without its border."""
    others = [use for use in graph.uses(value) if use.user not in buffer.place]
    for use in others:
        view = use.user
        if view.definition.is_extract and None not in view.attrs["offsets"]:
            attrs = {**view.attrs, "offsets": _sum(view.attrs["offsets"], border)}
            graph.replace_uses(view.result, build(graph, view.kind, (whole,), view.loc, **attrs))
        else:
            inside = _slice(graph, whole, border, value.shape, view)
            graph.set_operand(view, use.operand, inside)


def _slice(graph: Graph, whole: Value, offsets: Sizes, sizes: Sizes, reader: Op) -> Value:
    if sizes == whole.shape:
        return whole
    return build(graph, "extract_slice", (whole,), reader.loc, offsets=offsets, sizes=sizes,
                 strides=(1,) * len(sizes))  # fmt: skip


def _sum(*parts: Sizes) -> Sizes:
    return tuple(map(sum, zip(*parts, strict=True)))
