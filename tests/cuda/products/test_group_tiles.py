"""Tiles of warpgroups: any of them gives the right values, whatever stands around the product;
what costs less is chosen, and only where a GPU has the instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.cuda.contract import kernel as policy
from stagejit.codegen.cuda.contract.tensor_cores.warpgroup_tile import GroupTile
from stagejit.codegen.cuda.device import Device, device_named
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.options import Options
from stagejit.runtime.cuda.code.nvrtc import compile_cubin, is_installed
from stagejit.runtime.cuda.code.resources import resources
from stagejit.types import bf16, f16
from tests.cuda import machine
from tests.cuda.machine import GPU, EmulationError, compilation_of, run
from tests.randomness import RNG

Array = Any
LAUNCH = machine.launch
SMALL = GroupTile(1, 1, 64, 64, bf16)


def some(*shape: int, dtype: Any = jnp.bfloat16) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def exactly(array: Array) -> Array:
    return np.asarray(array, np.float64)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[GroupTile], Device]:
    """A device for which there is one tile."""

    def force(tile: GroupTile) -> Device:
        monkeypatch.setattr(policy, "tiles", lambda dtype: [])
        monkeypatch.setattr(policy, "warp_tiles", lambda plan: [])
        monkeypatch.setattr(policy, "group_tiles", lambda plan, device: [tile])
        monkeypatch.setattr(policy, "single_seconds", lambda plan, device: 1.0)
        monkeypatch.setattr(policy, "dots", lambda plan: [])
        return replace(GPU, name=f"{GPU.name} with {tile}")

    return force


def check(
    function: Callable[..., Any], wanted: Array, *args: Any, device: Device, rough: float = 1e-5
) -> None:
    compilation = compilation_of(function, *args, device=device).run_until("codegen")
    kernels = [kernel for kernel in compilation.kernels.values() if "wgmma_" in kernel.text]
    assert kernels, [kernel.kernel.choices for kernel in compilation.kernels.values()]
    (found,) = run(function, *args, resources=True, device=device)
    np.testing.assert_allclose(exactly(found), wanted, rtol=rough, atol=rough)


TILES = [
    (SMALL, {"m": 72, "k": 200, "n": 136}),
    (GroupTile(2, 1, 64, 128, f16), {"m": 130, "k": 66, "n": 254}),
    (GroupTile(1, 2, 128, 64, bf16), {"m": 64, "k": 8, "n": 264}),
    (GroupTile(2, 1, 64, 256, bf16), {"m": 136, "k": 320, "n": 264}),
    (GroupTile(1, 1, 64, 64, bf16, copies=2), {"m": 72, "k": 392, "n": 136}),
    (GroupTile(2, 1, 64, 64, f16, copies=4), {"m": 264, "k": 328, "n": 64}),
]


@pytest.mark.parametrize("layout", ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->nm"])
@pytest.mark.parametrize(("tile", "sizes"), TILES, ids=str)
def test_any_tile(forced: Any, layout: str, tile: GroupTile, sizes: dict[str, int]) -> None:
    left, right, _ = layout.replace("->", ",").split(",")
    a, b = (some(*(sizes[d] for d in side), dtype=tile.operand.numpy) for side in (left, right))

    def product(a: Array, b: Array) -> Array:
        return jnp.einsum(layout, a, b, preferred_element_type=jnp.float32)

    check(product, np.einsum(layout, exactly(a), exactly(b)), a, b, device=forced(tile), rough=2e-5)


M, K, N = 80, 72, 96
A, B = some(M, K), some(K, N)
WIDE = exactly(A) @ exactly(B)
DOT = partial(lax.dot, preferred_element_type=jnp.float32)
ROW = some(N, dtype=np.float32)
AROUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Array, float]] = {
    "after it": (lambda a, b, c: jnp.maximum(DOT(a, b) + c, 0) * 2, (A, B, ROW),
                 np.maximum(WIDE + ROW, 0) * 2, 2e-5),
    "before it": (lambda a, b: DOT(jnp.maximum(a, 0), -b), (A, B),
                  np.maximum(exactly(A), 0) @ -exactly(B), 2e-5),
    "rounded": (lambda a, b: a @ b, (A, B), WIDE, 2.0**-7),
    "a slice": (lambda a, b: DOT(a[3:70, 8:], b[:64, 8:88]), (A, B),
                exactly(A)[3:70, 8:] @ exactly(B)[:64, 8:88], 2e-5),
    "borders": (lambda a, b: DOT(jnp.pad(a, ((2, 0), (0, 8))), jnp.pad(b, ((8, 0), (0, 0)))),
                (A, B), np.pad(exactly(A), ((2, 0), (0, 8))) @ np.pad(exactly(B), ((8, 0), (0, 0))),
                2e-5),
    "in place": (lambda a, b, c: jnp.pad(DOT(a, b), ((1, 2), (4, 0)), constant_values=7) * c,
                 (A, B, np.float32(2)), 2 * np.pad(WIDE, ((1, 2), (4, 0)), constant_values=7),
                 2e-5),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around(forced: Any, name: str) -> None:
    function, args, wanted, rough = AROUND[name]
    check(function, wanted, *args, device=forced(SMALL), rough=rough)


def test_a_batch(forced: Any) -> None:
    a, b = some(3, 66, 40), some(3, 40, 72)

    def product(a: Array, b: Array) -> Array:
        return jnp.einsum("bmk,bkn->bmn", a, b, preferred_element_type=jnp.float32)

    check(product, exactly(a) @ exactly(b), a, b, device=forced(SMALL), rough=2e-5)


def test_a_convolution(forced: Any) -> None:
    image, taps = some(2, 9, 8, 16), some(3, 3, 16, 64)

    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(
            image, taps, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    wanted = conv(jnp.asarray(image, jnp.float32), jnp.asarray(taps, jnp.float32))
    check(conv, exactly(wanted), image, taps, device=forced(SMALL), rough=2.0**-6)


def test_a_sum_in_parts(forced: Any) -> None:
    """The last part is shorter than the others."""
    a, b = some(64, 8 * 1251), some(8 * 1251, 64)
    check(DOT, exactly(a) @ exactly(b), a, b, device=replace(forced(SMALL), cores=4), rough=5e-4)


def test_a_sum_of_negative_zeros_keeps_its_sign(forced: Any) -> None:
    a, b = np.full((66, 8), -0.0, jnp.bfloat16), np.ones((8, 64), jnp.bfloat16)
    (found,) = run(DOT, a, b, device=forced(SMALL))
    assert np.signbit(found).all()


def test_a_program_on_the_emulated_gpu(forced: Any) -> None:
    """Launches ask for shared memory that the kernel does not declare."""
    forced(GroupTile(2, 1, 64, 256, bf16))
    a, b = some(139, 72), some(72, 264)
    made = stagejit.jit(DOT, options=Options(target="cuda-emulated", verify=True))
    program = made.trace(a, b).compilation.run_until("host").cuda
    assert program is not None
    assert [launch.shared_nbytes for launch in program.launches()] == [2 * (128 + 256) * 64 * 2]
    np.testing.assert_allclose(made(a, b), exactly(a) @ exactly(b), rtol=2e-5, atol=2e-5)


WITHOUT = [r"__syncthreads\(\);", r"wgmma_fence_\d+\(sums\);", r"wgmma_commit\(\);",
           r"wgmma_wait_\d+_\d+\(sums\);", r"proxy_fence\(\);"]  # fmt: skip
COPIES = [r"wait_for_copies<[1-9]>\(\);", r"commit_copies\(\);"]


def _without(pattern: str, number: int, order: str, source: str, *launched: Any) -> None:
    """A launch without one of the statements: of one block, which has all tiles."""
    head, kernel = source.split("__launch_bounds__")
    found = list(re.finditer(pattern, kernel))[number]
    text = f"{head}__launch_bounds__{kernel[: found.start()]}{kernel[found.end() :]}"
    sizes, words, _, _, nbytes = launched
    LAUNCH(text, sizes, words, 1, order, nbytes)


@pytest.mark.parametrize(
    ("pattern", "copies"),
    [*((pattern, 0) for pattern in WITHOUT), *((pattern, 2) for pattern in [*WITHOUT, *COPIES])],
)
def test_a_statement_that_is_missing_is_found(
    forced: Any, monkeypatch: pytest.MonkeyPatch, pattern: str, copies: int
) -> None:
    """Each that orders the products, in one order of the threads or another."""
    device = forced(GroupTile(2, 1, 64, 64, bf16, copies))
    a, b = some(256, 64 * 5), some(64 * 5, 64)
    (kernel,) = compilation_of(DOT, a, b, device=device).run_until("codegen").kernels.values()
    count = len(re.findall(pattern, kernel.text.split("__launch_bounds__")[1]))
    assert count
    for number in range(count):
        wrong = 0
        for order in machine.ORDERS:
            monkeypatch.setattr(machine, "launch", partial(_without, pattern, number, order))
            try:
                (found,) = run(DOT, a, b, device=device)
                wrong += not np.allclose(found, exactly(a) @ exactly(b), rtol=1e-4, atol=1e-4)
            except EmulationError:
                wrong += 1
        assert wrong, number


# -------------------------------------------------------------------- choices


def _chosen(size: int, device: Device, dtype: Any = jnp.bfloat16) -> Any:
    args = [np.zeros((size, size), dtype)] * 2
    (kernel,) = compilation_of(DOT, *args, device=device).run_until("codegen").kernels.values()
    return kernel


def test_large_products_are_for_warpgroups() -> None:
    kernel = _chosen(4096, GPU)
    reason = kernel.kernel.choices[0].reason
    assert re.match(r"\d+ x \d+ sums a block, .* a warpgroup from shared memory.*: \d+ us", reason)
    nbytes = dynamic_nbytes(kernel.kernel.function.buffers)
    assert 48 << 10 < nbytes <= GPU.block_shared_nbytes
    if is_installed():
        log = compile_cubin(kernel.text, GPU.arch).log
        assert not resources(log)[kernel.symbol].spills
        assert "serialized" not in log


@pytest.mark.parametrize("name", ["A100", "B200"])
def test_other_gpus_have_tiles_of_warps(name: str) -> None:
    kernel = _chosen(4096, device_named(name))
    assert "a warp by tensor cores" in kernel.kernel.choices[0].reason
    assert "wgmma" not in kernel.text


def test_small_products_and_other_types_have_other_tiles() -> None:
    assert "wgmma" not in _chosen(64, GPU).text
    assert "wgmma" not in _chosen(1024, GPU, np.float32).text
