"""A primitive is known by what it is, never by its name; foreign ones are what they compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core import primitives as public
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

import stagejit
from stagejit.trace import control, delegation
from stagejit.trace.calls import inline
from stagejit.trace.calls.primitives import implementation, jax_name
from stagejit.trace.translate import TRANSLATIONS

X = np.linspace(-2, 2, 6, dtype=np.float32)
TABLES = {
    *TRANSLATIONS,
    *control.TRANSLATIONS,
    *inline.CALLS,
    *inline._WITH_RULES,
    "custom_linear_solve",
}


def foreign(
    name: str, function: Any, *, lowered: Any = None, implemented: bool = True
) -> Primitive:
    """A primitive of somebody else's, of one array and one of the same type."""
    made = Primitive(name)
    made.def_abstract_eval(lambda x, **_: jax.core.ShapedArray(x.shape, x.dtype))
    if implemented:
        made.def_impl(function)
    if lowered is not None:
        mlir.register_lowering(made, lowered)
    return made


def by_hand(ctx: Any, x: Any) -> Any:
    """A lowering rule that no JAX function stands behind."""
    return [stablehlo.negate(x)]


def delegated(function: Any, *args: Any) -> list[str]:
    return [item.reason for item in stagejit.jit(function).plan(*args).delegated]


def test_every_public_primitive_is_known_by_its_name() -> None:
    found = {name: value for name, value in vars(public).items() if isinstance(value, Primitive)}
    assert len(found) > 150
    for primitive in found.values():
        assert jax_name(primitive) == primitive.name


def test_no_two_of_jax_s_primitives_share_a_name() -> None:
    from stagejit.trace.calls import primitives

    names = list(primitives._names().values())
    assert sorted(names) == sorted(set(names))


@pytest.mark.some(3)
@pytest.mark.parametrize("name", sorted(TABLES | {*delegation._REASONS}))
def test_a_foreign_primitive_may_have_any_name(name: str) -> None:
    made = foreign(name, lambda x: x + 41.0, lowered=mlir.lower_fun(lambda x: x + 41.0, False))
    assert jax_name(made) is None
    np.testing.assert_array_equal(stagejit.jit(made.bind)(X), X + np.float32(41))


def test_foreign_names_inside_of_bodies() -> None:
    """What a function that reduces is given to is compiled, or its reason is told."""
    add = foreign("add", lambda x: x * 2, lowered=mlir.lower_fun(lambda x: x * 2, False))
    program = lambda x: lax.reduce(x, np.float32(1), lambda a, b: add.bind(a * b), (0,))  # noqa: E731
    assert not delegated(program, X)
    np.testing.assert_allclose(stagejit.jit(program)(X), jax.jit(program)(X), rtol=1e-5)


def test_one_that_lower_fun_lowers_is_inlined() -> None:
    made = foreign(
        "twice", lambda x: 1 / 0, lowered=mlir.lower_fun(lambda x: jnp.sin(x) * 2, False)
    )
    program = lambda x: made.bind(x) + 1  # noqa: E731
    np.testing.assert_allclose(stagejit.jit(program)(X), np.sin(X) * 2 + 1, rtol=1e-5, atol=1e-6)
    assert not delegated(program, X)
    assert not delegated(lambda x: lax.fori_loop(0, 3, lambda _, c: made.bind(c), x), X)


def test_its_parameters_and_several_results() -> None:
    made = Primitive("scaled")
    made.multiple_results = True
    made.def_abstract_eval(lambda x, *, by: [jax.core.ShapedArray(x.shape, x.dtype)] * 2)
    mlir.register_lowering(made, mlir.lower_fun(lambda x, *, by: [x * by, x + by]))
    first, second = stagejit.jit(lambda x: made.bind(x, by=3.0))(X)
    np.testing.assert_array_equal(first, X * 3)
    np.testing.assert_array_equal(second, X + 3)


