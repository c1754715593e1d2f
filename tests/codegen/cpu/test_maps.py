"""Kernels of map regions against the interpreter, on every target that this machine can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.cpu import maps
from stagejit.codegen.elements import register_tiles
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
          np.uint64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]  # fmt: skip
TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    if np.dtype(dtype) == np.bool_:
        return RNG.random(shape) > 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(max(info.min, -1000), min(info.max, 1000), shape).astype(dtype)
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize(
    "shape", [(), (1,), (3,), (16,), (1000,), (40000,), (13, 37), (2, 3, 5), (1, 1, 7), (5, 1, 1)]
)
def test_elementwise(runner: Runner, shape: tuple[int, ...]) -> None:
    runner.check(lambda x, y: x * 2 + y, array(*shape), array(*shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtypes(runner: Runner, dtype: Any) -> None:
    x, y = array(7, 41, dtype=dtype), array(7, 41, dtype=dtype)
    runner.check(lambda x, y: (jnp.maximum(x, y), x == y, jnp.where(x < y, x, y)), x, y)


def long_body(x: Any, y: Any) -> Any:
    """About 150 operations, of which 31 compare."""
    for k in range(30):
        x, y = jnp.where(x > y, y - 3, x + (k + 40)), jnp.maximum(y, x - (2 * k + 101))
    return x, x > y


@pytest.mark.parametrize("shape", [(64,), (40000,), (3, 24), (1100, 19)])
def test_long_bodies(runner: Runner, shape: tuple[int, ...]) -> None:
    """Vectors that are full and those that are not share the body, where masks are free."""
    x, y = array(*shape), array(*shape)
    kernel = runner.check(long_body, x, y)
    runner.check(lambda x, y: long_body(x, y[::-1])[0], x, y)
    runner.check(lambda x, y: long_body(x.T, y.T), x, y)
    runner.check(lambda x, y: long_body(x[::-1].T, y.T[::-1]), x, y)
    runner.check(lambda x, y: jnp.stack(long_body(x, y)[:1] * 3, -1), x, y)
    if runner.target.has_avx512:
        assert kernel.function.as_text().count("= fcmp") == 31


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_long_bodies_of_all_types(host: Runner, dtype: Any) -> None:
    x = array(3, 77, dtype=dtype)

    def f(x: Any) -> Any:
        y = x.astype(np.float32)
        for k in range(80):
            y = jnp.abs(y) - k
        return jnp.where(y > 0, x, x[:, ::-1]), y

    host.check(f, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_copies_of_views(host: Runner, dtype: Any) -> None:
    host.check(lambda x: jnp.transpose(x, (2, 0, 1)), array(5, 21, 37, dtype=dtype))
    host.check(lambda x: x[::-1, 1::2], array(9, 70, dtype=dtype))


@pytest.mark.parametrize("source", DTYPES, ids=lambda d: np.dtype(d).name)
def test_mixed_widths(host: Runner, source: Any) -> None:
    x = array(6, 45, dtype=source)
    host.check(lambda x, y: jnp.where(x != 0, y, 2.5), x, array(6, 45))
    host.check(lambda x, y: x.astype(np.float64) + y, x, array(6, 45, dtype=np.float64))


VIEW_CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "row broadcast": (lambda x, y: x + y[:, None], ((33, 50), (33,))),
    "column broadcast": (lambda x, y: x * y, ((33, 50), (50,))),
    "outer": (lambda x, y: x[:, None] * y[None, :], ((33,), (50,))),
    "transpose": (lambda x: x.T, ((37, 53),)),
    "transpose to a narrow row": (lambda x: x.T, ((3, 530),)),
    "transpose from a narrow row": (lambda x: x.T, ((530, 3),)),
    "transpose plus itself": (lambda x: x.T + x, ((70, 70),)),
    "turned to the left": (lambda x: jnp.rot90(x) * 2, ((37, 53),)),
    "turned to the right": (lambda x: jnp.rot90(x, 3) * 2, ((53, 37),)),
    "both directions in one": (lambda x: x[::-1].T + x.T[::-1] * x.T, ((35, 70),)),
    "upside down and transposed": (lambda x: x[::-1, ::-1].T + 1, ((3, 530),)),
    "transpose in full tiles": (lambda x: x.T + x, ((64, 64),)),
    "NHWC to NCHW": (lambda x: jnp.transpose(x, (0, 3, 1, 2)), ((2, 5, 9, 21),)),
    "NCHW to NHWC": (lambda x: jnp.transpose(x, (0, 2, 3, 1)), ((2, 21, 5, 9),)),
    "heads": (lambda x: jnp.transpose(x, (0, 2, 1, 3)), ((2, 7, 5, 16),)),
    "heads, transposed": (lambda x: jnp.transpose(x, (0, 2, 3, 1)), ((2, 7, 5, 19),)),
    "reversed axes": (lambda x: jnp.transpose(x, (2, 1, 0)), ((18, 5, 33),)),
    "split and transpose": (
        lambda x: jnp.transpose(x.reshape(4, 6, 8, 3), (0, 2, 1, 3)) + 1,
        ((24, 24),),
    ),
    "merge after transpose": (lambda x: jnp.transpose(x, (1, 0, 2)).reshape(-1), ((4, 6, 10),)),
    "uneven reshape": (lambda x: x.reshape(15, 7) + 1, ((7, 15),)),
    "uneven reshape of a transpose": (lambda x: x.T.reshape(15, 7) + 1, ((5, 21),)),
    "prime reshape of a transpose": (lambda x: x.T.reshape(11, 26) + 1, ((22, 13),)),
    "reverse of an uneven reshape": (lambda x: x.reshape(15, 7)[::-1, ::-1] + x.T, ((7, 15),)),
    "reverse split in two": (
        lambda x: (x.reshape(-1)[::-1].reshape(15, 7) + 1, x.T * 2),
        ((7, 15),),
    ),
    "strided slice": (lambda x: x[3:20:2, 5:] * 2, ((30, 40),)),
    "strided columns": (lambda x: x[:, ::3], ((30, 100),)),
    "reverse": (lambda x: x[:, ::-1] + x[::-1], ((13, 37),)),
    "reverse of a slice": (lambda x: x[2:30, 1:36][:, ::-1], ((40, 37),)),
    "broadcast in the middle": (lambda x, y: x * y[:, None, :], ((3, 5, 20), (3, 20))),
    "squeeze": (lambda x: x[:, 0] + 1, ((13, 1, 37),)),
    "shifted sum": (lambda x: x[1:] + x[:-1], ((1000,),)),
    "window of rows": (lambda x: x[1:-1, :-2] - x[:-2, 1:-1] + x[2:, 2:], ((20, 50),)),
    "depth to space": (
        lambda x: x.reshape(3, 4, 2, 2, 8).transpose(0, 2, 1, 3, 4).reshape(6, 8, 8),
        ((3, 4, 32),),
    ),
}


@pytest.mark.parametrize("name", VIEW_CASES)
def test_views(runner: Runner, name: str) -> None:
    fn, shapes = VIEW_CASES[name]
    runner.check(fn, *(array(*shape) for shape in shapes))


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as they are written for bodies of any length where these are long."""
    monkeypatch.setattr(maps, "_LONG", 0)
    monkeypatch.setattr(maps, "_STRAIGHT", 0)
    monkeypatch.setattr(register_tiles, "_ROWS_APART", 0)


