"""The op set: for each kind its operands, attributes and result type.

Input: kind, operand types, attributes. Output: result types, or VerificationError; ops. Invariant:
an op whose kind, operands and attributes pass `infer` has exactly one meaning, that of its
declaration's `interpret`. A family of kinds is a file of this folder; see `OpDef` for what a
declaration says.

=================  ==========================  =====================================================
kind               operands                    attributes; meaning
=================  ==========================  =====================================================
input                                          index
const                                          value: read-only NumPy array of the result's type;
                                               of an opaque type: JAX's own array, or None in parsed
                                               text
iota                                           shape, dtype, axis; element = index along `axis`
empty                                          shape, dtype; uninitialised destination
fill               scalar                      shape; every element is the scalar
map                n of one shape              fn, dtype (result element type), and the function's
                                               static parameters: `y` of integer_pow, `rounding`
                                               ("away", "even") of round; see `functions.py`
convert            x                           dtype; see `functions.py`, Note [Conversion]
bitcast            x                           dtype (same size per element, neither is bool)
broadcast          x                           shape, axes: operand dim i is result dim axes[i], of
                                               the same size (a size of 1 does not stretch)
reshape            x                           shape; row-major
alias              x                           the same in the operand's memory, between dispatches
after              x, *others                  x in its memory, once the others are there
set_encoding       x                           encoding; x in memory, as targets tile it
unset_encoding     x                           x without its encoding
transpose          x                           permutation: result dim i is operand dim
                                               permutation[i]
reverse            x                           axes, ascending
split_axis         x                           axis, shape, fill: parts of that axis, numbered by
                                               axis 0, the last filled up; see `moving/splits.py`
extract_slice      x, *starts                  offsets, sizes (of the result), strides; an offset of
                                               None takes the next of `starts` (i32/i64 scalars),
                                               clamped as in JAX so that the box fits
insert_slice       src, dst, *starts           offsets, strides; result is dst with src written at
                                               the box; dynamic starts clamped. "src into dst"
overlay            src, dst                    the same as a value, which updates no memory
reduce             x                           fn, axes (ascending): add mul max min (no bools), and
                                               or xor (no floats), argmax argmin. These two have one
                                               axis and dtype, the index type; first tie, first NaN
cumulative         x                           fn (add mul max min logaddexp), axis, reverse
contract           lhs, rhs of one dtype       contracting ((l...), (r...)), batch ((l...), (r...)),
                                               dtype; result dims: batch, lhs free, rhs free
attend             q, k, v, *others            contracting, batch (of q and k), value_contracting,
                                               value_batch (of scores and v), scores, weights
                                               (graphs), dtype; see `attention.py`
conv               lhs, rhs of one dtype       the fields of `dims.ConvDims`, dtype
window             x                           fn (add mul max min and or xor; first_max, first_min:
                                               i32, the number of the tap that is chosen, -1 where
                                               there is none: the first, unless a later one takes
                                               its place, which it does if the chosen one is not
                                               >= or <=); the fields of `dims.WindowDims`
gather             x, indices                  the fields of `dims.GatherDims`, mode ("clip": starts
                                               are clamped, "promise": they are in bounds, "fill": a
                                               window not within x is fill_value), fill_value
scatter            x, indices, updates         the fields of `dims.ScatterDims`, fn (set add mul min
                                               max), mode ("clip": starts are clamped, others: a
                                               window not within x is dropped), unique, sorted
                                               (promises about index vectors)
sort               n of one shape              axis, keys (how many of the operands, the first
                                               ones), descending, count (elements of a row of a
                                               result), results (numbers of operands; n is that of
                                               positions): rows in the order of their keys
delegate           those of the equation,      equation (the JAX equation, or None in parsed text),
                   then a token                reason, effects (names; not empty: the op is never
                                               dead, its last result is a token)
call               those of the handler        target (of the custom call),
                                               attributes ((name, dtype, value), ...),
                                               column_major (for each operand and for each
                                               result): see Note [Foreign handlers]
optimization_      any                         results are the operands; no rewrite looks through
barrier                                        them; who reads one comes after all operands
dispatch           of its parts                parts, carried: see `dispatches.py`
return             any
=================  ==========================  =====================================================

loop and branch hold graphs of their own; `control.py` says what their operands, attributes and
results are: `loop` takes inits, xs, constants; carries, xs (how many), trip (None with a
condition), reverse, body, condition (a graph or None). `branch` takes an index, which is clamped,
and the operands of each of `branches`; carried says which results are updates of an operand.

Note [Map functions]: operands of `map` have the result's shape (scalars are broadcast by an
explicit `broadcast` first). `select` takes (predicate, on_true, on_false); `clamp` takes (low, x,
high); all other names and meanings are those of JAX's primitives.

Note [Destinations]: `concatenate`, `pad`, `stack` and `dynamic_update_slice` have no kind of their
own. They are `insert_slice`s into an `empty`, a `fill` or an existing value, so that the dispatch
that makes a source can write it where it belongs.

Note [Accumulation]: `reduce` and `cumulative` accumulate in `dtype.accumulator` (f32 for 16-bit
floats) and round once; `contract` and `conv` in the wider of the operands' and the result's. A
`scatter` may round after each update: the trace makes none that combines several in 16 bits.

Note [Foreign handlers]: a `call` is an XLA FFI handler that jaxlib brings along, such as a routine
of LAPACK; it has no effects. A column-major operand or result is described to the handler with its
last two dimensions exchanged: its matrices are what the handler takes them for, stored column by
column.

Note [Effect order]: a delegated equation with effects has a token as its last result, and takes the
token of the effect before it as its last operand, so every topological order keeps their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.errors import VerificationError
from stagejit.graph.definition import Attrs, Types, definition_of, states_its_types
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import (
    attention,
    control,
    dispatches,
    elementwise,
    foreign,
    products,
    reductions,
    sorting,
    sources,
    windows,
)
from stagejit.graph.ops.moving import encodings, indexing, slices, splits, views
from stagejit.types import TensorType

FAMILIES = (
    sources, elementwise, views, splits, slices, reductions, products, indexing, sorting, control,
    dispatches, foreign, windows, attention, encodings,
)  # fmt: skip


def infer(kind: str, operands: Types, attrs: Attrs) -> tuple[TensorType, ...] | None:
    """The result types of an op; None for those that state their own: `delegate`, `call`, `input`,
    `return` and an opaque `const`.

    Raises VerificationError, naming what does not fit, for anything outside the table above.
    """
    definition = definition_of(kind)
    try:
        types = definition.infer(operands, attrs)
    except KeyError as missing:
        raise VerificationError(f"{kind} needs the attribute {missing}") from None
    except (ValueError, IndexError, TypeError) as fault:
        raise VerificationError(f"{kind} of {list(operands)}: {fault}") from None
    if types is None:
        return None
    return (types,) if isinstance(types, TensorType) else tuple(types)


_FILLED = "filled(graph, number, type)"


def build(
    graph: Graph, kind: str, operands: Sequence[Value] = (), loc: Loc = UNKNOWN, **attrs: Any
) -> Value:
    """Append an op with its inferred result type and return the result.

    Raises VerificationError for operands and attributes that do not fit, TypeError for operands
    that are no values.
    """
    for number, value in enumerate(operands):
        if type(value) is not Value:
            raise TypeError(_no_value(kind, number, value))
    if definition_of(kind).is_constant and not isinstance(attrs.get("value"), np.ndarray):
        raise TypeError(f"{kind} has an array for its value: a number is {_FILLED}")
    types = infer(kind, [value.type for value in operands], attrs)
    if types is None:
        if definition_of(kind).infer is not states_its_types:
            raise TypeError(f"infer of {kind} returned None: it returns the type of the result")
        raise ValueError(f"{kind} states its own result types; use Graph.add")
    return graph.add(kind, operands, types, loc, **attrs).result


def _no_value(kind: str, number: int, given: Any) -> str:
    hint = "take its result" if isinstance(given, Op) else f"a number is {_FILLED}"
    return f"operand {number} of {kind} is {given!r}, of type {type(given).__name__}: {hint}"


def filled(graph: Graph, number: Any, type: TensorType, loc: Loc = UNKNOWN) -> Value:
    """A value of `type`, all of one number; what the graph has of that already, if it has."""
    array = np.array(number, type.dtype.numpy)
    key = type, array.tobytes()
    known = graph.filled.get(key)
    if known is not None and known.op in graph:
        return known
    if type.shape:
        scalar = filled(graph, array, TensorType(type.dtype, ()), loc)
        value = build(graph, "fill", [scalar], loc, shape=type.shape)
    else:
        array.flags.writeable = False
        value = graph.add("const", (), type, loc, value=array).result
    graph.filled[key] = value
    return value
