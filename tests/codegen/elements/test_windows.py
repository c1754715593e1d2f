"""Windows inside kernels, against the interpreter, on every target that this machine can run."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target
from stagejit.options import Options
from stagejit.trace.translate import graph_of
from stagejit.trace.windows.geometry import Windows
from stagejit.trace.windows.window import window
from tests.codegen.regions import Runner, aligned, region_of
from tests.expected import windows

FUNCTIONS = ("add", "max", "min", "first_max", "first_min")


def made(
    fn: str,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    padding: tuple[tuple[int, int], ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Callable[[Any], Any]:
    ones = (1,) * len(shape)
    none = tuple((0, 0) for _ in shape)
    over = Windows(shape, sizes, strides or ones, padding or none, ones, steps or ones)
    return lambda x: window(fn, x, over)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0, special: bool = False) -> Any:
    return windows.elements(random.Random(seed), shape, np.dtype(dtype), special=special)


@pytest.mark.parametrize("seed", range(12))
def test_windows_that_step_from_line_to_line(runner: Runner, seed: int) -> None:
    """Where all steps make up a line, the loops over lines and over windows are one, and vectors go
    on from the end of a line to the next."""
    rng = random.Random(seed)
    for _ in range(6):
        size, stride = rng.randint(1, 4), rng.randint(1, 4)
        size = min(size, stride)  # the last window ends where the line does
        shape = *(rng.randint(1, 4) for _ in range(rng.randint(1, 2))), stride * rng.randint(1, 9)
        ones = (1,) * (len(shape) - 1)
        f = made(rng.choice(FUNCTIONS[:3]), shape, (*ones, size), (*ones, stride))
        runner.check(f, numbers(*shape, seed=seed))


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_end_of_a_line_of_more_than_2_to_the_31_elements(runner: Runner, stride: int) -> None:
    """The last item, on memory of which next to nothing is touched."""
    extent = 2**31 + 999
    count = (extent - 1) // stride + 1
    over = made("max", (extent,), (5,), (stride,), ((2, 2),))
    line = jax.ShapeDtypeStruct((extent,), np.int8)
    kernel = runner.generate(region_of(graph_of(over, line)))
    x, found = aligned((extent,), np.int8), aligned((count,), np.int8)
    x[-2000:] = numbers(2000, dtype=np.int8)
    addresses = [
        array.ctypes.data + arg.offset for array, arg in zip((x, found), kernel.args, strict=True)
    ]
    call = runner.compile(kernel.function, runner.target)
    call([*addresses, np.zeros(1, np.int64).ctypes.data], [], kernel.total - 1, kernel.total)
    places = [place * stride for place in range(count - 99, count)]
    wanted = [x[place - 2 : place + 3].max() for place in places]
    np.testing.assert_array_equal(found[-99:], wanted)


@pytest.mark.parametrize("seed", range(24))
def test_random_windows(runner: Runner, seed: int) -> None:
    rng = random.Random(seed)
    shape, config = windows.drawn(rng)
    shape = tuple(size + rng.choice((0, 0, 9)) for size in shape)
    if not all(shape) or 0 in config.counts(shape):
        shape = tuple(size + 30 for size in shape[:2])
    rank, ones = len(shape), (1,) * len(shape)
    over = Windows(
        shape, config.sizes[:rank], config.strides[:rank], config.padding[:rank], ones,
        config.steps[:rank],
    )  # fmt: skip
    dtype = rng.choice([np.float32, np.float32, np.int8, np.uint16, np.float16, np.float64])
    fn = rng.choice(FUNCTIONS)
    special = fn in ("max", "min") and np.dtype(dtype).kind == "f"
    x = numbers(*shape, dtype=dtype, seed=seed, special=special)
    runner.check(lambda x: window(fn, x, over), x, rtol=1e-2 if dtype == np.float16 else None)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("sizes", [(3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 3)])
def test_windows_over_transposed_elements(
    runner: Runner, order: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Squares of registers that a border's arm has made are not there for the next row."""
    shape = tuple((5, 40, 24)[axis] for axis in order)
    around = tuple((size // 2, size // 2) for size in sizes)
    fn = made("add", shape, sizes, padding=around)
    runner.check(lambda x: fn(x.transpose(order)), numbers(5, 40, 24))


@pytest.mark.parametrize("fn", ["max", "add", "first_max"])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (0, 2), (2, 0), (-1, 3)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_along_lanes(
    runner: Runner, fn: str, padding: tuple[int, int], stride: int
) -> None:
    """Whole vectors, and rows whose ends are borders."""
    pads = ((1, 0), padding)
    f = made(fn, (5, 75), (3, 3), (1, stride), pads)
    runner.check(f, numbers(5, 75, special=fn == "max"))


@pytest.mark.parametrize("seed", range(16))
def test_lines_of_taps(runner: Runner, seed: int) -> None:
    """Windows along lanes of all sizes, strides, distances and borders; few lanes, and many."""
    rng = random.Random(seed)
    width, rows = rng.choice((1, 3, 17, 33, 70)), rng.choice((1, 4, 9))
    size, stride, step = rng.randint(2, 9), rng.choice((1, 2, 3, 5)), rng.choice((1, 1, 2))
    pads = rng.choice(((0, 0), (1, 2), (size - 1, size), (-1, 4), (9, 0)))
    width = max(width, (size - 1) * step + 1 - sum(pads) + 1)
    high = rng.choice((1, 2, 3))
    f = made(
        rng.choice(("add", "max", "min")), (rows, width), (high, size), (1, stride),
        ((high - 1, high), pads), (1, step),
    )  # fmt: skip
    dtype = rng.choice([np.float32, np.int8, np.uint16, np.float16, np.float64])
    x = numbers(rows, width, dtype=dtype, seed=seed)
    runner.check(lambda x: f(x * 2), x, rtol=1e-2 if dtype == np.float16 else None)


@pytest.mark.parametrize("images", [(8,), (4, 3)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_lines_are_loaded_not_taps(padding: str, images: tuple[int, ...]) -> None:
    """25 taps of 16 lanes are 46 elements of 5 lines: 4 vectors of each, or 3 where 3 are used.
    images: the loops of these axes are one, which is nothing to those of lines."""
    ones = (1,) * len(images)

    def f(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (*ones, 5, 5), (*ones, 3, 3), padding)

    region = region_of(graph_of(f, numbers(*images, 56, 56)))
    function = kernel_of(region, Target.avx512()).function
    counts = Counter(op.opcode for op in function.walk())
    arms = 2 if padding == "SAME" else 1
    assert counts["gather"] == 0
    assert counts["load"] <= arms * 2 * 4 * 5


def test_dont_go_along_lines_where_there_are_few_taps() -> None:
    def f(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "VALID")

    function = kernel_of(region_of(graph_of(f, numbers(8, 257))), Target.avx512()).function
    assert not [op for op in function.walk() if op.opcode == "shuffle"]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("same", [False, True])
def test_pooling(runner: Runner, layout: str, same: bool) -> None:
    def f(x: Any) -> Any:
        sizes = (1, 3, 3, 1) if layout == "nhwc" else (1, 1, 3, 3)
        strides = (1, 2, 2, 1) if layout == "nhwc" else (1, 1, 2, 2)
        return lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, "SAME" if same else "VALID")

    runner.check(f, numbers(2, 9, 37, 20, special=True))


@pytest.mark.parametrize("size", [(65,), (5, 14), (20, 1, 4)])
@pytest.mark.parametrize("fn", ["max", "add", "first_min"])
def test_many_taps_are_a_loop(runner: Runner, fn: str, size: tuple[int, ...]) -> None:
    shape = tuple(extent + 19 for extent in size)
    pads = tuple((2, 1) for _ in size)
    runner.check(made(fn, shape, size, None, pads), numbers(*shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_what_stands_before_and_after(runner: Runner, fn: str) -> None:
    """Computed operands, views that divide, and what is computed from the result."""

    def f(x: Any) -> Any:
        y = jnp.flip((x * 2 + 1).reshape(6, 34, 2), 1).transpose(2, 0, 1)[:, :, 1:31]
        pooled = made(fn, (2, 6, 30), (1, 2, 3), (1, 2, 2), ((0, 0), (1, 1), (0, 2)))(y)
        return jnp.transpose(pooled, (1, 2, 0)) * 3

    runner.check(f, numbers(34, 12))


def test_windows_over_windows(runner: Runner) -> None:
    def f(x: Any) -> Any:
        pool = made("max", (9, 40), (3, 3), None, ((1, 1), (1, 1)))
        return pool(pool(x)) - x

    runner.check(f, numbers(9, 40))


def test_all_of_a_window_is_outside(runner: Runner) -> None:
    for fn in FUNCTIONS:
        runner.check(made(fn, (4, 3), (2, 2), (1, 1), ((3, 4), (2, 5))), numbers(4, 3))


@pytest.mark.parametrize("extent", [1, 2, 15, 16, 17, 33])
def test_short_rows(runner: Runner, extent: int) -> None:
    for fn in ("max", "first_max"):
        runner.check(made(fn, (3, extent), (1, 2), (1, 1), ((0, 0), (1, 1))), numbers(3, extent))


# ---------------------------------------------------------------- short runs behind an open axis


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("fn", ["max", "add", "first_min"])
def test_a_short_run_in_any_memory(
    runner: Runner, fn: str, order: tuple[int, ...], back: bool
) -> None:
    """Loops over axis and run are one, in lanes or around them, or stay two."""
    shape, pads = (40, 17, 3), ((0, 0), (2, 2), (0, 0))
    pool, places = made(fn, shape, (1, 5, 1), padding=pads), tuple(np.argsort(order))

    def f(x: Any) -> Any:
        pooled = pool(x.transpose(order))
        return pooled.transpose(places) if back else pooled

    runner.check(f, numbers(*(shape[place] for place in places)))


@pytest.mark.parametrize("run", [(3,), (2, 2), (1, 5), (31,), (32,)])
@pytest.mark.parametrize("around", [(1, 1), (0, 2), (3, 0), (-1, 2)])
@pytest.mark.parametrize(("stride", "step"), [(1, 1), (1, 2), (2, 1), (3, 1)])
def test_short_runs(
    runner: Runner, run: tuple[int, ...], around: tuple[int, int], stride: int, step: int
) -> None:
    ones, none = (1,) * len(run), ((0, 0),) * len(run)
    shape = (4, 19, *run)
    pool = made(
        "max", shape, (2, 3, *ones), (1, stride, *ones), ((1, 0), around, *none), (1, step, *ones)
    )
    runner.check(pool, numbers(*shape, special=True))


def test_a_short_run_of_what_views_divide(runner: Runner) -> None:
    def f(x: Any) -> Any:
        y = (x * 2 + 1).reshape(4, 5, 6, 3)[1:, :, ::-1].reshape(3, 30, 3)
        pooled = made("max", (3, 30, 3), (3, 4, 1), None, ((1, 1), (2, 1), (0, 0)))(y)
        return pooled.reshape(3, 5, 18) - 1

    runner.check(f, numbers(20, 18))


def test_a_short_run_of_a_part(runner: Runner) -> None:
    """Rows in memory are longer than axis and run together, or begin elsewhere."""

    def f(x: Any) -> Any:
        pool = made("add", (6, 20, 3), (1, 3, 1), None, ((0, 0), (1, 1), (0, 0)))
        return pool(x[:, 2:22, 1:4]), pool(x[:, 3:23, :3] + x[:, :20, 2:])

    runner.check(f, numbers(6, 23, 5))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("window", [(2, 1, 3), (1, 5, 4), (3, 2, 1)])
def test_padding_beside_what_runs_backwards(axes: tuple[int, ...], window: tuple[int, ...]) -> None:
    """Of a reversed operand the padding seems to lie before its first element."""
    x = np.random.default_rng(7).normal(size=(12, 5, 4)).astype(np.float32)

    def f(x: jax.Array) -> jax.Array:
        return lax.reduce_window(jnp.flip(x, axes), 9.0, lax.min, window, (1, 1, 1), "SAME") * 2

    made = stagejit.jit(f, options=Options(verify=True))(x)
    np.testing.assert_array_equal(made, jax.jit(f)(x))
