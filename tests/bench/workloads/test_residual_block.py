"""The two implementations of the block agree, and the NumPy one agrees with a naive sum."""

from __future__ import annotations

import jax
import numpy as np

from stagejit.bench.accuracy import error_against
from stagejit.bench.workloads import residual_block


def test_reference_convolution_is_the_definition() -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(6, 3, 3, 3)), rng.normal(size=6)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((2, 6, 4, 5))
    for n, o, i, j in np.ndindex(wanted.shape):
        wanted[n, o, i, j] = (padded[n, :, i : i + 3, j : j + 3] * w[o]).sum() + b[o]
    np.testing.assert_allclose(residual_block.reference_conv3x3(x, w, b), wanted, rtol=1e-12)


def test_jax_and_numpy_agree() -> None:
    rng = np.random.default_rng(0)
    params = residual_block.parameters(rng)
    x = rng.standard_normal((2, 64, 5, 7), dtype=np.float32)
    result = jax.jit(residual_block.residual_block)(x, params)
    assert error_against([residual_block.reference(x, params)], result) < 1e-6
