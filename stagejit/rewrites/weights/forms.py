"""store-weights: weights of products have fewer bytes, and are widened where they are read.

Input: a graph whose bound inputs say in which form (`Weight.form`) products read them. Output: the
products read bf16, or integers of 8 or 4 bits with a scale for each output channel. Invariants:
sums are in the type in which they were; a weight has the same elements in every program, forwards
and backwards, and in each body; what else reads it is a reason to leave it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.axes import separate
from stagejit.graph.ops.control import bodies_of
from stagejit.graph.text.printer import as_text
from stagejit.rewrites.cloning import cloned, cloned_alike
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.split.partial import mapped
from stagejit.rewrites.split.pieces import taken_along
from stagejit.rewrites.weights.behind import ReadFrom, is_known, weights_behind
from stagejit.rewrites.weights.made import applied, views_of
from stagejit.rewrites.weights.measures import Lost, lost_of
from stagejit.rewrites.weights.readers import OTHERS, picks
from stagejit.rewrites.weights.stored import (
    Stored,
    along,
    bits_of,
    has_infinities,
    has_steps,
    narrowed,
    stays_finite,
)
from stagejit.trace.weights import Weight
from stagejit.types import f32

NAME = "store-weights"

FEWEST_ELEMENTS = 1024
_FEWEST_A_SCALE = 32  # elements
_NO_NUMBERS = "it has an Inf or a NaN, which integers have not"
_TOO_LARGE = "it has a finite number that would be infinite"
_TOO_SMALL = "all of it is so small that its scale would be no normal number"
_NOT_HELD = (_NO_NUMBERS, _TOO_LARGE, _TOO_SMALL)


def store_weights(log: Log) -> None:
    """contract %x, %w  -->  map mul (contract %x, (convert %q)), (broadcast %s)"""
    if not any(weight.form for weight in log.graph.weights.values()):
        return
    graph, stored = log.graph, dict[Value, Stored]()
    first_id = graph.next_id
    in_bodies: list[Lost] = list(graph.measures.values())
    for op in graph.ops():
        if op.definition.is_product and op in graph:
            _store(log, op, stored, first_id)
    _restore(graph, stored, in_bodies, first_id)


def _restore(
    graph: Graph, stored: Mapping[Value, Stored], in_bodies: Sequence[Lost], first_id: int
) -> None:
    """What else is done with weights is done with what products read. in_bodies: what these read,
    whole or in slices. first_id: ops from this one on store weights."""
    for value, made in stored.items():
        uses = [use for use in _others(graph, value) if use.user.id < first_id]
        if value not in graph.weights:  # what else is computed of weights is no weight of products
            uses = [use for use in uses if use.user.definition.is_return]
        if uses:  # which nobody may see in two forms
            _read_instead(graph, value, made.restored(graph), uses)
    for value, weight in graph.weights.items():
        axes = None if weight.kept else weight.axes.get(_text(value, [value]))
        uses = _others(graph, value) if axes and value not in stored else []
        uses = [use for use in uses if use.user.definition.is_return]
        if axes and uses:  # another program, or another body, reads it so
            made = narrowed(graph, value, weight.form, *axes)
            _read_instead(graph, value, made.restored(graph), uses)
    for lost in in_bodies:
        uses = _others(graph, lost.value) if lost.value in graph.weights else []
        uses = [use for use in uses if use.user.id < first_id]
        if uses and lost.value not in stored:
            known = dict(zip(lost.restored.inputs, lost.of, strict=True))
            again = lost.restored.outputs[0]
            _read_instead(graph, lost.value, cloned(graph, [again], known)[again], uses)


def _read_instead(graph: Graph, value: Value, other: Value, uses: Sequence[Use]) -> None:
    """`other` for a value, in all views that are used."""
    for use in uses:
        views = views_of(use.user.operands[use.operand], value)
        graph.set_operand(use.user, use.operand, applied(graph, other, views))


def _others(graph: Graph, value: Value) -> list[Use]:
    """Who reads a value, itself or turned, bodies aside."""
    found = []
    for use in graph.uses(value):
        if _turns(use.user):
            found += _others(graph, use.user.result)
        elif not use.user.definition.has_bodies:
            found.append(use)
    return found


def _turns(op: Op) -> bool:
    """transpose, reverse"""
    return op.definition.undone is not None and not op.definition.keeps_order


def _store(log: Log, op: Op, stored: dict[Value, Stored], first_id: int) -> None:
    graph = log.graph
    for at, value in enumerate(op.operands):
        behind = weights_behind(graph, value)
        forms = [graph.weights[weight].form for weight in behind]
        form = next((form for form in forms if form), None)
        if not behind or form is None:
            continue
        weight = graph.weights.get(value)
        paired = _axes_of(op, at)[1] is not None
        reason = (weight and weight.kept) or _why_not(graph, op, at, form, first_id)
        reason = reason or _read_in_few_bytes(value, bits_of(form, paired))
        reason = reason or _not_held([graph.weights[w] for w in behind], form, paired)
        if reason:
            log.decline(NAME, op, reason)
            if weight is not None:  # nor in any other program
                weight.keep(reason)
            return
        made = _stored_product(log, op, at, form, stored)
        how = "bf16" if form == "bf16" else f"{form}, with a scale for each output channel"
        log.replace(NAME, op, made, f"operand {at} lies in memory as {how}")
        return


def _stored_product(log: Log, op: Op, at: int, form: str, stored: dict[Value, Stored]) -> Value:
    """The product of an operand as it is stored: of a value that is turned as that is, turned."""
    graph, value = log.graph, op.operands[at]
    source, order, is_transposed = _unturned(value)
    if source not in stored:
        stored[source] = _made(log, op, at, form)
    made = stored[source]
    if is_transposed:
        return _product(graph, op, at, made.transposed(graph, value, order))
    turned = applied(graph, made.restored(graph), views_of(value, source))
    return _with_operands(graph, op, at, turned, op.operands[1 - at])


def _unturned(value: Value) -> tuple[Value, list[int], bool]:
    """What is turned, its axes that those of the value are, and whether it is only transposed."""
    source, order, is_transposed = value, list(range(value.type.rank)), True
    while _turns(source.op):
        permutation = source.op.attrs.get("permutation")
        is_transposed &= permutation is not None
        order = [permutation[axis] for axis in order] if permutation else order
        source = source.op.operands[0]
    return source, order, is_transposed


def _why_not(graph: Graph, op: Op, at: int, form: str, first_id: int) -> str:
    value = op.operands[at]
    if value.type.size < FEWEST_ELEMENTS:
        return f"a weight of {value.type.size} elements is small"
    if value.type.dtype is not f32:
        return f"a weight of {value.type.dtype} stays what it is"
    if op.attrs["dtype"] is not f32:
        return f"sums are kept as {op.attrs['dtype']}"
    if op.definition.is_windowed and at == 0:
        return "weights are what a window moves over"
    if is_known(graph, op.operands[1 - at]):
        return "weights determine the product"
    if not _only_products_read(graph, value, first_id):
        return OTHERS
    return ""


def _read_in_few_bytes(value: Value, bits: int) -> str:
    """Whether elements of so many bits would be more bytes than are read anyway: of what somebody
    has made smaller himself, numbers would be lost for nothing, in each call."""
    read, nbytes = ReadFrom(of_parts=True).nbytes([value]), value.type.size * bits // 8
    if nbytes <= read:
        return ""
    return f"it is made of {read} bytes where it is read, and would be {nbytes}"


def _not_held(weights: Sequence[Weight], form: str, paired: bool) -> str:
    """Why the form cannot hold what one of the weights is now; empty where it can. What they
    become, and what is computed of several, is looked at when it is made, see `runtime/bound.py`.
    paired: see `stored.py`. A weight that is gone was looked at when something was made of it.
    """
    for weight in weights:
        if not weight.kept and not weight.axes and (extent := weight.extent):
            is_finite, largest = extent
            if not is_finite and not has_infinities(form):
                weight.keep(_NO_NUMBERS)
            elif not stays_finite(form, largest, paired):
                weight.keep(_TOO_LARGE)
            elif not has_steps(form, largest, paired):
                weight.keep(_TOO_SMALL)
    return next((w.kept for w in weights if w.kept in _NOT_HELD), "")


def _only_products_read(graph: Graph, matrix: Value, first_id: int) -> bool:
    """Whether that is so of the weights behind a matrix, and of what is computed of weights alone.
    Vectors that are repeated in it, as the factors of a batch norm, are no matrices themselves:
    who else reads them, as its shift does, reads what was bound.
    first_id: ops from this one on store weights."""
    weights = [w for w in weights_behind(graph, matrix) if not _is_repeated(w, matrix)]
    seen, pending = set(weights), list(weights)
    while pending:
        value = pending.pop()
        for user in graph.users(value):
            if user.definition.is_product or user.definition.is_return or user.id >= first_id:
                continue
            if user.definition.has_bodies:  # see `readers.py`
                continue
            if len(user.results) != 1:
                return False
            if not is_known(graph, user.result):
                if not picks(user, value):
                    return False
            elif user.result not in seen:
                seen.add(user.result)
                pending.append(user.result)
    return True


def _is_repeated(weight: Value, matrix: Value) -> bool:
    is_vector = sum(size != 1 for size in weight.shape) <= 1
    return is_vector and weight.type.size < matrix.type.size


# -- what lies in memory --------------------------------------------------------------------------


def want_axes(graph: Graph) -> None:
    """Tells weights along which axes products want scales, in bodies, too, before one is stored, so
    that the order of equations decides nothing."""
    for op in graph.ops():
        for body in bodies_of(op):
            want_axes(body)
        if op.definition.is_product:
            for at, value in enumerate(op.operands):
                if any(graph.weights[w].form for w in weights_behind(graph, value)):
                    _want_axes(graph, op, at)


def _want_axes(graph: Graph, op: Op, at: int) -> tuple[Weight, str]:
    """The first weight behind an operand, which keeps the axes, and what they are those of."""
    source, order, _ = _unturned(op.operands[at])
    channels, summed = _axes_of(op, at)
    channels = tuple(sorted(order[axis] for axis in channels))
    summed = None if summed is None else order[summed]
    behind = weights_behind(graph, source)
    weight, text = graph.weights[behind[0]], _text(source, behind)
    scales = math.prod(source.shape[axis] for axis in channels)
    # Many scales round less; too many are as many bytes as they save.
    rank = scales if scales * _FEWEST_A_SCALE <= source.type.size else -scales
    weight.want_axes(text, rank, (channels, summed))
    return weight, text


def _made(log: Log, op: Op, at: int, form: str) -> Stored:
    graph, value = log.graph, _unturned(op.operands[at])[0]
    weight, text = _want_axes(graph, op, at)
    axes = weight.axes_for(text)
    made = narrowed(graph, value, form, *axes)
    of = tuple(graph.weights[w] for w in weights_behind(graph, value))
    graph.measures[of, text] = lost_of(
        graph, value, made.restored(graph), has_infinities(form), (text, form, axes)
    )
    return made


def _text(value: Value, behind: Sequence[Value]) -> str:
    """What is computed of weights, whatever these are called."""
    graph = Graph("made")
    known = {w: graph.add_input(f"w{at}", w.type) for at, w in enumerate(behind)}
    graph.set_outputs([{**known, **cloned_alike(graph, [value], known)}[value]])
    return as_text(graph)


def _axes_of(op: Op, at: int) -> tuple[tuple[int, ...], int | None]:
    """The axes of an operand over which nothing is summed, and the longest of the others that is
    even."""
    rank, shape = op.operands[at].type.rank, op.operands[at].shape
    if op.definition.is_windowed:
        dims = ConvDims.of(op.attrs)
        summed = [dims.rhs_spec[1]]
        channels: tuple[int, ...] = (dims.rhs_spec[0],)
    else:
        summed = list(op.attrs["contracting"][at])
        channels = tuple(axis for axis in range(rank) if axis not in summed)
    even = sorted(axis for axis in summed if shape[axis] % 2 == 0)
    return channels, max(even, key=lambda axis: shape[axis], default=None)


# -- products -------------------------------------------------------------------------------------


def _product(graph: Graph, op: Op, at: int, stored: Stored) -> Value:
    """The same product of the weight as it is stored."""
    results = _axes_of_results(op, at)
    behind = [axis in results for axis in stored.channels]
    others = {} if op.definition.is_windowed else dict(
        zip(op.attrs["contracting"][at], op.attrs["contracting"][1 - at], strict=True)
    )  # fmt: skip
    before = [axis in others for axis in stored.channels]
    scale, other = stored.scale, op.operands[1 - at]
    if stored.summed is not None and not _takes_panels(op, at, stored):
        return _with_operands(graph, op, at, stored.restored(graph), other)
    if scale is None and stored.summed is not None:
        return _of_panels(graph, op, at, stored, other)
    if scale is None:
        return _with_operands(graph, op, at, stored.wide(graph), other)
    if not all(behind) and not all(before):
        return _with_operands(graph, op, at, stored.restored(graph), other)
    if not all(behind):
        axes = [others[axis] for axis in stored.channels]
        other = mapped(graph, "mul", other, along(graph, scale, other.shape, axes))
    if stored.summed is not None:
        made = _of_panels(graph, op, at, stored, other)
    elif stored.packed in others:
        made = _of_halves(graph, op, at, stored, other)
    else:
        made = _with_operands(graph, op, at, stored.whole(graph), other)
    if not all(behind):
        return made
    axes = [results[axis] for axis in stored.channels]
    return mapped(graph, "mul", made, along(graph, scale, made.shape, axes))


def _axes_of_results(op: Op, at: int) -> dict[int, int]:
    """The axis of the result that is an axis of the operand."""
    if op.definition.is_windowed:
        dims = ConvDims.of(op.attrs)
        return {dims.rhs_spec[0]: dims.out_spec[1]}
    found: dict[int, int] = {}
    for axis in range(op.result.type.rank):
        parts = separate(op, axis)
        if parts is not None and (own := parts[at]) is not None:
            found[own] = axis
    return found


def _with_operands(
    graph: Graph, op: Op, at: int, weight: Value, other: Value, **attrs: object
) -> Value:
    operands = (weight, other) if at == 0 else (other, weight)
    return build(graph, op.kind, operands, op.loc, **{**op.attrs, **attrs})


def _takes_panels(op: Op, at: int, stored: Stored) -> bool:
    """Whether it sums over one axis of each, without zeros beside it, and shares no other one."""
    if op.definition.is_windowed or op.attrs["batch"][0] or len(op.attrs["contracting"][at]) != 1:
        return False
    own: int = op.attrs["contracting"][at][0]
    return own == stored.summed or op.operands[at].shape[own] == stored.columns


def _of_panels(graph: Graph, op: Op, at: int, stored: Stored, other: Value) -> Value:
    """The product of a matrix in panels: its second axis is two, those of panels and in a panel."""
    ((own,), (theirs,)) = op.attrs["contracting"][at], op.attrs["contracting"][1 - at]
    wide, axes = stored.wide(graph), list[tuple[int, ...]]([(1,), (theirs,)])
    if own != stored.summed:
        count, _, width = wide.shape
        shape = (*other.shape[:theirs], count, width, *other.shape[theirs + 1 :])
        other = build(graph, "reshape", [other], shape=shape)
        axes = [(0, 2), (theirs, theirs + 1)]
    contracting = tuple(axes if at == 0 else axes[::-1])
    made = _with_operands(graph, op, at, wide, other, contracting=contracting)
    if own != stored.summed:
        return build(graph, "reshape", [made], shape=op.result.shape)
    axis, shape = _axes_of_results(op, at)[1 - own], op.result.shape
    whole = (*shape[:axis], stored.columns, *shape[axis + 1 :])
    return taken_along(graph, build(graph, "reshape", [made], shape=whole), axis, 0, shape[axis])


def _of_halves(graph: Graph, op: Op, at: int, stored: Stored, other: Value) -> Value:
    """The sum over halves: the axis that is packed is two, in both operands."""
    assert stored.packed is not None
    contracting = op.attrs["contracting"]
    own = dict(zip(contracting[at], contracting[1 - at], strict=True))[stored.packed]
    pairs = (*other.shape[:own], 2, other.shape[own] // 2, *other.shape[own + 1 :])
    other = build(graph, "reshape", [other], shape=pairs)
    moved = {at: stored.packed, 1 - at: own}

    def renamed(axes: Mapping[int, Sequence[int]] | Sequence[Sequence[int]], pair: bool) -> object:
        made = []
        for side in (0, 1):
            split = moved[side]
            new = [axis + (axis >= split) for axis in axes[side]]
            made.append(tuple([*new, split] if pair else new))
        return tuple(made)

    return _with_operands(
        graph, op, at, stored.wide(graph), other,
        contracting=renamed(contracting, True), batch=renamed(op.attrs["batch"], False),
    )  # fmt: skip
