"""scale-weights: factors and shifts of output channels, and those that stay where they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import OptionsError
from stagejit.rewrites.driving.driver import LocalStep, run_steps
from stagejit.rewrites.weights import scales
from stagejit.rewrites.weights.scales import NAME, RULES, scaled_product
from tests.randomness import RNG
from tests.rewrites.text_in_out import reasons, rewritten, run


def product(
    then: str, *, s: str = "f32[16] bound", w: str = "f32[8,16] bound", axes: str = "(1)"
) -> str:
    return f"""graph @f(%x: f32[4,8], %w: {w}, %s: {s}, %b: f32[16] bound) {{
      %0: f32[4,16] = contract %x, %w batch=((), ()) contracting=((1), (0))
      %1: f32[4,16] = broadcast %s axes={axes}
      %2: f32[4,16] = broadcast %b axes=(1)
      {then}
    }}"""


TIMES = "%3: f32[4,16] = map mul %0, %1\nreturn %3"


def test_a_factor_of_the_result_is_one_of_the_weights() -> None:
    assert rewritten(scaled_product, product(TIMES)) == (
        "%0: f32[8,16] = broadcast %s axes=(1)\n"
        "%1: f32[8,16] = map mul %w, %0\n"
        "%2: f32[4,16] = contract %x, %1 batch=((), ()) contracting=((1), (0))\n"
        "return %2"
    )


def test_what_is_added_before_is_multiplied_too() -> None:
    made = rewritten(
        scaled_product,
        product("%3: f32[4,16] = map sub %2, %0\n%4: f32[4,16] = map div %3, %1\nreturn %4"),
    )
    assert made.splitlines()[-2:] == ["%6: f32[4,16] = map sub %5, %4", "return %6"]
    assert "%5: f32[4,16] = map div %1, %2" in made or "map div" in made


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            product("%3: f32[4,16] = map mul %0, %1\nreturn %3, %0"),
            "the product is read elsewhere, too",
        ),
        (
            product("%3: f32[4,16] = map mul %0, %1\n"
                    "%4: f32[1,16] = extract_slice %w at (0, 0)\nreturn %3, %4"),
            "the weights are read without the factor, too: there would be two copies",
        ),
        (
            product("%3: f32[4,16] = map mul %0, %1\n"
                    "%4: f32[4,8] = contract %3, %w batch=((), ()) contracting=((1), (1))\n"
                    "return %4"),
            "the weights are read without the factor, too: there would be two copies",
        ),
        (
            product(TIMES, s="f32[4] bound", axes="(0)"),
            "the factor is not one for each output channel",
        ),
        (
            product("%3: f32[] = const 2.0\n%4: f32[4,16] = fill %3\n"
                    "%5: f32[4,16] = map mul %0, %4\nreturn %5"),
            "a number is as cheap where results are stored",
        ),
    ],
)  # fmt: skip
def test_declined(text: str, reason: str) -> None:
    assert reasons(scaled_product, text) == [reason]


def test_dont_touch_what_no_weights_determine() -> None:
    assert reasons(scaled_product, product(TIMES, s="f32[16]")) == []
    assert reasons(scaled_product, product(TIMES, w="f32[8,16]")) == []
    for rule in RULES:
        assert reasons(rule, product(TIMES).replace(" bound", "")) == []


def test_rounded_weights_are_not_rounded_again() -> None:
    text = product(TIMES).replace("w: f32", "w: bf16").replace("x: f32", "x: bf16")
    assert reasons(scaled_product, text) == ["weights of bf16 would be rounded once more"]


def test_axes_in_another_order() -> None:
    text = """graph @f(%x: f32[2,8,3], %w: f32[5,2,8] bound, %s: f32[2,5] bound) {
      %0: f32[2,3,5] = contract %x, %w batch=((0), (1)) contracting=((1), (2))
      %1: f32[2,3,5] = broadcast %s axes=(0, 2)
      %2: f32[2,3,5] = map mul %0, %1
      return %2
    }"""
    assert reasons(scaled_product, text) == ["the factor is not one for each output channel"]
    text = """graph @f(%x: f32[8,3], %w: f32[5,8,2] bound, %s: f32[5,2] bound) {
      %0: f32[3,5,2] = contract %x, %w batch=((), ()) contracting=((0), (1))
      %1: f32[3,5,2] = broadcast %s axes=(1, 2)
      %2: f32[3,5,2] = map mul %0, %1
      return %2
    }"""
    assert "broadcast %s axes=(0, 2)" in rewritten(scaled_product, text)


def array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


LAYOUTS = {"last": ("NHWC", "HWIO", "NHWC"), "first": ("NCHW", "OIHW", "NCHW")}


@pytest.mark.some(2)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("where", LAYOUTS)
def test_batch_norm_after_a_convolution_costs_an_addition(
    where: str, groups: int, batch: int
) -> None:
    channels = (1, 1, 1, -1) if where == "last" else (1, -1, 1, 1)
    w = array(3, 3, 8 // groups, 16)
    params = {name: array(16, seed=at) for at, name in enumerate(("bias", "mean", "gain", "beta"))}
    params |= {"var": jnp.abs(array(16, seed=9)), "w": w if where == "last" else jnp.asarray(w.T)}

    def network(params: Any, x: Any) -> Any:
        shaped = {k: v.reshape(channels) for k, v in params.items() if k != "w"}
        y = lax.conv_general_dilated(
            x, params["w"], (1, 1), "SAME",
            dimension_numbers=LAYOUTS[where], feature_group_count=groups,
        )  # fmt: skip
        y = (y + shaped["bias"] - shaped["mean"]) * lax.rsqrt(shaped["var"] + 1e-5)
        return jax.nn.relu(y * shaped["gain"] + shaped["beta"])

    x = array(batch, 6, 8, 8) if where == "last" else array(batch, 8, 6, 8)
    bound = stagejit.bind(network, params)
    np.testing.assert_allclose(bound(x), network(params, x), rtol=1e-4, atol=1e-4)
    assert [d.ops for d in bound.plan(x).dispatches] == [("conv", "add", "max")]
    off = stagejit.Options(disable=("scale-weights",))
    unfolded = stagejit.bind(network, params, options=off)
    np.testing.assert_allclose(unfolded(x), bound(x), rtol=1e-4, atol=1e-4)
    assert "mul" in unfolded.plan(x).dispatches[-1].ops


@pytest.mark.parametrize(
    "others",
    [
        lambda w, x: (),
        lambda w, x: w[0],
        lambda w, x: x @ w,
        lambda w, x: (x @ w) * w.sum(0) + 1,
        lambda w, x: jax.grad(lambda x: ((x @ w) * w.sum(0)).sum())(x),
        lambda w, x: w,
    ],
)
def test_a_factor_of_the_weights_own_is_made_once_and_no_copy_of_them(others: Any) -> None:
    def f(w: Any, x: Any) -> Any:
        return (x @ w) * w.sum(0), others(w, x)

    w, x = array(64, 48), array(5, 64, seed=1)
    bound = stagejit.bind(f, w, options=stagejit.Options(verify=True))
    for found, wanted in zip(jax.tree.leaves(bound(x)), jax.tree.leaves(f(w, x)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    decisions = bound.plan(x).decisions
    assert [d.reason for d in decisions if d.rewrite == "evaluate-weights" and not d.applied] == []
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * w.nbytes


def test_multiples_of_f16_are_not_made() -> None:
    text = product(TIMES).replace("f32", "f16")
    assert reasons(scaled_product, text) == [
        "multiples of f16 may be too large or too small for it"
    ]
    w = np.full((64, 48), 50, np.float16)
    s, x = np.full(48, 2e3, np.float16), np.full((8, 64), 1e-3, np.float16)
    found = stagejit.bind(lambda p, x: (x @ p[0]) * p[1], (w, s))(x)
    np.testing.assert_allclose(found, (x.astype(float) @ w) * s, rtol=3e-3)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_rounds_by_adding_and_taking_away_still_does(sign: int) -> None:
    w = np.full(8, sign * 1.5 * 2**23, np.float32)
    found = stagejit.bind(lambda w, x: (x + w) - w, w)(np.full((1, 8), 2.4, np.float32))
    np.testing.assert_array_equal(found, np.full((1, 8), 2.0))


@pytest.mark.parametrize("rows", [(8, 1), (1, 8), (3, 1, 1, 5)])
def test_one_row_has_the_factors_that_many_have(rows: tuple[int, ...]) -> None:
    """And no other copy of the weights: they need not be there any more."""

    def layer(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["w"] * p["s"] + p["b"])

    rng = np.random.default_rng(5)
    params = {"w": rng.normal(size=(96, 192)) / 10, "s": rng.uniform(1, 2, 192), "b": np.ones(192)}
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    wanted = {name: np.asarray(value, np.float64) for name, value in params.items()}
    bound = stagejit.bind(layer, params)
    del params
    for count in rows:
        x = rng.normal(size=(count, 96)).astype(np.float32)
        exact = np.tanh(x @ wanted["w"] * wanted["s"] + wanted["b"])
        np.testing.assert_allclose(bound(x), exact, atol=2e-6)
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * 4 * 96 * 192


NUMBERS = (np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("fn", ["mul", "div"])
def test_factors_that_are_no_ordinary_numbers(number: float, fn: str) -> None:
    """Of weights some are 0, which no product is; with a shift, and without."""
    random = np.random.default_rng(0)
    w, b = (random.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16,)))
    w[::2, 3:5] = 0
    s = np.ones(16, np.float32)
    s[3] = s[7] = number
    x = random.normal(size=(4, 8)).astype(np.float32)

    def f(params: Any, x: Any) -> Any:
        w, b, s = params
        both = x @ w + b, x @ (w * 0.5)
        return [made * s[None] if fn == "mul" else made / s[None] for made in both]

    bound = stagejit.bind(f, (w, b, s))
    with np.errstate(all="ignore"):
        wanted = f((w, b, s), x)
        finite = np.isfinite(s if fn == "mul" else 1 / s.astype(np.float64)).all()
    for one, other in zip(bound(x), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-5)
    declined = [d for d in bound.plan(x).decisions if "not finite" in d.reason]
    assert bool(declined) != finite


def _layers(fn: str, x: Any, layer: Any) -> Any:
    w, s, b = layer
    made = x @ w + b
    return jnp.clip(made * s if fn == "mul" else made / s, -3, 3)


def _scanned(fn: str, params: Any, x: Any) -> Any:
    return lax.scan(lambda c, layer: (_layers(fn, c, layer), None), x, params)[0]


def _nested(fn: str, params: Any, x: Any) -> Any:
    pairs = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), params)
    return lax.scan(lambda c, pair: (_scanned(fn, pair, c), None), x, pairs)[0]


def _branches(fn: str, params: Any, x: Any) -> Any:
    def layer(c: Any, each: Any) -> Any:
        return lax.cond(c[0, 0] > 9, lambda c: c, lambda c: _layers(fn, c, each), c), None

    return lax.scan(layer, x, params)[0]


def _counted(fn: str, params: Any, x: Any) -> Any:
    def layer(at: Any, c: Any) -> Any:
        return _layers(fn, c, jax.tree.map(lambda a: a[at], params))

    return lax.fori_loop(0, 4, layer, x)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("fn", ["mul", "div"])
@pytest.mark.parametrize("net", [_scanned, _nested, _branches, _counted])
def test_factors_of_one_layer_that_are_no_ordinary_numbers(
    net: Any, fn: str, number: float
) -> None:
    """Weights are 0 nearly everywhere, and what is not finite is cut off again."""
    s = jnp.ones((4, 16)).at[2, 7].set(number)
    params = jnp.stack([jnp.eye(16)] * 4), s, jnp.full((4, 16), 0.5)
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (8, 16)), jnp.float32)
    f = partial(net, fn)
    bound = stagejit.bind(f, params)
    np.testing.assert_allclose(bound(x), f(params, x), rtol=1e-6)


def test_a_factor_of_layers_is_looked_at_in_each() -> None:
    def scaled(s: Any) -> bool:
        params = jnp.ones((4, 16, 16)), s, jnp.ones((4, 16))
        plan = stagejit.bind(partial(_scanned, "mul"), params).plan(jnp.ones((8, 16)))
        return any(d.rewrite == NAME and d.applied for d in plan.decisions)

    assert scaled(jnp.ones((4, 16)))
    assert not scaled(jnp.ones((4, 16)).at[3, 5].set(jnp.inf))


@pytest.mark.parametrize("fn", ["mul", "div"])
@pytest.mark.parametrize("at", [(0, 0), (0, 2), (1, 1)])
def test_factors_of_layers_of_layers_are_looked_at_in_each(at: tuple[int, int], fn: str) -> None:
    def deep(params: Any, x: Any) -> Any:
        return lax.scan(lambda c, inner: (_scanned(fn, inner, c), None), x, params)[0]

    ones = jnp.ones((2, 3, 16))
    s = ones.at[(*at, 7)].set(jnp.inf if fn == "mul" else 0)
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (8, 16)), jnp.float32)
    weights = jnp.broadcast_to(jnp.eye(16), (2, 3, 16, 16))
    for factor, is_applied in ((ones, True), (s, False)):
        params = weights, factor, ones / 2
        bound = stagejit.bind(deep, params)
        np.testing.assert_allclose(bound(x), deep(params, x), rtol=1e-6)
        told = [d for d in bound.plan(x).decisions if d.rewrite == NAME]
        assert any(d.applied for d in told) == is_applied
        assert told
    bound = stagejit.bind(deep, (weights, ones, ones / 2))
    bound(x)
    with pytest.raises(OptionsError, match="before any call"):
        bound.update((weights, s, ones / 2))
    np.testing.assert_allclose(bound(x), deep((weights, ones, ones / 2), x), rtol=1e-6)


def test_a_factor_that_is_computed_of_weights() -> None:
    w, v = np.zeros((8, 16), np.float32), np.zeros(16, np.float32)
    w[0] = 1
    x = np.ones((4, 8), np.float32)
    bound = stagejit.bind(lambda p, x: (x @ p[0]) * lax.rsqrt(p[1])[None], (w, v))
    np.testing.assert_array_equal(np.asarray(bound(x)), np.full((4, 16), np.inf))


def test_shifts_of_any_number() -> None:
    """More than Python's stack has room for."""
    adds = "\n".join(f"%{at}: f32[4,16] = map add %{at - 1}, %2" for at in range(4, 1500))
    text = f"%3: f32[4,16] = map sub %2, %0\n{adds}\n%1500: f32[4,16] = map mul %1499, %1\n"
    made = rewritten(scaled_product, product(f"{text}return %1500"))
    assert "map mul %w, %2\n" in made


