"""split-reduce: a sum over many elements with few results becomes two, so that workers share it.

Input: `reduce`s, `contract`s, `conv`s, and sums at computed places (`scatters.py`). Output:
partial results of P parts of one reduced axis, then a reduction of those. Invariant: no part is
empty, only the last may be shorter; how many there are depends on the op, the options and the
machine (`counts.py`), never on the threads that run, so a given number of parts gives the
same bits; 16-bit floats still round once.

Note [Parts outermost]: partial results lie one part after the other, so that each part writes
memory in one piece. The parts are a view (`ops/moving/splits.py`), so a sum of any size is one
dispatch, and the merge, with whatever follows, another one. The taps of a window overlap, so that a
`conv` is told itself which axis it splits (`split`, in `dims.ConvDims`).
"""

from __future__ import annotations

import numpy as np

from stagejit.graph.functions import neutral
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.graph.ops.moving.splits import split_shape
from stagejit.rewrites.driving.driver import GraphStep, Log
from stagejit.rewrites.encodings import choose
from stagejit.rewrites.split.counts import Cut, Many, cut_of, too_small
from stagejit.rewrites.split.partial import converted, mapped, summed_in
from stagejit.rewrites.split.scatters import Updates, split_scatter
from stagejit.types import DType, TensorType, bool_, i32, i64, u8

NAME = "split-reduce"
_ARG = ("argmax", "argmin")


def split_reductions(log: Log) -> None:
    """reduce %x  -->  reduce of (reduce of split_axis %x); products likewise"""
    for op in log.graph.ops():
        if op not in log.graph:
            continue
        if op.definition.accumulates:
            _visit(log, op)
        elif op.definition.is_scatter:
            _visit_scatter(log, op)


STEP = GraphStep(NAME, split_reductions)


def _visit(log: Log, op: Op) -> None:
    many = Many.of(op, log.machine, in_panels=_in_panels(log, op))
    if isinstance(many, str):
        log.decline(NAME, op, many)
        return
    if many is None:
        return
    asked = log.options.asked_parts(op.kind, op.attrs.get("fn", ""), str(op.loc))
    cut = cut_of(many, asked, log.options.memory_budget, log.machine)
    if isinstance(cut, str):
        if asked is not None or not too_small(many, log.machine):
            log.decline(NAME, op, cut)
        return
    first_new = log.graph.next_id
    value = _split(log.graph, op, cut)
    log.located(first_new, op)
    log.replace(NAME, op, value, str(cut))


def _in_panels(log: Log, op: Op) -> bool:
    """Whether a product reads a matrix that may be packed before any call."""
    return (
        op.definition.is_product
        and log.options.enabled(choose.NAME)
        and choose.is_packed_at_bind(log.graph, op)
    )


def _visit_scatter(log: Log, op: Op) -> None:
    updates = Updates.of(op)
    if updates is None:
        return
    parts, why = updates.parts(log.machine, log.options.memory_budget)
    if parts > 1:
        first_new = log.graph.next_id
        value = split_scatter(log.graph, updates, parts, log.machine)
        log.located(first_new, op)
        log.replace(NAME, op, value, why)


def _split(graph: Graph, op: Op, cut: Cut) -> Value:
    if op.definition.is_windowed:
        return _split_conv(graph, op, cut)
    if op.definition.is_product:
        return _split_contract(graph, op, cut)
    if op.attrs["fn"] in _ARG:
        return _split_arg(graph, op, cut)
    return _split_plain(graph, op, cut)


# ------------------------------------------------------------------- sums and the like


def _split_plain(graph: Graph, op: Op, cut: Cut) -> Value:
    fn, dtype = op.attrs["fn"], op.operands[0].type.dtype
    x = converted(graph, op.operands[0], dtype.accumulator)
    parts = _parts(graph, x, cut.axes[0], cut, neutral(fn, x.type.dtype))
    axes = tuple(axis + 1 for axis in op.attrs["axes"])
    partial = build(graph, "reduce", (parts,), fn=fn, axes=axes)
    return converted(graph, build(graph, "reduce", (partial,), fn=fn, axes=(0,)), dtype)


