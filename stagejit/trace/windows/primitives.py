"""Which function computes which primitive.

Input: a primitive's name. Output: a JAX function of its operands and parameters. Invariant: what
JAX itself makes of these primitives (`select_and_gather_add`) is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.trace.windows.bodies import body_of, reduced_by, scattered, selected, summed
from stagejit.trace.windows.geometry import Windows
from stagejit.trace.windows.monoids import COMBINES, monoid_of, reduced
from stagejit.trace.windows.window import is_native, window


def _reduce_window(*operands: Any, jaxpr: Any, consts: Sequence[Any], **params: Any) -> list[Any]:
    xs, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    windows = Windows.of(xs[0].shape, params)
    fn = monoid_of(jaxpr)
    if fn is not None and not jnp.issubdtype(xs[0].dtype, np.complexfloating):
        return [COMBINES[fn](inits[0], reduced(fn, xs[0], windows))]
    return reduced_by(body_of(jaxpr, consts), xs, inits, windows)


def _of_monoid(fn: str) -> Callable[..., Any]:
    return lambda x, **params: reduced(fn, x, Windows.of(x.shape, params))


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
    if is_native(operand) and 0 not in windows.counts:
        numbers = window("first_max" if select_prim is lax.ge_p else "first_min", operand, windows)
    else:
        numbers = selected(lambda *pair: [select_prim.bind(*pair)], operand, windows)
    return summed(numbers, source, windows)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_window": _reduce_window,
    "reduce_window_sum": _of_monoid("add"),
    "reduce_window_max": _of_monoid("max"),
    "reduce_window_min": _of_monoid("min"),
    "select_and_scatter": _select_and_scatter,
    "select_and_scatter_add": _select_and_scatter_add,
}
