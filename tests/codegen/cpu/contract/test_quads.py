"""Products of bytes, four at a time, against NumPy's integers."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import extending
from stagejit.codegen.cpu.instructions import byte_signs, has_matrices
from stagejit.codegen.target import Target

HOST = Target.host()
# Without the rest of what the host has, there are vectors of 32 bytes.
CPUS: dict[str, dict[str, Any]] = {
    "host": {},
    "tiny": {"l1_nbytes": 512, "l2_nbytes": 4096, "l3_nbytes": 8192, "cores": 4},
}
if has_matrices(HOST):
    CPUS["vectors"] = {"features": HOST.features.replace("+amx", "-amx")}
if HOST.has("avxvnni"):
    CPUS["vnni"] = {"like": "avx2", "features": f"{Target.avx2().features},+avxvnni"}
pytestmark = pytest.mark.skipif(not byte_signs(HOST), reason="this CPU sums no products of bytes")

FORMS = ("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "bmk,bkn->bmn", "bmk,bnk->bmn",
         "mkj,nkj->mn", "mkj,jkn->nm", "mjk,kjn->mn", "k,kn->n", "mk,k->m", "bkm,bkn->mbn",
         "kbm,bkn->bnm", "bmk,kn->bmn")  # fmt: skip
LONG = (5, 6, 7, 8, 9, 16, 27, 64, 65, 100, 128, 300, 1023, 1024, 2047, 2500)
SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 65, 130)


def options(cpu: str = "host") -> stagejit.Options:
    machine = extending.cpu("small", **CPUS[cpu])
    return stagejit.Options(verify=True, delegate=False, extensions=machine)


def is_by_four(f: Any, *args: Any, cpu: str = "host") -> bool:
    told = stagejit.jit(f, options=options(cpu)).explain(*args).as_text(kernels=True)
    return "sums: of four products of bytes at once" in told


def drawn(r: random.Random, shape: tuple[int, ...], kind: Any = None) -> Any:
    """Bytes of any kind, the least and the greatest ones at times alone."""
    info, rng = (
        np.iinfo(kind or r.choice((np.int8, np.uint8))),
        np.random.default_rng(r.randrange(1 << 32)),
    )
    if r.random() < 0.4:
        return rng.choice([info.min, info.max], shape).astype(info.dtype)
    return rng.integers(info.min, info.max, shape, info.dtype, endpoint=True)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("seed", range(30))
def test_any_layout_of_any_bytes(seed: int, cpu: str) -> None:
    r = random.Random(f"{seed}/{cpu}")
    form = FORMS[seed % len(FORMS)]
    sizes = {axis: r.choice(SIZES) for axis in "mn"} | {"b": r.choice((1, 2, 3))}
    sizes |= {"k": r.choice(LONG), "j": 1}
    if "j" in form:
        sizes |= {"k": r.choice((3, 5, 8, 37)), "j": r.choice((2, 3, 4, 5, 8, 33, 64))}
    sides = form.split("->")[0].split(",")
    a, b = (drawn(r, tuple(sizes[axis] for axis in side)) for side in sides)
    widens, turns, scales = (r.random() < 0.3 for _ in range(3))

    def f(a: Any, b: Any) -> Any:
        if widens or a.dtype != b.dtype:
            a, b = a.astype(jnp.int32), b.astype(jnp.int32)
        made = jnp.einsum(form, jnp.flip(a, 0) if turns else a, b, preferred_element_type=jnp.int32)
        return made.astype(jnp.float32) * 0.5 if scales else made

    wide = np.flip(a, 0) if turns else a
    wanted = np.einsum(form, wide.astype(np.int64), b.astype(np.int64)).astype(np.int32)
    found = stagejit.jit(f, options=options(cpu))(a, b)
    np.testing.assert_array_equal(found, wanted.astype(np.float32) * 0.5 if scales else wanted)


@pytest.mark.parametrize("seed", range(40))
def test_operands_that_are_the_same_along_some_axes(seed: int) -> None:
    """Which run on into each other, as all of a broadcast do."""
    r = random.Random(seed)
    sizes = {"m": r.choice((1, 3, 8, 13, 40)), "n": r.choice((1, 2, 7, 33)), "i": r.choice((2, 7))}
    sizes |= {"k": r.choice((5, 6, 8, 21, 64)), "j": r.choice((2, 3, 4, 5, 16))}
    kind, sides = r.choice((np.int8, np.uint8)), ("".join(r.sample("mkji", 4)), "kjn")
    form = f"{sides[0]},{sides[1]}->min"
    whole = [tuple(sizes[axis] for axis in side) for side in sides]
    few = [tuple(size if r.random() < 0.5 else 1 for size in shape) for shape in whole]
    a, b = (drawn(r, shape, kind) for shape in few)

    def f(a: Any, b: Any) -> Any:
        a, b = (jnp.broadcast_to(x, shape) for x, shape in zip((a, b), whole, strict=True))
        return jnp.einsum(form, a, b, preferred_element_type=jnp.int32)

    a64, b64 = (np.broadcast_to(x.astype(np.int64), s) for x, s in zip((a, b), whole, strict=True))
    wanted = np.einsum(form, a64, b64).astype(np.int32)
    np.testing.assert_array_equal(stagejit.jit(f, options=options())(a, b), wanted)


def product(a: Any, b: Any) -> Any:
    return lax.dot_general(
        a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.int32
    )


@pytest.mark.skipif(not has_matrices(HOST), reason="this CPU has no registers of matrices")
@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("form", ["mk,kn->mn", "km,nk->mn", "bmk,bnk->bmn", "km,kn->nm"])
def test_registers_of_matrices(form: str, kinds: tuple[Any, Any]) -> None:
    """Rows, columns and steps that fill registers, or do not; blocks of steps; all signs."""
    r = random.Random(form)
    sides, used = form.split("->")[0].split(","), 0
    for m, n, k in ((16, 32, 64), (33, 45, 96), (5, 100, 1000), (100, 16, 4096), (2, 17, 2500)):
        sizes = {"m": m, "n": n, "k": k, "b": 2}
        a, b = (
            drawn(r, tuple(sizes[axis] for axis in side), kind)
            for side, kind in zip(sides, kinds, strict=True)
        )

        def f(a: Any, b: Any) -> Any:
            return jnp.einsum(form, a.astype(jnp.int32), b.astype(jnp.int32))

        jitted = stagejit.jit(f, options=options())
        used += "in matrices of" in jitted.explain(a, b).as_text(kernels=True)
        wanted = np.einsum(form, a.astype(np.int64), b.astype(np.int64)).astype(np.int32)
        np.testing.assert_array_equal(jitted(a, b), wanted)
    assert used >= 3


@pytest.mark.parametrize("narrow", [np.int8, np.uint8])
@pytest.mark.parametrize("steps", [60, 131072, 131075])
def test_sums_wrap_as_words_do(steps: int, narrow: Any) -> None:
    info = np.iinfo(narrow)
    largest = info.min or info.max
    a, b = np.full((40, steps), largest, narrow), np.full((steps, 48), largest, narrow)
    assert is_by_four(product, a, b)
    wanted = np.full((40, 48), steps * largest**2).astype(np.int32)
    np.testing.assert_array_equal(stagejit.jit(product, options=options())(a, b), wanted)


def test_what_widening_changes_is_not_taken_for_bytes() -> None:
    """Bytes with a sign that are read as words without one, of fewer bits than sums have."""
    r = np.random.default_rng(0)
    a, b = r.integers(-128, 128, (17, 64), np.int8), r.integers(-128, 128, (64, 48), np.int8)

    def through(kind: Any) -> Any:
        return lambda a, b: product(a.astype(kind).astype(jnp.int32), b.astype(jnp.int32))

    for kind, is_kept in ((jnp.int16, True), (jnp.uint16, False), (jnp.uint32, True)):
        wanted = (a.astype(kind).astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
        assert is_by_four(through(kind), a, b) == is_kept
        found = stagejit.jit(through(kind), options=options())(a, b)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("channels", [3, 7, 16, 64, 171])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolutions(layout: str, channels: int, cpu: str) -> None:
    r = np.random.default_rng(channels)
    shape = (2, channels, 9, 8) if layout == "NCHW" else (2, 9, 8, channels)
    x = r.integers(-128, 128, shape, np.int8)
    w = r.integers(-128, 128, (19, channels, 3, 2), np.int8)

    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 2), ((2, 1), (0, 3)), rhs_dilation=(1, 2),
            dimension_numbers=(layout, "OIHW", layout), preferred_element_type=jnp.int32,
        )  # fmt: skip

    wanted = f(*(jnp.asarray(side, jnp.int32) for side in (x, w)))
    np.testing.assert_array_equal(stagejit.jit(f, options=options(cpu))(x, w), wanted)
    assert is_by_four(f, x, w, cpu=cpu) == (channels > 4)


def test_what_is_made_of_quantized_products_is_one_kernel() -> None:
    r = np.random.default_rng(2)
    x, w = (
        r.standard_normal((64, 128)).astype(np.float32),
        r.integers(-127, 128, (128, 96), np.int8),
    )
    scales, bias = (r.standard_normal(96).astype(np.float32) for _ in range(2))

    def f(x: Any, w: Any, scales: Any, bias: Any) -> Any:
        quantized = jnp.clip(jnp.round(x * 30), -127, 127).astype(jnp.int8)
        return jnp.maximum(product(quantized, w).astype(jnp.float32) * scales + bias, 0)

    jitted = stagejit.jit(f, options=options())
    (dispatch,) = jitted.plan(x, w, scales, bias).dispatches
    assert dispatch.kind == "contract"
    quantized = np.clip(np.round(x * 30), -127, 127).astype(np.int64)
    wanted = np.maximum((quantized @ w.astype(np.int64)) * scales.astype(np.float64) + bias, 0)
    np.testing.assert_allclose(jitted(x, w, scales, bias), wanted, rtol=1e-5, atol=1e-3)
