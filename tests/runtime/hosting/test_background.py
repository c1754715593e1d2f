"""Calls that return before they are done: which, what XLA makes of them, and that nothing else is
other than where they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.runtime.hosting import background
from stagejit.runtime.hosting.background import handed_over
from tests.randomness import RNG


@pytest.mark.parametrize(
    ("seconds", "results", "expected"),
    [
        pytest.param(1.0, 1, True, id="long"),
        pytest.param(1e-3, 1, False, id="short"),
        pytest.param(1e-3, 600, True, id="many results are made meanwhile"),
        pytest.param(1e-5, 600, False, id="shorter than handing over"),
        pytest.param(1e-3, 30, False, id="few results"),
    ],
)
def test_what_is_worth_handing_over(seconds: float, results: int, expected: bool) -> None:
    decision = handed_over("f", seconds, results, lambda: "")
    assert (decision is not None and decision.applied) == expected
    refused = handed_over("f", seconds, results, lambda: "it may not")
    assert (refused is not None) == expected
    if refused is not None:
        assert not refused.applied
        assert refused.reason == "it may not"


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


@pytest.fixture(params=[False, True], ids=["where it is called", "in the background"])
def in_background(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        monkeypatch.setattr(background, "_LONG_SECONDS", 0.0)
    return bool(request.param)


def is_handed_over(f: Callable[..., Any], *args: Any) -> bool:
    """Whether XLA counts as many operations as it wants for a thread of their own."""
    return bool(jax.jit(f).lower(*args).compile().cost_analysis()["flops"] >= 1000)


def test_xla_hands_over_what_has_work(in_background: bool) -> None:
    f, x = stagejit.jit(lambda x: jnp.tanh(x) + 1), array(7, 11)
    assert is_handed_over(f, x) == in_background
    assert ("in the background" in f.lower(x).as_text("host")) == in_background


def test_xla_compiles_no_code_for_it(in_background: bool) -> None:
    """See Note [Work for XLA] of `lowering/ffi_calls.py`: fusions, loops, sorts are code."""
    f = stagejit.jit(lambda x: jnp.tanh(x) + 1)
    text = jax.jit(f).lower(array(7, 11)).compile().as_text()
    assert (" dot(" in text) == in_background
    assert "fusion" not in text


def test_long_programs_have_work() -> None:
    """As they are, by the model."""
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    assert is_handed_over(stagejit.jit(lambda x: x @ x), x)
    assert not is_handed_over(stagejit.jit(lambda x: x[:64, :64] + 1), x)


def in_words(f: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    decisions = stagejit.jit(f, options=stagejit.Options(**options)).explain(*args).decisions
    return [each.reason for each in decisions if each.rewrite == background.NAME]


def test_it_is_explained() -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    (said,) = in_words(lambda x: x @ x, x)
    assert said.startswith("it takes ")
    small = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    (said,) = in_words(lambda x: [jnp.exp(x) + n for n in range(100)], small)
    assert said.endswith(", in which Python makes the arrays of 100 results")
    assert in_words(lambda x: x + 1, small) == []
    assert in_words(lambda x: x @ x, x, disable="run-in-background") == []
    assert in_words(lambda x: x @ x, x, check_nans=True) == ["a check ends the call that it is of"]

    def step(x: Any, _: Any) -> Any:
        return jax.pure_callback(lambda x: x + 1, x, x) @ x, None

    (said,) = in_words(lambda x: jax.lax.scan(step, x, length=3)[0], x)
    assert said == "it calls Python, whose functions may want what their caller holds"


def of_rows(table: Any, at: Any) -> Any:
    return table[at] * 2


def with_rows(table: Any, at: Any) -> Any:
    return table.at[at].add(1)


def with_slice(table: Any, at: Any) -> Any:
    return jax.lax.dynamic_update_slice(table, jnp.ones((2, 1024)), (at[0], 0))


def with_steps(table: Any, at: Any) -> Any:
    return jax.lax.fori_loop(0, 8, lambda i, t: t.at[i].add(1), table)


@pytest.mark.parametrize("f", [of_rows, with_rows, with_slice, with_steps])
def test_few_rows_of_much_memory_take_no_time(f: Callable[..., Any]) -> None:
    table = jax.ShapeDtypeStruct((1 << 16, 1024), jnp.float32)
    donated = stagejit.jit(f, donate_argnums=() if f is of_rows else 0)
    at = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert "in the background" not in donated.lower(table, at).as_text("host")
    all_of_it = stagejit.jit(lambda table, at: table * at[0])
    assert "in the background" in all_of_it.lower(table, at).as_text("host")


def scanned(x: Any) -> Any:
    return jax.lax.scan(lambda c, y: (c + jnp.sin(y), c * 2), jnp.zeros(x.shape[1:]), x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "no operand": (lambda: jnp.arange(7.0) * 3, ()),
    "some results": (lambda x, y: (x + y, (x * y).sum(), x.T), ((5, 6), (5, 6))),
    "a product of transposes": (lambda x, y: (x.T @ y.T).T, ((40, 30), (50, 40))),
    "a loop": (scanned, ((5, 6),)),
    "a gradient": (jax.grad(lambda x: jnp.tanh(x @ x).sum()), ((9, 9),)),
    "what is left to XLA": (lambda x: jnp.linalg.svd(x + 1)[1] * 2, ((5, 5),)),
    "complex": (lambda x: jnp.fft.fft(x), ((4, 33),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_same(name: str, in_background: bool) -> None:
    f, shapes = PROGRAMS[name]
    args = [array(*shape) for shape in shapes]
    made, wanted = stagejit.jit(f)(*args), jax.jit(f)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), made, wanted)


def test_transforms(in_background: bool) -> None:
    x = array(4, 9, 9)
    f = stagejit.jit(lambda x: jnp.tanh(x @ x))
    np.testing.assert_allclose(jax.vmap(f)(x), jnp.tanh(x @ x), rtol=2e-5, atol=1e-5)
    outer = jax.jit(lambda x: f(f(x[0])) + f(x[1]))
    wanted = jnp.tanh(jnp.tanh(x[0] @ x[0]) @ jnp.tanh(x[0] @ x[0])) + jnp.tanh(x[1] @ x[1])
    np.testing.assert_allclose(outer(x), wanted, rtol=2e-5, atol=1e-5)


def test_donated_arguments(in_background: bool) -> None:
    f = stagejit.jit(lambda x, i: x.at[i].add(1), donate_argnums=0)
    x = jnp.zeros((50, 60))
    for number in range(20):  # each waits for the one before
        x = f(x, number)
    assert float(x.sum()) == 20 * 60


def test_weights_that_are_bound(in_background: bool) -> None:
    w, x = array(20, 30), array(5, 20)
    f = stagejit.bind(lambda w, x: jnp.maximum(x @ w, 0), w)
    first = f(x)
    f.update(2 * w)  # which a call may still read
    np.testing.assert_allclose(first, jnp.maximum(x @ w, 0), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(f(x), 2 * jnp.maximum(x @ w, 0), rtol=2e-5, atol=1e-5)


def test_exported_modules(in_background: bool) -> None:
    x = array(6, 7)
    exported = jax.export.export(
        stagejit.jit(lambda x: x * 2 + 1),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("stagejit")],
    )(x)
    np.testing.assert_allclose(exported.call(x), x * 2 + 1)


def test_checks_end_the_call_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LONG_SECONDS", 0.0)
    checked = stagejit.Options(check_nans=True)
    assert not is_handed_over(
        stagejit.jit(lambda x: jnp.tanh(x) + 2, options=checked), array(7, 12)
    )


def test_python_functions_are_called_where_the_call_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LONG_SECONDS", 0.0)
    kind = jax.ShapeDtypeStruct((7, 13), jnp.float32)

    def step(x: Any, _: Any) -> Any:
        return jax.pure_callback(lambda x: x + 1, kind, x) * 2, None

    f = stagejit.jit(lambda x: jax.lax.scan(step, x, length=3)[0])
    assert not is_handed_over(f, array(7, 13))
    np.testing.assert_allclose(f(jnp.ones((7, 13))), 22.0)