def test_the_programs_of_a_gradient_read_one_copy_of_the_weights() -> None:
    """A call alone has the factor in them."""
    w, s, x = (jnp.asarray(RNG.normal(size=n).astype(np.float32)) for n in ((96, 80), 80, (40, 96)))

    def f(p: Any, x: Any) -> Any:
        return jnp.tanh((x @ p["w"]) * p["s"])

    params = {"w": w, "s": s}
    bound = stagejit.bind(f, params)
    gradient = jax.jit(jax.grad(lambda x: bound(x).sum()))
    wanted = jax.grad(lambda x: f(params, x).sum())(x)
    np.testing.assert_allclose(gradient(x), wanted, rtol=1e-3, atol=1e-3)
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * (w.nbytes + s.nbytes)
    said = "the two programs of a gradient read one copy of the weights, without it"
    forward = stagejit.jit(lambda x: jax.vjp(bound, x)).plan(x).decisions
    assert said in [d.reason for d in forward if d.rewrite == NAME and not d.applied]
    (decision,) = (d for d in bound.plan(x).decisions if d.rewrite == NAME)
    assert decision.applied


@pytest.mark.parametrize("reads_otherwise", [False, True])
def test_many_products_of_one_weight_are_looked_at_once(
    reads_otherwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[Any]()
    is_scaled = scales._is_scaled
    monkeypatch.setattr(scales, "_is_scaled", lambda *args: looked.append(args) or is_scaled(*args))

    def f(params: Any, x: Any) -> Any:
        for _ in range(count):
            x = jnp.tanh((x @ params[0]) * params[1])
        return x @ params[0] if reads_otherwise else x

    params = jnp.eye(16), jnp.ones(16)
    for count in (20, 60):
        looked.clear()
        decisions = stagejit.bind(f, params).plan(jnp.ones((4, 16))).decisions
        applied = [d for d in decisions if d.rewrite == NAME and d.applied]
        assert len(applied) == (0 if reads_otherwise else count)
        assert len(looked) <= 3 * count


def test_a_reader_that_is_scaled_now_holds_nobody_up() -> None:
    """A product is read as it is, until what reads it is multiplied, too, or is gone."""
    lines = [
        "%3: f32[4,16] = map mul %0, %1",
        "%4: f32[4,16] = contract %x, %w batch=((), ()) contracting=((1), (0))",
        "%5: f32[4,16] = map mul %4, %1",
        "%6: f32[4,16] = contract %x, %w batch=((), ()) contracting=((1), (0))",
    ]
    graph, decisions = run(scaled_product, product("\n".join([*lines, "return %3, %5, %6"])))
    said = "the weights are read without the factor, too: there would be two copies"
    assert [d.reason for d in decisions] == [said] * 2
    graph.set_outputs(graph.outputs[:2])
    graph.eliminate_dead()
    step = LocalStep("test", (scaled_product,))
    assert [d.applied for d in run_steps(graph, (step,), stagejit.Options())] == [True, True]
