"""Products of complex matrices are one real contraction; the smaller operand is written twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.randomness import RNG

VERIFYING = stagejit.Options(verify=True)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=(*shape, 2)).astype(np.float32).view(np.complex64)[..., 0]


EINSUMS = {
    "ij,jk->ik": [(5, 7), (7, 3)],
    "ij,jk->ki": [(3, 7), (7, 30)],
    "bij,bkj->bik": [(2, 4, 6), (2, 9, 6)],
    "bij,bkj->bki": [(2, 14, 6), (2, 3, 6)],
    "ijk,kjl->il": [(4, 3, 5), (5, 3, 6)],
    "i,i->": [(40,), (40,)],
    "i,j->ij": [(6,), (4,)],
    "ij,j->i": [(33, 17), (17,)],
    "abij,abjk->abik": [(2, 1, 3, 4), (2, 1, 4, 2)],
}


@pytest.mark.parametrize("spec", EINSUMS)
def test_contractions(spec: str) -> None:
    x, y = (numbers(*shape) for shape in EINSUMS[spec])
    for conj in (False, True):
        staged = stagejit.jit(
            lambda x, y, c=conj: jnp.einsum(spec, x, jnp.conj(y) if c else y), options=VERIFYING
        )
        expected = np.einsum(spec, x.astype(np.complex128), y.conj() if conj else y)
        np.testing.assert_allclose(staged(x, y), expected, rtol=1e-5, atol=1e-5)
        assert not staged.plan(x, y).delegated


def test_one_contraction() -> None:
    x, y = numbers(64, 48), numbers(48, 32)
    plan = stagejit.jit(jnp.matmul).plan(x, y)
    assert [dispatch.kind for dispatch in plan.dispatches].count("contract") == 1
    assert sum(dispatch.flops for dispatch in plan.dispatches) >= 8 * 64 * 48 * 32


def test_real_factors_double_precision_and_no_elements() -> None:
    with jax.enable_x64(True):
        x, y = numbers(4, 6).astype(np.complex128), RNG.normal(size=(6, 5))
        staged = stagejit.jit(lambda x, y: (x @ y, y.T @ x.T, x[:, :0] @ y[:0], x[:0] @ y))
        wanted = x @ y, y.T @ x.T, 0 * (x @ y), x[:0] @ y
        for ours, theirs in zip(staged(x, y), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)
        assert not staged.plan(x, y).delegated


CONVOLUTIONS: dict[str, Any] = {
    "plain": ((2, 3, 9, 8), (4, 3, 3, 2), {}),
    "strided": ((1, 2, 11), (3, 2, 4), {"window_strides": (2,), "padding": [(1, 2)]}),
    "groups": ((2, 4, 6), (6, 2, 3), {"feature_group_count": 2}),
    "groups of the batch": ((4, 2, 6), (6, 2, 3), {"batch_group_count": 2}),
    "dilated": ((1, 2, 7), (3, 2, 3),
                {"lhs_dilation": (2,), "rhs_dilation": (2,), "padding": [(3, 1)]}),
    "channels last": ((2, 6, 5, 3), (2, 3, 3, 4), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    x_shape, kernel_shape, params = CONVOLUTIONS[name]
    rank = len(x_shape) - 2
    params = {"window_strides": (1,) * rank, "padding": "VALID", **params}
    x, kernel = numbers(*x_shape), numbers(*kernel_shape)

    def convolved(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, **params)

    staged = stagejit.jit(convolved, options=VERIFYING)
    with jax.enable_x64(True):
        wide = (v.astype(np.float64) for x in (x, kernel) for v in (x.real, x.imag))
        a, b, c, d = wide
        expected = convolved(a, c) - convolved(b, d) + 1j * (convolved(a, d) + convolved(b, c))
    np.testing.assert_allclose(staged(x, kernel), expected, rtol=1e-5, atol=1e-5)
    assert not staged.plan(x, kernel).delegated


def test_gradients() -> None:
    x, y = numbers(5, 7), numbers(7, 3)
    loss = lambda x, y: jnp.sum(jnp.abs(jnp.tanh(x @ y)) ** 2)  # noqa: E731
    gradient = jax.grad(loss, argnums=(0, 1))
    for ours, theirs in zip(stagejit.jit(gradient)(x, y), gradient(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert not stagejit.jit(gradient).plan(x, y).delegated
