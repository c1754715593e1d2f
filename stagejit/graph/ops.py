"""The op set: for each kind its operands, attributes and result type.

Input: kind, operand types, attributes. Output: result types, or VerificationError. Invariant: an op
whose kind, operands and attributes pass `infer` has exactly one meaning, that of `interpreter.py`.

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
transpose          x                           permutation: result dim i is operand dim
                                               permutation[i]
reverse            x                           axes, ascending
extract_slice      x, *starts                  offsets, sizes (of the result), strides; an offset of
                                               None takes the next of `starts` (i32/i64 scalars),
                                               clamped as in JAX so that the box fits
insert_slice       src, dst, *starts           offsets, strides; result is dst with src written at
                                               the box; dynamic starts clamped. "src into dst"
reduce             x                           fn, axes (ascending): add mul max min (no bools), and
                                               or xor (no floats), argmax argmin. These two have one
                                               axis and dtype, the index type; first tie, first NaN
cumulative         x                           fn (add mul max min logaddexp), axis, reverse
contract           lhs, rhs of one dtype       contracting ((l...), (r...)), batch ((l...), (r...)),
                                               dtype; result dims: batch, lhs free, rhs free
conv               lhs, rhs of one dtype       the fields of `dims.ConvDims`, dtype
gather             x, indices                  the fields of `dims.GatherDims`, mode ("clip": starts
                                               are clamped, "promise": they are in bounds, "fill": a
                                               window not within x is fill_value), fill_value
scatter            x, indices, updates         the fields of `dims.ScatterDims`, fn (set add mul min
                                               max), mode (as above, but "fill" drops the window),
                                               unique, sorted (promises about index vectors)
delegate           those of the equation,      equation (the JAX equation, or None in parsed text),
                   then a token                reason, effects (names; not empty: the op is never
                                               dead, its last result is a token)
call               those of the handler        target (of the custom call),
                                               attributes ((name, dtype, value), ...),
                                               column_major (for each operand and for each
                                               result): see Note [Foreign handlers]
optimization_      any                         results are the operands; no rewrite looks through
barrier                                        them; who reads one comes after all operands
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
floats) and round once; `contract` and `conv` in the wider of the operands' and the result's.

Note [Foreign handlers]: a `call` is an XLA FFI handler that jaxlib brings along, such as a routine
of LAPACK; it has no effects. A column-major operand or result is described to the handler with its
last two dimensions exchanged: its matrices are what the handler takes them for, stored column by
column.

Note [Effect order]: a delegated equation with effects has a token as its last result, and takes the
token of the effect before it as its last operand, so every topological order keeps their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stagejit.errors import VerificationError
from stagejit.graph import control
from stagejit.graph.dims import ConvDims, GatherDims, ScatterDims
from stagejit.graph.functions import (
    CUMULATIVE_FUNCTIONS,
    MAP_FUNCTIONS,
    REDUCE_FUNCTIONS,
    SCATTER_FUNCTIONS,
)
from stagejit.graph.ir import Graph, Value
from stagejit.loc import UNKNOWN, Loc
from stagejit.types import DType, TensorType, bool_, from_numpy

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def infer(kind: str, operands: Types, attrs: Attrs) -> tuple[TensorType, ...] | None:
    """The result types of an op; None for those that state their own: `delegate`, `call`, `input`,
    `return` and an opaque `const`.

    Raises VerificationError, naming what does not fit, for anything outside the table above.
    """
    if kind in ("delegate", "call", "input", "return"):
        return None
    if kind == "const" and not isinstance(attrs.get("value"), np.ndarray):
        return None
    if kind == "optimization_barrier":
        return tuple(operands)
    rule, control_rule = _RULES.get(kind), control.INFER.get(kind)
    if rule is None and control_rule is None:
        raise VerificationError(f"unknown op kind {kind!r}")
    try:
        if control_rule is not None:
            return control_rule(operands, attrs)
        return (rule(operands, attrs),) if rule is not None else ()
    except KeyError as missing:
        raise VerificationError(f"{kind} needs the attribute {missing}") from None
    except (ValueError, IndexError, TypeError) as fault:
        raise VerificationError(f"{kind} of {list(operands)}: {fault}") from None


def build(
    graph: Graph, kind: str, operands: Sequence[Value], loc: Loc = UNKNOWN, **attrs: Any
) -> Value:
    """Append an op with its inferred result type and return the result."""
    types = infer(kind, [value.type for value in operands], attrs)
    if types is None:
        raise ValueError(f"{kind} states its own result types; use Graph.add")
    return graph.add(kind, operands, types, loc, **attrs).result


# ------------------------------------------------------------------ sources


def _const(operands: Types, attrs: Attrs) -> TensorType:
    _require(not operands, "takes no operands")
    return TensorType(from_numpy(attrs["value"].dtype), attrs["value"].shape)


def _iota(operands: Types, attrs: Attrs) -> TensorType:
    _require(not operands, "takes no operands")
    _require(0 <= attrs["axis"] < len(attrs["shape"]), f"no axis {attrs['axis']}")
    return TensorType(attrs["dtype"], attrs["shape"])


def _empty(operands: Types, attrs: Attrs) -> TensorType:
    _require(not operands, "takes no operands")
    return TensorType(attrs["dtype"], attrs["shape"])


def _fill(operands: Types, attrs: Attrs) -> TensorType:
    (scalar,) = operands
    _require(scalar.shape == (), "the operand is not a scalar")
    return TensorType(scalar.dtype, attrs["shape"])


# -------------------------------------------------------------- elementwise


def _map(operands: Types, attrs: Attrs) -> TensorType:
    function = MAP_FUNCTIONS.get(attrs["fn"])
    if function is None:
        raise ValueError(f"unknown function {attrs['fn']!r}")
    dtype = function.result_dtype(attrs["fn"], [type.dtype for type in operands])
    _require(len({type.shape for type in operands}) == 1, "operands differ in shape")
    _require(dtype is attrs["dtype"], f"the result is {dtype}, not {attrs['dtype']}")
    for name in function.params:
        _require(name in attrs, f"{attrs['fn']} needs {name}")
    return TensorType(dtype, operands[0].shape)


def _convert(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    return TensorType(attrs["dtype"], x.shape)


def _bitcast(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    _require(x.dtype.itemsize == attrs["dtype"].itemsize, "element sizes differ")
    _require(bool_ not in (x.dtype, attrs["dtype"]), "a bool has no bits of its own")
    return TensorType(attrs["dtype"], x.shape)


# -------------------------------------------------------------------- views


def _broadcast(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    shape, axes = attrs["shape"], attrs["axes"]
    _require(len(set(axes)) == len(axes) == x.rank, f"axes {axes} do not name each dimension once")
    _require(x.shape == tuple(shape[axis] for axis in axes), f"does not fit {shape} at {axes}")
    return TensorType(x.dtype, shape)


def _reshape(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    result = TensorType(x.dtype, attrs["shape"])
    _require(result.size == x.size, f"{result} has another number of elements")
    return result


def _transpose(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    _require(
        sorted(attrs["permutation"]) == list(range(x.rank)),
        f"{attrs['permutation']} is no permutation",
    )
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in attrs["permutation"]))


def _reverse(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    _require_axes(attrs["axes"], x.rank)
    return x


# ------------------------------------------------------------------- slices


def _extract_slice(operands: Types, attrs: Attrs) -> TensorType:
    x, *starts = operands
    _require_box(x, starts, attrs["offsets"], attrs["sizes"], attrs["strides"])
    return TensorType(x.dtype, attrs["sizes"])


def _insert_slice(operands: Types, attrs: Attrs) -> TensorType:
    source, destination, *starts = operands
    _require(source.dtype is destination.dtype, "source and destination differ in element type")
    _require_box(destination, starts, attrs["offsets"], source.shape, attrs["strides"])
    return destination


def _require_box(
    x: TensorType,
    starts: Types,
    offsets: Sequence[int | None],
    sizes: Sequence[int],
    strides: Sequence[int],
) -> None:
    _require(len(offsets) == len(sizes) == len(strides) == x.rank, "a box of another rank")
    _require(
        sum(offset is None for offset in offsets) == len(starts),
        f"{len(starts)} starts for offsets {offsets}",
    )
    _require(
        all(t.shape == () and t.dtype.name in ("i32", "i64") for t in starts),
        "starts are i32 or i64 scalars",
    )
    for axis, (offset, size, stride) in enumerate(zip(offsets, sizes, strides, strict=True)):
        extent = (size - 1) * stride + 1 if size else 0
        fits = stride >= 1 and size >= 0 and 0 <= (offset or 0) <= x.shape[axis] - extent
        _require(fits, f"box {offsets}, {sizes}, {strides} leaves dimension {axis}")


# --------------------------------------------------- reductions and products


def _reduce(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    fn, axes = attrs["fn"], attrs["axes"]
    _require(x.dtype.kind in REDUCE_FUNCTIONS.get(fn, ()), f"{fn} is not defined for {x.dtype}")
    _require_axes(axes, x.rank)
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    if fn not in ("argmax", "argmin"):
        return TensorType(x.dtype, shape)
    _require(len(axes) == 1 and x.shape[axes[0]] > 0, "takes one axis that is not empty")
    _require(attrs["dtype"].is_integer, "the index type is an integer type")
    return TensorType(attrs["dtype"], shape)


def _cumulative(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    _require(
        x.dtype.kind in CUMULATIVE_FUNCTIONS.get(attrs["fn"], ()),
        f"{attrs['fn']} is not defined for {x.dtype}",
    )
    _require_axes((attrs["axis"],), x.rank)
    _require(isinstance(attrs["reverse"], bool), "reverse is a bool")
    return x


def _contract(operands: Types, attrs: Attrs) -> TensorType:
    lhs, rhs = operands
    _require_product(lhs, rhs, attrs)
    (lhs_k, rhs_k), (lhs_b, rhs_b) = attrs["contracting"], attrs["batch"]
    for side, axes in ((lhs, (*lhs_b, *lhs_k)), (rhs, (*rhs_b, *rhs_k))):
        _require(
            len(set(axes)) == len(axes) and set(axes) <= set(range(side.rank)),
            f"axes {axes} of {side}",
        )
    for a, b in zip((*lhs_b, *lhs_k), (*rhs_b, *rhs_k), strict=True):
        _require(lhs.shape[a] == rhs.shape[b], f"dimension {a} of lhs and {b} of rhs differ")
    free = [size for axis, size in enumerate(lhs.shape) if axis not in (*lhs_b, *lhs_k)]
    free += [size for axis, size in enumerate(rhs.shape) if axis not in (*rhs_b, *rhs_k)]
    return TensorType(attrs["dtype"], (*(lhs.shape[axis] for axis in lhs_b), *free))


def _conv(operands: Types, attrs: Attrs) -> TensorType:
    lhs, rhs = operands
    _require_product(lhs, rhs, attrs)
    if "border" in attrs:
        _require_border(lhs.dtype, attrs["border"])
    return TensorType(attrs["dtype"], ConvDims.of(attrs).result_shape(lhs.shape, rhs.shape))


def _require_border(dtype: DType, border: Any) -> None:
    """Exactly an element of the operand; zero has one spelling, which is no attribute at all."""
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        exact = type(border) is int and info.min <= border <= info.max
    elif exact := type(border) is float:
        with np.errstate(over="ignore"):
            exact = border != border or np.asarray(border, dtype.numpy).item() == border
    _require(exact, f"border {border!r} is no {dtype}")
    _require(border != 0, "a border of zeros is left out")


def _require_product(lhs: TensorType, rhs: TensorType, attrs: Attrs) -> None:
    _require(lhs.dtype is rhs.dtype, "operands differ in element type")
    _require(
        lhs.dtype.is_float == attrs["dtype"].is_float and lhs.dtype is not bool_,
        f"no products of {lhs.dtype} in {attrs['dtype']}",
    )


# ---------------------------------------------------------------- indexing


def _gather(operands: Types, attrs: Attrs) -> TensorType:
    x, indices = operands
    _require(indices.dtype.is_integer, "indices are integers")
    _require(attrs["mode"] in ("clip", "fill", "promise"), f"unknown mode {attrs['mode']!r}")
    _require(
        (attrs["mode"] == "fill") == (attrs["fill_value"] is not None),
        "a fill value belongs to the mode fill",
    )
    return TensorType(x.dtype, GatherDims.of(attrs).result_shape(x.shape, indices.shape))


def _scatter(operands: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = operands
    _require(indices.dtype.is_integer, "indices are integers")
    _require(attrs["mode"] in ("clip", "fill", "promise"), f"unknown mode {attrs['mode']!r}")
    _require(
        x.dtype.kind in SCATTER_FUNCTIONS.get(attrs["fn"], ()),
        f"{attrs['fn']} is not defined for {x.dtype}",
    )
    _require(x.dtype is updates.dtype, "operand and updates differ in element type")
    _require(
        all(isinstance(attrs[name], bool) for name in ("unique", "sorted")),
        "unique and sorted are bools",
    )
    ScatterDims.of(attrs).check(x.shape, indices.shape, updates.shape)
    return x


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_axes(axes: Sequence[int], rank: int) -> None:
    _require(
        list(axes) == sorted(set(axes)) and all(0 <= axis < rank for axis in axes),
        f"axes {axes} are not ascending axes of rank {rank}",
    )


_RULES: dict[str, Callable[[Types, Attrs], TensorType]] = {
    "const": _const, "iota": _iota, "empty": _empty, "fill": _fill,
    "map": _map, "convert": _convert, "bitcast": _bitcast,
    "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose, "reverse": _reverse,
    "extract_slice": _extract_slice, "insert_slice": _insert_slice,
    "reduce": _reduce, "cumulative": _cumulative, "contract": _contract, "conv": _conv,
    "gather": _gather, "scatter": _scatter,
}  # fmt: skip
