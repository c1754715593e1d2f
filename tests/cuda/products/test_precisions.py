"""Products on tensor cores, of each type that they multiply: the values of NumPy, by emulated
kernels whose resources three GPUs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.cuda.contract import kernel as policy
from stagejit.codegen.cuda.contract.tensor_cores.warp_tile import WarpTile, warp_tiles
from stagejit.codegen.cuda.device import Device
from stagejit.options import Options
from tests.cuda.machine import GPU, compilation_of, run
from tests.randomness import RNG

Array = Any
Tiled = Callable[[int, int, int, int, int], Device]
KINDS = ["tf32", "int8", "uint8", "float64"]


def some(*shape: int, kind: str = "tf32") -> Array:
    """All numbers that there are of 8 bits; of floats some around 1."""
    if "int" in kind:
        info = np.iinfo(kind)
        return RNG.integers(info.min, info.max + 1, shape).astype(kind)
    return RNG.standard_normal(shape).astype(np.float32 if kind == "tf32" else kind)


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiled]:
    """A device for which there is one tile of warps, with a line of so many bytes."""

    def force(down: int, across: int, height: int, width: int, nbytes: int) -> Device:
        def only(plan: Any) -> list[WarpTile]:
            found = next(iter(warp_tiles(plan)), None)
            if found is None:
                return []
            depth = nbytes // found.operand.itemsize
            return [replace(found, down=down, across=across, height=height, width=width,
                            depth=depth)]  # fmt: skip

        monkeypatch.setattr(policy, "tiles", lambda dtype: [])
        monkeypatch.setattr(policy, "warp_tiles", only)
        monkeypatch.setattr(policy, "group_tiles", lambda plan, device: [])
        monkeypatch.setattr(policy, "single_seconds", lambda plan, device: 1.0)
        monkeypatch.setattr(policy, "dots", lambda plan: [])
        return replace(GPU, name=f"{GPU.name} with {(down, across, height, width, nbytes)}")

    with jax.enable_x64(True):
        yield force


def wide(array: Array) -> Array:
    return np.asarray(array, np.int64 if array.dtype.kind in "iu" else np.float64)


def rounded(array: Array) -> Array:
    """To tf32: to nearest, ties away from zero."""
    fraction, exponent = np.frexp(wide(array))
    return np.ldexp(np.sign(fraction) * np.floor(np.abs(fraction) * 2.0**11 + 0.5), exponent - 11)


def check(
    kind: str, function: Callable[..., Array], *args: Array, device: Device, factors: int = 2
) -> None:
    """function: works for NumPy and JAX; the first `factors` arguments are multiplied."""
    compilation = compilation_of(function, *args, device=device).run_until("codegen")
    reasons = [x.reason for each in compilation.kernels.values() for x in each.kernel.choices]
    assert any("by tensor cores" in reason for reason in reasons), reasons
    (found,) = run(function, *args, resources=True, device=device)
    short = rounded if kind == "tf32" else wide
    exact = [short(x) for x in args[:factors]], [wide(x) for x in args[factors:]]
    with jax.default_matmul_precision("highest"):
        wanted = np.asarray(function(*exact[0], *exact[1]))
    if "int" in kind:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
    else:
        close = 1e-5 if kind == "tf32" else 1e-13
        np.testing.assert_allclose(found, wanted, rtol=close, atol=close)


def product(formula: str, kind: str) -> Callable[..., Array]:
    def multiply(a: Array, b: Array) -> Array:
        into = (
            {"preferred_element_type": jnp.int32} if "int" in kind and a.dtype.itemsize == 1 else {}
        )
        return jnp.einsum(formula, a, b, precision="high", **into)

    return multiply


LAYOUTS = ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->nm", "bmk,bkn->bmn", "mbk,knb->nbm"]
WHOLE = [(1, 2, 16, 16, 32), (2, 2, 32, 16, 64), (2, 2, 32, 32, 128)]
ALONE = (2, 2, 16, 16, 32)  # where threads load elements one by one, each a few


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "layout"), [*enumerate(LAYOUTS), (1, LAYOUTS[0])])
@pytest.mark.parametrize("is_whole", [True, False])
def test_layouts(tiled: Tiled, kind: str, number: int, layout: str, is_whole: bool) -> None:
    sizes = {"m": 80, "k": 64, "n": 48, "b": 2} if is_whole else {"m": 67, "k": 35, "n": 45, "b": 3}
    shape = WHOLE[number % 3] if is_whole and layout[1] != "b" else ALONE
    left, right, _ = layout.replace("->", ",").split(",")
    a, b = (some(*(sizes[d] for d in side), kind=kind) for side in (left, right))
    check(kind, product(layout, kind), a, b, device=tiled(*shape))


def conv(kind: str) -> Callable[..., Array]:
    def convolution(image: Array, taps: Array) -> Array:
        into = jnp.int32 if image.dtype.itemsize == 1 else None
        return lax.conv_general_dilated(
            image, taps, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="high", preferred_element_type=into,
        )  # fmt: skip

    return convolution


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions(tiled: Tiled, kind: str) -> None:
    image, taps = some(2, 7, 8, 16, kind=kind), some(3, 3, 16, 24, kind=kind)
    check(kind, conv(kind), image, taps, device=tiled(2, 2, 16, 16, 32))


# With the shapes of what they have beside factors.
AROUND: dict[str, tuple[Callable[..., Array], tuple[tuple[int, ...], ...]]] = {
    "before": (lambda f, a, b: f(jnp.maximum(a, 0), jnp.minimum(b, 1)), ()),
    "after": (lambda f, a, b, row: jnp.maximum(f(a, b) + row, 0) * 2, ((48,),)),
    "transposed": (lambda f, a, b, more: (f(a, b) + more).T, ((80, 48),)),
    "bordered": (lambda f, a, b: jnp.pad(f(a, b), ((1, 2), (3, 0)), constant_values=7), ()),
    "windows": (lambda f, a, b: f(jnp.pad(a, ((2, 0), (0, 3))), jnp.pad(b, ((3, 0), (1, 1)))), ()),
    "slices": (lambda f, a, b: f(a[3:70:2, ::-1], b[:, 4:-5]), ()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around(tiled: Tiled, kind: str, name: str) -> None:
    around, shapes = AROUND[name]
    args = [some(*shape, kind=kind) for shape in ((80, 64), (64, 48), *shapes)]
    multiply = product("mk,kn->mn", kind)
    check(kind, lambda *args: around(multiply, *args), *args, device=tiled(*ALONE))


def test_a_sum_of_bytes_wraps(tiled: Tiled) -> None:
    """As integers of 32 bits do."""
    a, b = np.full((16, 33280), 255, np.uint8), np.full((33280, 16), 255, np.uint8)
    b[:3] = 77
    exact = wide(a) @ wide(b)
    assert exact.min() > 1 << 31
    device, whole = tiled(1, 1, 16, 16, 32), Options(split={"contract": 1}, verify=True)
    (found,) = run(product("mk,kn->mn", "uint8"), a, b, device=device, options=whole)
    np.testing.assert_array_equal(found, exact.astype(np.int32))


@pytest.mark.parametrize(("left", "right"), [("int8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("axes", [(1, 1), (0, 0)])
def test_bytes_with_a_sign_times_bytes_without(
    tiled: Tiled, left: str, right: str, axes: tuple[int, int]
) -> None:
    """They are widened to be of one type, but multiplied as they were."""
    device = tiled(*WHOLE[1])
    a, b = some(64, 48, kind=left), some(64, 80, kind=right)
    if axes == (1, 1):
        a, b = a.T.copy(), b.T.copy()

    def multiply(a: Array, b: Array) -> Array:
        dimensions = ((axes[:1], axes[1:]), ((), ()))
        return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.int32)

    (found,) = run(multiply, a, b, resources=True, device=device)
    np.testing.assert_array_equal(found, np.tensordot(wide(a), wide(b), axes).astype(np.int32))
    compilation = compilation_of(multiply, a, b, device=device).run_until("codegen")
    (kernel,) = compilation.kernels.values()
    names = {"int8": "s8", "uint8": "u8"}
    assert f".s32.{names[left]}.{names[right]}.s32 " in kernel.text


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 0, 2)])
def test_signs_go_with_the_operand_that_has_the_rows(
    tiled: Tiled, left: str, order: tuple[int, int, int]
) -> None:
    """Which of them that is follows from where results lie."""
    right = {"int8": "uint8", "uint8": "int8"}[left]
    a, b = some(2, 24, 48, kind=left), some(2, 48, 40, kind=right)

    def multiply(a: Array, b: Array) -> Array:
        dimensions = (((2,), (1,)), ((0,), (0,)))
        made = lax.dot_general(a, b, dimensions, preferred_element_type=jnp.int32)
        return made.transpose(order)

    (found,) = run(multiply, a, b, device=tiled(1, 1, 16, 16, 32))
    np.testing.assert_array_equal(found, (wide(a) @ wide(b)).transpose(order).astype(np.int32))


def test_a_border_of_a_wider_type_is_kept(tiled: Tiled) -> None:
    """It is no byte: what is multiplied are not bytes."""
    image, taps = some(1, 6, 6, 16, kind="int8"), some(3, 3, 16, 16, kind="int8")
    around = ((0, 0), (1, 1), (1, 1), (0, 0))

    def conv(image: Array, taps: Array) -> Array:
        wide = jnp.pad(image.astype(jnp.int32), around, constant_values=999)
        return lax.conv_general_dilated(
            wide, taps.astype(jnp.int32), (1, 1), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    (found,) = run(conv, image, taps, device=tiled(*ALONE))
    np.testing.assert_array_equal(found, jax.jit(conv)(image, taps))


def test_a_result_of_fewer_bits_is_the_low_ones(tiled: Tiled) -> None:
    a, b = some(40, 32, kind="int8"), some(32, 48, kind="int8")
    (found,) = run(lambda a, b: a @ b, a, b, resources=True, device=tiled(2, 1, 16, 16, 32))
    np.testing.assert_array_equal(found, (wide(a) @ wide(b)).astype(np.int8))


# -------------------------------------------------------------------- who is asked


@pytest.mark.parametrize("precision", [None, "default", "highest", "high"])
def test_plain_products_of_f32_are_none_of_tf32(precision: str | None) -> None:
    """What is promised decides, not what is cheaper."""
    big = np.zeros((2048, 2048), np.float32)
    compilation = compilation_of(lambda a: jnp.dot(a, a, precision=precision), big)
    (kernel,) = compilation.run_until("codegen").kernels.values()
    is_short = precision == "high"
    assert ("tf32" in kernel.text) == is_short
    assert ("(m16n8k8.tf32.f32)" in kernel.kernel.choices[0].reason) == is_short


@pytest.mark.parametrize("kind", ["int8", "uint8", "float64"])
def test_large_products_choose_tensor_cores_by_themselves(kind: str) -> None:
    with jax.enable_x64(True):
        big = np.zeros((2048, 2048), kind)
        compilation = compilation_of(product("mk,kn->mn", kind), big, big)
        (kernel,) = compilation.run_until("codegen").kernels.values()
    assert "by tensor cores" in kernel.kernel.choices[0].reason
    assert "mma.sync" in kernel.text
