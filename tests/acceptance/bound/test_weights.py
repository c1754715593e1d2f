"""E3, E9 and issue 11: what a call of a bound function moves, keeps and makes anew."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.bench.workloads import bound, residual_block
from stagejit.bench.workloads.inputs import Normal
from stagejit.runtime.bound import evaluation_counts
from stagejit.schedule.plans.plan import Plan


def normal(seed: int = 0) -> Normal:
    rng = np.random.default_rng(seed)

    def made(*shape: int, scale: float = 1.0) -> Any:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return made


def placed(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def weight_copies(plan: Plan) -> list[str]:
    """Dispatches of a call that compute nothing of the arguments: they only relay weights."""
    weights = {buffer.name for buffer in plan.buffers if buffer.kind in ("weight", "constant")}
    reads = {d.name: {read.buffer for read in d.reads} for d in plan.all_dispatches()}
    return [name for name, read in reads.items() if read and read <= weights]


def test_a_bound_dense_block_relays_no_weight() -> None:
    params = placed(residual_block.parameters(np.random.default_rng(1)))
    block = stagejit.bind(lambda params, x: residual_block.residual_block(x, params), params)
    x = normal()(1, 64, 90, 62)
    assert weight_copies(block.plan(x)) == []
    wanted = residual_block.residual_block(x, params)
    np.testing.assert_allclose(block(x), wanted, rtol=1e-4, atol=1e-4)


def test_batch_norms_of_a_bound_network_are_gone() -> None:
    params, x = placed(bound.resnet_parameters(normal(), 16, 2)), normal(1)(1, 8, 8, 3)
    network = stagejit.bind(bound.resnet, params)
    plan = network.plan(x)
    assert weight_copies(plan) == []
    convolutions = [d.ops for d in plan.dispatches if d.kind == "conv"]
    assert len(convolutions) == 5
    assert all(set(ops) <= {"conv", "add", "max"} for ops in convolutions)
    np.testing.assert_allclose(network(x), bound.resnet(params, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", [None, "bf16", "int8"])
def test_a_bound_network_keeps_little_more_than_its_weights(weights: Any) -> None:
    """At most 1.2 times, and in another form as many bytes as that has."""
    params = placed(bound.mlp_parameters(normal(), (512, 768, 256)))
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    network = stagejit.bind(bound.mlp, params, weights=weights)
    for batch in (1, 8):  # two programs, of one copy
        network(np.ones((batch, 512), np.float32))
    del params
    kept = network.memory_analysis()["kept_nbytes"]
    assert kept <= 1.2 * nbytes * {None: 1.0, "bf16": 0.5, "int8": 0.25}[weights]


def test_a_step_of_decoding_writes_the_cache_in_place_and_relays_no_weight() -> None:
    params = placed(bound.decoder_parameters(normal(), 96, 2))
    caches, token = jnp.zeros((2, 2, 12, 16, 8)), normal(1)(1, 96)
    step = stagejit.bind(bound.decode, params, weights="int8", donate_argnums=0)
    plan = step.plan(caches, token, 3)
    assert weight_copies(plan) == []
    assert plan.buffer("caches").result == 0
    written = [w for d in plan.dispatches for w in d.writes if w.buffer == "caches"]
    assert sum(w.nbytes for w in written) == 2 * 2 * 96 * 4
    found, wanted = token, token
    whole = jnp.zeros_like(caches)
    for position in range(3):
        caches, found = step(caches, found, position)
        whole, wanted = bound.decode(params, whole, wanted, position)
    np.testing.assert_allclose(found, wanted, atol=0.05 * float(np.abs(wanted).max()))


def test_a_network_that_is_bound_twice_is_made_once() -> None:
    params = placed(bound.mlp_parameters(normal(3), (512, 768, 256)))
    x = np.ones((1, 512), np.float32)
    first = stagejit.bind(bound.mlp, params, weights="int8")
    first(x)
    before = evaluation_counts()["evaluated"]
    second = stagejit.bind(bound.mlp, params, weights="int8")
    np.testing.assert_array_equal(first(x), second(x))
    assert evaluation_counts()["evaluated"] == before


def columns(w: Any, x: Any) -> Any:
    return [x @ part for part in jnp.split(w, 4, axis=1)]


def rows(w: Any, x: Any) -> Any:
    return x[:, :96] @ w[:96], x[:, 96:] @ w[96:]


def layers(w: Any, x: Any) -> Any:
    for at in range(2):
        x = jnp.tanh(x @ w.reshape(2, 256, 256)[at].T)
    return x


def heads(w: Any, x: Any) -> Any:
    q, k = (x @ w[at].reshape(256, -1) for at in range(2))
    return jnp.tanh(q * k) @ w[2].reshape(256, -1).T


def some_columns(w: Any, x: Any) -> Any:
    return x @ w[:, :128], x @ w[:, 256:448]


def some_rows(w: Any, x: Any) -> Any:
    return x[:, 32:128] @ w[32:128]


def experts(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w[0]) @ w[2].T


def low_rank(w: Any, x: Any) -> Any:
    return x @ w[:, :256] + (x @ w[:, 256:272]) @ w[:, 272:288].T


def one_of_a_reshaped(w: Any, x: Any) -> Any:
    return x @ w.reshape(256, 4, 128)[:, 1]


PARTED = {
    "columns": (columns, (256, 512)),
    "rows": (rows, (256, 192)),
    "layers": (layers, (512, 256)),
    "heads": (heads, (3, 256, 4, 32)),
    "some columns": (some_columns, (256, 512)),
    "some rows": (some_rows, (256, 192)),
    "experts": (experts, (4, 256, 128)),
    "low rank": (low_rank, (256, 320)),
    "one of a reshaped": (one_of_a_reshaped, (256, 512)),
}


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize("held", ["held", "dropped", "copied"])
def test_parts_of_a_bound_matrix_are_packed_once(name: str, held: str) -> None:
    """Also where they are not all of it: what the others leave is kept with them."""
    f, shape = PARTED[name]
    w = normal()(*shape) / 16
    array = w if held == "copied" else jnp.asarray(w)
    bound = stagejit.bind(f, array, options=stagejit.Options(verify=True))
    if held == "dropped":  # what is read otherwise is put together of the parts
        del array
    again = w[::-1] / 2

    def loss(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: sum((y**2).sum() for y in jax.tree.leaves(f(x)))))

    for known in (w, w, again, again):
        if known is again:
            bound.update(jnp.asarray(known))
        for batch in (24, 1, 5):
            x = normal(batch)(batch, 256)
            assert not bound.plan(x).packs
            wanted = partial(f, jnp.asarray(known))
            for ours, theirs in ((bound(x), wanted(x)), (loss(bound)(x), loss(wanted)(x))):
                jax.tree.map(
                    partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), ours, theirs
                )
        analysis = bound.memory_analysis()
        assert analysis["kept_nbytes"] <= 1.2 * analysis["weight_nbytes"]
    (weight,) = bound._weights()
    assert weight._held is None or held == "held"
    np.testing.assert_array_equal(weight.array, again)


def sums(w: Any, x: Any) -> Any:
    return x @ w[:, :128], w[:, 128:].sum(0)


@pytest.mark.parametrize(
    "f",
    [
        lambda w, x: x @ w[:, :480],  # the rest is kept for others
        lambda w, x: (x @ w[:, :128], x[:, 128:] @ w[128:]),  # a corner is in both
        lambda w, x: (x @ w[:, :128], x @ w.reshape(256, 4, 128)[:, 1]),  # rests of two shapes
        lambda w, x: [x @ w[:, at : at + 16] for at in range(0, 512, 28)],  # many rests
        lambda w, x: (x @ w[:, :128], w[:5] * x.sum()),  # some of it as it lies, too
        lambda w, x: (x @ w[:, :480], x @ w[:, 480:], w * x.sum()),  # read whole, too
        lambda w, x: x @ lax.dynamic_slice(w, (0, jnp.int32(x.sum()) % 2), (256, 256)),
        sums,
    ],
)
def test_other_parts_are_no_second_copy(f: Any) -> None:
    w = jnp.asarray(normal()(256, 512)) / 16
    bound, x = stagejit.bind(f, w, options=stagejit.Options(verify=True)), normal(1)(24, 256)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), bound(x), f(w, jnp.asarray(x))
    )
    analysis = bound.memory_analysis()
    assert analysis["kept_nbytes"] <= 1.2 * analysis["weight_nbytes"]


def test_typed_keys_that_are_gone_are_named() -> None:
    key = jax.random.key(0)
    drawn = stagejit.bind(lambda key, x: x + jax.random.normal(key, x.shape), key)
    drawn(normal()(4))
    key.delete()
    with pytest.raises(stagejit.errors.GoneError, match="params"):
        drawn(normal()(5))
