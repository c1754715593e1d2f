"""Tiles of products on a GPU: any of them gives the right values; races are found; what costs less
is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.cuda.contract import kernel as policy
from stagejit.codegen.cuda.contract.tensor_cores.warp_tile import WarpTile
from stagejit.codegen.cuda.contract.tile import Tile, tiles
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.ir.grid.matrix_tiles import M16N8K16_BF16
from stagejit.runtime.cuda.code.nvrtc import is_installed
from stagejit.types import bf16, f32
from tests.cuda import machine
from tests.cuda.emulation.checked import require_resources
from tests.cuda.emulation.emulated import NAME
from tests.cuda.machine import GPU, compilation_of, run
from tests.randomness import RNG

Array = Any
LAUNCH = machine.launch
TILES = [
    Tile(64, 64, 8, 8, 8, 4), Tile(128, 64, 16, 8, 4, 4), Tile(32, 64, 8, 4, 8, 4),
    Tile(128, 32, 8, 4, 4, 4), Tile(32, 16, 8, 4, 4, 4), Tile(128, 128, 8, 8, 8, 4),
]  # fmt: skip


def some(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tile | WarpTile], Device]:
    """A device for which there is one tile."""

    def force(tile: Tile | WarpTile) -> Device:
        plain, warps = ([tile], []) if isinstance(tile, Tile) else ([], [tile])
        monkeypatch.setattr(
            policy, "tiles", lambda dtype: [replace(each, operand=dtype) for each in plain]
        )
        monkeypatch.setattr(policy, "warp_tiles", lambda plan: warps)
        monkeypatch.setattr(policy, "group_tiles", lambda plan, device: [])
        monkeypatch.setattr(policy, "single_seconds", lambda plan, device: 1.0)
        monkeypatch.setattr(policy, "dots", lambda plan: [])
        return replace(GPU, name=f"{GPU.name} with {tile}")

    return force


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("sizes", [(131, 37, 70), (128, 32, 128)])
def test_any_tile(forced: Any, tile: Tile, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b, c = some(m, k), some(k, n), some(n)
    device = forced(tile)
    (kernel,) = (
        compilation_of(lambda a, b, c: a @ b + c, a, b, c, device=device)
        .run_until("codegen")
        .kernels.values()
    )
    assert str(tile) in kernel.kernel.choices[0].reason
    (found,) = run(lambda a, b, c: a @ b + c, a, b, c, resources=True, device=device)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


BF16 = bf16, M16N8K16_BF16
WARPS = [
    WarpTile(2, 2, 32, 32, 16, *BF16), WarpTile(1, 2, 64, 32, 32, *BF16),
    WarpTile(2, 1, 16, 16, 32, *BF16), WarpTile(2, 2, 64, 64, 32, *BF16),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->nm"])
@pytest.mark.parametrize(
    ("tile", "whole"), [*((tile, True) for tile in WARPS), (WARPS[0], False)], ids=str
)
def test_any_tile_of_warps(forced: Any, layout: str, tile: WarpTile, whole: bool) -> None:
    sizes = {"m": 136, "k": 56, "n": 80} if whole else {"m": 67, "k": 35, "n": 45}
    left, right, _ = layout.replace("->", ",").split(",")
    a, b = (some(*(sizes[d] for d in side)).astype(jnp.bfloat16) for side in (left, right))
    device = forced(tile)

    def product(a: Array, b: Array) -> Array:
        return jnp.einsum(layout, a, b, preferred_element_type=jnp.float32)

    (kernel,) = compilation_of(product, a, b, device=device).run_until("codegen").kernels.values()
    assert kernel.kernel.choices[0].reason.startswith(str(tile))
    (found,) = run(product, a, b, resources=True, device=device)
    wanted = np.einsum(layout, np.asarray(a, np.float64), np.asarray(b, np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_tensor_cores_multiply_convolutions(forced: Any) -> None:
    image, taps = (some(*s).astype(jnp.bfloat16) for s in ((2, 9, 8, 16), (3, 3, 16, 24)))

    def conv(image: Array, taps: Array) -> Array:
        made = lax.conv_general_dilated(
            image, taps, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.maximum(made, 0)

    device = forced(WARPS[0])
    (kernel,) = (
        compilation_of(conv, image, taps, device=device).run_until("codegen").kernels.values()
    )
    assert "tensor cores" in kernel.kernel.choices[0].reason
    (found,) = run(conv, image, taps, resources=True, device=device)
    wanted = conv(np.asarray(image, np.float32), np.asarray(taps, np.float32))
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize("tile", TILES[::2], ids=str)
def test_any_tile_of_a_convolution(forced: Any, tile: Tile) -> None:
    image, taps = some(2, 5, 10, 9), some(20, 5, 3, 3)

    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(image, taps, (1, 2), ((1, 1), (2, 0)))

    (found,) = run(conv, image, taps, resources=True, device=forced(tile))
    wide = conv(jnp.asarray(image, jnp.float32), taps)
    np.testing.assert_allclose(found, wide, rtol=2e-5, atol=2e-5)


def test_the_last_part_of_a_sum_is_shorter(forced: Any) -> None:
    device = replace(forced(TILES[4]), cores=4)
    a, b = some(20, 5003), some(5003, 17)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    (found,) = run(lambda a, b: a @ b, a, b, device=device)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-4)


def test_a_sum_of_negative_zeros_keeps_its_sign(forced: Any) -> None:
    device = forced(TILES[0])
    a, b = np.full((33, 9), -0.0, np.float32), np.ones((9, 35), np.float32)
    (found,) = run(lambda a, b: a @ b, a, b, device=device)
    assert np.signbit(found).all()


def test_what_lies_beyond_a_tile_spoils_no_sum(forced: Any) -> None:
    device = forced(TILES[0])
    a, b = some(40, 20), some(20, 70)
    a[3, 15], a[3, 13], b[17, 2], b[7, 69] = np.inf, np.nan, np.inf, np.nan
    (found,) = run(lambda a, b: a[:, :13] @ b[:13, :65], a, b, device=device)
    wanted = a[:, :13].astype(np.float64) @ b[:13, :65]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def _without(number: int, order: str, source: str, *launched: Any) -> None:
    """A launch without one of the barriers."""
    parts = source.split("__syncthreads();")
    assert len(parts) == 3
    first, second = ("", "__syncthreads();") if number == 0 else ("__syncthreads();", "")
    text = parts[0] + first + parts[1] + second + parts[2]
    sizes, words, blocks, _, nbytes = launched
    LAUNCH(text, sizes, words, blocks, order, nbytes)


@pytest.mark.parametrize("number", [0, 1])
def test_a_removed_barrier_is_found(
    forced: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    device = forced(TILES[4])
    a, b = some(70, 40), some(40, 66)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    wrong = 0
    for order in machine.ORDERS:
        monkeypatch.setattr(machine, "launch", partial(_without, number, order))
        (found,) = run(lambda a, b: a @ b, a, b, device=device)
        wrong += not np.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert wrong


def test_large_products_have_large_tiles() -> None:
    many = np.zeros((4096, 4096), np.float32)
    compilation = compilation_of(lambda a, b: a @ b, many, many).run_until("codegen")
    (kernel,) = compilation.kernels.values()
    assert "8 x 8 a thread" in kernel.kernel.choices[0].reason
    assert "load<4, 4>(&left[" in kernel.text


def test_all_tiles_are_whole_warps() -> None:
    assert all(tile.threads % 32 == 0 for tile in tiles(f32))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_nests_of_a_kernel_have_one_tile_of_shared_memory(dtype: Any, layout: str) -> None:
    """The gradient of a convolution with strides has a nest for each remainder."""
    image, taps = np.zeros((4, 64, 33, 31), dtype), np.zeros((128, 64, 3, 3), dtype)
    if layout == "NHWC":
        image = image.transpose(0, 2, 3, 1)

    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(
            image,
            taps,
            (1, 1),
            ((2, 2), (2, 2)),
            (2, 2),
            dimension_numbers=(layout, "OIHW", layout),
        )

    compilation = compilation_of(conv, image, taps).run_until("codegen")
    (kernel,) = compilation.kernels.values()
    assert kernel.text.count("// parallel") == 4
    assert kernel.text.count("__shared__") == 2
    if is_installed():
        require_resources(kernel.text.replace(kernel.symbol, NAME), kernel.kernel.function.threads,
                          "sm_90a")  # fmt: skip
