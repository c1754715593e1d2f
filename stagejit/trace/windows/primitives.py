"""Which function computes which primitive.

Input: a primitive's name. Output: a JAX function of its operands and parameters. Invariant: what a
derivative selects is what its transpose selects: the first of equal elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.trace.windows.bodies import body_of, gathered, reduced_by, scattered, selected, summed
from stagejit.trace.windows.geometry import MOST_TAPS, Windows
from stagejit.trace.windows.monoids import COMBINES, monoid_of, reduced
from stagejit.trace.windows.window import is_native, window


def _reduce_window(*operands: Any, jaxpr: Any, consts: Sequence[Any], **params: Any) -> list[Any]:
    xs, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    windows = Windows.of(xs[0].shape, params)
    fn = monoid_of(jaxpr)
    if fn is None or (fn not in _ORDERS and _is_complex(xs[0])):
        return reduced_by(body_of(jaxpr, consts), xs, inits, windows)
    if _is_complex(xs[0]):
        return reduced_by(_ORDERS[fn], xs, inits, windows)
    return [COMBINES[fn](inits[0], reduced(fn, xs[0], windows))]


def _of_monoid(fn: str) -> Callable[..., Any]:
    def function(x: Any, **params: Any) -> Any:
        windows = Windows.of(x.shape, params)
        if fn not in _ORDERS or not _is_complex(x):
            return reduced(fn, x, windows)
        init = jnp.asarray(-np.inf if fn == "max" else np.inf, x.dtype)
        return reduced_by(_ORDERS[fn], [x], [init], windows)[0]

    return function


def _is_complex(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, np.complexfloating))


def _ordered(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], list[Any]]:
    """The larger, or the smaller, of two complex numbers: by the real parts, then the imaginary
    ones."""

    def body(x: Any, y: Any) -> list[Any]:
        real, imag = (lax.real(x), lax.real(y)), (lax.imag(x), lax.imag(y))
        return [lax.select(lax.select(lax.eq(*real), compare(*imag), compare(*real)), x, y)]

    return body


_ORDERS = {"max": _ordered(lax.gt), "min": _ordered(lax.lt)}


def _select_and_scatter(
    operand: Any, source: Any, init: Any, *,
    select_jaxpr: Any, select_consts: Any, scatter_jaxpr: Any, scatter_consts: Any, **params: Any,
) -> Any:  # fmt: skip
    windows = Windows.of(operand.shape, params)
    numbers = selected(body_of(select_jaxpr, select_consts), operand, windows)
    return scattered(body_of(scatter_jaxpr, scatter_consts), numbers, source, init, windows)


def _select_and_scatter_add(source: Any, operand: Any, *, select_prim: Any, **params: Any) -> Any:
    """The gradient of a pooling. Where all of a window is -inf, JAX may give it to the border; here
    it is the first element's."""
    windows = Windows.of(operand.shape, params)
    return summed(_chosen(operand, select_prim, windows), source, windows)


def _select_and_gather_add(source: Any, operand: Any, *, select_prim: Any, **params: Any) -> Any:
    """The derivative of a pooling along `source`: that of the element which the gradient is of."""
    windows = Windows.of(operand.shape, params)
    if 0 in windows.counts:
        return jnp.zeros(windows.counts, source.dtype)
    if math.prod(windows.sizes) <= MOST_TAPS:
        operand = windows.with_holes(operand, -np.inf if select_prim is lax.ge_p else np.inf)
        source, windows = windows.with_holes(source, 0), windows.without_holes()
        return gathered(_chosen(operand, select_prim, windows), source, windows)

    def pair(x: Any, y: Any) -> Any:
        keeps = select_prim.bind(x[0], y[0])
        return tuple(lax.select(keeps, a, b) for a, b in zip(x, y, strict=True))

    least = np.asarray(-np.inf if select_prim is lax.ge_p else np.inf, operand.dtype)[()]
    inits, xs = (least, np.zeros((), source.dtype)[()]), (operand, source)
    return lax.reduce_window(xs, inits, pair, *windows.arguments)[1]


def _chosen(operand: Any, select_prim: Any, windows: Windows) -> Any:
    """The number of the tap of each window that is the largest, or the smallest, one."""
    if operand.dtype == np.bool_:
        operand = operand.astype(np.int8)
    if is_native(operand) and 0 not in windows.counts:
        return window("first_max" if select_prim is lax.ge_p else "first_min", operand, windows)
    return selected(lambda *pair: [select_prim.bind(*pair)], operand, windows)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_window": _reduce_window,
    "reduce_window_sum": _of_monoid("add"),
    "reduce_window_max": _of_monoid("max"),
    "reduce_window_min": _of_monoid("min"),
    "select_and_scatter": _select_and_scatter,
    "select_and_scatter_add": _select_and_scatter_add,
    "select_and_gather_add": _select_and_gather_add,
}
