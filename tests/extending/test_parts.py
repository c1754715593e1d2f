"""Elements that are made of others reach an op of one's own only where it says that it takes them.

What is written for numbers would do to each part what is meant for the element.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import stagejit
from stagejit import extending
from stagejit.errors import ExtensionError
from stagejit.extending import writing as w
from tests.extending.own import SOFTSIGN, primitive

MADE_OF_OTHERS = ("complex64", "complex128", "int4", "uint4", "int2", "float8_e4m3fn", "key")
NUMBERS = ("float32", "float64", "float16", "bfloat16", "int8", "uint64", "bool")


def of(dtype: str) -> Any:
    if dtype == "key":
        return jax.random.split(jax.random.key(1), 3)
    return jnp.ones(3, dtype)


def same(emit: Any, site: Any, x: w.Value) -> w.Value:
    """The operand: right for any element, whatever it is made of."""
    return x


def own(prim: Any, by: str, **given: Any) -> Any:
    if by == "translation":
        return extending.translation("mine", prim, **given)(same)
    definition = dataclasses.replace(
        SOFTSIGN,
        kind="mine",
        interpret=lambda _, op, x: x,
        code=lambda b, op, elements: elements[0],
    )
    translate = {"translate": same} if by == "translate" else {}
    return extending.op(definition, primitive=prim, **translate, **given)


@pytest.mark.parametrize("by", ["op", "translate", "translation"])
@pytest.mark.parametrize("dtype", MADE_OF_OTHERS + NUMBERS)
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("delegate", [False, True])
def test_each_type_of_elements(dtype: str, by: str, parts: bool, delegate: bool) -> None:
    prim = primitive("mine")
    extension = own(prim, by, **({"parts": True} if parts else {}))
    options = stagejit.Options(extensions=extension, verify=True, delegate=delegate)
    with jax.enable_x64():
        x = of(dtype)
        for f in (prim.bind, jax.jit(lambda x: jax.lax.map(prim.bind, x))):
            made = stagejit.jit(lambda x, f=f: f(x), options=options)
            if parts or dtype in NUMBERS:
                assert bool((made(x) == x).all())
                continue
            with pytest.raises(ExtensionError, match=r"mine.* nobody else computes: ") as caught:
                made(x)
            assert "made of others, which only parts=True takes" in caught.value.what
            assert __file__ in caught.value.loc.file


def test_results_alone_may_be_made_of_others() -> None:
    prim = primitive("mine")
    prim.def_abstract_eval(lambda x: x.update(dtype=np.dtype("complex64")))
    made = stagejit.jit(prim.bind, options=stagejit.Options(extensions=own(prim, "translate")))
    with pytest.raises(ExtensionError, match="elements of complex64 are made of others"):
        made(jnp.ones(3))


@pytest.mark.parametrize("how", ["jax", "xla", "impl", "inline", "another"])
def test_whoever_else_computes_it_does(how: str) -> None:
    """Declined, then: by JAX's own translation, by XLA, as the function that somebody said."""
    prim = primitive("mine")
    extensions = [own(prim, "op")]
    if how == "jax":
        prim = jax.lax.tanh_p
        extensions = [extending.translation("mine", prim)(same)]
    elif how == "xla":
        mlir.register_lowering(prim, lambda ctx, x: [x])
    elif how == "impl":
        prim.def_impl(lambda x: x)
    elif how == "inline":
        stagejit.inline(prim, lambda x: x)
    else:
        extensions.append(extending.translation("other", prim, parts=True)(same))
    made = stagejit.jit(prim.bind, options=stagejit.Options(extensions=tuple(extensions)))
    z = jnp.array([1 + 2j, 3 - 4j])
    np.testing.assert_allclose(made(z), jnp.tanh(z) if how == "jax" else z, rtol=1e-5)
    told = [each for each in made.plan(z).decisions if each.rewrite == "mine"]
    assert [(each.applied, "complex64" in each.reason) for each in told] == [(False, True)]
    np.testing.assert_array_equal(made(z.real), z.real)
    assert made.plan(z.real).decisions[0].applied


def test_what_declines_by_itself_and_nobody_else_computes() -> None:
    prim = primitive("mine")

    @extending.translation("mine", prim)
    def picky(emit: Any, site: Any, x: w.Value) -> w.Value:
        raise w.Unsupported("only on Sundays")

    made = stagejit.jit(prim.bind, options=stagejit.Options(extensions=picky))
    with pytest.raises(ExtensionError, match="nobody else computes: only on Sundays"):
        made(jnp.ones(3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_are_divided_by_type(dtype: str) -> None:
    """`/` of registers is an instruction, which there is of 32 and 64 bits."""

    def code(b: Any, op: w.Op, elements: Any) -> Any:
        (x,) = elements
        of = op.result.type.dtype
        return w.scalar(b, "div", of, x, w.scalar(b, "add", of, 1.0, w.scalar(b, "abs", of, x)))

    prim = primitive("softsign")
    x = jnp.linspace(-2, 2, 37, dtype=dtype)
    by_type = extending.op(dataclasses.replace(SOFTSIGN, code=code), primitive=prim)
    options = stagejit.Options(extensions=by_type, verify=True)
    np.testing.assert_allclose(
        stagejit.jit(prim.bind, options=options)(x).astype(np.float32),
        (x / (1 + abs(x))).astype(np.float32),
        rtol=0.02,
    )
    plain = stagejit.Options(extensions=extending.op(SOFTSIGN, primitive=prim))
    with pytest.raises(ExtensionError, match="takes f32 or f64"):
        stagejit.jit(prim.bind, options=plain)(x)
