"""The op set: for each kind its operands, attributes and result type.

Input: kind, operand types, attributes. Output: result types, or VerificationError. Invariant: an op
whose kind, operands and attributes pass `infer` has exactly one meaning, that of `interpreter.py`.

=================  ==========================  =====================================================
kind               operands                    attributes; meaning
=================  ==========================  =====================================================
input                                          index
const                                          value: read-only NumPy array of the result's type
iota                                           shape, dtype, axis; element = index along `axis`
empty                                          shape, dtype; uninitialised destination
fill               scalar                      shape; every element is the scalar
map                n of one shape              fn (a JAX primitive name, see Note [Map functions]) and
                                               its static parameters: `y` of integer_pow,
                                               `rounding` of round. dtype: result element type
convert            x                           dtype
bitcast            x                           dtype (same size per element)
broadcast          x                           shape, axes: operand dim i is result dim axes[i]
reshape            x                           shape
transpose          x                           permutation: result dim i is operand dim permutation[i]
reverse            x                           axes
extract_slice      x, *starts                  offsets, sizes, strides; an offset of None takes the
                                               next of `starts` (i32/i64 scalars), clamped as in JAX
insert_slice       src, dst, *starts           offsets, strides; result is dst with src written at the
                                               box; dynamic starts clamped. "src into dst"
reduce             x                           fn (add mul max min and or xor argmax argmin), axes;
                                               argmax/argmin: one axis, dtype is the index type
cumulative         x                           fn (add mul max min logaddexp), axis, reverse
contract           lhs, rhs                    contracting ((l...), (r...)), batch ((l...), (r...)),
                                               dtype; result dims: batch, lhs free, rhs free
conv               lhs, rhs                    the fields of `ConvDims` below, dtype
gather             x, indices                  the fields of `GatherDims` below, sizes, mode
                                               ("clip", "fill", "promise"), fill_value
scatter            x, indices, updates         the fields of `ScatterDims`, fn (set add mul min max),
                                               mode, unique, sorted
delegate           any                         equation (the JAX equation), reason
return             any
=================  ==========================  =====================================================

Note [Map functions]: operands of `map` have the result's shape (scalars are broadcast by an explicit
`broadcast` first). `select` takes (predicate, on_true, on_false); `clamp` takes (low, x, high); all
other names and meanings are those of JAX's primitives.

Note [Destinations]: `concatenate`, `pad`, `stack` and `dynamic_update_slice` have no kind of their own.
They are `insert_slice`s into an `empty`, a `fill` or an existing value, so that the dispatch that makes
a source can write it where it belongs.
"""

from __future__ import annotations
