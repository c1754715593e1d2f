"""Gradients of bound functions outside of any program: nothing copies weights, and values are those
of the moment in which the gradient began, whatever is updated meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from tests.binding.networks import array
from tests.binding.test_residuals import NETS, H, N, branches, derived, layers, mlp, picked, shapes

Begun = tuple[Any, Callable[[Any], Any]]  # the value, and what gives the gradient


def pulled(f: Any, x: Any) -> Begun:
    y, back = jax.vjp(f, x)
    return y, lambda t: back(t)[0]


def linearized(f: Any, x: Any) -> Begun:
    y, linear = jax.linearize(f, x)
    return y, lambda t: linear(x * t.sum())


def mapped(f: Any, x: Any) -> Begun:
    return pulled(lambda x: jax.vmap(f)(jnp.stack([x, x / 3])), x)


def map_of_pulled(f: Any, x: Any) -> Begun:
    y, back = jax.vmap(lambda x: jax.vjp(f, x))(jnp.stack([x, x / 3]))
    return y, lambda t: jax.vmap(lambda back, t: back(t)[0])(back, t)


def of_gradient(f: Any, x: Any) -> Begun:
    return pulled(jax.grad(lambda x: (f(x) ** 2).sum()), x)


def of_tangents(f: Any, x: Any) -> Begun:
    return pulled(lambda x: jax.jvp(f, (x,), (jnp.sin(x),))[1], x)


def in_a_program_later(f: Any, x: Any) -> Begun:
    y, back = jax.vjp(f, x)
    return y, lambda t: jax.jit(lambda back, t: back(t)[0])(back, t)


BEGUN = [pulled, linearized, mapped, of_gradient, of_tangents, in_a_program_later]


def _halved(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value / 2 for name, value in params.items()}


def _assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


def _of_weights() -> Iterator[Any]:
    """Arrays of JAX's as large as a weight, or as one of its slices."""
    gc.collect()
    for each in jax.live_arrays():
        if {N, H} <= set(each.shape):
            yield each


CASES = [(net, pulled) for net in NETS]
CASES += [(net, begun) for net in (mlp, derived, layers, branches) for begun in
          (linearized, mapped, map_of_pulled, of_gradient)]  # fmt: skip


@pytest.mark.parametrize(("net", "begun"), CASES)
def test_no_gradient_keeps_copies_of_weights(net: Any, begun: Any) -> None:
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    nbytes = sum(each.nbytes for each in params.values())
    bound = stagejit.bind(net, params)
    bound(x)
    del params
    before = sum(each.nbytes for each in _of_weights())
    y, back = begun(bound, x)
    t = jnp.cos(y)
    back(t)
    copies = sum(each.nbytes for each in _of_weights()) - before
    kept = bound.memory_analysis()["kept_nbytes"]
    assert copies + kept <= 1.2 * nbytes, (copies / nbytes, kept / nbytes)


@pytest.mark.parametrize(
    ("net", "begun"), [*((mlp, each) for each in BEGUN), (derived, pulled), (derived, of_gradient),
                       (layers, mapped), (picked, linearized), (picked, of_gradient)]
)  # fmt: skip
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_gradient_is_of_the_weights_with_which_it_began(
    net: Any, begun: Any, is_compiled: bool
) -> None:
    given = [shapes()]
    given += [_halved(given[0]), _halved(_halved(given[0]))]
    x = jnp.asarray(array(3, N, seed=9))
    bound, wanted, found = stagejit.bind(net, given[0]), [], []
    for params in given:
        bound.update(params)
        found.append(begun(bound, x))
        wanted.append(begun(lambda x, p=params: net(p, x), x))
        if is_compiled:
            found[-1][1](jnp.cos(found[-1][0]))
    for (y, back), (plain, wanted_back) in [*zip(found, wanted, strict=True)][::-1]:
        _assert_close(y, plain)
        for t in (jnp.cos(plain), jnp.sin(plain)):
            _assert_close(back(t), wanted_back(t))


def test_the_gradients_that_a_map_returns_are_right_or_refused() -> None:
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(mlp, params)
    wanted = map_of_pulled(lambda x: mlp(params, x), x)
    y, back = map_of_pulled(bound, x)
    _assert_close(back(y), wanted[1](y))
    bound.update(_halved(params))
    with pytest.raises(Exception, match="mlp: its weights were updated between"):
        back(y)


def test_what_a_gradient_keeps_goes_with_it() -> None:
    given = [shapes(), _halved(shapes()), shapes()]
    bound, x = stagejit.bind(mlp, given[0]), jnp.asarray(array(3, N, seed=9))
    y, back = jax.vjp(bound, x)
    wanted = jax.vjp(lambda x, p=given[0]: mlp(p, x), x)[1](y)
    _assert_close(back(y)[0], wanted[0])
    old = weakref.ref(given[0]["a"])
    bound.update(given[1])
    tables = [table for weight in bound._weights() for table in weight.tables]
    assert any(len(table.table._lists) > 1 for table in tables)
    given[0] = None
    gc.collect()
    _assert_close(back(y)[0], wanted[0])  # of what its program reads
    assert old() is None
    del back
    gc.collect()
    jax.vjp(bound, x)
    assert all(len(table.table._lists) == 1 for table in tables)


def test_what_nobody_has_any_more_is_an_error() -> None:
    given, x = [shapes(), _halved(shapes())], jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(derived, given[0])
    y, back = jax.vjp(bound, x)
    given[0] = None
    gc.collect()
    bound.update(given[1])
    with pytest.raises(Exception, match="derived: its weights were updated between"):
        back(y)
    y, back = jax.vjp(bound, x)
    wanted = jax.vjp(lambda x: derived(given[1], x), x)[1](y)
    _assert_close(back(y)[0], wanted[0])