@pytest.mark.usefixtures("all_are_long")
@pytest.mark.parametrize("name", VIEW_CASES)
def test_views_in_long_bodies(runner: Runner, name: str) -> None:
    fn, shapes = VIEW_CASES[name]
    runner.check(fn, *(array(*shape) for shape in shapes))


@pytest.mark.usefixtures("all_are_long")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_transposes_in_long_bodies(host: Runner, dtype: Any) -> None:
    for rows, columns in ((21, 70), (64, 9)):
        x, y = array(rows, columns, dtype=dtype), array(columns, rows, dtype=dtype)
        kernel = host.check(lambda x, y: (jnp.maximum(x.T, y), y[:, ::-1] == x.T), x, y)
        squares = [buffer for buffer in kernel.function.buffers if buffer.space == "stack"]
        assert squares or rows != 21 or np.dtype(dtype).itemsize == 1  # too large, or dealt


def test_iota(runner: Runner) -> None:
    runner.check(lambda x: x + jnp.arange(37)[None, :] * jnp.arange(13)[:, None], array(13, 37))
    runner.check(lambda: lax.broadcasted_iota(np.int8, (3, 300), 1))
    runner.check(lambda: jnp.arange(40, dtype=np.float16)[::-1])
    runner.check(lambda: lax.broadcasted_iota(np.uint64, (6, 5), 0).T.reshape(10, 3))


def test_several_stores(runner: Runner) -> None:
    runner.check(lambda x, y: (x + y, x * y, x > y), array(13, 37), array(13, 37))
    runner.check(lambda x: (x.T, x.T * 2), array(21, 37))


