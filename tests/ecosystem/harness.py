"""Programs of libraries through `stagejit.enabled()`, beside plain JAX.

Input: a program of `bench/ecosystem`. Output: nothing, or the failure that says what differs.
Invariant: the function is jitted by JAX's own `jax.jit` both times; nothing of it knows of us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit.bench.ecosystem.catalogue import missing, programs
from stagejit.runtime.cpu.loader import call_count

# Loops may stay with XLA for what they sort or compute with complex numbers, never for these.
NEVER = ("hidden state of random keys", "matrix decomposition", "calls Python", "key<")


def require(*modules: str) -> None:
    """Skips the tests of a file whose library is not there."""
    for module in modules:
        pytest.importorskip(
            module, reason=f"{module} is not installed: pip install 'stagejit[ecosystem]'"
        )


def check(name: str, *, wide: bool = False) -> None:
    """The program gives what `jax.jit` gives, through our kernels.

    wide: in float64, for chains whose decisions hang on the last bits of a float32.
    """
    program = programs()[name]
    assert not missing(program)
    with jax.enable_x64(wide):
        function, args = program.make()
        args = jax.tree.map(_widened, args) if wide else args
        expected = jax.jit(lambda *args: function(*args))(*args)
        ours = staged(lambda *args: function(*args), *args)
        agree(ours, expected, 1e-6 if wide else program.tolerance)
        not_in_the_way(function, *args)


def staged(run: Callable[..., Any], *args: Any) -> Any:
    """The results of a jitted function, or of a library's own driver, with kernels of ours."""
    before = call_count()
    with stagejit.enabled():
        results = jax.block_until_ready(jax.jit(run)(*args))
    assert call_count() > before, "no kernel of ours ran"
    return results


def agree(ours: Any, expected: Any, tolerance: float) -> None:
    """Floats within `tolerance` of the largest element of their array; everything else equal."""
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        x, y = _plain(x), _plain(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.dtype.kind == "f":
            scale = max(float(np.max(np.abs(y), initial=0.0)), 1e-30)
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(x, y)


def not_in_the_way(function: Callable[..., Any], *args: Any) -> None:
    """No loop is left to XLA for lack of random bits, linear algebra or error checks."""
    for item in stagejit.jit(lambda *args: function(*args)).plan(*args).delegated:
        if item.equation in ("scan", "while"):
            assert not any(reason in item.reason for reason in NEVER), item.reason


def _plain(x: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    return np.asarray(x)


def _widened(x: Any) -> Any:
    return np.asarray(x, np.float64) if x.dtype == np.float32 else x
