"""Attention on a GPU: right values under emulation, without spills, barriers that are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.cuda.attention import kernel as policy
from stagejit.codegen.cuda.attention import shapes
from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.generate import forget_kernels
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import M16N8K16_BF16
from stagejit.graph.meaning.interpreter import interpret
from stagejit.runtime.cuda.code.nvrtc import is_installed
from stagejit.trace.translate import graph_of
from stagejit.types import bf16, f32
from tests.cuda.checked import ARCHITECTURES, require_resources
from tests.cuda.emulated import NAME, ORDERS, EmulationError
from tests.cuda.machine import GPU, compilation_of, launch, run
from tests.randomness import RNG

BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def scores(q: Any, k: Any) -> Any:
    return q @ jnp.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)


def plain(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(scores(q, k), -1) @ v


def causal(q: Any, k: Any, v: Any, low: float = -jnp.inf) -> Any:
    s = scores(q, k)
    seen = jnp.tril(jnp.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2])
    return jax.nn.softmax(jnp.where(seen, s, low), -1) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return jax.nn.softmax(scores(q, k) + bias, -1) @ v


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf), -1) @ v


def where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(scores(q, k), -1, where=mask) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(5 * jnp.tanh(scores(q, k) / 5), -1) @ v


def dropped(q: Any, k: Any, v: Any, kept: Any) -> Any:
    return jnp.where(kept, jax.nn.softmax(scores(q, k), -1) / 0.9, 0) @ v


def segments(q: Any, k: Any, v: Any, rows: Any, keys: Any) -> Any:
    same = rows[:, :, None] == keys[:, None, :]
    return jax.nn.softmax(jnp.where(same, scores(q, k), -1e30), -1) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    at, key = (jnp.arange(size) for size in s.shape[-2:])
    far = at[:, None] - key[None, :]
    return jax.nn.softmax(jnp.where((far >= 0) & (far < 5), s, -jnp.inf), -1) @ v


def library(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, **more)


def shared_keys(q: Any, k: Any, v: Any) -> Any:
    """Heads that share keys and values."""
    s = jnp.einsum("bthd,bsd->bhts", q, k)
    return jnp.einsum("bhts,bsd->bthd", jax.nn.softmax(s, -1), v)


def two_axes(q: Any, k: Any, v: Any) -> Any:
    """Keys of an image."""
    s = jnp.einsum("bqd,bhwd->bqhw", q, k)
    return jnp.einsum("bqhw,bhwe->bqe", jax.nn.softmax(s, (-2, -1)), v)


def around(q: Any, k: Any, v: Any, x: Any) -> Any:
    """What is done before, and after."""
    return jnp.tanh(plain(q * 2, k + 1, -v)) + x, x


def three(t: int, s: int, d: int, e: int, *batch: int, dtype: Any = np.float32) -> tuple[Any, ...]:
    return tuple(normal(*batch, *shape, dtype=dtype) for shape in ((t, d), (s, d), (s, e)))


def heads(b: int, t: int, s: int, n: int, g: int, d: int, dtype: Any = np.float32) -> Any:
    return (normal(b, t, n, d, dtype=dtype), *(normal(b, s, g, d, dtype=dtype) for _ in range(2)))


BIASED = (normal(4, 1, 33), normal(3, 4, 29, 33))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "no batch": (plain, three(70, 131, 16, 16)),
    "one batch": (plain, three(33, 67, 20, 12, 3)),
    "three batches": (plain, three(17, 19, 8, 24, 2, 1, 3)),
    "primes": (plain, three(37, 41, 13, 7, 2)),
    "one query": (plain, three(1, 150, 64, 64, 2)),
    "one key": (plain, three(19, 1, 8, 8, 2)),
    "one of each": (plain, three(3, 5, 1, 1, 2)),
    "wide": (plain, three(20, 40, 200, 300)),
    "deep": (plain, three(20, 150, 264, 130)),
    "causal": (causal, three(67, 67, 16, 16, 2)),
    "causal, more keys": (causal, three(35, 100, 16, 16, 2)),
    "causal, finite": (lambda *args: causal(*args, low=-1e30), three(67, 67, 16, 16, 2)),
    "bias of keys": (biased, (*three(29, 33, 16, 8, 3, 4), BIASED[0])),
    "bias of all": (biased, (*three(29, 33, 16, 8, 3, 4), BIASED[1])),
    "mask": (masked, (*three(29, 33, 16, 8, 3), normal(3, 29, 33) > 0)),
    "mask of keys": (masked, (*three(29, 33, 16, 8, 3), normal(3, 1, 33) > 0)),
    "where": (where, (*three(29, 133, 16, 8, 3), normal(29, 133) > 0)),
    "soft cap": (capped, three(29, 33, 16, 8, 3)),
    "dropout": (dropped, (*three(29, 33, 16, 8, 3), normal(3, 29, 33) > -1)),
    "segments": (segments, (*three(29, 33, 16, 8, 3), RNG.integers(0, 3, (3, 29)),
                            RNG.integers(0, 3, (3, 33)))),
    "window": (window, three(80, 80, 16, 8)),
    "grouped": (library, heads(2, 21, 35, 6, 2, 16)),
    "grouped, causal": (lambda *x: library(*x, is_causal=True), heads(2, 35, 35, 6, 2, 16)),
    "grouped, bias": (lambda q, k, v, b: library(q, k, v, bias=b),
                      (*heads(2, 21, 35, 4, 2, 16), normal(2, 4, 21, 35))),
    "grouped, mask": (lambda q, k, v, m: library(q, k, v, mask=m),
                      (*heads(2, 21, 35, 4, 2, 16), normal(2, 1, 21, 35) > -1)),
    "shared keys": (shared_keys, (normal(2, 11, 3, 16), normal(2, 21, 16), normal(2, 21, 12))),
    "two axes": (two_axes, (normal(2, 11, 16), normal(2, 5, 7, 16), normal(2, 5, 7, 12))),
    "around": (around, (*three(29, 33, 16, 8, 3), normal(3, 29, 8))),
    "values first": (lambda q, k, v: jnp.einsum("se,ts->et", v, jax.nn.softmax(q @ k.T, -1)),
                     three(29, 33, 16, 8)),
    "keys first": (lambda q, k, v: jax.nn.softmax((k @ q.T).T, -1) @ v, three(29, 33, 16, 8)),
    "f64": (causal, three(37, 41, 13, 7, 2, dtype=np.float64)),
    "bf16": (causal, three(70, 133, 64, 32, 2, dtype=BF16)),
    "f16": (plain, three(70, 133, 40, 20, 2, dtype=np.float16)),
    "bf16, odd": (plain, three(21, 23, 13, 7, 2, dtype=BF16)),
    "bf16, deep": (plain, three(40, 70, 200, 130, dtype=BF16)),
    "bf16, grouped": (lambda *x: library(*x, is_causal=True), heads(2, 35, 35, 6, 2, 16, BF16)),
    "bf16, dropout": (dropped, (*three(29, 33, 16, 8, 3, dtype=BF16), normal(3, 29, 33) > -1)),
}  # fmt: skip


def exact(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """By NumPy in float64, as the program is written."""
    with jax.enable_x64(True):
        graph = graph_of(function, *args)
    return interpret(graph, [np.asarray(x) for x in args], precision="f64")


def close(found: list[Any], wanted: list[Any]) -> None:
    for x, y in zip(found, wanted, strict=True):
        within = {2: 2e-2, 4: 3e-6, 8: 1e-14}[np.asarray(x).dtype.itemsize]
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=within, atol=within)


def kernels(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    return list(compilation_of(function, *args).run_until("codegen").kernels.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    function, args = PROGRAMS[name]
    with jax.enable_x64(args[0].dtype == np.float64):
        close(run(function, *args, resources=True), exact(function, args))
        if name != "one key":  # whose softmax is 1
            assert "attend" in kinds(function, args)


def kinds(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    made = compilation_of(function, *args).run_until("schedule")
    return [dispatch.kind for dispatch in made.plan.dispatches]


@pytest.mark.parametrize("low", [-np.inf, np.float32(-3e38)])
def test_rows_without_an_element(low: float) -> None:
    """NaN where all scores are -inf, the mean of all values where they are equal numbers."""
    q, k, v = three(20, 80, 8, 8)
    mask = normal(20, 80) > 0
    mask[[0, 7]], mask[3, :70] = False, False

    def function(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(jnp.where(mask, scores(q, k), low), -1) @ v

    (found,), wanted = run(function, q, k, v), exact(function, (q, k, v))
    close([found], wanted)
    assert np.isnan(found[[0, 7]]).all() == np.isinf(low)


def test_rows_of_which_nothing_is_present_are_zero() -> None:
    """And NaN where all that is present is -inf."""
    args = (*three(20, 80, 8, 8), normal(20, 80) > 0, np.zeros((20, 80), np.float32))
    args[3][[0, 7]], args[4][5] = False, -np.inf

    def function(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return jax.nn.softmax(scores(q, k) + bias, -1, where=mask) @ v

    (found,) = run(function, *args)
    close([found], exact(function, args))
    assert (found[[0, 7]] == 0).all()
    assert np.isnan(found[5]).all()


def test_infinite_scores_are_as_in_numpy() -> None:
    q, k, v = three(20, 80, 8, 8)
    bias = np.zeros((20, 80), np.float32)
    bias[2, 70], bias[4, 3] = np.inf, np.nan
    args = (q, k, v, bias)
    close(run(biased, *args), exact(biased, args))


def _shapes(dtype: Any, tile: Any) -> list[Shape]:
    """Small chunks, so that small arrays have several of each."""
    if tile is not None:
        return [Shape(16 * w, 32, 16, 32, 16, dtype, 32 * w, tile) for w in (1, 2)]
    return [
        Shape(16 * r, 16 * c, 16, s, 64, dtype, 256, None)
        for r, c, s in ((1, 2, 16), (2, 4, 32), (4, 2, 32), (4, 4, 64))
    ]


def _forced(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    ranked = shapes.best_shape

    def only(*args: Any) -> Any:
        return replace(ranked(*args), best=shape)

    monkeypatch.setattr(policy, "best_shape", only)
    forget_kernels()


@pytest.mark.parametrize("number", range(4))
def test_any_shape_gives_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _forced(monkeypatch, _shapes(f32, None)[number])
    args = three(70, 140, 40, 70)
    close(run(causal, *args), exact(causal, args))
    forget_kernels()


@pytest.mark.parametrize("number", range(2))
def test_any_shape_of_tensor_cores(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _forced(monkeypatch, _shapes(bf16, M16N8K16_BF16)[number])
    args = three(40, 70, 40, 24, dtype=BF16)
    close(run(causal, *args), exact(causal, args))
    forget_kernels()


def test_shapes_fit_the_shared_memory_of_a_block() -> None:
    for name in ("deep", "wide", "bf16, deep", "f64"):
        function, args = PROGRAMS[name]
        with jax.enable_x64(name == "f64"):
            texts = [kernel.text for kernel in kernels(function, args)]
        declared = [line for text in texts for line in text.splitlines() if "__shared__" in line]
        sizes = {"float": 4, "double": 8, "__nv_bfloat16": 2, "bf16": 2, "u32": 4}
        nbytes = sum(
            sizes[line.split("__shared__ ")[1].split()[0]] * int(line.split("[")[1].split("]")[0])
            for line in declared
        )
        assert 0 < nbytes <= GPU.static_shared_nbytes


LARGE = {
    "f32": (causal, 8, 64, np.float32), "f32, wide": (plain, 32, 128, np.float32),
    "bf16": (causal, 64, 64, BF16), "bf16, wide": (causal, 64, 128, BF16),
    "bf16, wider": (plain, 16, 256, BF16),
}  # fmt: skip


@pytest.mark.skipif(not is_installed(), reason="NVRTC is not installed")
@pytest.mark.parametrize("name", LARGE)
def test_large_tiles_spill_nothing(name: str) -> None:
    function, batch, width, dtype = LARGE[name]
    (kernel,) = kernels(function, tuple(np.zeros((batch, 2048, width), dtype) for _ in range(3)))
    source = kernel.text.replace(kernel.symbol, NAME)
    for arch in ARCHITECTURES:
        require_resources(source, kernel.kernel.function.threads, arch)


# Barriers of a tile in the order in which they are written; see Note [Barriers].
MUTATED = {
    "threads": ((33, 70, 40, 8), Shape(16, 32, 16, 16, 64, f32, 256, None), 4, np.float32),
    "tensor cores": ((33, 70, 40, 8), Shape(32, 32, 16, 32, 16, bf16, 64, M16N8K16_BF16), 3, BF16),
    "queries stay": ((33, 70, 16, 8), Shape(16, 32, 16, 32, 64, f32, 256, None), 2, np.float32),
    "passes": ((33, 70, 16, 8, 2), Shape(16, 32, 16, 32, 64, f32, 256, None), 3, np.float32),
}


@pytest.mark.parametrize("name", MUTATED)
def test_a_missing_barrier_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, shape, barriers, dtype = MUTATED[name]
    args, function = three(*sizes, dtype=dtype), causal if name == "passes" else plain
    if name == "passes":  # the second batch needs what the first one does not, as one warp knows
        args[2][1, 65, 0] = np.nan
    (wanted,) = exact(function, args)
    for which in range(barriers):
        build, calls = GridBuilder.barrier, []

        def barrier(b: GridBuilder) -> None:
            calls.append(b)  # noqa: B023
            if len(calls) != which + 1:  # noqa: B023
                build(b)  # noqa: B023

        with monkeypatch.context() as changed:
            _forced(changed, shape)
            changed.setattr(GridBuilder, "barrier", barrier)
            (kernel,) = kernels(function, args)
        forget_kernels()
        assert len(calls) == barriers
        wrong = []
        for order in ORDERS:
            out = np.zeros(wanted.shape, dtype)
            source = kernel.text.replace(kernel.symbol, NAME)
            pointers = [args[arg.value.op.attrs["index"]].ctypes.data
                        for arg in kernel.kernel.args if not arg.written]  # fmt: skip
            words = [*pointers, out.ctypes.data, 0, kernel.kernel.total]
            try:
                launch(source, kernel.kernel.function.threads, words, 1, order)
            except EmulationError:  # threads part at another barrier
                wrong.append(True)
                continue
            wrong.append(not np.allclose(out.astype(float), wanted, 3e-2, 3e-2, equal_nan=True))
        assert any(wrong), f"barrier {which}"


# ------------------------------------------------------------------ what a mask leaves out


def chosen(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    return [choice.name for kernel in kernels(function, args) for choice in kernel.kernel.choices]


@pytest.mark.parametrize("name", ["causal", "causal, finite", "window", "causal, more keys"])
def test_tiles_of_which_nothing_is_left_are_left_out(name: str) -> None:
    assert "passes" in chosen(*PROGRAMS[name])


@pytest.mark.parametrize("name", ["mask", "segments", "bias of all", "no batch", "where"])
def test_dont_leave_out_what_positions_do_not_tell(name: str) -> None:
    assert "passes" not in chosen(*PROGRAMS[name])


def test_dont_ask_where_there_is_one_tile() -> None:
    assert "passes" not in chosen(causal, three(20, 20, 8, 8))


def offset(*args: Any, fn: Callable[[Any, Any], Any], low: float = -np.inf) -> Any:
    q, k, v = args
    s = scores(q, k)
    rows, keys = (jax.lax.broadcasted_iota(jnp.int32, s.shape, s.ndim - at) for at in (2, 1))
    return jax.nn.softmax(jnp.where(fn(rows, keys), s, low), -1) @ v


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "before": lambda row, key: key < row + 1,
    "after": lambda row, key: key >= row,
    "near": lambda row, key: (key - row < 3) & (row - key < 3),
    "far": lambda row, key: (key - row > 3) | (row - key > 3),
    "not": lambda row, key: ~(key > row),
    "one": lambda row, key: key == row,
    "others": lambda row, key: key != row,
    "length": lambda row, key: key < 40,
    "none at first": lambda row, key: key < row - 20,
    "wraps": lambda row, key: (key + 2147483600 > row) | (key < row),
}


@pytest.mark.parametrize("low", [-np.inf, -1e30, -5.0])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_positions(name: str, low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they leave of which tiles, and however little they take away."""
    _forced(monkeypatch, Shape(16, 32, 16, 16, 64, f32, 256, None))
    args = three(50, 100, 8, 8)

    def function(*args: Any) -> Any:
        return offset(*args, fn=MASKS[name], low=low)

    close(run(function, *args), exact(function, args))
    forget_kernels()


@pytest.mark.parametrize("worst", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_values_that_are_left_out_are_looked_at(worst: float, dtype: Any) -> None:
    """0 times NaN is NaN."""
    q, k, v = three(140, 140, 16, 16, dtype=dtype)
    v[130, 3] = worst
    (found,), (wanted,) = run(causal, q, k, v), exact(causal, (q, k, v))
    assert np.isnan(wanted[:130, 3]).all()
    close([found], [wanted])


def test_grouped_heads_have_several_rows_of_a_position() -> None:
    args = heads(1, 70, 70, 6, 2, 8)

    def function(*args: Any) -> Any:
        return library(*args, is_causal=True)

    close(run(function, *args), exact(function, args))
    assert "passes" in chosen(function, args)
