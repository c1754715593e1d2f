"""Streamed stores, and lines that are asked for ahead: which they are, and that values arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.pipeline import Compilation
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of

VECTOR_NBYTES = Target.host().vector_nbytes  # of 64-byte lines; shorter than halves: not streamed


def array(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def runner(compile_kernel: Any) -> Runner:
    """A machine without a last-level cache."""
    return Runner(compile_kernel, replace(Target.host(), l3_nbytes=0, lines_ahead=0))


@pytest.fixture
def asking(compile_kernel: Any) -> Runner:
    """A machine whose cores ask for lines, with small second caches."""
    return Runner(compile_kernel, replace(Target.host(), lines_ahead=16, l2_nbytes=1 << 10))


def streams(kernel: Kernel) -> bool:
    return any(op.attrs.get("nontemporal") for op in kernel.function.walk())


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], bool]] = {
    "map": (lambda x: x * 2, (7, 64), True),
    "masked end": (lambda x: x * 2, (16 * 9 + 5,), True),
    "transpose": (lambda x: x.T + 1, (32, 48), True),
    "softmax-like rows": (lambda x: x / x.max(1, keepdims=True), (5, 320), True),
    "softmax-like columns": (lambda x: x / x.max(0, keepdims=True), (30, 320), True),
    "cumulative": (lambda x: lax.cumsum(x, 1), (5, 320), True),
    "cumulative columns": (lambda x: lax.cumsum(x, 0), (30, 320), True),
    "rows that are not lines": (lambda x: x[:, 1:] * 2, (5, 320), False),
    "an odd place": (lambda x: lax.pad(x * 2, np.float32(0), ((0, 0, 0), (1, 15, 0))), (5, 320),
                     False),
    "narrow results": (lambda x: x > 0, (5, 320), False),
    "interleaved": (lambda x: jnp.transpose(x, (1, 0)), (3, 320), False),
}  # fmt: skip


# On vectors of half a line.
HALVES: dict[str, tuple[Callable[..., Any], tuple[int, ...], bool]] = {
    "map": (lambda x: x * 2, (7, 64), True),
    "masked end": (lambda x: x * 2, (16 * 9 + 5,), True),
    "several results": (lambda x: (x * 2, x + 1, jnp.exp(x)), (7, 64), True),
    "many results": (lambda x: tuple(x * float(n) for n in range(6)), (7, 64), False),
    "transpose": (lambda x: x.T + 1, (32, 48), False),
    "repeated rows": (lambda x: jnp.repeat(jnp.exp(x), 3, 0), (5, 320), False),
    "softmax-like rows": (lambda x: x / x.max(1, keepdims=True), (5, 320), False),
    "cumulative columns": (lambda x: lax.cumsum(x, 0), (30, 320), False),
    "rows that are not lines": (lambda x: x[:, 1:] * 2, (5, 320), False),
    "narrow results": (lambda x: x > 0, (5, 320), False),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_lines_are_streamed(runner: Runner, name: str) -> None:
    fn, shape, expected = CASES[name]
    kernel = runner.check(fn, array(*shape), rtol=1e-4)
    if VECTOR_NBYTES < 64:
        expected = VECTOR_NBYTES == 32 and name in HALVES and HALVES[name][2]
    assert streams(kernel) == expected


@pytest.mark.parametrize("name", HALVES)
def test_halves_of_lines_that_follow_each_other_are_streamed(
    compile_kernel: Any, name: str
) -> None:
    """Rows of squares, or several rows at a time, leave too many lines half full."""
    fn, shape, expected = HALVES[name]
    if not all(map(Target.host().has, ("avx2", "fma"))):
        pytest.skip("a CPU with vectors of 32 bytes")
    target = replace(Target.avx2(), l3_nbytes=0)
    kernel = Runner(compile_kernel, target).check(fn, array(*shape), rtol=1e-4)
    assert streams(kernel) == expected


def test_dont_stream_halves_of_halves(compile_kernel: Any) -> None:
    target = replace(Target.sse2(), l3_nbytes=0)
    kernel = Runner(compile_kernel, target).check(lambda x: x * 2, array(7, 64))
    assert not streams(kernel)


@pytest.mark.parametrize(
    ("fn", "streamed"),
    [
        (lambda x, y: x + y, False),
        (lambda x, y: x.at[:].set(y * 2), True),
    ],
    ids=["read there", "written over"],
)
def test_dont_stream_to_lines_that_were_just_read(fn: Callable[..., Any], streamed: bool) -> None:
    """An update in place finds its line in the first cache."""
    target = replace(Target.avx512(), l3_nbytes=0)
    x = jax.ShapeDtypeStruct((1 << 10, 1 << 10), jnp.float32)
    request = stagejit.jit(fn, donate_argnums=0).trace(x, x).compilation.request
    made = Compilation(request, target=target).run_until("codegen").kernels.values()
    (reason,) = {c.reason for each in made for c in each.kernel.choices if c.name == "stream"}
    assert reason.startswith(f"{int(streamed)} of 1 stores bypass")


def test_dont_stream_what_the_cache_keeps(compile_kernel: Any) -> None:
    target = replace(Target.host(), lines_ahead=0)
    kernel = Runner(compile_kernel, target).check(lambda x: x * 2, array(7, 64))
    assert not streams(kernel)


def test_dont_stream_small_results_of_large_reads(compile_kernel: Any) -> None:
    target = replace(Target.host(), l3_nbytes=7 * 64 * 4, lines_ahead=0)
    kernel = Runner(compile_kernel, target).check(
        lambda x, i: x[i, :] * 2, array(700, 64), np.array([3], np.int32)
    )
    assert not streams(kernel)


# ------------------------------------------------------------------ lines ahead


def asked(kernel: Kernel) -> tuple[int, int]:
    """Lines that a kernel's code asks for: of reads, and of stores."""
    ops = [op for op in kernel.function.walk() if op.opcode == "prefetch"]
    writes = sum(op.attrs["write"] for op in ops)
    return len(ops) - writes, writes


