"""map-parts: values, and the passes that it saves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.options import Options
from tests.randomness import RNG
from tests.schedule.planning import check


def rotated(x: Any, angle: Any) -> Any:
    """Rotary positions, as of GPT-NeoX."""
    a, b = jnp.split(x, 2, -1)
    cos, sin = (jnp.concatenate([f(angle)] * 2, -1) for f in (jnp.cos, jnp.sin))
    return x * cos + jnp.concatenate([-b, a], -1) * sin


X, ANGLE = (np.linspace(-2, 2, n, dtype=np.float32) for n in (3 * 40 * 64, 40 * 32))
X, ANGLE = X.reshape(3, 40, 64), ANGLE.reshape(40, 32)


def test_rotated_halves_go_straight_to_their_places() -> None:
    halves = "map-parts"
    on = check(rotated, X, ANGLE)
    off = check(rotated, X, ANGLE, options=Options(disable=(halves,)))
    assert len(on.dispatches) < len(off.dispatches)
    assert on.transient_nbytes <= off.transient_nbytes - X.nbytes


def test_an_iteration_of_complex_numbers_is_one_dispatch() -> None:
    def step(z: Any, c: Any) -> Any:
        return jnp.where(jnp.abs(z) < 4, z * z + c, z)

    z = (X + 1j * X[::-1]).astype(np.complex64)
    assert len(stagejit.jit(step).plan(z, z[:, ::-1]).dispatches) == 1


FUNCTIONS = (jnp.negative, jnp.sin, jnp.abs, lambda x: x * x, lambda x: x > 0, lambda x: x + 1)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """What is put together along an axis, elementwise functions of it, with others, of a seed."""
    rank, count = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    shape = [draw(st.sampled_from((1, 2, 3, 16, 33))) for _ in range(rank)]
    axis, stacks = draw(st.integers(0, rank - 1)), draw(st.booleans())
    sizes = [draw(st.integers(1, 20)) for _ in range(count)]
    made = [draw(st.sampled_from((None, *FUNCTIONS[:4]))) for _ in range(count)]
    outer = [draw(st.sampled_from(FUNCTIONS)) for _ in range(draw(st.integers(1, 3)))]
    beside = draw(st.sampled_from(("none", "array", "last", "first", "itself", "again", "flat")))
    dtype = draw(st.sampled_from((np.float32, np.int32, np.complex64)))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    wholes = [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]
    whole = [*shape, count] if stacks else [*shape[:axis], sum(sizes), *shape[axis + 1 :]]

    def array(of: list[int]) -> np.ndarray[Any, Any]:
        real = numbers.integers(-9, 9, of) / 4
        return (
            (real + 1j * real[::-1]).astype(dtype) if dtype is np.complex64 else real.astype(dtype)
        )

    def fn(y: Any, *xs: Any) -> Any:
        done = [x if f is None else f(x) for f, x in zip(made, xs, strict=True)]
        z = jnp.stack(done, -1) if stacks else jnp.concatenate(done, axis)
        if beside == "flat":
            z = z.reshape(-1)
        for f in outer:
            z = f(z.real if f is FUNCTIONS[4] and jnp.iscomplexobj(z) else z)
        if beside in ("array", "again"):
            z = z * y + (y if beside == "again" else 0)
        elif beside == "last":
            z = z - y[..., -1:]
        elif beside == "first":
            z = z + y[:1]
        elif beside == "itself":
            z = z * z[::-1]
        return z

    parts_of = [array(shape if stacks else of) for of in wholes]
    return fn, [array(whole), *parts_of]


def check_both(fn: Any, args: list[np.ndarray[Any, Any]]) -> None:
    """Whether it is right with and without."""
    expected = jax.jit(fn)(*args)
    for disable in ((), ("map-parts",)):
        found = stagejit.jit(fn, options=Options(verify=True, disable=disable))(*args)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(programs())
def test_values(made: tuple[Any, list[np.ndarray[Any, Any]]]) -> None:
    check_both(*made)


@st.composite
def padded(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Functions of pads, or of boxes of what is put together, of an argument, with others."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from((1, 2, 5, 33, 300))) for _ in range(rank)]
    widths = [(draw(st.integers(-1, 3)), draw(st.integers(0, 3)), 0) for _ in shape]
    if draw(st.booleans()):
        widths[-1] = (*widths[-1][:2], draw(st.integers(0, 2)))
    border = draw(st.sampled_from((0, 1, 2)))
    form = draw(st.sampled_from(("pad", "prepend", "append", "roll", "box of a pad", "set")))
    beside = draw(st.sampled_from(("none", "number", "array", "same pad", "itself")))
    outer = draw(st.sampled_from(FUNCTIONS[:3]))
    inner = draw(st.sampled_from((None, jnp.negative)))
    dtype = draw(st.sampled_from((np.float32, np.int32, np.float16)))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def fn(x: Any, y: Any) -> Any:
        whole = x if inner is None else inner(x)
        value = jnp.asarray(border, dtype)
        if form in ("pad", "box of a pad"):
            z = jax.lax.pad(whole, value, widths)
            z = z[:-1] if form == "box of a pad" else z
        elif form == "set":
            z = jnp.full([size + 4 for size in whole.shape], value)
            z = z.at[tuple(slice(1, 1 + size) for size in whole.shape)].set(whole)
        elif form == "roll":
            z = jnp.roll(whole, 1, -1)
        else:
            edge = jnp.full((1, *whole.shape[1:]), value)
            z = jnp.concatenate([edge, whole] if form == "prepend" else [whole, edge])
            z = z[:-1] if form == "prepend" else z[1:]
        if beside == "number":
            z = z * y[0]
        elif beside == "array":
            z = z + jnp.resize(y, z.shape)
        elif beside == "same pad" and form == "pad":
            z = z - jax.lax.pad(whole * 2, value + 1, widths)
        elif beside == "itself" and z.shape == x.shape:
            z = x - z
        return outer(z)

    return fn, [(numbers.integers(-9, 9, of) / 4).astype(dtype) for of in (shape, (70,))]


@given(padded())
def test_values_of_pads(made: tuple[Any, list[np.ndarray[Any, Any]]]) -> None:
    check_both(*made)


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("shape", [(24, 20), (20, 24), (480, 1)])
@pytest.mark.parametrize("seen", [(24, 20), (20, 24), (480,), (2, 12, 20)])
def test_values_of_pads_in_other_shapes(
    seen: tuple[int, ...], shape: tuple[int, ...], low: int
) -> None:
    """Of two pads, each in a shape of its own, parts may have the same numbers, but no place in
    common."""
    inner = 18 if shape[1] > 1 else 1

    def pad(x: Any, shape: tuple[int, ...], value: int) -> Any:
        first = [low if size > inner else 0 for size in shape]
        widths = [(at, size - inner - at) for at, size in zip(first, shape, strict=True)]
        return jnp.pad(x, widths, constant_values=value).reshape(seen)

    x = RNG.integers(-9, 9, (inner, inner)).astype(np.float32)
    check_both(lambda x, y: pad(x, (24, 20), 2) * pad(y, shape, 3), [x, x * 10])
