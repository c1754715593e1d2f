"""`enable`, `disable`, `with enabled()`: every `jax.jit` is staged, and only where it should be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError
from stagejit.options import Options
from stagejit.runtime.cpu.loader import call_count
from stagejit.runtime.lowering import embedding
from tests.runtime.toy_compiler import ToyCompiler

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def everything_is_off_afterwards() -> Iterator[None]:
    yield
    stagejit.disable()


def runs_ours(f: Callable[[], Any]) -> bool:
    """Whether a call runs kernels of ours."""
    before = call_count()
    jax.block_until_ready(f())
    return call_count() > before


def scaled(x: Any) -> Any:
    return x * 2 + x.sum()


def test_a_function_is_staged_inside_and_jax_own_outside() -> None:
    f = jax.jit(scaled)
    expected = np.asarray(f(X))
    for _ in range(2):  # the second time everything comes from caches
        assert not runs_ours(lambda: f(X))
        with stagejit.enabled():
            assert runs_ours(lambda: f(X))
            np.testing.assert_array_equal(f(X), expected)
            assert runs_ours(lambda: jax.jit(scaled)(X))
        assert not runs_ours(lambda: jax.jit(scaled)(X))


def test_each_state_compiles_once() -> None:
    events = []

    def f(x: Any) -> Any:
        events.append(1)
        return x + 1

    jitted = jax.jit(f)
    for _ in range(3):
        jitted(X)
        with stagejit.enabled():
            jitted(X)
    assert len(events) == 2  # JAX traces once for each value of a user context


def test_staged_functions_stay_staged() -> None:
    f = stagejit.jit(scaled)
    stagejit.enable()
    assert runs_ours(lambda: f(X))
    stagejit.disable()
    assert runs_ours(lambda: f(X))
    assert not runs_ours(lambda: jax.jit(scaled)(X))


def test_enable_holds_in_all_threads_and_enabled_in_one() -> None:
    f = jax.jit(scaled)

    def elsewhere() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(runs_ours(lambda: f(X))))
        thread.start()
        thread.join()
        return found[0]

    with stagejit.enabled():
        assert runs_ours(lambda: f(X))
        assert not elsewhere()
    stagejit.enable()
    assert elsewhere()
    stagejit.disable()
    assert not elsewhere()


def test_enabled_is_left_by_an_exception_and_nests() -> None:
    f = jax.jit(scaled)
    with pytest.raises(ZeroDivisionError), stagejit.enabled():
        raise ZeroDivisionError
    assert not runs_ours(lambda: f(X))
    with stagejit.enabled():
        with stagejit.enabled(options=Options(verify=True)):
            assert runs_ours(lambda: f(X))
        assert runs_ours(lambda: f(X))


def test_functions_inside_libraries_are_staged() -> None:
    with stagejit.enabled():
        assert runs_ours(lambda: jnp.linalg.norm(X))  # a jit of jax.numpy's own
        assert runs_ours(lambda: jax.nn.softmax(jnp.asarray(X)))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: jax.lax.add(x, x),
        lambda x: jnp.sin(x),
        lambda x: x + 1,
        lambda x: x[0],
        lambda x: jnp.reshape(x, (3, 2)),
    ],
)
def test_single_operations_stay_jax_own(operation: Any) -> None:
    x = jnp.asarray(X)
    with stagejit.enabled():
        assert not runs_ours(lambda: operation(x))


def test_a_loop_by_itself_is_a_program() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: c * 2 + x, x)

    with stagejit.enabled():
        assert runs_ours(lambda: loop(X))
        np.testing.assert_array_equal(loop(X), X * 15)


@pytest.mark.parametrize(
    "transform",
    [jax.grad, jax.vmap, lambda f: jax.jit(jax.grad(f)), lambda f: jax.jit(jax.vmap(f))],
    ids=["grad", "vmap", "jit grad", "jit vmap"],
)
def test_transformations(transform: Any) -> None:
    f = jax.jit(lambda x: (jnp.sin(x) * x).sum())
    expected = transform(f)(X)
    with stagejit.enabled():
        assert runs_ours(lambda: transform(f)(X))
        np.testing.assert_allclose(transform(f)(X), expected, rtol=1e-6)


def test_options_are_those_given_or_those_around() -> None:
    before, toy = embedding._installed, ToyCompiler()
    embedding.install(toy)
    try:
        f, own = jax.jit(lambda x: x + x * 2), Options(full_barriers=True)
        with stagejit.enabled(options=own):
            f(X)
            stagejit.jit(lambda x: x * x + 1)(X)
        with stagejit.enabled(), Options(verify=True):
            f(X)
        with Options(verify=True), stagejit.enabled():
            f(X)
        stagejit.enable(options=own)
        f(X)
        assert [r.options for r in toy.requests] == [own, own, Options(verify=True)]
    finally:
        assert before is not None
        embedding.install(before)


@pytest.mark.parametrize("switch", [stagejit.enable, lambda **o: stagejit.enabled(**o).__enter__()])
def test_wrong_options_are_refused(switch: Any) -> None:
    with pytest.raises(OptionsError, match=r"options is 3, of type int"):
        switch(options=3)


def test_exports_and_shards_are_jax_own() -> None:
    with stagejit.enabled():
        exported = jax.export.export(jax.jit(scaled))(X)
        assert "custom_call" not in str(exported.mlir_module())
        np.testing.assert_array_equal(exported.call(X), scaled(X))


def test_lowered_and_compiled_stages_follow_the_context() -> None:
    f = jax.jit(scaled)
    with stagejit.enabled():
        compiled = f.lower(X).compile()
        assert "custom_call" in f.lower(X).as_text()
    assert "custom_call" not in f.lower(X).as_text()
    assert runs_ours(lambda: compiled(X))
