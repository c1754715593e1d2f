"""Updates of bound weights: what programs read after one, and which are refused."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError
from stagejit.runtime.bound import BoundWeights
from tests.binding.networks import X, array, assert_close, layers, network


def test_update_compiles_nothing_and_is_seen_inside_programs_of_others() -> None:
    bound = stagejit.bind(network, layers())
    outer = jax.jit(lambda x: bound(x).sum())
    ours = stagejit.jit(lambda x: bound(x).sum())
    outer(X), ours(X), bound(X)
    other = layers(seed=5)
    with jax.log_compiles(False), _no_compilation():
        bound.update(other)
        wanted = network(other, X)
        found = [f(X) for f in (bound, outer, ours)]
    assert_close(found, [wanted, wanted.sum(), wanted.sum()])


class _no_compilation:
    """Fails where one of our programs is compiled."""

    def __enter__(self) -> None:
        from stagejit.runtime.lowering import embedding

        self.before = embedding._installed
        embedding._installed = self.refuse

    def refuse(self, request: Any) -> Any:
        raise AssertionError(f"{request.name} was compiled")

    def __exit__(self, *exc: object) -> None:
        from stagejit.runtime.lowering import embedding

        embedding._installed = self.before


def test_two_functions_that_bind_one_array_are_updated_apart() -> None:
    first, second = layers(), layers(seed=5)
    one, other = stagejit.bind(network, first), stagejit.bind(network, first)
    one(X), other(X)
    one.update(second)
    assert_close(one(X), network(second, X))
    assert_close(other(X), network(first, X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda params: {**params, "more": jnp.ones(2)},
            r"params\['more'\] is given, and not bound",
        ),
        (lambda params: {"w": params["w"]}, r"params\['\w+'\] is bound, and not given"),
        (lambda params: {**params, "w": [params["w"]]}, "is bound as one leaf, and given as"),
        (lambda params: {**params, "w": jnp.ones(2)}, r"got float32\[2\] for params\['w'\]"),
    ],
)
def test_an_update_that_does_not_fit_says_where_and_what(change: Any, message: str) -> None:
    params = layers()
    bound = stagejit.bind(network, params)
    with pytest.raises(OptionsError, match=message) as caught:
        bound.update(change(params))
    assert caught.value.loc.file == __file__


def test_an_update_of_another_container_does_not_fill_the_screen() -> None:
    params = [jnp.ones(2)] * 200
    bound = stagejit.bind(lambda p, x: p[0] + x, params)
    assert repr(bound) == "stagejit.bind(<lambda>, 200 weights)"
    with pytest.raises(OptionsError, match="of another structure: PyTreeDef") as caught:
        bound.update(tuple(params))
    assert len(caught.value.what) < 600


def interrupt(monkeypatch: Any, work: Any) -> None:
    """Another thread does the work when one has evaluated what it is about to put, the first
    time."""
    evaluated, pending = BoundWeights.evaluated, [work]

    def interrupted(self: BoundWeights, arrays: Any) -> Any:
        result = evaluated(self, arrays)
        if pending:
            thread = threading.Thread(target=pending.pop())
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
        return result

    monkeypatch.setattr(BoundWeights, "evaluated", interrupted)


@pytest.mark.parametrize("at", ["compiled", "updated"])
@pytest.mark.parametrize("is_made", [False, True])
def test_programs_compiled_while_weights_are_updated_read_the_new_ones(
    at: str, is_made: bool, monkeypatch: Any
) -> None:
    def product(p: Any, x: Any) -> Any:
        return x @ (p @ p) if is_made else x @ p

    old, new = jnp.asarray(array(16, 16)), jnp.asarray(array(16, 16, seed=1))
    bound = stagejit.bind(product, old)
    x, larger = jnp.ones((2, 16)), jnp.ones((3, 16))
    if at == "updated":
        bound(x)
    work = {"compiled": lambda: bound.update(new), "updated": lambda: bound(larger)}[at]
    interrupt(monkeypatch, work)
    bound(x) if at == "compiled" else bound.update(new)
    for each in (x, larger):
        assert_close(bound(each), product(new, each))


def test_updates_of_both_weights_of_a_product_at_the_same_time(monkeypatch: Any) -> None:
    """By two threads, each through the function that it has bound."""
    arrays = [jnp.asarray(array(16, 16, seed=seed)) for seed in range(4)]
    inner = stagejit.bind(lambda w, x, v: x @ (w @ v), arrays[0])
    outer = stagejit.bind(lambda v, x: inner(x, v), arrays[1])
    x = jnp.ones((2, 16))
    outer(x)
    interrupt(monkeypatch, lambda: inner.update(arrays[2]))
    outer.update(arrays[3])
    assert_close(outer(x), x @ (arrays[2] @ arrays[3]))


def test_what_is_no_array_is_compiled_in() -> None:
    def repeated(params: Any, x: Any) -> Any:
        return jnp.concatenate([params["w"] * x] * params["times"])

    params = {"w": jnp.float32(2.0), "times": 3, "none": None}
    bound = stagejit.bind(repeated, params)
    assert_close(bound(X), repeated(params, X))
    bound.update({**params, "w": jnp.float32(4.0)})
    assert_close(bound(X), 2 * repeated(params, X))
    with pytest.raises(stagejit.StagejitError, match=r"got 4 for params\['times'\].*3 is compiled"):
        bound.update({**params, "times": 4})
    assert_close(bound(X), 2 * repeated(params, X))


@pytest.mark.parametrize("known", [0.0, -0.0, float("nan"), 1.5, complex(0.0, -0.0), 3, True, "a"])
@pytest.mark.parametrize("given", [0.0, -0.0, float("nan"), 1.5, complex(0.0, 0.0), 3, True, "a"])
def test_an_update_tells_numbers_that_are_compiled_in_by_their_bits(known: Any, given: Any) -> None:
    bound = stagejit.bind(lambda params, x: x * params["w"], {"w": X, "c": known})
    bound(X)
    if type(known) is type(given) and repr(known) == repr(given):
        bound.update({"w": 2 * X, "c": given})
        assert_close(bound(X), 2 * X * X)
    else:
        with pytest.raises(stagejit.StagejitError, match=r"for params\['c'\], which is no array"):
            bound.update({"w": 2 * X, "c": given})
        assert_close(bound(X), X * X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {**p, "w": p["w"][:4]}, r"got float32\[4,16\] for params\['w'\]"),
        (
            lambda p: {**p, "w": p["w"].astype(jnp.float16)},
            r"got float16\[8,16\] for params\['w'\]",
        ),
    ],
)
def test_update_refuses_what_would_have_to_be_compiled(change: Any, message: str) -> None:
    params = layers()
    bound = stagejit.bind(network, params)
    bound(X)
    with pytest.raises(stagejit.StagejitError, match=message):
        bound.update(change(layers(seed=5)))
    assert_close(bound(X), network(params, X))


def test_calls_on_other_threads_see_whole_updates() -> None:
    """Each element of a result is a product of one number twice: 1 or 4, never 2."""
    params = [{"a": jnp.full(4096, v), "b": jnp.full(4096, v)} for v in (1.0, 2.0)]
    bound = stagejit.bind(lambda p, x: x * p["a"] * jnp.sqrt(p["b"]) ** 2, params[0])
    x, found = jnp.ones(4096), set[float]()
    bound(x)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            found.update(np.unique(np.round(np.asarray(bound(x)), 3)).tolist())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        bound.update(params[number % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert found <= {1.0, 4.0}


def test_a_call_that_was_made_before_an_update_has_the_old_weights() -> None:
    params = [jnp.asarray(array(256, 256, seed=seed)) for seed in range(2)]
    bound = stagejit.bind(lambda w, x: jnp.linalg.matrix_power(w / 16, 8) @ x, params[0])
    x = jnp.ones((256, 256))
    wanted = np.asarray(bound(x))
    for _ in range(5):
        late = bound(x)
        bound.update(params[1])
        np.testing.assert_array_equal(late, wanted)
        bound.update(params[0])


@pytest.mark.parametrize("given", ["x", object(), jax.ShapeDtypeStruct((3,), jnp.float32)])
def test_an_update_with_what_is_no_array_changes_nothing(given: Any) -> None:
    bound = stagejit.bind(lambda p, x: x * p["w"], {"w": jnp.arange(3.0)})
    with pytest.raises(OptionsError, match=r"params\['w'\] is no array: .*") as caught:
        bound.update({"w": given})
    assert caught.value.loc.file == __file__
    assert bound(jnp.ones(3)).tolist() == [0, 1, 2]


def test_want_of_memory_after_the_change_leaves_the_new_weights_and_the_next_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Any) -> None:
        raise MemoryError

    params, f = {"w": array(8, 4), "b": array(4)}, lambda p, x: x @ p["w"] + p["b"]
    bound = stagejit.bind(f, params)
    bound(X)
    for factor in (2, 3):
        other = jax.tree.map(lambda p, by=factor: by * p, params)
        with monkeypatch.context() as patch:
            patch.setattr("stagejit.trace.weights.Weight.let_go_unless_read", fails)
            bound.update(other)
        assert_close(bound(X), f(other, X))


def test_what_reads_all_of_a_weight_in_fewer_bytes_needs_no_room_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a number for each element."""
    bound = stagejit.bind(lambda p, x: x @ p, array(256, 128), weights="int8")
    x = array(2, 256)
    bound(x)

    def refuse(shape: Any, *_: Any) -> Any:
        raise MemoryError(shape)

    other = 2 * array(256, 128)
    (table,) = {t for weight in bound._weights() for t in weight.tables}
    monkeypatch.setattr(np, "zeros", refuse)
    assert table.restoring(bound._weights()[0]) is None
    monkeypatch.undo()
    bound.update(other)
    np.testing.assert_allclose(bound(x), x @ other, rtol=2e-2, atol=2)
