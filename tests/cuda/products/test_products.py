"""Products on a GPU: the values of NumPy in f64, under emulation, whatever lies where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.cuda.machine import compilation_of, run
from tests.randomness import RNG

Array = Any


def some(*shape: int, dtype: Any = np.float32) -> Array:
    """Numbers around 1, small integers for a type of integers."""
    if np.issubdtype(dtype, np.integer):
        return RNG.integers(-50, 50, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


def exactly(array: Array) -> Array:
    return np.asarray(array, np.int64 if np.asarray(array).dtype.kind == "i" else np.float64)


def check(
    function: Callable[..., Any], wanted: Array, *args: Any, eps: float = 2.0**-23, depth: int = 0
) -> None:
    """eps: of the type of the result; depth: products in a sum, of numbers around 1."""
    (found,) = run(function, *args, resources=True)
    assert found.shape == wanted.shape
    apart = np.abs(exactly(found) - wanted)
    limit = eps * (np.abs(wanted) + depth**0.5 + 1) * 4 + 2.0**-23 * depth
    assert not found.size or (apart <= limit).all(), f"{np.max(apart / limit)} times too far apart"


def orders(letters: str) -> list[str]:
    return ["".join(order) for order in itertools.permutations(letters)]


EXTENTS = {"m": 19, "n": 23, "k": 11, "b": 3}
LAYOUTS = [
    (left, right, result)
    for left, right in itertools.product(orders("mk"), orders("kn"))
    for result in orders("mn")
]
LAYOUTS += [
    ("bmk", "bkn", "bmn"),
    ("mbk", "knb", "nbm"),
    ("kmb", "nkb", "mnb"),
    ("mk", "bkn", "bmn"),
]
LAYOUTS += [
    ("mk", "k", "m"),
    ("k", "kn", "n"),
    ("k", "k", ""),
    ("m", "n", "mn"),
    ("bm", "bn", "mn"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: tuple[str, str, str]) -> None:
    left, right, result = layout
    a, b = (some(*(EXTENTS[axis] for axis in side)) for side in (left, right))
    formula = f"{left},{right}->{result}"
    wanted = np.einsum(formula, exactly(a), exactly(b))
    check(lambda a, b: jnp.einsum(formula, a, b), np.asarray(wanted), a, b, depth=11)


SIZES = [(1, 1, 1), (0, 3, 2), (2, 3, 0), (1, 300, 1), (67, 1, 130), (131, 70, 37), (64, 64, 64),
         (257, 1, 3), (5, 17, 200)]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = some(m, k), some(k, n)
    check(lambda a, b: a @ b, exactly(a) @ exactly(b), a, b, depth=k)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "uint8"])
@pytest.mark.parametrize("sizes", [(37, 29, 41), (64, 48, 72)])
def test_types(dtype: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    kind = jnp.dtype(dtype)
    a, b = (some(*s, dtype=np.int8 if "int" in dtype else np.float32) for s in ((m, k), (k, n)))
    with jax.enable_x64(True):
        a, b = (np.abs(x) if "u" in dtype else x for x in (a, b))
        a, b = a.astype(kind), b.astype(kind)
        wanted = exactly(a) @ exactly(b)
        if "int" in dtype:
            (found,) = run(lambda a, b: a @ b, a, b, resources=True)
            np.testing.assert_array_equal(found, wanted.astype(kind))
        else:
            check(lambda a, b: a @ b, wanted, a, b, eps=float(jnp.finfo(kind).eps), depth=k)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16", "int8"])
def test_sums_of_a_wider_type(narrow: str) -> None:
    wide = jnp.int32 if narrow == "int8" else jnp.float32
    a, b = (some(*s, dtype=np.int8 if narrow == "int8" else np.float32).astype(jnp.dtype(narrow))
            for s in ((45, 50), (50, 35)))  # fmt: skip
    check(lambda a, b: lax.dot(a, b, preferred_element_type=wide), exactly(a) @ exactly(b), a, b,
          depth=50)  # fmt: skip


def test_complex_numbers() -> None:
    a, b = some(9, 14) + 1j * some(9, 14), some(14, 6) + 1j * some(14, 6)
    (found,) = run(lambda a, b: a @ b, a, b, resources=True)
    got = found.astype(np.float64) @ np.array([1, 1j])
    np.testing.assert_allclose(got, a.astype(np.complex128) @ b, rtol=1e-5, atol=1e-5)


M, K, N = 43, 26, 38
A, B, ROW, COLUMN, SUM = some(M, K), some(K, N), some(N), some(M, 1), some(M, N)

AROUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "before the product": (lambda a, b: jnp.maximum(a, 0) @ (b * 2 + 1), (A, B)),
    "after it": (lambda a, b, c: jnp.maximum(a @ b + c, 0) * 2, (A, B, ROW)),
    "both sides": (lambda a, b, c: (a @ b) * c - c, (A, B, COLUMN)),
    "in place": (lambda a, b, c: c + a @ b, (A, B, SUM)),
    "transposed": (lambda a, b, c: (a @ b).T * c.T, (A, B, SUM)),
    "bordered": (lambda a, b: jnp.pad(a @ b, ((1, 2), (3, 0)), constant_values=7), (A, B)),
    "reshaped": (lambda a, b: (a @ b).reshape(M, 2, N // 2).transpose(1, 0, 2) + 1, (A, B)),
    "slices": (lambda a, b: a[3:35:2, ::-1] @ b[:, 4:-5], (A, B)),
    "windows": (lambda a, b: jnp.pad(a, ((2, 0), (0, 3))) @ jnp.pad(b, ((3, 0), (1, 1))), (A, B)),
    "pieces": (lambda a, b: jnp.concatenate([a, a * 2]) @ b, (A, B)),
    "rows by number": (lambda a, b: a[jnp.array([3, 1, 4, 1, 5, 42])] @ b, (A, B)),
    "its own operand": (lambda a, b: a @ b + a[:, :1], (A, B)),
    "halves": (lambda a, b: (a @ b).astype(jnp.bfloat16).astype(jnp.float32), (A, B)),
}  # fmt: skip
SEVERAL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sums and more": (lambda a, b: ((p := a @ b), jnp.maximum(p, 0)), (A, B)),
    "two layouts": (lambda a, b: ((p := a @ b) + 1, (p * 2).T), (A, B)),
}


@pytest.mark.parametrize("name", [*AROUND, *SEVERAL])
def test_what_stands_around(name: str) -> None:
    function, args = {**AROUND, **SEVERAL}[name]
    found = run(function, *args, resources=True)
    wide = [np.asarray(arg, np.float64) for arg in args]
    with jax.enable_x64(True):
        wanted = jax.tree.leaves(jax.jit(function)(*wide))
    rough = 2.0**-7 if name == "halves" else 4e-6
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=rough, atol=2e-5)


@pytest.mark.parametrize("sizes", [(5, 301), (3, 4, 96), (700, 33)])
def test_threads_of_a_warp_share_a_sum_along_memory(sizes: tuple[int, ...]) -> None:
    a, b = some(*sizes), some(*sizes[:-2], sizes[-1])

    def product(a: Array, b: Array) -> Array:
        return jnp.einsum("...mk,...k->...m", a, b)

    (kernel,) = compilation_of(product, a, b).run_until("codegen").kernels.values()
    assert "threads for each sum" in kernel.kernel.choices[0].reason
    assert "__shfl_xor_sync" in kernel.text
    check(product, np.einsum("...mk,...k->...m", exactly(a), exactly(b)), a, b, depth=sizes[-1])


def _kernels(*shapes: tuple[int, ...]) -> list[Any]:
    args = [np.zeros(shape, np.float32) for shape in shapes]
    return list(compilation_of(lambda a, b: a @ b, *args).run_until("codegen").kernels.values())


@pytest.mark.parametrize("rows", [300, 1024, 4096])
def test_a_matrix_times_a_vector_is_one_kernel_with_accesses_of_16_bytes(rows: int) -> None:
    (kernel,) = _kernels((rows, 1024), (1024,))
    assert "load<4, 4>(&in[" in kernel.text


def test_a_few_long_sums_are_split_between_multiprocessors() -> None:
    assert len(_kernels((1 << 22,), (1 << 22,))) == 2


def test_parts_of_a_sum_move_16_bytes_at_once() -> None:
    first, _ = _kernels((1 << 22,), (1 << 22,))
    assert "load<4, 4>(&in[" in first.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(64, 5003, 64), (8, 20006, 0)])
def test_a_last_part_that_is_shorter(sizes: tuple[int, int, int], dtype: str) -> None:
    """Long sums are split; what lies behind the last part is never read, although rows and parts
    begin at whole accesses."""
    m, k, n = sizes
    wide = np.full((m, -(-k // 16) * 16), np.nan, jnp.dtype(dtype))
    a, b = (some(*shape).astype(wide.dtype) for shape in ((m, k), (k, n) if n else (k,)))
    wide[:, :k] = a

    def product(wide: Array, b: Array) -> Array:
        return lax.dot(wide[:, :k], b, preferred_element_type=jnp.float32)

    check(product, exactly(a) @ exactly(b), wide, b, depth=k)
