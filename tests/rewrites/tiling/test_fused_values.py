"""tile-and-fuse: values stay, interpreted and compiled, and nobody stores what tiles compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import stagejit
from stagejit.base.machine import Machine
from stagejit.codegen.target import Target
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.tiling import fuse
from stagejit.trace.translate import graph_of
from tests.randomness import RNG
from tests.rewrites.tiling.tiled import SMALL, attention, normal


def loops_of(graph: Graph) -> list[Op]:
    """All loops, those inside others included."""
    found = []
    for op in graph:
        for body in op.definition.bodies(op):
            found += [op, *loops_of(body)]
    return found


def checked(fn: Callable[..., Any], *args: Any, machine: Machine = SMALL) -> list[Op]:
    """Runs all rewrites with and without this one; returns the loops it made."""
    tiled, whole = graph_of(fn, *args), graph_of(fn, *args)
    before = interpret(whole, [np.asarray(x) for x in args])
    rewrite_graph(tiled, Options(verify=True), machine)
    for a, b in zip(interpret(tiled, [np.asarray(x) for x in args]), before, strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-5, atol=2e-5
        )
    return loops_of(tiled)


# ------------------------------------------------------------------ values


def causal(q: Any, k: Any, v: Any) -> Any:
    rows, columns = jnp.arange(q.shape[-2])[:, None], jnp.arange(k.shape[-2])
    return attention(q, k, v, rows >= columns)


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sin(fn(*args)).sum(), (0, 1, 2))


def heads_inside(q: Any, k: Any, v: Any) -> Any:
    """[batch, tokens, heads, width], as most libraries have it."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def dropped(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2))
    keep = jax.random.bernoulli(jax.random.key(3), 0.8, weights.shape)
    return jnp.where(keep, weights / 0.8, 0) @ v


def with_its_scale(q: Any, k: Any, v: Any) -> Any:
    """Also what the rows come to, which a gradient keeps."""
    scores = q @ k.swapaxes(-1, -2)
    total = jax.nn.logsumexp(scores, -1)
    return jnp.exp(scores - total[..., None]) @ v, total


def nearest(q: Any, k: Any, v: Any) -> Any:
    distance = (q * q).sum(-1)[..., None] - 2 * q @ k.swapaxes(-1, -2)
    return distance.argmin(-1), distance.min(-1)


def perceptron(x: Any, a: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ a) @ b


FORMS = {
    "plain": attention, "causal": causal, "dropped": dropped, "scale": with_its_scale,
    "nearest": nearest, "gradient": gradients(attention), "causal gradient": gradients(causal),
}  # fmt: skip


@pytest.mark.parametrize("lead", [(), (4,), (2, 6), (3, 1, 2)])
@pytest.mark.parametrize("form", FORMS)
def test_attention_of_any_rank(form: str, lead: tuple[int, ...]) -> None:
    rows = (64 if lead else 128) * (2 if form == "nearest" else 1)  # which stores no weights
    q, k, v = normal(*lead, rows, 8), normal(*lead, rows, 8), normal(*lead, rows, 4)
    assert checked(FORMS[form], q, k, v)


@pytest.mark.parametrize("form", [heads_inside, gradients(heads_inside)])
def test_heads_between_tokens_and_width(form: Callable[..., Any]) -> None:
    assert checked(form, normal(2, 64, 4, 8), normal(2, 96, 4, 8), normal(2, 96, 4, 8))


def test_a_perceptron_by_rows() -> None:
    assert checked(perceptron, normal(128, 4), normal(4, 256), normal(256, 3))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_other_types(dtype: Any) -> None:
    args = [normal(4, 64, 8).astype(dtype) for _ in range(3)]
    with jax.enable_x64(True):
        graph = graph_of(gradients(causal), *args)
        before = interpret(graph, args)
        rewrite_graph(graph, Options(verify=True), SMALL)
        assert loops_of(graph)
        tolerance = 1e-12 if dtype is np.float64 else 0.06
        for a, b in zip(interpret(graph, args), before, strict=True):
            np.testing.assert_allclose(a.astype(float), b.astype(float), tolerance, tolerance)


def unprojected(x: Any) -> Any:
    return jax.nn.softmax(x @ x.swapaxes(-1, -2)) @ x


def projected(x: Any) -> Any:
    scores = (x * 0.5) @ (x + 1).swapaxes(-1, -2)
    return x + jax.nn.softmax(scores) @ jnp.tanh(x)


def kernel_smoother(x: Any) -> Any:
    near, squares = x @ x.swapaxes(-1, -2), (x * x).sum(-1)
    return jnp.exp(2 * near - squares[..., None, :] - squares[..., None]) @ x / x.shape[-2]


def unmasked(x: Any) -> Any:
    return causal(x, x, x)


LAYERS = (unprojected, projected, kernel_smoother, unmasked)