def _split_contract(graph: Graph, op: Op, cut: Cut) -> Value:
    lhs, rhs = op.operands
    own = lhs.type.dtype
    sides = [
        _parts(graph, side, axis, cut, zero)
        for side, axis, zero in zip(
            (lhs, rhs), cut.axes, (-0.0, 0.0) if own.is_float else (0, 0), strict=True
        )
    ]
    moved = [tuple(axis + 1 for axis in axes) for axes in op.attrs["contracting"]]
    batch = [(0, *(axis + 1 for axis in axes)) for axes in op.attrs["batch"]]
    wide = summed_in(op)
    kept = {name: value for name, value in op.attrs.items() if name == "precision"}
    partial = build(
        graph, "contract", sides, contracting=tuple(moved), batch=tuple(batch), dtype=wide, **kept
    )
    return _added(graph, op, partial)


def _split_conv(graph: Graph, op: Op, cut: Cut) -> Value:
    attrs = {**op.attrs, "dtype": summed_in(op), "split": (cut.axes[0], cut.tile)}
    return _added(graph, op, build(graph, op.kind, op.operands, **attrs))


def _added(graph: Graph, op: Op, partial: Value) -> Value:
    total = build(graph, "reduce", (partial,), fn="add", axes=(0,))
    return converted(graph, total, op.result.type.dtype)


def _parts(graph: Graph, x: Value, axis: int, cut: Cut, fill: int | float | bool) -> Value:
    shape = split_shape(x.shape, axis, cut.tile)
    return build(graph, "split_axis", (x,), axis=axis, shape=shape, fill=fill)


# ------------------------------------------------------------------- argmax and argmin


def _split_arg(graph: Graph, op: Op, cut: Cut) -> Value:
    """The best value of each part and its place; then the first place that has the best value.

    A NaN beats all else, and `max` and `min` give NaN where there is one.
    """
    fn, wanted = op.attrs["fn"], op.attrs["dtype"]
    (axis,) = op.attrs["axes"]
    # A narrow type holds the place that is found, or wraps it as JAX does, but not all places.
    dtype = i32 if op.operands[0].shape[axis] + cut.tile < 2**31 else i64
    best = "max" if fn == "argmax" else "min"
    x = op.operands[0]
    x = converted(graph, x, u8 if x.type.dtype is bool_ else x.type.dtype)
    parts = _parts(graph, x, axis, cut, neutral(best, x.type.dtype))
    values = build(graph, "reduce", (parts,), fn=best, axes=(axis + 1,))
    local = build(graph, "reduce", (parts,), fn=fn, axes=(axis + 1,), dtype=dtype)
    first = build(graph, "iota", (), shape=local.shape, dtype=dtype, axis=0)
    places = mapped(graph, "add", local, _scaled(graph, first, cut.tile, dtype))
    value = build(graph, "reduce", (values,), fn=best, axes=(0,))
    kept = tuple(range(1, len(values.shape)))
    everywhere = build(graph, "broadcast", (value,), shape=values.shape, axes=kept)
    wins = _wins(graph, values, everywhere)
    farthest = filled(graph, int(np.iinfo(dtype.numpy).max), TensorType(dtype, places.shape))
    candidates = mapped(graph, "select", wins, places, farthest)
    place = build(graph, "reduce", (candidates,), fn="min", axes=(0,))
    return converted(graph, place, wanted)


def _wins(graph: Graph, values: Value, best: Value) -> Value:
    """Where `values` are `best`, a NaN being equal to a NaN."""
    equal = mapped(graph, "eq", values, best)
    if not values.type.dtype.is_float:
        return equal
    return mapped(graph, "or", equal, mapped(graph, "ne", values, values))


# ------------------------------------------------------------------- building


def _scaled(graph: Graph, x: Value, factor: int, dtype: DType) -> Value:
    return mapped(graph, "mul", x, filled(graph, factor, TensorType(dtype, x.shape)))