def test_constant_arrays_are_inputs(runner: Runner) -> None:
    table = array(50)
    runner.check(lambda x: x * table + table[::-1], array(13, 50))


def test_nan_infinity_and_zeros(runner: Runner) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1.5], np.float32)
    x, y = np.repeat(special, 8), np.tile(special, 8)
    runner.check(
        lambda x, y: (jnp.maximum(x, y), jnp.minimum(x, y), x < y, x != y, x * y, x - y, -x), x, y
    )


# ------------------------------------------------------------------ placed stores


@pytest.mark.parametrize("at", [(0, 0), (2, 3), (5, 20)])
def test_insert_slice(runner: Runner, at: tuple[int, int]) -> None:
    runner.check(lambda x, y: lax.dynamic_update_slice(x, y * 2, at), array(11, 41), array(6, 21))


def test_insert_slice_at_a_run_time_place(runner: Runner) -> None:
    def update(x: Any, y: Any, i: Any, j: Any) -> Any:
        return lax.dynamic_update_slice(x, y * 2, (i, j))

    for i, j in ((0, 0), (3, 7), (-2, 100), (100, -50)):
        runner.check(update, array(11, 41), array(6, 21), np.int32(i), np.int32(j))


def test_insert_slice_with_strides(runner: Runner) -> None:
    runner.check(lambda x, y: x.at[1:9:2, ::3].set(y + 1), array(11, 41), array(4, 14))
    runner.check(lambda x, y: x.at[:, 5].set(y), array(40, 41), array(40))


def test_pad_into_a_fill(runner: Runner) -> None:
    runner.check(lambda x: lax.pad(x * 2, np.float32(1.5), ((1, 2, 0), (3, 1, 0))), array(7, 30))
    runner.check(lambda x: lax.pad(x * 2, np.float32(1.5), ((1, 2, 1), (0, 1, 2))), array(7, 30))


def test_concatenate(runner: Runner) -> None:
    runner.check(lambda x, y: jnp.concatenate([x * 2, y + 1], 1), array(7, 30), array(7, 30))
    runner.check(lambda x, y: jnp.stack([x, y, x * y], -1), array(7, 30), array(7, 30))


# ------------------------------------------------------------------ dynamic reads


def test_dynamic_slice(runner: Runner) -> None:
    for start in (-60, -1, 0, 3, 48, 1000):
        runner.check(
            lambda x, i: lax.dynamic_slice_in_dim(x, i, 5) * 2, array(50, 37), np.int32(start)
        )
    runner.check(lambda x, i: lax.dynamic_slice_in_dim(x, i, 30, 1).T, array(50, 37), np.int64(4))


INDICES = np.array([3, 4, -1, 49, 0, 7, 70, -60, 3], np.int32)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take(runner: Runner, mode: str, axis: int) -> None:
    indices = INDICES % 20 if mode == "promise_in_bounds" else INDICES
    x = array(20, 20, 20)
    before = (slice(None),) * axis
    runner.check(lambda x, i: x.at[(*before, i)].get(mode=mode), x, indices)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, ml_dtypes.bfloat16, np.float64, np.uint32])
def test_fill_values(host: Runner, dtype: Any) -> None:
    host.check(
        lambda x, i: jnp.take(x, i, axis=0, mode="fill"), array(50, 20, dtype=dtype), INDICES
    )
    host.check(lambda x, i: jnp.take(x, i, axis=1, mode="fill"), array(6, 20, dtype=dtype), INDICES)


@pytest.mark.parametrize(("width", "vector"), [(1, 3000), (3, 3), (4, 4), (64, 64)])
def test_rows_of_a_table_are_read_along_the_rows(width: int, vector: int) -> None:
    graph = graph_of(lambda x, i: x[i] + x[i + 1], array(50, width), np.zeros(3000, np.int32))
    kernel = kernel_of(region_of(graph), Target.avx512())
    (chosen,) = (c.reason for c in kernel.choices if c.name == "vector")
    assert chosen.startswith(f"vectors along i of {vector}:")


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 9, 17])
@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
def test_rows_of_a_table(runner: Runner, width: int, dtype: Any) -> None:
    runner.check(lambda x, i: x[i] + x[i * 2], array(50, width, dtype=dtype), INDICES)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64])
def test_index_types(host: Runner, dtype: Any) -> None:
    indices = np.array([0, 5, 19, 7] * 6, dtype)
    host.check(lambda x, i: x[i] + 1, array(20), indices)