@pytest.mark.parametrize("seed", range(8))
def test_each_layer_of_several_has_its_tiles(seed: int) -> None:
    """Places of one layer stay apart; those of two do not."""
    rng = np.random.default_rng(seed)
    layers = rng.choice(np.array(LAYERS, object), rng.integers(2, 5))

    def f(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    assert len(checked(f, normal(128, 8) / 4)) == len(layers)


def test_tiles_within_tiles() -> None:
    """By heads first, then by rows of one head."""
    loops = checked(causal, normal(4, 256, 8), normal(4, 256, 8), normal(4, 256, 4))
    assert [loop.attrs["trip"] for loop in loops] == [4, 8]


def test_the_same_operand_whole_and_in_tiles() -> None:
    assert checked(lambda x: attention(x, x, x), normal(128, 8))


@pytest.mark.parametrize("form", FORMS)
def test_an_operand_that_is_computed_whole_and_in_tiles(form: str) -> None:
    """A function of which each tile needs a part, and all."""

    def f(x: Any) -> Any:
        x = jnp.sin(x)
        return FORMS[form](x, x, x)

    assert checked(f, normal(256 if form == "nearest" else 128, 8))


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.int8, np.int32])
def test_positions_of_any_type(dtype: Any, along: int) -> None:
    """More places than 16-bit floats count, in tiles that are no powers of two."""
    rows = 2250

    def f(q: Any, k: Any) -> Any:
        place = jax.lax.broadcasted_iota(dtype, (rows, 45), along)
        line = jax.lax.iota(dtype, rows * 45).reshape(rows, 45)
        scores = jnp.where(place > line[:, :1], q @ k.T, 0)
        return (scores + place.astype(jnp.float32) * 1e-3 + line.astype(jnp.float32) * 1e-5) @ k

    if dtype is np.float16:  # the line has no numbers there
        assert checked(lambda q, k: _placed(q, k, dtype, along), normal(rows, 8), normal(45, 8))
    else:
        assert checked(f, normal(rows, 8), normal(45, 8))


def _placed(q: Any, k: Any, dtype: Any, along: int) -> Any:
    place = jax.lax.broadcasted_iota(dtype, (q.shape[0], k.shape[0]), along)
    return (q @ k.T + place.astype(jnp.float32)) @ k


def test_a_mask_that_is_an_argument() -> None:
    mask = RNG.random((64, 64)) < 0.5
    mask[:, 0] = True
    args = normal(4, 64, 8), normal(4, 64, 8), normal(4, 64, 4), mask
    assert checked(attention, *args)


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", FORMS)
def test_any_extents(form: str, seed: int) -> None:
    """Batches and rows of any number: primes, too, of which none is a number of tiles."""
    rng = np.random.default_rng(seed)
    lead = [(), (1,), (3,), (7,), (2, 5), (13,)][seed % 6]
    few = int(np.prod(lead))
    primes = [(131, 137, 139), (67, 97, 131)][few > 2]
    rows = int(rng.choice(primes)) * (2 if form == "nearest" and few < 3 else 1)
    q, k, v = normal(*lead, rows, 8), normal(*lead, rows, 8), normal(*lead, rows, 4)
    assert checked(FORMS[form], q, k, v)


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1021, 1024, 1025, 1031, 1054])
def test_tiles_cover_any_rows_on_any_cores(rows: int, cores: int) -> None:
    machine = replace(SMALL, cores=cores)
    args = normal(rows, 8), normal(48, 8), normal(48, 4)
    (loop,) = checked(causal, *args, machine=machine)
    assert loop.attrs["trip"] >= cores


# ------------------------------------------------------------------ compiled


@pytest.mark.parametrize("form", FORMS)
def test_compiled(form: str) -> None:
    """On the machine at hand, whose caches are larger."""
    args = [normal(8, 512, 16) for _ in range(3)]
    fn = FORMS[form]
    tiled = stagejit.jit(fn, options=Options(verify=True))
    whole = stagejit.jit(fn, options=Options(disable=(fuse.NAME,)))
    assert tiled.plan(*args).transient_nbytes < whole.plan(*args).transient_nbytes
    for a, b in zip(jax.tree.leaves(tiled(*args)), jax.tree.leaves(whole(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_nobody_stores_the_scores() -> None:
    """Of 16 heads, 16 MB each: at most those of a few tiles."""
    args = [normal(16, 2048, 64) for _ in range(3)]
    scores = 16 * 2048 * 2048 * 4
    for fn in (causal, gradients(causal)):
        assert stagejit.jit(fn).plan(*args).peak_nbytes < scores // 20


@pytest.mark.some(5)
@pytest.mark.parametrize("form", ["causal", "scale", "causal gradient"])
@pytest.mark.parametrize("shape", [(2053, 16), (5, 1021, 16), (40, 521, 64)])
def test_nobody_stores_the_scores_of_any_extent(form: str, shape: tuple[int, ...]) -> None:
    args = [normal(*shape) / 4 for _ in range(3)]
    fn = FORMS[form]
    tiled = stagejit.jit(fn, options=Options(verify=True))
    whole = stagejit.jit(fn, options=Options(disable=(fuse.NAME,)))
    if "gradient" not in form or len(shape) > 2:
        scores = int(np.prod(shape[:-1])) * shape[-2] * 4
        assert tiled.plan(*args).peak_nbytes < scores // 2
    for a, b in zip(jax.tree.leaves(tiled(*args)), jax.tree.leaves(whole(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("layers", [2, 3])
def test_nobody_stores_the_scores_of_layers(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = replace(Target.host(), cores=2, l2_nbytes=1 << 20)  # tiles are as large as caches
    monkeypatch.setattr(Target, "host", lambda: host)

    def f(x: Any) -> Any:
        for _ in range(layers):
            x = unprojected(x)
        return x

    assert stagejit.jit(f).plan(normal(2048, 16)).peak_nbytes < 2048 * 2048 * 4 // 4
