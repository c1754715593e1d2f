"""store-weights: products of weights in fewer bytes, against those of the rounded weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit

Array = Any
VERIFY = stagejit.Options(verify=True)


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rounded(w: np.ndarray[Any, Any], form: str, summed: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """By the definition of the forms, for a product that sums over these axes of `w`."""
    if form == "bf16":
        return w.astype(ml_dtypes.bfloat16).astype(np.float32)
    largest = 127 if form == "int8" or w.shape[summed[-1]] % 2 else 7
    magnitude = np.abs(w).max(summed, keepdims=True)
    scale = np.where(magnitude == 0, np.float32(1), magnitude / np.float32(largest))
    return np.rint(w / scale).astype(np.float32) * scale


def convolution(w: Array, x: Array) -> Array:
    return lax.conv_general_dilated(
        x.reshape(2, 4, 4, -1), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


# The function, its weight, the axes that are summed over, its argument.
PRODUCTS: dict[str, tuple[Any, np.ndarray[Any, Any], tuple[int, ...], np.ndarray[Any, Any]]] = {
    "vector": (lambda w, x: x @ w, array(64, 48), (0,), array(64, seed=1)),
    "matrix": (lambda w, x: x @ w, array(64, 48), (0,), array(5, 64, seed=1)),
    "panels": (lambda w, x: x @ w, array(512, 768), (0,), array(3, 512, seed=1)),
    "panels of rows": (lambda w, x: w @ x.T, array(768, 512), (1,), array(3, 512, seed=1)),
    "panels of a transpose": (lambda w, x: x @ w.T, array(768, 512), (1,), array(3, 512, seed=1)),
    "panels and zeros": (lambda w, x: x @ w, array(64, 301), (0,), array(3, 64, seed=1)),
    "panels and zeros of rows": (lambda w, x: w @ x.T, array(301, 64), (1,), array(3, 64, seed=1)),
    "transposed": (lambda w, x: x @ w.T, array(48, 64), (1,), array(5, 64, seed=1)),
    "from the left": (lambda w, x: w @ x.T, array(48, 64), (1,), array(5, 64, seed=1)),
    "odd": (lambda w, x: x @ w, array(63, 48), (0,), array(5, 63, seed=1)),
    "two axes of outputs": (
        lambda w, x: jnp.einsum("td,dhk->thk", x, w), array(64, 6, 8), (0,), array(5, 64, seed=1),
    ),
    "two axes of sums": (
        lambda w, x: jnp.einsum("thk,hkd->td", x.reshape(5, 4, 16), w),
        array(4, 16, 32), (0, 1), array(5, 64, seed=1),
    ),
    "batches": (
        lambda w, x: jnp.einsum("etk,ekn->etn", x.reshape(4, 5, 16), w),
        array(4, 16, 32), (1,), array(20, 16, seed=1),
    ),
    "a channel of zeros": (
        lambda w, x: x @ w, array(64, 48) * (np.arange(48) != 3), (0,), array(5, 64, seed=1),
    ),
    "convolution": (convolution, array(3, 3, 16, 24), (0, 1, 2), array(32, 16, seed=1)),
}  # fmt: skip


def assert_near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * float(np.abs(wanted).max()))


@pytest.mark.some(4)
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_bound_product_is_that_of_the_rounded_weights(name: str, form: Any) -> None:
    f, w, summed, x = PRODUCTS[name]
    known = rounded(w, form, summed)
    kept = jnp.asarray(w)  # which the programs of gradients read, too
    bound = stagejit.bind(f, kept, weights=form, options=VERIFY)
    assert_near(bound(x), f(known, x))
    loss = lambda g: jax.grad(lambda x: (g(x) ** 2).sum())(jnp.asarray(x))  # noqa: E731
    assert_near(loss(bound), loss(lambda x: f(known, x)))
    if name in ("matrix", "panels", "panels and zeros"):
        both = stagejit.jit(jax.value_and_grad(lambda x: (bound(x) ** 2).sum()), options=VERIFY)
        assert_near(both(x)[1], loss(lambda x: f(known, x)))
    (error,) = bound.weight_error.values()
    np.testing.assert_allclose(error, np.linalg.norm(known - w) / np.linalg.norm(w), rtol=1e-3)
    analysis = bound.memory_analysis()
    assert analysis["weight_error"] == error
    bits = {"bf16": 16, "int8": 8, "int4": 8 if name == "odd" else 4}[form]
    assert analysis["made_nbytes"] <= w.size * bits // 8 + 4 * 1000
    assert [d for d in bound.plan(x).dispatches if d.kind in ("contract", "conv")]
    assert (
        "bf16" in str(bound.explain(x))
        if form == "bf16"
        else "int8, with" in str(bound.explain(x)).replace("int4", "int8")
    )


def test_update_rounds_anew() -> None:
    first, second = array(64, 48), 3 * array(64, 48, seed=5) ** 3
    bound = stagejit.bind(lambda w, x: x @ w, first, weights="int8")
    x = array(5, 64, seed=1)
    bound(x)
    before = bound.weight_error
    bound.update(second)
    assert_near(bound(x), x @ rounded(second, "int8", (0,)))
    assert bound.weight_error != before


def test_the_weight_is_the_same_backwards_whatever_is_compiled_first() -> None:
    w, x = array(64, 48), jnp.asarray(array(5, 64, seed=1))
    known = rounded(w, "int8", (0,))

    def gradient(f: Any) -> Any:
        return jax.grad(lambda x: (f(x) ** 2).sum())(x)

    for first in (lambda f: f(x), gradient):
        bound = stagejit.bind(lambda w, x: x @ w, w, weights="int8")
        first(bound)
        assert_near(bound(x), x @ known)
        assert_near(jax.vmap(bound)(x), x @ known)
        assert_near(gradient(bound), 2 * (x @ known) @ known.T)


@pytest.mark.parametrize(
    ("f", "params", "reason"),
    [
        (
            lambda w, x: x @ w + w[0], jnp.asarray(array(64, 48)),
            "others than products read it, too",
        ),
        (lambda w, x: x @ w, jnp.asarray(array(64, 2)), "a weight of 128 elements is small"),
        (
            lambda w, x: x.astype("bfloat16") @ w, jnp.asarray(array(64, 48), jnp.bfloat16),
            "a weight of bf16 stays what it is",
        ),
    ],
)  # fmt: skip
def test_what_stays_as_it_is(f: Any, params: Any, reason: str) -> None:
    x = jnp.asarray(array(5, 64, seed=1))
    bound = stagejit.bind(f, params, weights="int8")
    assert_near(bound(x), f(params, x))
    decisions = [d for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    assert [(d.applied, d.reason) for d in decisions] == [(False, reason)]
    assert bound.weight_error == {}


SMALLER: dict[str, tuple[Any, Any, int]] = {  # the matrix, what it is made of, bits of an element
    "integers of 8 bits and scales": (
        lambda p: p[0].astype(jnp.float32) * p[1],
        (jnp.asarray(array(64, 48) * 40, jnp.int8), jnp.asarray(array(48, seed=2) / 40)), 8,
    ),
    "scales of groups": (
        lambda p: (p[0].reshape(4, 16, 48).astype(jnp.float32) * p[1][:, None]).reshape(64, 48),
        (jnp.asarray(array(64, 48) * 40, jnp.int8), jnp.asarray(array(4, 48, seed=2) / 40)), 8,
    ),
    "zero points": (
        lambda p: ((p[0].astype(jnp.float32) - p[1]) * p[2]).T,
        (
            jnp.asarray(array(48, 64) * 40 + 128, jnp.uint8), jnp.full((48, 1), 128.0),
            jnp.asarray(array(48, 1, seed=2) / 40),
        ), 8,
    ),
    "floats of 8 bits": (
        lambda p: p.astype(jnp.float32), jnp.asarray(array(64, 48), jnp.float8_e4m3fn), 8,
    ),
    "bf16": (lambda p: p.astype(jnp.float32), jnp.asarray(array(64, 48), jnp.bfloat16), 16),
    "a mask": (lambda p: jnp.where(p, 0.1, -0.3), jnp.asarray(array(64, 48) > 0), 8),
    "squares": (
        lambda p: p.astype(jnp.float32) * jnp.sin(p.astype(jnp.float32)),
        jnp.asarray(array(64, 48), jnp.bfloat16), 16,
    ),
    "a part": (
        lambda p: (p[0].astype(jnp.float32) * p[1])[:, 48:96],
        (jnp.asarray(array(64, 144) * 40, jnp.int8), jnp.asarray(array(144, seed=2) / 40)), 8,
    ),
    "a layer": (
        lambda p: (p.astype(jnp.float32) / 40)[2], jnp.asarray(array(6, 64, 48) * 40, jnp.int8), 8,
    ),
    "parts side by side": (
        lambda p: jnp.concatenate([part.astype(jnp.float32) / 40 for part in p], 1),
        [jnp.asarray(array(64, 24, seed=seed) * 40, jnp.int8) for seed in (1, 2)], 8,
    ),
    "a block of zeros": (
        lambda p: jnp.pad(p / 40, ((0, 0), (24, 0))), jnp.asarray(array(64, 24) * 40, jnp.int8), 4,
    ),
    "rounded here": (
        lambda p: jnp.round(p * 40).astype(jnp.int8).astype(jnp.float32) / 40,
        jnp.asarray(array(64, 48)), 8,
    ),
    "f32": (lambda p: p * 2, jnp.asarray(array(64, 48)), 32),
}  # fmt: skip


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", SMALLER)
def test_dont_round_what_is_read_in_fewer_bytes(name: str, form: Any) -> None:
    matrix, params, bits = SMALLER[name]
    x = jnp.asarray(array(5, 64, seed=1))
    bound = stagejit.bind(lambda p, x: x @ matrix(p), params, weights=form)
    made, stays = bound(x), {"bf16": 16, "int8": 8, "int4": 4}[form] > bits
    reasons = [d.reason for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    assert any("bytes where it is read" in reason for reason in reasons) == stays
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    if stays:
        assert_near(made, x @ matrix(params))
        assert bound.weight_error == {}
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * nbytes


def test_switched_off_the_weights_are_those_that_were_bound() -> None:
    w, x = jnp.asarray(array(64, 48)), jnp.asarray(array(5, 64, seed=1))
    options = stagejit.Options(disable=("store-weights",))
    bound = stagejit.bind(lambda w, x: x @ w, w, weights="int4", options=options)
    assert_near(bound(x), x @ w)


def test_a_form_that_there_is_not() -> None:
    with pytest.raises(stagejit.StagejitError, match="weights is 'int3'"):
        stagejit.bind(lambda w, x: x @ w, array(64, 48), weights="int3")  # type: ignore[arg-type]


def normalized(product: Any) -> Any:
    """A batch norm at inference, whose factors its shift reads, too."""

    def f(params: Any, x: Any) -> Any:
        y = product(params["w"], x) - params["mean"]
        return jnp.tanh(y / jnp.sqrt(params["var"]) * params["scale"] + params["shift"])

    return f


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("product", [convolution, jnp.dot])
def test_what_a_batch_norm_is_a_part_of(product: Any, form: Any) -> None:
    shape, turned = ((3, 3, 16, 24), False) if product is convolution else ((24, 64), True)
    f = normalized(product if not turned else lambda w, x: x @ w.T)
    params = {name: array(24, seed=at) for at, name in enumerate(("mean", "scale", "shift"))}
    params |= {"w": array(*shape), "var": array(24, seed=9) ** 2 + 0.5}
    x = jnp.asarray(array(*((5, 64) if turned else (32, 16)), seed=1)) / 16

    def near(params: Any) -> Any:
        factor = params["scale"] / np.sqrt(params["var"])
        factor = factor[:, None] if turned else factor
        made = rounded(params["w"] * factor, form, (1,) if turned else (0, 1, 2))
        return {**params, "w": made / factor}

    bound = stagejit.bind(f, params, weights=form, options=VERIFY)
    # backwards, and where a convolution is reshaped, `w` is rounded, and not its multiple
    tolerance = 4e-2 if form == "bf16" else 5e-5
    for known in (params, {**params, "scale": array(24, seed=7), "w": 3 * params["w"]}):
        bound.update(known)
        wanted = functools.partial(f, near(known))
        np.testing.assert_allclose(bound(x), wanted(x), atol=2e-5)
        found, gradient = (jax.grad(lambda x: g(x).sum())(x) for g in (bound, wanted))  # noqa: B023
        most = float(jnp.abs(gradient).max())
        np.testing.assert_allclose(found, gradient, atol=tolerance * most)
        wide = jnp.stack([x, 2 * x])
        np.testing.assert_allclose(jax.vmap(bound)(wide), jax.vmap(wanted)(wide), atol=tolerance)
        assert 0 < bound.memory_analysis()["weight_error"] < 0.2


def test_what_vectors_are_put_together_to_stays_where_others_read_them() -> None:
    flat, x = jnp.asarray(array(64 * 48 + 48)), jnp.asarray(array(5, 64, seed=1))
    f = lambda w, x: x @ w[48:].reshape(64, 48) + w[:48]  # noqa: E731
    bound = stagejit.bind(f, flat, weights="int8")
    assert_near(bound(x), f(flat, x))
    assert bound.weight_error == {}


@pytest.mark.parametrize("columns", [1000, 701, 640])
def test_columns_of_any_number_are_read_as_they_are_stored(columns: int) -> None:
    """A tile makes them of 4 bits where it reads them, and no call packs them."""
    w, x = array(512, columns), array(3, 512, seed=1)
    for f, weight in ((lambda w, x: x @ w, w), (lambda w, x: x @ w.T, w.T.copy())):
        bound = stagejit.bind(f, weight, weights="int4")
        assert " packs operand" not in str(bound.explain(x))
        assert_near(bound(x), x @ rounded(w, "int4", (0,)))


def test_dont_put_more_zeros_beside_columns_than_they_are_worth() -> None:
    bound = stagejit.bind(lambda w, x: x @ w, array(512, 33), weights="int4")
    bound(array(3, 512, seed=1))
    assert bound.memory_analysis()["made_nbytes"] == 512 * 33 // 2 + 4 * 33


@pytest.mark.parametrize(("form", "columns"), [("bf16", 640), ("int8", 640), ("int4", 637)])
@pytest.mark.parametrize(
    "other",
    ["bij,ij->b", "ij,ij->", "ik,bk->bi", "b,ik->bik", "bik,ik->bik", "ik,ik->i", "ik,ik->k"],
)
def test_any_product_reads_what_another_wants_in_panels(
    other: str, form: Any, columns: int
) -> None:
    w = array(512, columns)
    sizes = {"b": 3, "i": 512, "j": columns, "k": columns}
    terms = other.split("->")[0].split(",")
    at = next(at for at, term in enumerate(terms) if len(term) == 2 and term[0] == "i")
    y = array(*(sizes[axis] for axis in terms[1 - at]), seed=2) / 25
    x = array(3, 512, seed=1) / 25

    def f(w: Array, x: Array, y: Array) -> Any:
        return x @ w, jnp.einsum(other, *((w, y) if at == 0 else (y, w)))

    found = stagejit.bind(f, w, weights=form)(x, y)
    near = rounded(w, form, (0,)).astype(np.float64)
    both = (near, y) if at == 0 else (y, near)
    np.testing.assert_allclose(found[0], x @ near, atol=1e-4)
    np.testing.assert_allclose(found[1], np.einsum(other, *both), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_weight_with_an_inf_or_a_nan_stays_as_it_is(
    number: float, form: Any, turned: bool
) -> None:
    w, x = array(48, 64) if turned else array(64, 48), array(5, 64, seed=1)
    w[7, 9] = number

    def f(w: Any, x: Any) -> Any:
        return x @ (w.T if turned else w)

    bound = stagejit.bind(f, w, weights=form)
    np.testing.assert_allclose(bound(x), f(w, x), rtol=1e-5, atol=1e-5)
    said = [d for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    reason = "it has an Inf or a NaN, which integers have not"
    assert [(d.applied, d.reason) for d in said] == [(False, reason)]
    bound.update(np.ones_like(w))  # every program reads what the first one does
    np.testing.assert_allclose(
        jax.grad(lambda x: bound(x).sum())(jnp.asarray(x)), 48 * np.ones(x.shape)
    )
    assert bound.weight_error == {}


def test_a_weight_with_an_inf_is_one_in_bf16() -> None:
    w, x = array(64, 48), array(5, 64, seed=1)
    w[7, 9] = np.inf
    bound = stagejit.bind(lambda w, x: x @ w, w, weights="bf16")
    assert_near(bound(x)[:, :9], x @ rounded(w, "bf16", (0,))[:, :9])
    np.testing.assert_array_equal(bound(x)[:, 9], (x @ w)[:, 9])
    assert list(bound.weight_error) == ["params"]


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_an_update_with_a_nan_is_refused_and_changes_nothing(form: Any) -> None:
    w, x = array(64, 48), array(5, 64, seed=1)
    bound = stagejit.bind(lambda p, x: x @ p["w"], {"w": w}, weights=form)
    before, other = bound(x), w.copy()
    other[1, 2] = np.nan
    message = rf"of params\['w'\] has an Inf or a NaN, and is stored as {form}"
    with pytest.raises(stagejit.StagejitError, match=message):
        bound.update({"w": other})
    np.testing.assert_array_equal(bound(x), before)
    bound.update({"w": 2 * w})
    np.testing.assert_allclose(bound(x), 2 * before, rtol=1e-5)


def test_what_is_computed_of_finite_weights_may_be_too_large() -> None:
    params = {"w": array(64, 48), "scale": np.full(48, 1e30, np.float32)}
    bound = stagejit.bind(lambda p, x: x @ (p["w"] * p["scale"] ** 2), params, weights="int8")
    with pytest.raises(stagejit.StagejitError, match="has an Inf or a NaN, and is stored as int8"):
        bound(array(5, 64, seed=1))


@pytest.mark.parametrize("factor", [1e-44, 1e-30, 1e25, 1e38])
def test_errors_of_weights_of_any_size_are_known_or_there_are_none(factor: float) -> None:
    w = np.clip(array(64, 48), -3, 3) * np.float32(factor)
    bound = stagejit.bind(lambda w, x: x @ w, w, weights="int8")
    bound(array(5, 64, seed=1))
    if factor < 1e-37:  # no integers of a normal scale
        assert bound.weight_error == {}
        return
    (error,) = bound.weight_error.values()
    known = rounded(w, "int8", (0,)).astype(np.float64)
    wanted = np.linalg.norm(known - w) / np.linalg.norm(w.astype(np.float64))
    np.testing.assert_allclose(error, wanted, rtol=1e-3)


@pytest.mark.parametrize(("columns", "width"), [(256, 128), (192, 64), (96, 32), (80, None)])
@pytest.mark.parametrize("turned", [False, True])
def test_two_numbers_of_a_byte_are_of_one_step_of_the_sum(
    columns: int, width: int | None, turned: bool
) -> None:
    """So that tiles make them where they read them; of two steps they are made in scratch."""
    w = array(*((columns, 64) if turned else (64, columns)))
    f: Any = (lambda w, x: x @ w.T) if turned else (lambda w, x: x @ w)
    bound = stagejit.bind(f, w, weights="int4", options=VERIFY)
    for rows in (1, 5, 64):
        x = jnp.asarray(array(rows, 64, seed=1))
        assert_near(bound(x), f(rounded(w, "int4", (int(turned),)), x))
        stored = next(b for b in bound.plan(x).buffers if b.dtype.name == "u8")
        if width is not None:
            assert stored.shape == (columns // width, 64, width // 2)
        else:
            assert len(stored.shape) == 2
