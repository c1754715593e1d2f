"""Each op without side effects as CUDA C++: the tests that compare machine code of a CPU with the
interpreter, for blocks of threads. NaN may have any bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.nodes import I8, Function, Type, Value
from stagejit.codegen.ir.verifier import verify
from tests.codegen.ir.interpreter.test_arithmetic import (  # noqa: F401  collected once more
    test_casts,
    test_divisions_and_shifts,
    test_float_ops,
    test_integer_ops,
    test_lanes,
    test_masks,
    test_reductions,
    test_scaling,
    test_zeros_and_their_like_in_extrema,
)
from tests.cuda.emulation.checked import checked

Array = np.ndarray[Any, np.dtype[Any]]
THREADS, MOST_LANES = 32, 4
Agree = Callable[..., None]


@pytest.fixture
def agree() -> Agree:
    """agree(body, *arrays, lanes=n): of vectors of at most 4 lanes, or of 8 without n."""

    def run(body: Callable[..., list[Value]], *arrays: Array, lanes: int = -1) -> None:
        function = kernel(body, *arrays, lanes=8 if lanes < 0 else min(lanes, MOST_LANES))
        outputs = [buffer for buffer in function.buffers if not buffer.readonly]
        made = [np.zeros(arrays[0].size * 2, DTYPES[y.elem.elem]) for y in outputs]
        checked(function, [*arrays, *made], [], 0, arrays[0].size, blocks=[1])

    return run


def kernel(body: Callable[..., list[Value]], *arrays: Array, lanes: int) -> Function:
    """Each thread does `body` for groups of lanes, with a buffer for each of its values."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    b = GridBuilder([THREADS])
    inputs = [b.buffer("x", Type(names[a.dtype]), readonly=True) for a in arrays]
    width = max(lanes, 1)

    def step(i: Value) -> None:
        for value in body(b, *(b.load(x, i, lanes, alignment=_alignment(x.elem, width))
                               for x in inputs)):  # fmt: skip
            if value.type.elem == "i1":
                value = b.cast("zext", value, "i8")
            y, count = b.buffer("y", value.type.scalar), max(value.type.lanes, 1)
            b.store(value, y, (i // width) * count)

    b.loop(b.lo + b.thread_id() * width, b.hi, THREADS * width, [], step)
    function = b.finish()
    verify(function)
    return function


def _alignment(elem: Type, lanes: int) -> int:
    return min(16, lanes * elem.bits // 8)


@pytest.mark.parametrize("lanes", [1, 4])
def test_masks_below(lanes: int) -> None:
    b = GridBuilder([THREADS])
    y, index, limit = b.buffer("y", I8), b.param(), b.param()
    b.store(b.cast("zext", b.mask_below(index, limit, lanes), "i8"), y, b.thread_id() * lanes)
    for pair in ((0, 3), (5, 5), (9, 2), (0, 10**12), (-3, 1), (2**40, 2**40 + 7), (0, -5)):
        checked(b.finish(), [np.full(THREADS * lanes, 7, np.int8)], pair, blocks=[1])


def test_masks_have_a_sign() -> None:
    """True is -1 where a comparison has a sign, and saturates at once."""
    b = GridBuilder([THREADS])
    x, y, out = b.buffer("x", I8, readonly=True), b.buffer("f", Type("f64")), b.buffer("y", I8)
    p = b.load(x, b.thread_id())
    number = b.cast("sitofp", p, "f64")
    b.store(number, y, b.thread_id())
    on, other = b.compare("lt", p, 0), b.compare("eq", b.binary("and", p, 1), 0)
    predicates = ("eq", "ne", "lt", "le", "gt", "ge")
    made = [b.compare(p, on, other, signed=signed) for p in predicates for signed in (False, True)]
    made += [b.cast(name, number, "i1") for name in ("fptosi", "fptoui")]
    for k, value in enumerate(made):
        b.store(b.cast("zext", value, "i8"), out, b.thread_id() + THREADS * k)
    arrays = [np.arange(-16, 16, dtype=np.int8), np.zeros(32), np.zeros(32 * len(made), np.int8)]
    checked(b.finish(), arrays, blocks=[1])
