"""Arguments and results that lie as the caller says: `jax.experimental.layout.Format`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import stagejit
from stagejit.options import Options
from stagejit.runtime.lowering.formats import formats_of

VERIFIED = Options(verify=True)


def lying(*order: int) -> Format:
    """For arrays whose axes lie in this order, the slowest first."""
    return Format(Layout(order), SingleDeviceSharding(jax.devices()[0]))


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)


def copies(jitted: Any, *args: Any) -> int:
    """Copies and transposes that XLA makes around our call."""
    text = jitted.lower(*args).compile().as_text()
    return len(re.findall(r" = [^ ]+ (?:copy|transpose|fusion)\(", text))


def order_of(x: Any) -> tuple[int, ...]:
    order: tuple[int, ...] = x.format.layout.major_to_minor
    return order


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_arguments_and_results_in_any_order(order: tuple[int, ...]) -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.tanh(x) + y, jnp.cumsum(x, 1).sum(2)

    x, y = array(4, 5, 6), array(4, 5, 6)
    jitted = stagejit.jit(f, out_shardings=(lying(*order), None), options=VERIFIED)
    given = jax.device_put(x, lying(*order)), jnp.asarray(y)
    a, b = jitted(*given)
    assert order_of(a) == order
    np.testing.assert_allclose(a, np.tanh(x) + y, rtol=1e-5)
    np.testing.assert_allclose(b, np.cumsum(x, 1).sum(2), rtol=1e-4, atol=1e-4)
    assert not copies(jitted, *given)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float16, np.complex64, jnp.bfloat16])
def test_elements_of_any_type(dtype: Any) -> None:
    x = array(3, 4, 5, dtype=np.float32).astype(dtype)
    jitted = stagejit.jit(lambda x: (x == x[:1], x), out_shardings=lying(2, 0, 1), options=VERIFIED)
    same, back = jitted(jax.device_put(x, lying(1, 2, 0)))
    np.testing.assert_array_equal(same, x == x[:1])
    np.testing.assert_array_equal(back, x)
    assert order_of(back) == (2, 0, 1)


def test_switched_off_xla_copies() -> None:
    x = jax.device_put(array(4, 5, 6), lying(2, 0, 1))
    on = stagejit.jit(jnp.sin, in_shardings=lying(2, 0, 1))
    off = stagejit.jit(jnp.sin, in_shardings=lying(2, 0, 1),
                       options=Options(disable=("caller-layouts",)))  # fmt: skip
    np.testing.assert_array_equal(on(x), off(x))
    assert not copies(on, x)
    assert copies(off, x)
    applied = [d for d in on.plan(x).decisions if d.rewrite == "caller-layouts"]
    assert [(d.op, d.applied, d.reason) for d in applied] == [
        ("argument x", True, "lies in {2,0,1}")
    ]
    assert not [d for d in off.plan(x).decisions if d.rewrite == "caller-layouts"]


def test_what_nobody_can_store_otherwise_is_copied_by_a_dispatch() -> None:
    """An argument that is returned in another order, and what foreign code leaves."""
    x = array(6, 4)
    turned = stagejit.jit(lambda x: x, out_shardings=lying(1, 0), options=VERIFIED)
    plan = turned.plan(x)
    assert [d.kind for d in plan.dispatches] == ["copy"]
    np.testing.assert_array_equal(turned(x), x)
    square = x @ x.T + 9 * np.eye(6, dtype=np.float32)
    inverse = stagejit.jit(jnp.linalg.cholesky, out_shardings=lying(1, 0), options=VERIFIED)
    made = inverse(square)
    assert order_of(made) == (1, 0)
    np.testing.assert_allclose(made, np.linalg.cholesky(square), rtol=1e-4, atol=1e-4)


def test_a_donated_argument_is_overwritten_in_its_order() -> None:
    turned = lying(1, 0)
    jitted = stagejit.jit(lambda x: jnp.exp(x / 9) + 2.0, donate_argnums=0, in_shardings=turned,
                          out_shardings=turned, options=VERIFIED)  # fmt: skip
    x = array(64, 32)
    given = jax.device_put(jnp.asarray(x), turned)
    at = given.unsafe_buffer_pointer()
    assert not copies(jitted, given)
    assert not jitted.plan(given).copies
    made = jitted(given)
    assert given.is_deleted()
    assert made.unsafe_buffer_pointer() == at
    np.testing.assert_allclose(made, np.exp(x / 9) + 2, rtol=1e-5)


def test_calls_inside_of_other_programs() -> None:
    """A transpose of XLA's before a call of ours is a layout of its operand."""
    inner = stagejit.jit(lambda x: jnp.cumsum(x, 0) * 2, options=VERIFIED)
    x = array(8, 9)
    outer = jax.jit(lambda x: inner(x.T) + 1)
    np.testing.assert_allclose(outer(x), np.cumsum(x.T, 0) * 2 + 1, rtol=1e-5)
    assert " transpose(" not in outer.lower(x).compile().as_text()


def test_gradients_and_vmap_of_what_lies_otherwise() -> None:
    x = jax.device_put(array(4, 5), lying(1, 0))
    f = stagejit.jit(lambda x: (jnp.sin(x) * x).sum(), options=VERIFIED)
    np.testing.assert_allclose(jax.grad(f)(x), np.sin(x) + np.cos(x) * x, rtol=1e-4, atol=1e-4)
    rows = jax.vmap(stagejit.jit(jnp.cumsum, options=VERIFIED))(x)
    np.testing.assert_allclose(rows, np.cumsum(x, 1), rtol=1e-4, atol=1e-4)


def test_what_xla_chooses_is_row_major() -> None:
    auto = Format(Layout.AUTO, SingleDeviceSharding(jax.devices()[0]))
    jitted = stagejit.jit(jnp.sin, in_shardings=auto, out_shardings=auto, options=VERIFIED)
    x = array(4, 5)
    made = jitted.lower(jax.ShapeDtypeStruct(x.shape, x.dtype)).compile()
    assert made.output_formats.layout.major_to_minor == (0, 1)
    np.testing.assert_allclose(made(x), np.sin(x), rtol=1e-6)


def test_tiles_and_keys_are_left_to_xla() -> None:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (3, 4)))
    jaxpr = jax.make_jaxpr(lambda x, k: (x, k))(array(3, 4), keys)
    formats = formats_of(jaxpr, (Layout((1, 0), ((8,),)), Layout((1, 0))), None)
    assert not formats.any
    reasons = [decision.reason for decision in formats.decisions if not decision.applied]
    assert ["tiles" in reason for reason in reasons] == [True, False]
    assert "words" in reasons[1]


def test_who_contradicts_himself_is_told_by_jax_in_both_compilers() -> None:
    """Both sources are named: the layout that the function takes, and that of the argument."""
    x = jax.device_put(array(3, 4), lying(1, 0))
    for jit in (jax.jit, stagejit.jit):
        with pytest.raises(ValueError, match=r"(?s)jit layout: .*\(0, 1\).*arg layout: .*\(1, 0\)"):
            jit(jnp.sin, in_shardings=lying(0, 1))(x)
