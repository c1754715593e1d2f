"""Gathers from small tables, and of short elements: against the interpreter, on every target, from
arrays that end where memory does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import Type
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

Array = np.ndarray[Any, np.dtype[Any]]
TABLES = (
    np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.float16, ml_dtypes.bfloat16,
    np.float32, np.int32, np.float64, np.int64,
)  # fmt: skip
INDICES = (np.int32, np.int64, np.uint8, np.int8, np.uint32, np.int16)
SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 128, 200, 255, 256, 257, 300)
MODES = ("clip", "fill", "promise_in_bounds")


def without_bytes() -> Target:
    """AVX-512 whose shuffles are of words at least."""
    return Target.avx512() if Target.host().has_avx512 else Target.host()


def half() -> Target:
    """Of which registers hold less."""
    return Target.host().with_short_vectors


_NOBODY = 0  # may read, write or execute
TARGETS = {
    "host": Target.host, "avx512": without_bytes, "half": half,
    "avx2": Target.avx2, "sse2": Target.sse2,
}  # fmt: skip


class AtTheEnd(Runner):
    """Arguments that are read end where a page begins that nobody may read."""

    def call(self, kernel: Kernel, buffers: Sequence[Array], *, verify: bool) -> None:
        moved = [
            array if arg.written else at_the_end(array)
            for array, arg in zip(buffers, kernel.args, strict=True)
        ]
        super().call(kernel, moved, verify=verify)


def at_the_end(array: Array) -> Array:
    page = mmap.PAGESIZE
    room = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + page)  # for as long as the array
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + room), page, _NOBODY) == 0
    made = whole[room - array.nbytes : room].view(array.dtype).reshape(array.shape)
    made[...] = array
    return np.asarray(made)


@pytest.fixture(params=TARGETS.values(), ids=list(TARGETS), name="at_end")
def _at_end(request: pytest.FixtureRequest, compile_kernel: Any) -> AtTheEnd:
    return AtTheEnd(compile_kernel, request.param())


def elements(dtype: Any, *shape: int) -> Array:
    if np.dtype(dtype) == np.bool_:
        return np.array(RNG.random(shape) < 0.5)
    return np.array(RNG.standard_normal(shape) * 50).astype(dtype)


def places(dtype: Any, extent: int, mode: str, *shape: int) -> Array:
    """Some before the first and behind the last, where the mode allows that and the type has
    them."""
    info = np.iinfo(dtype)
    low, high = max(info.min, -2 * extent), min(info.max, 2 * extent)
    if mode == "promise_in_bounds":
        low, high = 0, min(info.max, extent - 1)
    return np.array(RNG.integers(low, high, shape, endpoint=True)).astype(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", TABLES, ids=lambda d: np.dtype(d).name)
def test_tables_of_all_sizes(at_end: AtTheEnd, dtype: Any, mode: str) -> None:
    """Of all lengths near those of registers, and of words."""
    for size, kind in zip(RNG.choice(SIZES, 4, replace=False), RNG.choice(INDICES, 4), strict=True):
        if size > np.iinfo(kind).max // 2:  # JAX adds the size to what is negative
            kind = np.int32
        wanted = places(kind, size, mode, RNG.integers(1, 70))
        at_end.check(lambda x, i: x.at[i].get(mode=mode), elements(dtype, size), wanted)


@pytest.mark.parametrize("dtype", TABLES, ids=lambda d: np.dtype(d).name)
def test_columns_of_each_row(at_end: AtTheEnd, dtype: Any) -> None:
    """In an order that is the same for all rows, or that each has for itself."""
    for size in RNG.choice(SIZES, 3, replace=False):
        count = RNG.integers(1, 40)
        x, same = elements(dtype, 5, size), places(np.int32, size, "promise_in_bounds", count)
        at_end.check(lambda x, same=same: x[:, same], x)
        own = places(np.int32, size, "clip", 5, count)
        at_end.check(lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"), x, own)


@pytest.mark.parametrize(
    ("dtype", "size", "found"),
    [
        (np.uint8, 256, "lookup"), (np.uint8, 257, "gather"), (np.int16, 128, "lookup"),
        (np.int16, 129, "gather"), (np.float32, 64, "lookup"), (np.float32, 65, "gather"),
        (np.float64, 32, "lookup"),
    ],
)  # fmt: skip
def test_what_registers_hold(at_end: AtTheEnd, dtype: Any, size: int, found: str) -> None:
    target = at_end.target
    if target.vector_nbytes < 64:
        found = "gather"
    wanted = places(np.int32, size, "clip", 33)
    kernel = at_end.check(lambda x, i: x[i], elements(dtype, size), wanted)
    assert found in kernel.function.as_text()


def test_a_gather_of_bytes_takes_as_long_as_it_does(host: Runner) -> None:
    """It goes lane by lane, or takes an instruction that does."""
    wanted = places(np.int32, 5000, "clip", 1 << 18)
    kernel = host.generate(region_of(graph_of(lambda x, i: x[i], elements(np.uint8, 5000), wanted)))
    assert kernel.seconds >= (1 << 18) * host.target.lane_seconds(1) > 10e-6


def test_columns_in_another_order_are_found_in_registers() -> None:
    """And not one by one, with vectors across the rows: these have one store for each column."""
    order, columns = RNG.permutation(16), elements(np.uint8, 1 << 14, 16)
    region = region_of(graph_of(lambda x: x[:, order], columns))
    for target in (Target.avx512(), Target.avx2(), Target.neon()):
        kernel = kernel_of(region, target)
        (choice,) = (choice for choice in kernel.choices if choice.name == "vector")
        assert choice.reason.startswith("vectors along i of 16:"), target.name
        assert "lookup" in kernel.function.as_text()


@pytest.mark.parametrize("nbytes", [16, 48, 64])
def test_arm_looks_up_bytes(assembly: Any, nbytes: int) -> None:
    """In up to four registers, by one instruction."""
    target = Target.neon()
    region = region_of(
        graph_of(lambda x, i: x[i], elements(np.uint8, nbytes), places(np.int32, 1, "clip", 64))
    )
    text = assembly(kernel_of(region, target).function, target)
    assert "tbl" in text


@pytest.mark.parametrize("registers", [1, 2, 3, 4])
@pytest.mark.parametrize("elem", ["i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_each_element_is_found(run_kernel: Any, target: Any, elem: str, registers: int) -> None:
    """By machine code and by the interpreter, for as many lanes as there may be."""
    type, machine = Type(elem), target()
    nbytes = type.bits // 8
    width = machine.table_nbytes(nbytes) // nbytes // 4
    if machine.table_nbytes(nbytes) < 128:
        width, registers = 4 * width, 1
    source = np.arange(registers * width * nbytes).astype(np.uint8).view(DTYPES[elem])
    for lanes in {1 << k for k in range(1, 7)}:
        if lanes > width:
            continue
        b = Builder()
        x, i = b.buffer("x", type, readonly=True), b.buffer("i", type.as_int, readonly=True)
        out = b.buffer("y", type)
        table = [b.load(x, k * width, width) for k in range(registers)]
        b.store(b.lookup(b.load(i, 0, lanes), table), out, 0)
        wanted = RNG.integers(0, len(source), lanes)
        index = wanted.astype(f"u{nbytes}")
        compiled, interpreted = np.zeros((2, lanes), DTYPES[elem])
        run_kernel(b.finish(), [source, index, compiled], target=machine)
        interpret(b.finish(), [source, index.view(f"i{nbytes}"), interpreted])
        bits = [each.view(index.dtype) for each in (compiled, interpreted, source[wanted])]
        np.testing.assert_array_equal(bits[0], bits[2])
        np.testing.assert_array_equal(bits[1], bits[2])