def test_gather_forms(runner: Runner) -> None:
    i, j = np.array([3, 4, 49], np.int32), np.array([1, 5, 36], np.int32)
    pairs = np.stack([i, j], 1)
    corners = lax.GatherDimensionNumbers((1, 2), (), (0, 1))
    points = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    runner.check(lambda x, ij: lax.gather(x, ij, corners, (3, 2)), array(50, 37), pairs)
    runner.check(lambda x, ij: lax.gather(x, ij, points, (1, 1)), array(50, 37), pairs)
    swapped = lax.GatherDimensionNumbers((0,), (1,), (1, 0))
    runner.check(
        lambda x, ij: lax.gather(x, ij, swapped, (20, 1), mode="fill"), array(50, 37), pairs
    )
    runner.check(lambda x, i: x[:, i] * 2, array(4, 50, 7), i)
    runner.check(
        lambda x, i: jnp.take_along_axis(x, i, axis=1),
        array(6, 40),
        RNG.integers(0, 40, (6, 21)).astype(np.int32),
    )
    each_row = lax.GatherDimensionNumbers((1,), (), (1,), (0,), (0,))
    runner.check(
        lambda x, i: lax.gather(x, i, each_row, (1, 5), mode="clip"),
        array(6, 40),
        np.array([[0], [3], [35], [60], [-9], [8]], np.int32),
    )
    runner.check(lambda x, i: x[i * 2 + 1], array(50, 37), i)


# ------------------------------------------------------------------ random views

EXTENTS = st.integers(1, 20)


@st.composite
def _program(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, Any]]]:
    """A shape, and views to take of it one after the other."""
    shape = draw(st.lists(EXTENTS, min_size=1, max_size=3))
    current, steps = list(shape), []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["transpose", "reverse", "slice", "reshape", "broadcast"]))
        argument: Any = None
        if kind == "transpose":
            argument = draw(st.permutations(range(len(current))))
            current = [current[axis] for axis in argument]
        elif kind == "reverse":
            argument = draw(st.integers(0, len(current) - 1))
        elif kind == "slice":
            argument = [(draw(st.integers(0, n - 1)), n, draw(st.integers(1, 3))) for n in current]
            current = [len(range(*part)) for part in argument]
        elif kind == "reshape":
            size = int(np.prod(current))
            divisors = [d for d in range(1, size + 1) if size % d == 0]
            first = draw(st.sampled_from(divisors))
            second = draw(st.sampled_from([d for d in divisors if size // first % d == 0]))
            current = argument = [first, second, size // first // second]
        elif len(current) < 4:
            argument = draw(st.integers(2, 17))
            current = [argument, *current]
        else:
            continue
        steps.append((kind, argument))
    return shape, steps


def _apply(x: Any, steps: list[tuple[str, Any]]) -> Any:
    for kind, argument in steps:
        if kind == "transpose":
            x = jnp.transpose(x, argument)
        elif kind == "reverse":
            x = jnp.flip(x, argument)
        elif kind == "slice":
            x = x[tuple(slice(*part) for part in argument)]
        elif kind == "reshape":
            x = x.reshape(argument)
        else:
            x = jnp.broadcast_to(x, (argument, *x.shape))
    return x


@given(_program(), st.sampled_from(sorted(TARGETS)))
def test_random_views(program: Any, target: str) -> None:
    shape, steps = program
    runner = Runner(_compile(), TARGETS[target]())
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    runner.check(lambda x: _apply(x, steps) + 1, x)


@given(_program(), st.sampled_from(["i8", "u16", "f64"]))
def test_random_views_beside_themselves(program: Any, dtype: str) -> None:
    shape, steps = program
    runner = Runner(_compile(), Target.host())
    x = (
        np.arange(int(np.prod(shape)))
        .reshape(shape)
        .astype(dtype.replace("u", "uint").replace("i8", "int8").replace("f", "float"))
    )
    runner.check(lambda x: (_apply(x, steps), _apply(x * 2, steps)), x)


def _compile() -> Any:
    return _COMPILE[0]


_COMPILE: list[Any] = []


@pytest.fixture(autouse=True)
def _remember(compile_kernel: Any) -> None:
    """Hypothesis tests take no function-scoped fixtures."""
    _COMPILE[:] = [compile_kernel]


def test_lines_that_lie_backwards_come_in_squares() -> None:
    """A gather takes an element a lane."""
    graph = graph_of(lambda x: jnp.rot90(x) * 2, array(64, 64))
    kernel = kernel_of(region_of(graph), Target.host())
    assert "gather" not in kernel.function.as_text()
    (square,) = (choice for choice in kernel.choices if choice.name == "square")
    assert "0 reads are gathered" in str(square)
