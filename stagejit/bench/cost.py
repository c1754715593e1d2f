"""The least work that a program asks of any machine: multiply-adds and bytes.

Input: a function and its arguments. Output: `Cost`. Invariant: it depends on the jaxpr alone, never
on how a compiler runs it.

flops counts two for each multiply-add of matrix products and convolutions, as if computed directly
(border positions of a SAME convolution included, elementwise work not, nor what is integer, which
machines do at rates of its own). A while loop counts once, since its trip count is unknown; a cond
counts its largest branch. nbytes is every argument read once and every result written once:
intermediate values cost nothing here, nor do donated arguments and the results that take their
place, but for what a program says that it has to read of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.programs import Arguments, Function
from stagejit.runtime.lowering.seams import subjaxprs

_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Cost:
    """flops: of contractions and convolutions; nbytes: arguments plus results."""

    flops: int
    nbytes: int


def cost_of(
    function: Function, args: Arguments, donated: tuple[int, ...] = (), read_nbytes: int = 0
) -> Cost:
    """Traces `function` on `args` and adds up its unavoidable work. donated, read_nbytes: see
    `Workload`."""
    closed = jax.make_jaxpr(function)(*args)
    kept = [arg for number, arg in enumerate(args) if number not in donated]
    given = sum(len(jax.tree.leaves(args[number])) for number in donated)
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves(kept)] + closed.out_avals[given:]
    nbytes = sum(_product(aval.shape) * aval.dtype.itemsize for aval in avals)
    return Cost(_jaxpr_flops(closed.jaxpr), nbytes + read_nbytes)


def _jaxpr_flops(jaxpr: Any) -> int:
    return sum(_equation_flops(eqn) for eqn in jaxpr.eqns)


def _equation_flops(eqn: Any) -> int:
    name, params = eqn.primitive.name, eqn.params
    if name in _PRODUCTS and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return 0
    if name == "dot_general":
        (contracting, _), _ = params["dimension_numbers"]
        lhs = eqn.invars[0].aval.shape
        return 2 * _size(eqn.outvars[0]) * _product(lhs[axis] for axis in contracting)
    if name == "conv_general_dilated":
        return _conv_flops(eqn)
    nested = list(map(_jaxpr_flops, subjaxprs(eqn)))
    if name == "cond":
        return max(nested, default=0)
    return sum(nested) * (params["length"] if name == "scan" else 1)


def _conv_flops(eqn: Any) -> int:
    kernel = eqn.invars[1].aval.shape
    spec = eqn.params["dimension_numbers"].rhs_spec  # (out channels, in channels, *spatial)
    taps = _product(kernel[axis] for axis in spec[1:])
    # Of a dilated input only one position in prod(dilation) holds a value.
    return 2 * _size(eqn.outvars[0]) * taps // _product(eqn.params["lhs_dilation"])


def _size(var: Any) -> int:
    return _product(var.aval.shape)


def _product(sizes: Iterable[int]) -> int:
    return math.prod(sizes)