def scaled(p: Any, x: Any) -> Any:
    return x * jax.random.normal(p["key"], x.shape) @ p["a"]


def _over_an_update(net: Any, given: list[Any], transformed: Any = None, **options: Any) -> None:
    """A gradient that begins, an update, and its end."""
    transformed, x = transformed or (lambda f: f), jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(net, given[0], **options)
    y, back = jax.vjp(transformed(bound), x)
    bound.update(given[1])
    plain = transformed(lambda x: net(given[0], x))
    wanted = jax.vjp(plain, x)[1](y)[0]
    found = back(y)[0]
    off = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert off < (0.05 if "weights" in options else 2e-4)


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_what_is_stored_in_fewer_bytes_is_of_the_moment_too(form: str) -> None:
    _over_an_update(mlp, [shapes(), _halved(shapes())], weights=form)


def test_random_keys_are_of_the_moment_too() -> None:
    given = [{"key": jax.random.key(seed), "a": shapes()["a"]} for seed in (3, 4)]
    _over_an_update(scaled, given)


def test_what_jax_inlines_keeps_copies() -> None:
    _over_an_update(mlp, [shapes(), _halved(shapes())], inline=True)
    bound, x = stagejit.bind(mlp, shapes(), inline=True), jnp.asarray(array(3, N, seed=9))
    for transformed in (lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jax.grad):
        function = transformed(lambda x: bound(x).sum())
        for params in (shapes(), _halved(shapes())):
            bound.update(params)
            wanted = jax.grad(lambda x, p=params: mlp(p, x).sum())(x)
            _assert_close(function(x), wanted)


@pytest.fixture
def as_a_transformation() -> Iterator[None]:
    """`jax.checkpoint` as JAX has it under this flag."""
    before = getattr(jax.config, "jax_remat3", None)
    if before is None:
        pytest.skip("this JAX has one checkpoint")
    jax.config.update("jax_remat3", True)
    yield
    jax.config.update("jax_remat3", before)


@pytest.mark.parametrize("policy", ["nothing_saveable", "everything_saveable", "dots_saveable"])
@pytest.mark.usefixtures("as_a_transformation")
def test_checkpoints_that_are_a_transformation_are_of_one_moment(policy: str) -> None:
    def transformed(f: Any) -> Any:
        saved = getattr(jax.checkpoint_policies, policy)
        return jax.checkpoint(lambda x: jnp.sin(f(x)), policy=saved)

    _over_an_update(mlp, [shapes(), _halved(shapes())], transformed)
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(mlp, params)
    total = lambda f: lambda x: transformed(f)(x).sum()  # noqa: E731
    _assert_close(jax.jit(jax.grad(total(bound)))(x), jax.grad(total(lambda x: mlp(params, x)))(x))
    y, back = jax.jit(lambda x: jax.vjp(transformed(bound), x))(x)
    bound.update(_halved(params))
    with pytest.raises(Exception, match="mlp: its weights were updated between"):
        jax.jit(lambda back, y: back(y))(back, y)


def test_arrays_that_are_deleted_are_kept_for_a_gradient() -> None:
    x = jnp.asarray(array(3, N, seed=9))
    for before in (False, True):
        params = shapes()
        bound = stagejit.bind(mlp, params)
        y, back = jax.vjp(bound, x)
        wanted = jax.vjp(lambda x, p=params: mlp(p, x), x)[1](y)[0]
        for is_updated in (before, not before):
            if is_updated:
                bound.update(_halved(shapes()))
            else:
                for each in params.values():
                    each.delete()
        _assert_close(back(y)[0], wanted)


def test_an_update_does_not_wait_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, x = stagejit.bind(mlp, shapes()), jnp.asarray(array(3, N, seed=9))
    _, back = jax.vjp(bound, x)
    back(jax.block_until_ready(bound(x)))

    def slept(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr("stagejit.runtime.cpu.weights.time.sleep", slept)
    bound.update(_halved(shapes()))


def test_gradients_on_one_thread_while_another_updates() -> None:
    given = [shapes(), _halved(shapes())]
    bound, x = stagejit.bind(mlp, given[0]), jnp.asarray(array(3, N, seed=9))
    wanted = [jax.grad(lambda x, p=p: (mlp(p, x) ** 2).sum())(x) for p in given]
    is_over = threading.Event()

    def updating() -> None:
        while not is_over.is_set():
            for params in given[::-1]:
                bound.update(params)

    thread = threading.Thread(target=updating)
    thread.start()
    try:
        gradient = jax.grad(lambda x: (bound(x) ** 2).sum())
        for _ in range(50):
            found = gradient(x)
            assert min(np.abs(found - each).max() / np.abs(each).max() for each in wanted) < 1e-3
    finally:
        is_over.set()
        thread.join()


def test_gradients_in_a_shard_map_that_is_run_at_once() -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    rows = jax.sharding.PartitionSpec("i")
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(mlp, params)

    def mapped(f: Any) -> Any:
        gradient = jax.grad(lambda x: (f(x) ** 2).sum())
        return jax.shard_map(gradient, mesh=mesh, in_specs=rows, out_specs=rows)(x)

    _assert_close(mapped(bound), mapped(lambda x: mlp(params, x)))


def test_updates_where_jit_is_disabled() -> None:
    with jax.disable_jit():
        _over_an_update(mlp, [shapes(), _halved(shapes())])
