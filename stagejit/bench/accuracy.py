"""How far a result is from float64.

Input: a function, its arguments, a result. Output: one number. Invariant: the reference runs every
operation in float64 (JAX with x64, not jitted, so that no compiler under test takes part), or, of
functions that are others there, as it is: those of random keys, whose numbers would be others, and
those whose own types are fixed, as the carry of a scan is.

The error of a result is `max|result - reference| / max|reference|` over each array, and the largest
of the arrays counts. Element by element, a value that happens to cancel to nearly nothing would
decide. Integer and boolean results must be equal: any difference counts as infinite.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from stagejit.bench.programs import Arguments, Function


def reference_of(function: Function, args: Arguments) -> list[NDArray[Any]]:
    """The leaves of `function(*args)` with every floating-point argument widened to float64, where
    that is the same function."""
    if not any(map(_is_key, jax.tree.leaves(args))):
        with contextlib.suppress(TypeError), jax.enable_x64(True):
            return _arrays_of(function(*jax.tree.map(_widened, args)))
    return _arrays_of(function(*args))


def error_against(reference: list[NDArray[Any]], result: Any) -> float:
    """The largest relative error of the result's leaves; infinite where shapes or NaNs differ."""
    leaves = _arrays_of(result)
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in reference]:
        return float("inf")
    return max(map(_leaf_error, leaves, reference), default=0.0)


def _arrays_of(tree: Any) -> list[NDArray[Any]]:
    """Its leaves; of random keys their words."""
    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in leaves]


def _is_key(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key))


def _leaf_error(result: NDArray[Any], reference: NDArray[Any]) -> float:
    if not np.issubdtype(reference.dtype, np.inexact):
        return 0.0 if np.array_equal(result, reference) else float("inf")
    found, wanted = _as_inexact(result), _as_inexact(reference)
    special = ~np.isfinite(wanted)
    if not np.array_equal(found[special], wanted[special], equal_nan=True):
        return float("inf")
    difference = np.abs(found[~special] - wanted[~special])
    if not np.isfinite(difference).all():
        return float("inf")
    largest = np.abs(wanted[~special]).max(initial=0.0)
    return float(difference.max(initial=0.0) / (largest or 1.0))


def _as_inexact(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _widened(leaf: Any) -> Any:
    array = np.asarray(leaf)
    # jnp.issubdtype knows bfloat16, np.issubdtype does not.
    if jax.numpy.issubdtype(array.dtype, np.floating):
        return jax.numpy.asarray(array.astype(np.float64))
    if jax.numpy.issubdtype(array.dtype, np.complexfloating):
        return jax.numpy.asarray(array.astype(np.complex128))
    return jax.numpy.asarray(array)
