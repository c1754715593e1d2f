"""Arrays that are bound: made once, kept while somebody reads them, found on disk."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import GoneError, OptionsError
from stagejit.runtime.bound import evaluation_counts
from tests.binding.networks import X, array, assert_close, layers, made, network


def test_bind_twice_makes_once() -> None:
    params = layers(seed=11)
    before = made()
    one = stagejit.bind(network, params)
    one(X)
    assert made() == before + 1  # 2 * v
    other = stagejit.bind(network, params)
    assert_close(other(X), one(X))
    assert_close(one(X[:2]), network(params, X[:2]))  # another program of the same weights
    assert made() == before + 1
    again = stagejit.bind(network, jax.tree.map(jnp.copy, params))
    again(X)
    assert made() == before + 2  # other arrays


def test_numpy_arrays_are_copied_and_update_sees_what_was_written() -> None:
    params = {"w": array(8, 4)}
    f = stagejit.bind(lambda p, x: x @ p["w"], params)
    first = np.asarray(X @ params["w"])
    assert_close(f(X), first)
    params["w"][:] = 1.0
    assert_close(f(X), first)
    f.update(params)
    assert_close(f(X), np.asarray(X) @ params["w"])


def test_a_deleted_array_stays_for_those_who_read_it() -> None:
    w = jnp.asarray(array(64, 64))
    x, wanted = jnp.ones((2, 64)), jnp.ones((2, 64)) @ w
    bound = stagejit.bind(lambda p, x: x @ p, w)
    assert_close(bound(x), wanted)
    w.delete()
    for _ in range(4):
        jnp.full((64, 64), np.nan).block_until_ready()
    assert_close(bound(x), wanted)


def test_a_donated_array_stays_for_those_who_read_it() -> None:
    w = jnp.asarray(array(64, 64)) + 0
    x, wanted = jnp.ones((2, 64)), jnp.ones((2, 64)) @ w
    bound = stagejit.bind(lambda p, x: x @ p, w)
    assert_close(bound(x), wanted)
    spoil = jax.jit(lambda w: w * np.nan, donate_argnums=0)
    spoiled = spoil(w).block_until_ready()
    assert_close(bound(x), wanted)
    assert np.isnan(spoiled).all()


GONE = {
    "deleted": lambda w: w.delete(),
    "donated": lambda w: jax.jit(lambda w: w * np.nan, donate_argnums=0)(w).block_until_ready(),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("weights", [None, "int8"])
def test_an_array_that_is_gone_before_it_is_read_is_an_error(
    gone: str, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = jnp.asarray(array(64, 64)) + 0, jnp.ones((2, 64))
    bound = stagejit.bind(lambda p, x: x @ p, w, weights=weights)
    monkeypatch.setenv("STAGEJIT_STRICT", "0")  # as for users: there is no fallback, and no warning
    GONE[gone](w)
    for call in (bound, stagejit.jit(lambda x: bound(x) + 1), jax.jit(lambda x: bound(x) + 1)):
        for _ in range(2):
            with pytest.raises(GoneError, match=r"params is needed .* is gone"):
                call(x)
    again = jnp.asarray(array(64, 64))
    bound.update(again)
    np.testing.assert_allclose(bound(x), x @ again, atol=0.5 if weights else 1e-4)


@pytest.mark.some(3)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.int8])
def test_programs_compiled_later_read_what_others_have_kept(gone: str, dtype: Any) -> None:
    """Whether those read it packed or as it lies."""
    readers: dict[str, Any] = {
        "product": lambda p, x: x.astype(p.dtype) @ p,
        "transposed": lambda p, x: x.astype(p.dtype) @ p.T,
        "sum": lambda p, x: x.sum() + p.sum(axis=0, dtype=jnp.float32),
        "itself": lambda p, x: p,
        "both": lambda p, x: (x.astype(p.dtype) @ p, p[::-1]),
    }
    x = jnp.asarray(array(2, 64, seed=1))
    for first in readers.keys() - {"sum"}:  # which keeps the sum
        w = jnp.asarray(3 * array(64, 64)).astype(dtype)
        wanted = {name: jax.jit(reader)(w, x) for name, reader in readers.items()}
        bound = stagejit.bind(lambda p, x, how: readers[how](p, x), w, static_argnames="how")
        bound(x, how=first)
        GONE[gone](w)
        for name in readers:
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(
                    np.asarray(a, np.float64),
                    np.asarray(b, np.float64),
                    rtol=2e-2,
                    atol=1e-2 if dtype == np.float32 else 0.5,
                ),
                bound(x, how=name),
                wanted[name],
            )


def test_arrays_that_are_gone_cannot_be_bound() -> None:
    bound, gone = stagejit.bind(network, layers()), layers()
    gone["w"].delete()
    before = bound(X)
    for bind in (bound.update, lambda params: stagejit.bind(network, params)):
        with pytest.raises(OptionsError, match=r"params\['w'\] is deleted"):
            bind(gone)
    assert_close(bound(X), before)


def test_what_only_made_values_are_read_of_goes_with_the_caller() -> None:
    def scaled(params: Any, x: Any, itself: bool = False) -> Any:
        return x @ (params["w"] if itself else params["w"] * params["s"])

    params = {"w": jnp.asarray(array(64, 32)), "s": jnp.asarray(array(64, 1))}
    bound = stagejit.bind(scaled, params, static_argnames="itself")
    wanted = scaled(params, jnp.ones((2, 64)))
    assert bound.memory_analysis()["kept_nbytes"] == 4 * (64 * 32 + 64)
    assert_close(bound(jnp.ones((2, 64))), wanted)
    gone = [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]
    again = jax.tree.map(jnp.copy, params)
    del params
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    analysis = bound.memory_analysis()
    assert (analysis["original_nbytes"], analysis["made_nbytes"]) == (0, 4 * 64 * 32)
    assert_close(bound(jnp.ones((2, 64))), wanted)
    assert_close(bound(jnp.ones((2, 64)) + 1), 2 * wanted)
    assert_close(bound(jnp.ones((3, 64)))[:2], wanted)  # a new program of the same value
    bound.clear_cache()
    assert bound.memory_analysis()["made_nbytes"] == 4 * 64 * 32
    assert_close(bound(jnp.ones((2, 64))), wanted)
    with pytest.raises(stagejit.StagejitError, match="keep the arrays that you bind"):
        bound(jnp.ones((2, 64)), itself=True)
    bound.update(again)
    assert_close(bound(jnp.ones((2, 64)), itself=True), scaled(again, jnp.ones((2, 64)), True))


def test_weights_are_freed_with_the_function() -> None:
    params = layers(seed=21)
    bound = stagejit.bind(network, params)
    bound(X)
    ref = weakref.ref(params["w"])
    del params, bound
    gc.collect()
    assert ref() is None


@pytest.fixture
def cache_dir(tmp_path: Any) -> str:
    return str(tmp_path / "cache")


def test_what_is_expensive_is_found_on_disk(cache_dir: str) -> None:
    def gram(params: Any, x: Any) -> Any:
        return x @ (params @ params.T)

    options = stagejit.Options(cache_dir=cache_dir)
    w, x = array(96, 96, seed=31), jnp.ones((2, 96))
    wanted = gram(w, x)
    before = evaluation_counts()

    def counts() -> tuple[int, int]:
        now = evaluation_counts()
        return tuple(now[key] - before[key] for key in ("evaluated", "from disk"))  # type: ignore

    for expected in ((1, 0), (1, 1)):  # each binds an array of its own
        assert_close(stagejit.bind(gram, w.copy(), options=options)(x) / 96, wanted / 96)
        assert counts() == expected
    from pathlib import Path

    nbytes = 4 * 96 * 96
    for path in Path(cache_dir).glob("*/*.sjo"):
        if nbytes <= path.stat().st_size < nbytes + 200:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert_close(stagejit.bind(gram, w, options=options)(x) / 96, wanted / 96)
    assert counts() == (2, 1)


@pytest.mark.parametrize("jit", [jax.jit, stagejit.jit])
def test_donating_what_programs_read_makes_a_copy(jit: Any) -> None:
    """As for any array to which there is another reference."""
    for is_bound in (False, True):
        w, x = jnp.asarray(array(64, 64)) + 0, jnp.ones((64, 64))
        bound = stagejit.bind(lambda p, x: jnp.tanh(x) + p, w)
        if is_bound:
            wanted = bound(x).block_until_ready()
        address = w.unsafe_buffer_pointer()
        twice = jit(lambda w: w * 2 + 1, donate_argnums=0)(w).block_until_ready()
        assert (twice.unsafe_buffer_pointer() == address) is not is_bound
    assert_close(bound(x), wanted)
