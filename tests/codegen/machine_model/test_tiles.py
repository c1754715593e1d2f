"""Kernels for machines that are not here: what ports and caches make of tiles and vectors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.codegen.target import Target, _make
from stagejit.pipeline import Compilation
from tests.codegen.cpu.contract.tiling.plans import plan
from tests.codegen.machine_model.machines import _CACHES, _512, kernel, server


def zen3() -> Target:
    caches = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}
    return _make("znver3", "x86_64-unknown-linux-gnu", "znver3", "+avx2,+fma", caches, cores=2)


def tile(target: Target, *shapes: tuple[int, ...]) -> str:
    """The tiling that was chosen for a product."""
    (choice,) = (c for c in kernel(jnp.matmul, *shapes, target=target).choices if c.name == "tile")
    return choice.reason.split(":")[0]


@pytest.mark.parametrize(
    ("cpu", "features", "ports"),
    [
        ("znver4", _512, 1),
        ("znver5", _512, 2),
        ("sapphirerapids", _512, 2),
        ("tigerlake", _512, 1),
        ("some-new-cpu", _512, 1),
        ("znver1", "+avx2,+fma", 1),
        ("znver3", "+avx2,+fma", 2),
    ],
)
def test_ports(cpu: str, features: str, ports: int) -> None:
    target = server(cpu, features=features)
    assert target.fma_ports == ports
    assert target.peak_flops == target.lanes("f32") * ports * 2 * target.cycles_per_second


def test_arm_cores_with_four_pipes() -> None:
    assert _make("m1", "aarch64", "apple-m1", "+neon", _CACHES, cores=8).fma_ports == 4
    assert Target.neon().fma_ports == 2


def test_two_wide_ports_want_the_right_operand_packed() -> None:
    square = (1024, 1024), (1024, 1024)
    assert tile(server("znver5"), *square).endswith("right packed")
    assert tile(server("sapphirerapids"), *square).endswith("right packed")
    assert tile(Target.avx2(), *square).endswith("right packed")
    mlp = (512, 768), (768, 3072)
    assert tile(server("znver5"), *mlp).endswith("right packed")
    assert tile(server("znver4"), *mlp).endswith("nothing packed")


def test_rows_that_fit_the_first_tlb_are_read_as_they_lie() -> None:
    for target in (server("znver4"), server("znver5"), Target.avx2()):
        assert tile(target, (16, 128), (128, 512)).endswith("nothing packed")


def test_what_comes_from_memory_is_not_packed() -> None:
    """It is read once a block, so that packing is one more pass, and nothing hides the wait."""
    long = (123, 51234), (51234, 456)
    for target in (server("znver4"), server("znver5"), replace(Target.avx2(), l3_nbytes=32 << 20)):
        assert tile(target, *long).endswith("nothing packed")


@pytest.mark.parametrize(("m", "k", "n"), [
    (123, 51234, 456), (300, 4096, 4096), (64, 4096, 4096),  # from memory
    (24, 1024, 1024), (32, 512, 512), (32, 768, 2304),  # rows evict each other
])  # fmt: skip
def test_a_core_that_waits_for_few_lines_wants_what_comes_from_afar_packed(
    m: int, k: int, n: int
) -> None:
    """For few rows there is nothing to do meanwhile; few steps evict nothing."""
    few, many = server("cascadelake"), server("znver5")
    assert (few.l1_misses, many.l1_misses) == (12, 24)
    assert tile(few, (m, k), (k, n)).endswith("right packed")
    assert tile(many, (m, k), (k, n)).endswith("nothing packed")
    assert tile(few, (8, k), (k, n)).endswith("nothing packed")
    assert tile(few, (m, 64), (64, n)).endswith("nothing packed")


def test_parts_of_a_sum_are_read_in_blocks_as_long_as_one() -> None:
    """A step reads one row, however many parts there are."""
    parts = (32, 123, 1602), (32, 1602, 456)
    assert "blocks of 134 steps" in tile(server("znver4"), *parts)
    assert "blocks of 62 steps" in tile(zen3(), *parts)
    assert "blocks of 136 steps" in tile(server("znver4"), (123, 51234), (51234, 456))


@pytest.mark.parametrize(("m", "k", "n"), [(256, 256, 65536), (64, 768, 50257), (128, 2048, 9000)])
def test_rows_from_memory_come_in_long_blocks(m: int, k: int, n: int) -> None:
    """Sums that the second cache does not hold are read and written once a block."""
    target = server("znver4", cores=2)
    tiling = plan(lambda a, b: a @ b, (m, k), (k, n), target=target).tiling
    sums = math.prod(split.span for split in tiling.splits) * 4
    assert tiling.ahead
    assert tiling.k_block >= 36
    assert sums <= target.l2_nbytes // 2 or tiling.k_block == 64


@pytest.mark.parametrize("cpu", ["znver4", "znver5"])
@pytest.mark.parametrize(("k", "n"), [(512, 24576), (768, 50257), (4096, 4096)])
def test_dont_read_what_many_rows_use_as_it_comes_from_memory(cpu: str, k: int, n: int) -> None:
    """Blocks that fit the second cache are as long as if it came from the last one. Cores that
    multiply twice as fast are waited for by twice as many rows."""
    target = server(cpu, cores=2)
    ports, product = target.fma_ports, lambda a, b: a @ b
    many = plan(product, (512 * ports, k), (k, n), target=target).tiling
    with_room = replace(target, l3_nbytes=1 << 30)
    near = plan(product, (512 * ports, k), (k, n), target=with_room).tiling
    assert (str(many), many.items, many.ahead) == (str(near), near.items, near.ahead)
    assert (many.k_block or k) >= 256  # 0: one block has all steps
    few = plan(product, (128 * ports, k), (k, n), target=target).tiling
    assert few.k_block <= 64


@pytest.mark.parametrize(("n", "masked"), [
    (6000, []), (6001, ["2 vectors"]),  # those groups that are smaller have the mask
    (5999, ["3 vectors"]), (191, ["3 vectors"]),  # one of many has it; all of few
])  # fmt: skip
def test_few_groups_have_masks(n: int, masked: list[str]) -> None:
    loops = kernel(jnp.matmul, (64, 64), (64, n), target=server("znver4")).loops
    columns = [line for line in loops.splitlines() if f"{n}: " in line]
    assert [re.findall(r"\d vectors", line)[0] for line in columns if "masked" in line] == masked
    assert len(columns) == (1 if n in (6000, 191) else 2)


def test_what_is_packed_from_memory_has_long_blocks() -> None:
    assert tile(zen3(), (512, 5000), (5000, 3072)).endswith("blocks of 250 steps, right packed")


@pytest.mark.parametrize("shape", [(16, 128, 512), (64, 768, 64), (33, 257, 1001), (16, 5000, 64)])
def test_vectors_from_the_second_cache_serve_three_rows(shape: tuple[int, int, int]) -> None:
    """It gives one vector a cycle at best, in which two are multiplied: a tile of 2 x 6 waits."""
    m, k, n = shape
    assert int(tile(zen3(), (m, k), (k, n)).split()[0]) >= 3


def test_packed_vectors_leave_the_second_cache_time() -> None:
    assert tile(zen3(), (512, 768), (768, 3072)).startswith("6 x 2 ")
    assert tile(zen3(), (123, 768), (768, 768)).startswith("6 x 2 ")
    assert tile(server("znver5"), (512, 768), (768, 3072)).startswith("8 x 3 ")


def vectors(f: Callable[..., Any], *shapes: tuple[int, ...], target: Target) -> set[str]:
    """What is said of short vectors in a program, once; nothing where they are long."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compilation = Compilation(stagejit.jit(f).trace(*args).compilation.request, target=target)
    kernels = compilation.run_until("codegen").kernels.values()
    return {c.reason for made in kernels for c in made.kernel.choices if c.name == "width"}


def test_small_programs_do_not_slow_a_core_down() -> None:
    slowed = server("cascadelake")
    (told,) = vectors(lambda x, y: x * 2 + y, (16,), (16,), target=slowed)
    assert told == "vectors of 32 bytes: longer ones cost a call 2.5 us, the program less"
    assert vectors(lambda x, i: x[i.astype(int)], (10**6, 4), (100,), target=slowed)
    assert vectors(lambda x: x.sum(0) + x, (8, 8), target=slowed)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: x * 2, (1 << 16,)),
        (lambda x: jnp.tanh(x) * jnp.sin(x), (1 << 13,)),
        (lambda x: x @ x, (8, 8)),
        (lambda x: jax.lax.fori_loop(0, 1000, lambda _, y: y * 2, x), (8, 8)),
    ],
)
def test_dont_shorten_vectors_where_they_pay(f: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert not vectors(f, shape, target=server("cascadelake"))


def test_dont_shorten_vectors_that_slow_nothing_down() -> None:
    for target in (server("znver4"), server("icelake-server"), zen3(), Target.avx512()):
        assert not vectors(lambda x, y: x * 2 + y, (16,), (16,), target=target)