def test_one_that_nobody_taught_xla_is_its_impl() -> None:
    made = foreign("plain", lambda x: jnp.where(x > 0, x, 0))
    np.testing.assert_array_equal(stagejit.jit(made.bind)(X), np.maximum(X, 0))


def test_one_lowered_by_hand_stays_with_xla() -> None:
    made = foreign("by_hand", lambda x: -x, lowered=by_hand)
    np.testing.assert_array_equal(stagejit.jit(made.bind)(X), -X)
    assert delegated(made.bind, X) == ["by_hand (not JAX's): no kernels for this primitive yet"]


def test_one_whose_function_cannot_be_traced_stays_with_xla() -> None:
    made = foreign("on_numbers", lambda x: x, lowered=by_hand)
    stagejit.inline(made, lambda x: jnp.asarray(-float(x[0])))
    try:
        (reason,) = delegated(made.bind, X)
        assert reason.startswith("on_numbers (not JAX's): its implementation is no JAX function: ")
        np.testing.assert_array_equal(stagejit.jit(made.bind)(X), -X)
    finally:
        stagejit.inline(made, None)


def test_one_whose_function_gives_another_type_stays_with_xla() -> None:
    made = foreign("negative", lambda x: x, lowered=by_hand)
    stagejit.inline(made, lambda x: -x[:2])
    try:
        (reason,) = delegated(made.bind, X)
        assert (
            reason == "negative (not JAX's): its implementation gives other types than it declares"
        )
    finally:
        stagejit.inline(made, None)


def test_one_whose_implementation_applies_it_to_something_else_is_compiled() -> None:
    """As a solver of lineax that solves a small system in each turn of its loop."""
    power_p = Primitive("power")

    def power(x: Any, *, n: int) -> Any:
        if n == 0:
            return jnp.ones_like(x)
        return lax.cond(x[0] > 0, lambda x: x * power_p.bind(x, n=n - 1), lambda x: x, x)

    power_p.def_impl(power)
    power_p.def_abstract_eval(lambda x, *, n: x)
    f = stagejit.jit(lambda x: power_p.bind(x, n=3))
    x = jnp.arange(1.0, 4.0)
    assert not f.plan(x).delegated
    np.testing.assert_allclose(f(x), x**3, rtol=1e-6)


def test_one_that_is_implemented_by_itself_stays_with_xla() -> None:
    made = foreign("circular", None, lowered=by_hand)
    stagejit.inline(made, lambda x: jax.jit(made.bind)(x))
    try:
        np.testing.assert_array_equal(stagejit.jit(lambda x: made.bind(x) + 1)(X), 1 - X)
    finally:
        stagejit.inline(made, None)


def test_inline_is_the_word_of_the_user() -> None:
    made = foreign("negate", lambda x: -x, lowered=by_hand)
    assert implementation(made) is None
    stagejit.inline(made, lambda x: 0 - x)
    try:
        assert not delegated(made.bind, X)
        np.testing.assert_array_equal(stagejit.jit(made.bind)(X), -X)
    finally:
        stagejit.inline(made, None)
    assert implementation(made) is None


def test_inline_refuses_what_makes_no_sense() -> None:
    made = foreign("some", lambda x: x)
    with pytest.raises(TypeError, match=r"takes a jax.extend.core.Primitive, not 'sin'"):
        stagejit.inline("sin", jnp.sin)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sin is a primitive of JAX's"):
        stagejit.inline(public.sin_p, jnp.sin)
    with pytest.raises(TypeError, match="takes a function, not 3"):
        stagejit.inline(made, 3)  # type: ignore[arg-type]


def test_jax_s_own_are_inlined_too() -> None:
    """`custom_vmap` is one of those that JAX lowers by tracing a function."""

    @jax.custom_batching.custom_vmap
    def f(x: Any) -> Any:
        return jnp.sin(x) + 1

    @f.def_vmap
    def rule(size: int, batched: Any, x: Any) -> Any:
        return jnp.sin(x) + 1, True

    np.testing.assert_allclose(stagejit.jit(f)(X), np.sin(X) + 1, rtol=1e-6)
    assert not delegated(f, X)
