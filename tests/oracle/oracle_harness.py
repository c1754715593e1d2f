"""JAX's own test cases for its primitives, as an oracle for any way of running a function.

`cases()` lists the harnesses of `jax._src.internal_test_util.test_harnesses` whose primitive groups
are native ops; `sample()` a deterministic handful of each group. `check(harness, runner)` compares
`runner(fn, args) -> arrays` with `jax.jit(fn)(*args)`; the interpreter and the
compiled pipeline are both such runners.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

Runner = Callable[[Callable[..., Any], Sequence[Any]], Any]

_NAMES = """
    abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh bitcast_convert_type
    broadcast_in_dim cbrt ceil clamp concatenate conj conv_general_dilated convert_element_type cos
    cosh cumlogsumexp cummax cummin cumprod cumsum device_put digamma div dot_general
    dynamic_slice dynamic_update_slice eq erf erf_inv erfc exp expm1 floor gather ge gt
    imag integer_pow iota is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter or
    pad
    population_count pow real reduce reduce_and reduce_max reduce_min reduce_or reduce_precision
    reduce_prod reduce_sum rem reshape rev round rsqrt scatter scatter_add scatter_max scatter_min
    scatter_mul select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice
    sqrt squeeze stop_gradient sub tan tanh transpose xor
    """
GROUPS = frozenset(_NAMES.split())

# NaN among complex numbers: the larger and the smaller one are NaN, as in NumPy, not in JAX.
_UNLIKE_JAX = frozenset({"max_inf_nan_complex64", "min_inf_nan_complex64"})

# Relative error allowed between two correct evaluations; JAX's own functions are off by some ulp.
TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 2e-5, "float64": 1e-12}


@functools.cache
def all_cases() -> tuple[Any, ...]:
    """Every harness that JAX itself supports on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jax._src.internal_test_util import test_harnesses

    return tuple(h for h in test_harnesses.all_harnesses if h.filter("cpu"))


def cases(groups: frozenset[str] = GROUPS) -> list[Any]:
    """The harnesses of these groups with element types that kernels exist for."""
    return [
        h for h in all_cases()
        if h.group_name in groups and _is_native(h.dtype) and h.fullname not in _UNLIKE_JAX
    ]  # fmt: skip


def sample(per_group: int, groups: frozenset[str] = GROUPS) -> list[Any]:
    """At most `per_group` harnesses of each group, the same ones in every process."""
    by_group = defaultdict(list)
    for harness in cases(groups):
        by_group[harness.group_name].append(harness)
    chosen = []
    for _, members in sorted(by_group.items()):
        chosen += sorted(members, key=lambda h: hashlib.sha256(h.fullname.encode()).digest())[
            :per_group
        ]
    return chosen


def arguments(harness: Any) -> list[Any]:
    """The harness's arguments, the same ones in every process."""
    return [np.asarray(x) for x in harness.dyn_args_maker(np.random.RandomState(0))]


def check(harness: Any, runner: Runner) -> None:
    """Compare `runner` with `jax.jit`. Wide types are on, since many harnesses ask for them."""
    with jax.enable_x64(True):
        args = arguments(harness)
        expected = jax.tree.leaves(jax.jit(harness.dyn_fun)(*args))
        actual = jax.tree.leaves(runner(harness.dyn_fun, args))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(np.asarray(ours), np.asarray(theirs), scale=_scale(harness))


def assert_close(ours: np.ndarray, theirs: np.ndarray, *, scale: float = 1.0) -> None:
    """Equal type and shape; equal integers; floats within the tolerance of their type."""
    assert ours.dtype == theirs.dtype, f"{ours.dtype} is not {theirs.dtype}"
    assert ours.shape == theirs.shape, f"{ours.shape} is not {theirs.shape}"
    if ours.dtype.kind in "biu":
        np.testing.assert_array_equal(ours, theirs)
        return
    if ours.dtype.kind == "c":
        assert_close(ours.real, theirs.real, scale=scale)
        assert_close(ours.imag, theirs.imag, scale=scale)
        return
    tolerance = TOLERANCE[ours.dtype.name] * scale
    wide, reference = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.abs(reference[np.isfinite(reference)])
    floor = tolerance * min(1.0, float(finite.max())) if finite.size else 0.0
    np.testing.assert_allclose(wide, reference, rtol=tolerance, atol=floor)


def _scale(harness: Any) -> float:
    """Products and long sums of 16-bit floats differ by how often JAX rounds in between."""
    rounds_often = {
        "dot_general",
        "conv_general_dilated",
        "cumsum",
        "cumprod",
        "cumlogsumexp",
        "reduce_sum",
        "reduce_prod",
        "reduce",
        "scatter_add",
        "scatter_mul",
    }
    return 8.0 if harness.group_name in rounds_often else 2.0


def _is_native(dtype: Any) -> bool:
    known = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.bool_))
    dtype = np.dtype(dtype)
    return dtype in known or (dtype.kind in "iufc" and dtype.name not in ("float128", "complex256"))
