"""Equations on elements that are made of others: PRNG keys, complex numbers, small numbers.

Input: an equation with such an element type, its operands physical (`compat.type_of`). Output: the
same equation on what the elements are made of, or Unsupported. Invariant: the parts of one element
lie along the last axes, which no parameter of the original equation names, so whatever only moves
elements moves all of their parts alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.lax import GatherScatterMode

from stagejit.compat import element_shape, is_extended, type_of
from stagejit.graph.ir import Value
from stagejit.trace.complex.parts import is_complex, joined, part_of
from stagejit.trace.complex.rules import rule_of
from stagejit.trace.emitter import Emitter
from stagejit.trace.math import small_numbers
from stagejit.trace.moving import sorting
from stagejit.trace.moving.indexing import fill_array
from stagejit.trace.translation import Site, Translation, Unsupported
from stagejit.types import TensorType, i32, storage_of

Params = Mapping[str, Any]
Rule = Callable[[Emitter, Site, Translation, Sequence[Value]], "Value | Sequence[Value]"]


def is_disguised(aval: Any) -> bool:
    """True for an element type that is made of others."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and _is_disguised(dtype)


@functools.cache
def _is_disguised(dtype: Any) -> bool:
    if jnp.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0:
        return True
    stored = storage_of(dtype).dtype
    return stored.is_native and stored.numpy != dtype


def element_name(aval: Any) -> str:
    """The element type as JAX writes it: `key<fry>`, `complex64`, `int4`, `float0`."""
    return "float0" if aval.dtype == jax.dtypes.float0 else str(aval.dtype)


def parts_shape(aval: Any) -> tuple[int, ...]:
    """The shape of what one element is made of, the last axes of its physical type."""
    return element_shape(aval) if is_extended(aval) else storage_of(aval.dtype).shape


def translate(
    emit: Emitter, site: Site, operands: Sequence[Value], found: Translation | None
) -> Value | Sequence[Value]:
    """The equation on parts. found: the translation of its primitive for physical elements."""
    disguised = [aval for aval in (*site.inputs, *site.outputs) if is_disguised(aval)]
    if site.primitive in _COMPARISONS and all(map(_is_compared_by_parts, disguised)):
        return _compared(emit, site, found, operands)
    complex_only = all(
        is_complex(aval) if is_disguised(aval) else type_of(aval).dtype.is_native
        for aval in (*site.inputs, *site.outputs)
    )
    rule = rule_of(site) if complex_only else None
    if rule is not None:
        return rule(emit, site, *operands)
    if complex_only and found is not None and site.primitive in _SORTS:
        found.check(site)
        return sorting.of_complex(emit, site, *operands)
    converted = small_numbers.rule_of(site)
    if converted is not None:
        return converted(emit, *operands)
    names = sorted({element_name(aval) for aval in disguised})
    if found is None or not _keeps_parts_together(site, disguised):
        raise Unsupported(f"element type {', '.join(names)}")
    found.check(site)
    lift = _LIFTS.get(site.primitive)
    if lift is None:
        return found.rule(emit, site, *operands)
    if len(names) > 1:
        raise Unsupported(f"element types {', '.join(names)} together")
    return lift(emit, site, found, operands)


def _keeps_parts_together(site: Site, disguised: Sequence[Any]) -> bool:
    """True where each part of a result is computed from the same part of the operands."""
    if site.primitive in _LINEAR:
        return all(is_complex(aval) for aval in disguised)
    return site.primitive in _MOVERS


# -- parameters -----------------------------------------------------------------------------------


def _with_params(change: Callable[[Site, int], Params]) -> Rule:
    """A rule that extends parameters: (site, number of axes that parts have) -> changes."""

    def rule(
        emit: Emitter, site: Site, found: Translation, operands: Sequence[Value]
    ) -> Value | Sequence[Value]:
        changed = change(site, len(parts_shape(site.outputs[0])))
        return found.rule(emit, site.with_params(changed), *operands)

    return rule


def _last(site: Site, depth: int) -> tuple[int, ...]:
    """The axes of the result that hold parts."""
    rank = site.result.rank
    return tuple(range(rank - depth, rank))


def _broadcast(site: Site, depth: int) -> Params:
    axes = (*site.params["broadcast_dimensions"], *_last(site, depth))
    return {"broadcast_dimensions": axes}


def _reshape(site: Site, depth: int) -> Params:
    order = site.params.get("dimensions")
    if order is None:
        return {}
    return {"dimensions": (*order, *range(len(order), len(order) + depth))}


def _transpose(site: Site, depth: int) -> Params:
    return {"permutation": (*site.params["permutation"], *_last(site, depth))}


def _tile(site: Site, depth: int) -> Params:
    return {"reps": (*site.params["reps"], *(1,) * depth)}


def _slice(site: Site, depth: int) -> Params:
    strides = site.params["strides"]
    return {
        "start_indices": (*site.params["start_indices"], *(0,) * depth),
        "strides": None if strides is None else (*strides, *(1,) * depth),
    }