ASKED: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, int]]] = {
    "map": (lambda x: x * 2, (64 * 64,), (1, 1)),
    "masked end": (lambda x: x * 2, (64 * 64 + 5,), (1, 1)),
    "reads side by side": (lambda x: x[1:-1] + x[2:] + x[:-2], (64 * 64,), (1, 1)),
    "equal reads": (lambda x: x * 2 + x, (64 * 64,), (1, 1)),
    "backwards": (lambda x: x[::-1] * 2, (64 * 64,), (0, 1)),
    "softmax-like rows": (lambda x: x / x.max(1, keepdims=True), (5, 320), (0, 1)),
    # Eight elements of each row at once, in both passes.
    "rows that are lanes": (lambda x: x / x.max(0, keepdims=True), (40, 320), (16, 8)),
    "cumulative": (lambda x: lax.cumsum(x, 1), (5, 320), (1, 1)),
}


@pytest.mark.parametrize("name", ASKED)
def test_lines_are_asked_for(asking: Runner, name: str) -> None:
    fn, shape, expected = ASKED[name]
    kernel = asking.check(fn, array(*shape), rtol=1e-4)
    assert asked(kernel) == expected
    assert not streams(kernel)


@pytest.mark.parametrize("name", CASES)
def test_all_is_right_where_lines_are_asked_for(asking: Runner, name: str) -> None:
    fn, shape, _ = CASES[name]
    kernel = asking.check(fn, array(*shape), rtol=1e-4)
    assert not streams(kernel)


def test_squares_ask_for_the_rows_that_come_next(asking: Runner) -> None:
    kernel = asking.check(lambda x: x.T + x, array(64, 64))
    assert all(asked(kernel))
    assert {op.attrs["locality"] for op in kernel.function.walk() if op.opcode == "prefetch"} > {2}


def test_dont_ask_for_what_the_second_caches_keep(compile_kernel: Any) -> None:
    target = replace(Target.host(), lines_ahead=16)
    kernel = Runner(compile_kernel, target).check(lambda x: x * 2, array(7, 64))
    assert asked(kernel) == (0, 0)


def test_dont_ask_for_small_arrays_beside_large_ones(asking: Runner) -> None:
    kernel = asking.check(lambda x, y: x * y, array(64, 192), array(192))
    assert asked(kernel) == (1, 1)


def test_dont_ask_for_rows_that_are_not_known(asking: Runner) -> None:
    kernel = asking.check(lambda x, i: x[i] * 2, array(64, 192), np.arange(64, dtype=np.int32))
    assert asked(kernel) == (0, 1)


def test_dont_ask_for_a_line_again_and_again() -> None:
    """Rows of 4 bytes: 16 of them are a line. Rows of 16 bytes are asked for."""
    target = replace(Target.avx512(), lines_ahead=16, l2_nbytes=1 << 10)
    for dtype, asks in ((np.int8, False), (np.float32, True)):
        table, rows = np.zeros((50, 4), dtype), np.zeros(30_000, np.int32)
        kernel = kernel_of(region_of(graph_of(lambda x, i: x[i], table, rows)), target)
        assert any(op.opcode == "prefetch" for op in kernel.function.walk()) is asks
        (why,) = (c.reason for c in kernel.choices if c.name == "stream")
        assert ("each would be 16 times" in why) is not asks
