"""Plans of kernels on machines that are not here: what ports, caches and cores make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit import extending
from stagejit.base.machine import CALL_SECONDS
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target, _make
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime.hosting.launching import launching, threads
from stagejit.runtime.modelled.kernels import core_seconds
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

_512 = "+sse,+sse2,+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
MANY = (2, 8, 48, 64, 128)


def server(cpu: str, cores: int = 2, features: str = _512) -> Target:
    return _make(cpu, "x86_64-unknown-linux-gnu", cpu, features, _CACHES, cores=cores)


# What runs elsewhere: a laptop's and servers' cores, of x86 and of Arm.
MACHINES: dict[str, Callable[[int], Target]] = {
    "cascadelake": lambda cores: server("cascadelake", cores),
    "sapphirerapids": lambda cores: server("sapphirerapids", cores),
    "znver4": lambda cores: server("znver4", cores),
    "znver5": lambda cores: server("znver5", cores),
    "avx2": lambda cores: replace(server("haswell", cores, "+avx2,+fma"), fma_ports=2),
    "neon": lambda cores: _make("neon", "aarch64", "neoverse-v1", "+neon", _CACHES, cores=cores),
}


def zen3() -> Target:
    caches = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}
    return _make("znver3", "x86_64-unknown-linux-gnu", "znver3", "+avx2,+fma", caches, cores=2)


def kernel(f: Callable[..., Any], *shapes: tuple[int, ...], target: Target) -> Kernel:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return kernel_of(region_of(graph_of(f, *args)), target)


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


def test_one_core_has_no_more_than_its_own_bandwidth() -> None:
    """However many there are: what it takes on one core does not depend on the others."""
    seconds = [
        kernel(lambda x: x + 1, (1 << 24,), target=server("znver4", cores)).seconds
        for cores in MANY
    ]
    assert len(set(seconds)) == 1
    assert seconds[0] == pytest.approx(2 * 4 * 2**24 / 20e9)


def test_stores_go_to_the_caches_of_all_cores() -> None:
    """Of eight last caches, each shared by eight cores, a core's part of a map lies in its own."""
    one, eight = server("znver4", 64), replace(server("znver4", 64), l3s=8)
    made = [kernel(lambda x: x + 1, (1 << 24,), target=target) for target in (one, eight)]
    found = [next(c.reason for c in k.choices if c.name == "stream") for k in made]
    assert found[0].startswith("1 of 1 stores bypass the caches")
    assert found[1] == "stores go to the caches: 128 MiB of traffic, 256 MiB of cache"
    assert made[0].seconds == made[1].seconds  # one core has one of them


def test_sorting_is_no_work_for_multipliers() -> None:
    """Digits are counted one by one, however many ports there are."""
    seconds = {
        kernel(lambda x: jnp.sort(x), (1 << 16,), target=target).seconds
        for target in (server("znver4"), server("znver5"), Target.sse2())
    }
    assert len(seconds) == 1


def kernels(
    f: Callable[..., Any], *args: Any, target: Target, donated: tuple[int, ...] = ()
) -> list[Kernel]:
    """Those of a program."""
    request = stagejit.jit(f, donate_argnums=donated).trace(*args).compilation.request
    made = Compilation(request, target=target).run_until("codegen").kernels.values()
    return [each.kernel for each in made]


PICKED: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda x, _: x,
    "slice": lambda x, _: x[8:16],
    "slice found out": lambda x, at: jax.lax.dynamic_slice_in_dim(x, at[0], 8),
    "rows": lambda x, at: x[at],
    "slice of rows": lambda x, at: x[at][:, :1024],
    "repeated": lambda x, _: jnp.broadcast_to(x[5], (8, x.shape[1])),
}
USED: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: jnp.exp(x) * 2,
    "row sums": lambda x: x.sum(1),
    "column sums": lambda x: x.sum(0),
    "softmax": jax.nn.softmax,
    "running sums": lambda x: jnp.cumsum(x, 1),
    "sort": lambda x: jnp.sort(x, 1),
    "product": lambda x: x @ jnp.ones((x.shape[1], 8)),
    "transpose": lambda x: x.T + 0,
}


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("picked", PICKED)
def test_a_part_of_an_array_takes_what_it_takes_alone(picked: str, used: str) -> None:
    """To read some rows of a table had been as long as to read all of it, so that it was forked."""

    def f(x: Any, at: Any) -> Any:
        return USED[used](PICKED[picked](x, at))

    target, at = server("znver4", 8), jax.ShapeDtypeStruct((8,), jnp.int32)
    part, rows = (8, 1024), 8 if picked == "all" else 1 << 16
    alone = kernels(USED[used], jax.ShapeDtypeStruct(part, jnp.float32), target=target)
    made = kernels(f, jax.ShapeDtypeStruct((rows, 1024), jnp.float32), at, target=target)
    assert sum(each.seconds for each in made) < 3 * sum(each.seconds for each in alone) + 2e-6


@pytest.mark.parametrize("fn", ["add", "set", "max"])
def test_updates_take_what_is_updated(fn: str) -> None:
    def f(x: Any, at: Any, y: Any) -> Any:
        return getattr(x.at[at], fn)(y)

    target, at = server("znver4", 8), jax.ShapeDtypeStruct((8,), jnp.int32)
    table, rows = (jax.ShapeDtypeStruct((n, 1024), jnp.float32) for n in (1 << 16, 8))
    (made,) = kernels(f, table, at, rows, target=target, donated=(0,))
    assert made.seconds < 10e-6
    assert not launching(made, target)[1]


def test_elements_far_apart_take_their_lines() -> None:
    """Not the array, nor their own bytes alone."""
    target, x = server("znver4", 8), jax.ShapeDtypeStruct((1 << 24,), jnp.float32)
    at = jax.ShapeDtypeStruct((1 << 14,), jnp.int32)
    (strided,) = kernels(lambda x: x[::1024] + 1, x, target=target)
    (found,) = kernels(lambda x, at: x[at] + 1, x, at, target=target)
    line = target.line_nbytes / target.cache_bandwidth
    assert 0.9 < strided.seconds / (line * (1 << 14)) < 1.2
    assert 0.9 < found.seconds / (line * (1 << 14)) < 1.3


def owners(window: int, rows: int, segments: int, target: Target, **options: bool) -> str:
    """Who applies the updates of a segment sum."""

    def f(x: Any, ids: Any) -> Any:
        return jnp.zeros((segments, window)).at[ids].add(x, **options)

    ids = jax.ShapeDtypeStruct((rows,), jnp.int32)
    region = region_of(graph_of(f, jax.ShapeDtypeStruct((rows, window), jnp.float32), ids))
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
