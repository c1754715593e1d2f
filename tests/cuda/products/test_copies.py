"""Tiles of products that copies bring to shared memory: the values are right, a missing wait or
barrier is found, and who copies how many tiles ahead follows from the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.cuda.contract import kernel as policy
from stagejit.codegen.cuda.contract.tensor_cores.warp_tile import WarpTile
from stagejit.codegen.cuda.contract.tile import Tile, _meeting
from stagejit.codegen.cuda.device import Device, device_named
from stagejit.codegen.ir.grid.matrix_tiles import M8N8K4_F64, M16N8K16_BF16, m16n8k32
from stagejit.types import bf16, f64, i8
from tests.cuda import machine
from tests.cuda.emulation.emulated import EmulationError
from tests.cuda.machine import GPU, compilation_of, run
from tests.randomness import RNG

Array = Any
LAUNCH = machine.launch
HALVES = bf16, M16N8K16_BF16
TILES: list[Tile | WarpTile] = [
    Tile(32, 64, 8, 4, 8, 4, 1), Tile(64, 64, 8, 8, 8, 4, 2), Tile(128, 32, 8, 4, 4, 4, 3),
    WarpTile(2, 2, 32, 32, 16, *HALVES, 1), WarpTile(1, 2, 64, 32, 32, *HALVES, 2),
    WarpTile(2, 1, 16, 16, 32, *HALVES, 3), WarpTile(2, 2, 32, 16, 32, i8, m16n8k32(), 2),
    WarpTile(2, 2, 16, 16, 8, f64, M8N8K4_F64, 3),
]  # fmt: skip


def some(*shape: int, dtype: Any = np.float32) -> Array:
    if np.dtype(dtype) == np.int8:
        return RNG.integers(-128, 128, shape).astype(np.int8)
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


@pytest.fixture
def forced(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Tile | WarpTile], Device]]:
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

    with jax.enable_x64(True):
        yield force


def reasons(function: Callable[..., Any], *args: Any, device: Device = GPU) -> dict[str, str]:
    compilation = compilation_of(function, *args, device=device).run_until("codegen")
    (kernel,) = compilation.kernels.values()
    return {choice.name: choice.reason for choice in kernel.kernel.choices}


def product(layout: str, kind: Any) -> Callable[..., Array]:
    into = {jnp.bfloat16: jnp.float32, np.int8: np.int32}.get(kind)
    return lambda a, b: jnp.einsum(layout, a, b, preferred_element_type=into)


def type_of(tile: Tile | WarpTile) -> Any:
    name = tile.operand.name if isinstance(tile, WarpTile) else "f32"
    return {"f32": np.float32, "bf16": jnp.bfloat16, "i8": np.int8, "f64": np.float64}[name]


def check(function: Callable[..., Any], wanted: Array, *args: Array, device: Device) -> None:
    (found,) = run(function, *args, resources=True, device=device)
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=1e-5, atol=1e-5)


# The last of them: rows that are whole accesses, but neither whole tiles nor whole turns.
SIZES = [{"m": 128, "k": 128, "n": 128}, {"m": 144, "k": 112, "n": 80}]


@pytest.mark.parametrize("sizes", SIZES, ids=["whole", "ragged"])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "km,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_any_tile(forced: Any, tile: Tile | WarpTile, layout: str, sizes: dict[str, int]) -> None:
    left, right, _ = layout.replace("->", ",").split(",")
    kind, device = type_of(tile), forced(tile)
    a, b = (some(*(sizes[d] for d in side), dtype=kind) for side in (left, right))
    multiply = product(layout, kind)
    found = reasons(multiply, a, b, device=device)
    if "by copies" not in str(found):  # both operands are turned on their way
        assert isinstance(tile, Tile) or kind == np.int8
        assert "a thread for each sum" in found["who sums up"]
        return
    assert f"{tile.copies + 1} tiles in shared memory" in found["who sums up"]

    check(
        multiply,
        np.einsum(layout, *(np.asarray(x, np.float64) for x in (a, b))),
        a,
        b,
        device=device,
    )


def test_windows_store_their_borders(forced: Any) -> None:
    image, taps = some(2, 9, 8, 16), some(3, 3, 16, 24)
    narrow = [x.astype(jnp.bfloat16) for x in (image, taps)]

    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(
            image, taps, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.float32,
        )  # fmt: skip

    device = forced(WarpTile(2, 2, 32, 32, 16, *HALVES, 2))
    assert reasons(conv, *narrow, device=device)["on their way"].count("by copies") == 2
    (found,) = run(conv, *narrow, resources=True, device=device)
    wanted = conv(*(np.asarray(x, np.float32) for x in narrow))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_what_is_computed_goes_through_registers(forced: Any) -> None:
    a, b = some(70, 64), some(64, 96)
    device = forced(Tile(64, 64, 8, 8, 8, 4, 2))

    def function(a: Array, b: Array) -> Array:
        return jnp.maximum(a, 0) @ b

    assert reasons(function, a, b, device=device)["on their way"] == (
        "left through registers, as it is computed as it is loaded; right by copies of 16 bytes"
    )
    check(function, np.maximum(a, 0).astype(np.float64) @ b, a, b, device=device)


def test_the_last_part_of_a_sum_is_shorter(forced: Any) -> None:
    device = replace(forced(TILES[0]), cores=4)
    a, b = some(20, 5004), some(5004, 16)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    (found,) = run(lambda a, b: a @ b, a, b, device=device)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-4)


def test_a_sum_of_negative_zeros_keeps_its_sign(forced: Any) -> None:
    a, b = np.full((36, 20), -0.0, np.float32), np.ones((20, 64), np.float32)
    (found,) = run(lambda a, b: a @ b, a, b, device=forced(TILES[0]))
    assert np.signbit(found).all()


def test_what_lies_beyond_a_tile_spoils_no_sum(forced: Any) -> None:
    a, b = some(40, 32), some(32, 72)
    a[3, 29], a[3, 28], b[30, 2], b[7, 69] = np.inf, np.nan, np.inf, np.nan
    (found,) = run(lambda a, b: a[:, :28] @ b[:28, :68], a, b, device=forced(TILES[0]))
    wanted = a[:, :28].astype(np.float64) @ b[:28, :68]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------- mutations


def _without(statement: str, number: int, order: str, source: str, *launched: Any) -> None:
    """A launch without one of the statements."""
    found = list(re.finditer(statement, source))
    assert len(found) == 2
    text = source[: found[number].start()] + source[found[number].end() :]
    sizes, words, blocks, _, nbytes = launched
    LAUNCH(text, sizes, words, blocks, order, nbytes)


@pytest.mark.parametrize("tile", [TILES[0], TILES[5]], ids=str)
@pytest.mark.parametrize("statement", [r"\n *wait_for_copies<\d>\(\);", r"\n *__syncthreads\(\);"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_wait_or_barrier_is_found(
    forced: Any, monkeypatch: pytest.MonkeyPatch, tile: Tile | WarpTile, statement: str, number: int
) -> None:
    kind = type_of(tile)
    a, b = some(72, 128, dtype=kind), some(128, 64, dtype=kind)
    multiply, device = product("mk,kn->mn", kind), forced(tile)
    wanted, wrong = np.asarray(a, np.float64) @ np.asarray(b, np.float64), 0
    for order in machine.ORDERS:
        monkeypatch.setattr(machine, "launch", partial(_without, statement, number, order))
        try:
            (found,) = run(multiply, a, b, device=device)
            wrong += not np.allclose(found, wanted, rtol=1e-4, atol=1e-4)
        except EmulationError:
            wrong += 1
    assert wrong


# -------------------------------------------------------------------- who copies


@pytest.mark.parametrize(("size", "tiles"), [(512, 3), (4096, 2)])
def test_few_blocks_have_more_tiles_on_their_way(size: int, tiles: int) -> None:
    """A multiprocessor with several blocks has something to do while a tile is on its way."""
    a = np.zeros((size, size), jnp.bfloat16)
    found = reasons(product("mk,kn->mn", jnp.bfloat16), a, a, device=device_named("A100"))
    assert f"{tiles} tiles in shared memory" in found["who sums up"].split(";")[0]


def test_rows_that_are_no_whole_accesses_are_not_copied() -> None:
    a, b = np.zeros((1024, 1021), jnp.bfloat16), np.zeros((1021, 1027), jnp.bfloat16)
    assert "on their way" not in reasons(product("mk,kn->mn", jnp.bfloat16), a, b)


# -------------------------------------------------------------------- what is turned


@pytest.mark.parametrize(("kind", "slower"), [(np.int8, True), (jnp.bfloat16, False)])
def test_bytes_that_are_turned_cost_what_banks_take(kind: Any, slower: bool) -> None:
    """16-bit operands are turned as fragments are loaded, for nothing."""
    a, device = np.zeros((2048, 2048), kind), device_named("A100")
    costs = []
    for layout in ("mk,nk->mn", "mk,kn->mn"):
        best = reasons(product(layout, kind), a, a, device=device)["who sums up"].split(";")[0]
        costs.append(float(re.sub(r".*: | us", "", best)))
    assert (costs[1] > 1.05 * costs[0]) == slower


@pytest.mark.parametrize(("along", "lanes", "line", "itemsize", "words"), [
    (8, 16, 144, 1, 8),  # 16 lines of 144 bytes apart: 8 words of each of a bank
    (8, 4, 68, 4, 4), (32, 1, 33, 4, 1), (32, 1, 32, 4, 32), (32, 1, 33, 8, 2),
])  # fmt: skip
def test_words_of_a_bank(along: int, lanes: int, line: int, itemsize: int, words: int) -> None:
    assert _meeting(along, lanes, line, itemsize) == words
