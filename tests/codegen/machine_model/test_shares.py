"""Kernels for machines that are not here: what their cores share is even, and worth it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import stagejit
from stagejit import extending
from stagejit.base.machine import CALL_SECONDS
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target, _make
from stagejit.options import Options
from stagejit.runtime.hosting.launching import launching, threads
from stagejit.runtime.modelled.kernels import core_seconds
from stagejit.trace.translate import graph_of
from tests.codegen.machine_model.machines import _CACHES, MANY, _512, kernel, server
from tests.codegen.regions import region_of

# What runs elsewhere: a laptop's and servers' cores, of x86 and of Arm.
MACHINES: dict[str, Callable[[int], Target]] = {
    "cascadelake": lambda cores: server("cascadelake", cores),
    "sapphirerapids": lambda cores: server("sapphirerapids", cores),
    "znver4": lambda cores: server("znver4", cores),
    "znver5": lambda cores: server("znver5", cores),
    "avx2": lambda cores: replace(server("haswell", cores, "+avx2,+fma"), fma_ports=2),
    "neon": lambda cores: _make("neon", "aarch64", "neoverse-v1", "+neon", _CACHES, cores=cores),
}


@pytest.mark.parametrize("name", ["map", "sort", "product", "row sums", "transpose"])
def test_one_core_forks_nothing(name: str) -> None:
    f, shapes = UNEVEN[name]
    target = server("znver4", 1)
    made = kernel(f, *shapes, target=target)
    assert launching(made, target) == (made.total, False)
    assert core_seconds(made, target, alone=False) == core_seconds(made, target, alone=True)
    assert "as there is no other" in threads(made, target).reason


@pytest.mark.parametrize("cores", [1, 2])
def test_programs_of_one_core_have_no_regions(cores: int) -> None:
    """Of kernels, of loops, of neighbours."""

    def f(x: Any) -> Any:
        rows = jax.lax.map(lambda row: jnp.cumsum(jnp.sin(row)), x)
        return rows, [jnp.tanh(x[n:] @ x) for n in range(4)], jnp.sort(x, 0)

    options = Options(extensions=(extending.cpu("mine", cores=cores),))
    lowered = stagejit.jit(f, options=options).lower(jnp.ones((600, 600)))
    text = lowered.as_text("host")
    assert ("parallel" in text or "threads" in text) == (cores > 1)
    shared = [each for each in lowered.plan.decisions if each.rewrite == "share-forks"]
    assert cores > 1 or not any(each.applied for each in shared)


@pytest.mark.parametrize("cores", MANY)
def test_a_map_of_4_mib_is_shared(cores: int) -> None:
    target = server("znver4", cores)
    made = kernel(lambda x: x + 1, (1 << 20,), target=target)
    grain, parallel = launching(made, target)
    assert parallel
    chunks = -(-made.total // grain)
    assert -(-chunks // cores) * cores <= 1.5 * max(chunks, cores)


@pytest.mark.parametrize("cores", MANY)
@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: x * 2, (4096, 1024)),
        (lambda x: jax.nn.softmax(x), (4096, 1024)),
        (lambda x: x.sum(1), (4096, 1024)),
        (lambda x: x - x.sum(0), (256, 65536)),
        (lambda x: jnp.cumsum(x, 0), (256, 65536)),
        (lambda x: x.T + 0, (4096, 4096)),
    ],
    ids=["map", "softmax", "row sums", "column sums", "running sums", "transpose"],
)
def test_items_are_enough(f: Callable[..., Any], shape: tuple[int, ...], cores: int) -> None:
    target = server("znver4", cores)
    made = kernel(f, shape, target=target)
    assert made.total >= 2 * cores
    assert launching(made, target)[1]


UNEVEN: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "map": (lambda x: x * 2, ((4099, 1021),)),
    "long map": (lambda x: x * 2, ((9_000_011,),)),
    "middle": (lambda x: x * 2, ((5, 1_500_007),)),
    "softmax": (lambda x: jax.nn.softmax(x), ((4099, 1021),)),
    "row sums": (lambda x: x.sum(1), ((4099, 1021),)),
    "column sums": (lambda x: x - x.sum(0), ((257, 300_007),)),
    "planes": (lambda x: x - x.sum(1, keepdims=True), ((3, 65, 300_007),)),
    "running sums": (lambda x: jnp.cumsum(x, 0), ((131, 300_007),)),
    "transpose": (lambda x: x.T + 0, ((4099, 5003),)),
    "sort": (lambda x: jnp.sort(x, 1), ((4099, 257),)),
    "short rows": (lambda x: jnp.sort(x, 0), ((17, 300_007),)),
    "product": (jnp.matmul, ((3001, 517), (517, 4099))),
}


@pytest.mark.parametrize("cores", [2, 3, 6, 8, 12, 28, 48, 64, 96, 128])
@pytest.mark.parametrize("name", UNEVEN)
def test_all_cores_have_as_much_to_do(name: str, cores: int) -> None:
    """But for an eighth, of shapes that no number of cores divides."""
    f, shapes = UNEVEN[name]
    target = server("znver4", cores)
    made = kernel(f, *shapes, target=target)
    grain, parallel = launching(made, target)
    rounds, rest = divmod(made.total, grain * cores)
    assert parallel
    assert (rounds * grain + min(rest, grain)) * cores <= 1.12 * made.total, (made.total, grain)


@pytest.mark.parametrize("cores", MANY)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 100, 1000])
def test_few_items_keep_as_many_cores_busy(rows: int, cores: int) -> None:
    """Kernels had been said to take a part for each core, whatever they consist of."""
    target = replace(server("znver4", cores), l3_nbytes=1 << 40)
    made = kernel(lambda x: jnp.cumsum(x, 1), (rows, 100_000), target=target)
    seconds, busy = core_seconds(made, target, alone=False)
    assert made.total == rows
    assert busy == min(rows, cores)
    least = CALL_SECONDS + made.seconds * max(1 / rows, 1 / cores)
    assert least * 0.999 <= seconds <= 1.2 * CALL_SECONDS + made.seconds * (1 / rows + 1 / cores)


@pytest.mark.parametrize("cores", MANY)
@pytest.mark.parametrize("name", MACHINES)
def test_columns_are_shared_by_all_cores(name: str, cores: int) -> None:
    """Panels are as narrow as two lines where cores would idle."""
    for f in (lambda x: jnp.cumsum(x, 0), lambda x: x - x.sum(0)):
        made = kernel(f, (1000, 4096), target=MACHINES[name](cores))
        assert -(-made.total // cores) * cores <= 1.2 * made.total


@pytest.mark.parametrize("cores", MANY)
@pytest.mark.parametrize("name", MACHINES)
def test_all_cores_together_have_no_more_than_their_bandwidth(name: str, cores: int) -> None:
    """A modelled time is no less than the floor."""
    target, count = MACHINES[name](cores), 1 << 26
    made = kernel(lambda x: x + 1, (count,), target=target)
    assert made.far_nbytes == 8 * count
    seconds, busy = core_seconds(made, target, alone=False)
    assert busy == cores
    assert seconds >= target.floor_seconds(count, 8 * count)


@pytest.mark.parametrize(("cores", "shape"), [
    (6, (100, 3072, 3072)), (28, (100, 3072, 3072)), (28, (200, 5000, 3072)),
    (64, (123, 1000, 2304)), (64, (256, 5000, 2304)), (128, (256, 5000, 2304)),
])  # fmt: skip
def test_products_are_cut_until_shares_are_even(cores: int, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    target = server("znver4", cores)
    made = kernel(jnp.matmul, (m, k), (k, n), target=target)
    seconds, _ = core_seconds(made, target, alone=False)
    assert seconds * cores <= 1.15 * made.seconds


def test_threads_of_a_core_share_what_it_does() -> None:
    """Sixteen threads of eight cores do as much as eight of their own."""
    each = [_make("x", "x86_64", "znver4", _512, _CACHES, cores=n, physical=8) for n in (16, 8, 4)]
    threads, alone, fewer = each
    assert threads.cores * threads.peak_flops == alone.cores * alone.peak_flops
    assert threads.bandwidth == alone.bandwidth
    assert threads.cores * threads.cache_bandwidth == alone.cores * alone.cache_bandwidth
    assert fewer.peak_flops == alone.peak_flops == server("znver4").peak_flops


@pytest.mark.parametrize("cores", MANY)
def test_products_are_shared(cores: int) -> None:
    made = kernel(jnp.matmul, (2048, 2048), (2048, 2048), target=server("znver5", cores))
    assert made.total >= 4 * cores


def owners(window: int, rows: int, segments: int, target: Target, **options: bool) -> str:
    """Who applies the updates of a segment sum."""

    def f(x: Any, ids: Any) -> Any:
        return jnp.zeros((segments, window)).at[ids].add(x, **options)

    ids = jax.ShapeDtypeStruct((rows,), jnp.int32)
    return owners_of(f, target, jax.ShapeDtypeStruct((rows, window), jnp.float32), ids)


def owners_of(f: Callable[..., Any], target: Target, *args: Any) -> str:
    region = region_of(graph_of(f, *args))
    (choice,) = (c for c in kernel_of(region, target).choices if c.name == "owners")
    return choice.reason.split(":")[0]


def test_updates_are_shared_by_what_costs_least() -> None:
    """To own a range is to look at all windows, and to read one's own in no order; a part of a
    window is to be long. What is left is one core, or destinations for each: `rewrites/split`."""
    two = server("znver4", 2)
    assert owners(16, 100_000, 1000, two) == "one core for each batch"
    assert owners(512, 20_000, 1000, two) == "2 parts of windows"
    assert owners(16, 100_000, 100_000, two) == "2 ranges"
    assert owners(16, 100_000, 100_000, two, indices_are_sorted=True) == "one core for each batch"
    assert owners(64, 100_000, 1_000_000, two) == "2 parts of windows"
    assert owners(16, 100_000, 100_000, server("znver4", 64)).endswith(" ranges")


DEAR = {
    "two remainders": lambda ids: ids % 4099 % 1000,
    "hash": lambda ids: lax.population_count(ids * 31) * 7 // 3 % 1000,
    "of a float": lambda ids: (jnp.exp(ids.astype(jnp.float32)) % 1000.0).astype(jnp.int32),
}


@pytest.mark.parametrize("name", DEAR)
@pytest.mark.parametrize("cores", [2, 64])
def test_each_owner_finds_all_places(name: str, cores: int) -> None:
    """To own a range saves nothing of what finds the places; of what makes updates it does."""

    def f(x: Any, ids: Any) -> Any:
        return jnp.zeros(1000).at[DEAR[name](ids)].add(x)

    def g(x: Any, ids: Any) -> Any:
        return jnp.zeros(1000).at[ids].add(DEAR[name](x).astype(jnp.float32))

    target, ids = server("znver4", cores), jax.ShapeDtypeStruct((20_000,), jnp.int32)
    assert owners_of(f, target, jax.ShapeDtypeStruct((20_000,), jnp.float32), ids) == (
        "one core for each batch"
    )
    assert owners_of(g, target, ids, ids).endswith(" ranges")
