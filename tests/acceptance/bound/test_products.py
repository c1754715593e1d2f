"""Issue 11: a bound operand of any product, on either side, however it is turned, and in any body:
the values are right in every form, and no call packs what bind could have packed."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.extending import cpu
from stagejit.options import Options
from stagejit.pipeline import Compilation
from tests.acceptance.running import f32

Array = Any
OPTIONS = Options(verify=True, cache_dir="")
FORMS = (None, "bf16", "int8", "int4")
# What a form may lose of a product of random numbers, in the Frobenius norm.
TOLERANCE = {None: 5e-6, "bf16": 6e-3, "int8": 2e-2, "int4": 0.25}


def einsum(random: Random) -> tuple[Callable[[Array, Array], Array], tuple[int, ...], list[int]]:
    """A product of a weight, which is the first operand or the second, with all axes in any order:
    batch axes, axes that are summed over, and those of one side."""
    letters = iter(string.ascii_lowercase)

    def axes(most: int, fewest: int = 0) -> str:
        return "".join(next(letters) for _ in range(random.randint(fewest, most)))

    batch, summed, own, theirs = axes(1), axes(2, 1), axes(2, 1), axes(2)
    sizes = {a: random.choice((2, 3)) for a in batch}
    sizes |= {a: random.choice((16, 30, 64)) for a in summed}
    sizes |= {a: random.choice((17, 64, 128)) for a in own[:1]}
    sizes |= {a: random.choice((2, 3)) for a in own[1:]}
    sizes |= {a: random.choice((1, 3, 16, 20)) for a in theirs}
    weight, other, result = (
        "".join(random.sample(each, len(each)))
        for each in (batch + summed + own, batch + summed + theirs, batch + own + theirs)
    )
    left = random.random() < 0.5

    def f(w: Array, x: Array) -> Array:
        if left:
            return jnp.einsum(f"{weight},{other}->{result}", w, x)
        return jnp.einsum(f"{other},{weight}->{result}", x, w)

    return f, tuple(sizes[a] for a in weight), [sizes[a] for a in other]


def around(
    random: Random, f: Callable[[Array, Array], Array], x: list[int]
) -> tuple[Callable[[Array, Array], Array], list[int]]:
    """The product as it is, in a body of a loop or branch, or for several arguments at once."""
    way = random.choice(("plain", "vmap", "scan", "while", "cond"))
    if way == "plain":
        return f, x
    if way == "cond":
        return lambda w, x: lax.cond(x.sum() > 1e9, lambda: 2 * f(w, x), lambda: f(w, x)), x
    if way == "while":

        def body(w: Array, x: Array) -> Array:
            start = (0, jnp.zeros_like(f(w, x)))
            return lax.while_loop(
                lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] + f(w, x * (s[0] + 1))), start
            )[1]

        return body, x
    several = [3, *x]
    if way == "vmap":
        return lambda w, x: jax.vmap(lambda each: f(w, each))(x), several
    return lambda w, x: lax.scan(lambda c, each: (c, f(w, each)), 0, x)[1], several


@pytest.mark.some(12)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(24))
def test_a_product_of_a_bound_operand(seed: int, form: Any) -> None:
    random = Random(seed)
    f, shape, of = einsum(random)
    f, of = around(random, f, of)
    w, x = (jnp.asarray(f32(*each, seed=at)) for at, each in enumerate((shape, of)))
    bound = stagejit.bind(f, w, weights=form, options=OPTIONS)
    for new in (w, jnp.flip(w)):
        bound.update(new)
        found, wanted = (np.asarray(y, np.float64) for y in (bound(x), jax.jit(f)(new, x)))
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < TOLERANCE[form]


def packed_by_calls(f: Any, w: Array, x: Array) -> list[str]:
    """Operands that the kernels of a bound function pack, each time."""
    machine = cpu("two-cores", like="avx512", cores=2)
    options = Options(verify=True, cache_dir="", extensions=(machine,))
    request = stagejit.bind(f, w, options=options).trace(x).compilation.request
    c = Compilation.of(request).run_until("codegen")
    assert c.plan.packs == ()
    choices = [each for group in c.kernels.values() for each in group.kernel.choices]
    return [each.reason for each in choices if each.name == "pack"]


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize(
    ("f", "shape", "last"),
    [
        (lambda w, x: w @ x, (2304, 768), True),
        (lambda w, x: w.T @ x, (768, 2304), True),
        (lambda w, x: x @ w, (768, 2304), False),
        (lambda w, x: x @ w.T, (2304, 768), False),
        (lambda w, x: jnp.einsum("kjm,kjn->mn", w, x.reshape(64, 12, -1)), (64, 12, 768), True),
        (lambda w, x: lax.fori_loop(0, 2, lambda _, y: w.T @ y, x), (768, 768), True),
    ],
    ids=["left", "left transposed", "right", "right transposed", "two sums", "in a loop"],
)
def test_no_call_packs_a_matrix_that_is_bound(
    f: Any, shape: tuple[int, ...], last: bool, batch: int
) -> None:
    x = f32(768, batch) if last else f32(batch, 768)
    side = "left" if last else "right"
    w = jnp.asarray(f32(*shape, seed=1))
    assert not any(f"the {side} operand" in reason for reason in packed_by_calls(f, w, x))