def _pad(site: Site, depth: int) -> Params:
    return {"padding_config": (*site.params["padding_config"], *((0, 0, 0),) * depth)}


def _scatter(site: Site, depth: int) -> Params:
    numbers = site.params["dimension_numbers"]
    rank = len(site.inputs[2].shape)
    windows = (*numbers.update_window_dims, *range(rank, rank + depth))
    return {"dimension_numbers": numbers._replace(update_window_dims=windows)}


# -- operands -------------------------------------------------------------------------------------


def _dynamic(
    emit: Emitter, site: Site, found: Translation, operands: Sequence[Value]
) -> Value | Sequence[Value]:
    starts = [emit.const(0, i32)] * len(parts_shape(site.outputs[0]))
    return found.rule(emit, site, *operands, *starts)


def _select(
    emit: Emitter, site: Site, found: Translation, operands: Sequence[Value]
) -> Value | Sequence[Value]:
    which, *cases = operands
    which = emit.broadcast(which, site.result.shape, range(which.type.rank))
    return found.rule(emit, site, which, *cases)


def _gather(
    emit: Emitter, site: Site, found: Translation, operands: Sequence[Value]
) -> Value | Sequence[Value]:
    """One gather of all parts, or, where they are filled with different numbers (complex NaN), one
    of each."""
    x, indices = operands
    aval, numbers = site.outputs[0], site.params["dimension_numbers"]
    shape = parts_shape(aval)
    fills = [None]
    if site.params["mode"] in (None, GatherScatterMode.FILL_OR_DROP):
        fills = _fills(aval, site.params["fill_value"])
    if len(set(map(repr, fills))) == 1:
        rank = len(aval.shape)
        return found.rule(emit, site.with_params({
            "slice_sizes": (*site.params["slice_sizes"], *shape),
            "dimension_numbers": numbers._replace(
                offset_dims=(*numbers.offset_dims, *range(rank, rank + len(shape)))
            ),
            "fill_value": fills[0],
        }), x, indices)  # fmt: skip
    made: list[Any] = []
    type = TensorType(site.result.dtype, site.result.shape[: -len(shape)])
    for part, fill in enumerate(fills):
        which = part_of(emit, x, part)
        made.append(found.rule(emit, site.of(type, fill_value=fill), which, indices))
    return joined(emit, made)


def _fills(aval: Any, value: Any) -> list[Any]:
    """What the parts of an element out of bounds are. JAX names a value, or means its default."""
    if is_extended(aval):
        return [None if value is None else int(value)]
    if value is None:
        inexact = jnp.issubdtype(aval.dtype, np.inexact)
        info = None if inexact else _integers(aval.dtype)
        value = np.nan if info is None else info.min if info.min else info.max
    parts = storage_of(aval.dtype).array(fill_array(value, aval.dtype))
    return [part.item() for part in np.atleast_1d(parts)]


def _is_compared_by_parts(aval: Any) -> bool:
    return is_extended(aval) or is_complex(aval)


def _compared(
    emit: Emitter, site: Site, found: Translation | None, operands: Sequence[Value]
) -> Value:
    """Equal in every part, or different in one of them."""
    x, y = operands
    parts = emit.map(site.primitive, x, y)
    axes = tuple(range(site.result.rank, parts.type.rank))
    fn = _COMPARISONS[site.primitive]
    return emit.emit("reduce", (parts,), site.result, fn=fn, axes=axes)


_SORTS = frozenset({"sort"})
_COMPARISONS = {"eq": "and", "ne": "or"}


def _integers(dtype: Any) -> Any:
    """The range of an integer type, NumPy's or ml_dtypes'."""
    info: Any = ml_dtypes.iinfo
    return info(dtype)


_LIFTS: dict[str, Rule] = {
    "broadcast_in_dim": _with_params(_broadcast),
    "reshape": _with_params(_reshape),
    "transpose": _with_params(_transpose),
    "tile": _with_params(_tile),
    "slice": _with_params(_slice),
    "pad": _with_params(_pad),
    "scatter": _with_params(_scatter),
    "scatter-add": _with_params(_scatter),
    "scatter-sub": _with_params(_scatter),
    "dynamic_slice": _dynamic,
    "dynamic_update_slice": _dynamic,
    "select_n": _select,
    "gather": _gather,
}

_MOVERS = frozenset(_LIFTS) - {"scatter-add", "scatter-sub"} | {
    "squeeze", "expand_dims", "rev", "split", "unstack", "concatenate", "stack", "empty", "empty2",
    "copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "name", "pvary",
    "random_wrap", "random_unwrap", "random_clone",
}  # fmt: skip

# Of complex numbers: the real and the imaginary parts each.
_LINEAR = frozenset({"reduce_sum", "cumsum", "scatter-add", "scatter-sub"})
