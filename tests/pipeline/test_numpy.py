"""What users write: functions of jax.numpy, jax.nn and jax.lax, compiled, against jax.jit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.pipeline import Compilation
from tests.randomness import RNG

X, Y = RNG.standard_normal((2, 5, 7)).astype(np.float32)
V = RNG.standard_normal(7).astype(np.float32)
N = RNG.integers(-9, 9, (5, 7)).astype(np.int32)
SQUARE = RNG.standard_normal((6, 6)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 9, 10, 3)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 3, 3, 4)).astype(np.float32)
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(i: Any, k: Any, *strides: int, **options: Any) -> Any:
    return lax.conv_general_dilated(i, k, strides or (1, 1), "SAME", dimension_numbers=NHWC,
                                    **options)  # fmt: skip


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "moments": (lambda x: (x.mean(), x.var(1), x.std(0), jnp.ptp(x, 1)), (X,)),
    "median": (lambda x: (jnp.median(x), jnp.quantile(x, 0.3, axis=1)), (X,)),
    "nan-aware": (
        lambda x: (jnp.nansum(x), jnp.nanmax(x, 0), jnp.nan_to_num(x)),
        (np.where(X > 1, np.nan, X),),
    ),
    "argmax": (lambda x: (x.argmax(), x.argmin(0), x.argmax(1, keepdims=True)), (X,)),
    "running": (lambda x: (jnp.cumsum(x), jnp.cumprod(x, 0), lax.cummax(x, 1)), (X,)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1, reverse=True), (X,)),
    "norms": (lambda x: (jnp.linalg.norm(x), jnp.linalg.norm(x, 1, 0)), (X,)),
    "covariance": (lambda x: (jnp.cov(x), jnp.corrcoef(x)), (X,)),
    "integers": (lambda n: (n // 3, n % 4, divmod(n, -5), n**3, n >> 1, ~n, n.prod(1)), (N,)),
    "gcd": (lambda n: (jnp.gcd(n, 12), jnp.lcm(n, 4)), (N,)),
    "bits": (lambda n: (lax.clz(n), lax.population_count(n), jnp.packbits(n > 0)), (N,)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int32), (X,)),
    "mixed types": (
        lambda x, n: (
            x.astype(jnp.bfloat16) * n + (n > 0) - x.astype(jnp.float16).astype(jnp.bfloat16)
        ),
        (X, N),
    ),
    "powers": (lambda x, y: (jnp.abs(x) ** y, x**3, jnp.hypot(x, y), jnp.logaddexp(x, y)), (X, Y)),
    "selection": (lambda x: jnp.select([x > 1, x > 0], [x * 2, x * 3], -1), (X,)),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0], [jnp.negative, jnp.square]), (X,)),
    "interpolation": (lambda v: jnp.interp(v, jnp.arange(7.0), v), (V,)),
    "histogram": (lambda v: jnp.histogram(v, bins=4), (V,)),
    "bincount": (lambda n: jnp.bincount(jnp.abs(n).ravel(), length=10), (N,)),
    "unique": (lambda n: jnp.unique(n, size=8, fill_value=0), (N,)),
    "sorting": (lambda x: (jnp.sort(x), jnp.argsort(x, 0), lax.top_k(x, 3)), (X,)),
    "search": (lambda v: jnp.searchsorted(jnp.sort(v), v), (V,)),
    "roll": (lambda x, i: (jnp.roll(x, (1, 2), (0, 1)), jnp.roll(x, i, 1)), (X, np.int32(3))),
    "repeat": (lambda x: (jnp.tile(x, (2, 3)), jnp.repeat(x, 3, 1)), (X,)),
    "stacking": (
        lambda x, y: (jnp.hstack([x, y]), jnp.dstack([x, y]), jnp.block([[x], [y]])),
        (X, Y),
    ),
    "splitting": (lambda x: jnp.split(x, [2, 4], 1) + jnp.array_split(x, 3), (X,)),
    "insertion": (lambda x: (jnp.insert(x, 1, 5.0, 0), jnp.delete(x, 1, 0)), (X,)),
    "padding": (
        lambda x: [jnp.pad(x, 2, mode=m) for m in ("edge", "reflect", "wrap", "mean")],
        (X,),
    ),
    "triangles": (
        lambda x: (jnp.tril(x), jnp.triu(x, -1), jnp.diag(x[0]), jnp.diagonal(x, 1)),
        (X,),
    ),
    "ranges": (lambda: (jnp.arange(3, 20, 2), jnp.linspace(0, 1, 7), jnp.eye(4), jnp.tri(4)), ()),
    "views": (lambda i: (jnp.moveaxis(i, 0, 2), jnp.rot90(i), jnp.swapaxes(i, 1, 3)), (IMAGE,)),
    "fancy indexing": (lambda x, n: (x[n[0] % 5, n[1] % 7], x[n % 5], x[:, n[0] % 7]), (X, N)),
    "take": (
        lambda x, n: (
            jnp.take(x, n, 0, mode="wrap"),
            jnp.take(x, n, 0, fill_value=7),
            jnp.take_along_axis(x, n % 5, 0),
        ),
        (X, N),
    ),
    "scatter": (
        lambda x, n: (
            x.at[n % 5].add(1.0),
            x.at[:, n[0] % 7].min(0.0),
            x.at[1:3, ::2].multiply(3.0),
        ),
        (X, N),
    ),
    "segments": (
        lambda x, n: (
            jax.ops.segment_sum(x, n[:, 0] % 4, 4),
            jax.ops.segment_max(x, n[:, 0] % 4, 4),
        ),
        (X, N),
    ),
    "products": (lambda x, y: (jnp.outer(x, y), jnp.kron(x[:2], y[:2]), jnp.vdot(x, y)), (X, Y)),
    "einsum": (lambda x, y: (jnp.einsum("ij,ij->i", x, y), jnp.einsum("ij,ik->ijk", x, y)), (X, Y)),
    "trace": (lambda s: (jnp.einsum("ii->i", s), jnp.trace(s), jnp.einsum("ii", s)), (SQUARE,)),
    "batched": (lambda i: (i @ i.swapaxes(-1, -2), jnp.einsum("bhwc,bhwd->cd", i, i)), (IMAGE,)),
    "small integers": (
        lambda n: lax.dot(n.astype(np.int8), n.T.astype(np.int8), preferred_element_type=jnp.int32),
        (N,),
    ),
    "booleans": (lambda x: ((x > 0) @ (x > 0).T, (x > 0).sum(), jnp.any(x > 1, 0)), (X,)),
    "matrix power": (lambda s: jnp.linalg.matrix_power(s / 3, 5), (SQUARE,)),
    "solve": (lambda s: jnp.linalg.solve(s + 5 * jnp.eye(6), s).sum(0), (SQUARE,)),
    "fourier": (lambda x: (jnp.abs(jnp.fft.rfft(x)), jnp.fft.ifft(x).real), (X,)),
    "complex": (lambda x, y: jnp.abs(lax.complex(x, y) * jnp.exp(1j * x)) + y, (X, Y)),
    "activations": (
        lambda x: (
            jax.nn.gelu(x),
            jax.nn.silu(x),
            jax.nn.elu(x),
            jax.nn.softplus(x),
            jax.nn.mish(x),
            jax.nn.glu(x[:, :6]),
        ),
        (X,),
    ),
    "normalizations": (
        lambda x: (
            jax.nn.softmax(x, 0),
            jax.nn.log_softmax(x),
            jax.nn.logsumexp(x, 1),
            jax.nn.standardize(x),
        ),
        (X,),
    ),
    "one hot": (lambda n: jax.nn.one_hot(n, 5), (N,)),
    "attention": (lambda i: jax.nn.dot_product_attention(i, i, i, is_causal=True), (IMAGE,)),
    "special": (
        lambda x: (
            jax.scipy.special.ndtri(x),
            jax.scipy.special.logit(x),
            lax.erf_inv(x),
            lax.lgamma(x),
            lax.digamma(x),
        ),
        (np.clip(np.abs(X) / 3, 0.01, 0.99),),
    ),
    "convolution": (lambda i, k: conv(i, k, 2, 2, rhs_dilation=(2, 1)), (IMAGE, KERNEL)),
    "transposed convolution": (
        lambda i, k: lax.conv_transpose(i, k, (2, 3), "VALID"),
        (IMAGE, KERNEL),
    ),
    "depthwise": (lambda i, k: conv(i, k[:, :, :1, :3], feature_group_count=3), (IMAGE, KERNEL)),
    "patches": (
        lambda i: lax.conv_general_dilated_patches(
            i, (3, 3), (1, 1), "SAME", dimension_numbers=NHWC
        ),
        (IMAGE,),
    ),
    "pooling": (
        lambda i: lax.reduce_window(i, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        (IMAGE,),
    ),
    "signal": (lambda v: (jnp.convolve(v, v[:3]), jnp.correlate(v, v[:3], "same")), (V,)),
    "resize": (lambda i: jax.image.resize(i, (2, 12, 13, 3), "bilinear"), (IMAGE,)),
    "own reduction": (lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a + 2 * b, (1,)), (X,)),
    "two reductions": (lambda n: (lax.reduce(n, jnp.int32(0), lax.bitwise_xor, (1,)),), (N,)),
    "reduced precision": (lambda x: lax.reduce_precision(x, 5, 7), (X,)),
    "barrier": (lambda x: lax.optimization_barrier(x * 2) + 1, (X,)),
    "eight-bit floats": (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32) * 2, (X,)),
    "gradient of gather": (jax.grad(lambda x, n: (x[n % 5] ** 2).sum()), (X, N)),
    "gradient of scatter": (jax.grad(lambda x, n: (x.at[n[0] % 5].add(x[0]) ** 2).sum()), (X, N)),
    "gradient of conv": (
        jax.grad(lambda k, i: (conv(i, k, 2, 2) ** 2).sum(), (0, 1)),
        (KERNEL, IMAGE),
    ),
    "gradient of scans": (
        jax.grad(lambda x: (jnp.cumsum(x, 1) ** 2).sum() + jnp.cumprod(x).sum()),
        (X,),
    ),
    "gradient of extrema": (jax.grad(lambda x: x.max(1).sum() + jnp.sort(x, 0)[2].sum()), (X,)),
    "hessian": (jax.hessian(lambda v: jnp.tanh(v).sum() ** 2), (V,)),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_jax(name: str) -> None:
    f, args = PROGRAMS[name]
    ours, theirs = jax.tree.leaves(stagejit.jit(f)(*args)), jax.tree.leaves(jax.jit(f)(*args))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        if jnp.issubdtype(a.dtype, jnp.inexact):
            tolerance = {2: 2e-2, 1: 1e-1}.get(a.dtype.itemsize, 2e-5)
            scale = float(jnp.nanmax(jnp.abs(jnp.where(jnp.isfinite(b), b, 0)), initial=0))
            wide = jnp.complex64 if jnp.iscomplexobj(b) else jnp.float32
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance,
                                       atol=tolerance * scale)  # fmt: skip
        else:
            np.testing.assert_array_equal(a, b)


# ----------------------------------------------------------------- long programs

_GATHER = np.array([3, 1, 2, 0, 4, 5, 7, 6])
LONG: dict[str, tuple[int, Callable[[Any, int], Any]]] = {
    "elementwise": (2000, lambda x, i: x * 1.01 + 0.1 if i % 3 else jnp.sin(x)),
    "transposes": (300, lambda x, i: x.T * 0.9 + 1),
    "reshapes": (300, lambda x, i: (x.reshape(4, 16) * 0.9 + i).reshape(8, 8)),
    "slices": (150, lambda x, i: jnp.concatenate([x[1:], x[:1]]) * 1.01),
    "gathers": (150, lambda x, i: x[_GATHER] * 0.9),
    "insertions": (150, lambda x, i: x.at[i % 8].set(x[(i + 1) % 8] * 0.9)),
    "three uses": (40, lambda x, i: x.T * 0.5 + x * 0.25 + x[::-1] * 0.25),
    "rows": (60, lambda x, i: jax.nn.softmax(x, i % 2) * 8),
    "joins": (40, lambda x, i: jnp.stack([x, x * 2], 1).sum(1) / 3),
    "loops": (20, lambda x, i: lax.fori_loop(0, 3, lambda _, c: c * 0.5 + x * 0.25, x)),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", LONG)
def test_long_programs_compile_in_nearly_linear_time(name: str) -> None:
    count, step = LONG[name]
    x = RNG.standard_normal((8, 8)).astype(np.float32)

    def program(length: int) -> Any:
        def f(x: Any) -> Any:
            for i in range(length):
                x = step(x, i)
            return x

        return stagejit.jit(f, options=Options(cache_dir=""))

    def seconds(length: int) -> float:
        compilation = Compilation(program(length).trace(x).compilation.request)
        start = time.process_time()
        compilation.run_until("load")
        return time.process_time() - start

    seconds(1)
    quarter = seconds(count // 4)
    assert seconds(count) < 16 * quarter + 1  # a quadratic step would show, a slow machine not
    with jax.disable_jit():  # XLA's time on such programs is not linear
        expected = program(count)(jnp.asarray(x))
    np.testing.assert_allclose(program(count)(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p"]
)
def test_the_smallest_normal_numbers_are_not_lost(name: str, dtype: Any) -> None:
    """These functions are x at zero; half of it would be subnormal, which XLA's threads flush."""
    with jax.enable_x64(True):
        small = float(jnp.finfo(dtype).smallest_normal)
        x = np.array([small, -small, 2 * small, 0.0, -0.0]).astype(dtype)
        got = np.asarray(stagejit.jit(getattr(lax, name))(x))
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
