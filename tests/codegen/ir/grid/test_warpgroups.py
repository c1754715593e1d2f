"""Products of warpgroups, simulated: what they compute, and the faults that are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.warpgroups import (
    ALIGNMENT,
    LINE,
    WARPGROUP,
    SwizzledMatrix,
    WarpgroupTile,
    swizzled,
)
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import BF16, F16, F32, Buffer, Function, Type, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.errors import VerificationError
from tests.randomness import RNG

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES: dict[Type, Any] = {F16: np.float16, BF16: ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Case:
    """A product of 64 `groups` rows, `columns` columns and `steps` steps by one block. wrong: what
    is left out, or done where it must not be."""

    columns: int = 64
    steps: int = 64
    operand: Type = BF16
    by_steps: tuple[bool, bool] = (True, True)
    groups: int = 1
    pending: int = 0
    wrong: str = ""


def product(case: Case) -> Function:
    """All in shared memory at once: an instruction for 16 steps, a group each."""
    b, tile = GridBuilder([WARPGROUP * case.groups]), WarpgroupTile(case.columns, case.operand)
    rows, wrong = 64 * case.groups, case.wrong
    given = [b.buffer(name, case.operand, readonly=True) for name in "xy"]
    z = b.buffer("z", F32)
    sums = b.stack("sums", F32, tile.sums)
    extents = (rows, case.columns)
    operands = [
        _filled(b, source, extent, case, by_steps)
        for source, extent, by_steps in zip(given, extents, case.by_steps, strict=True)
    ]
    thread = b.thread_of_block()
    for at in range(tile.sums):
        b.store(b.const(0.5, F32), sums, at)
    if wrong != "no fence of proxies":
        b.proxy_fence()
    if wrong != "no barrier":
        b.barrier()
    group = thread // WARPGROUP
    if wrong == "another place":
        group = thread // 32
    for first in range(0, case.steps, tile.k):
        if wrong != "no fence":
            b.wgmma_fence(sums)
        (left, x), (right, y) = operands
        own = left.offset(64, 0)
        b.wgmma(tile, sums, 0, (left, x, group * own + left.offset(0, first)),
                (right, y, right.offset(0, first)))  # fmt: skip
        b.wgmma_commit()
        if first + tile.k < case.steps:
            b.wgmma_wait(sums, case.pending)
    if wrong == "early":
        b.barrier()
        b.store(b.const(1.0, case.operand), operands[0][1], thread)
    if wrong != "no wait":
        b.wgmma_wait(sums)
    _stored(b, sums, z, tile, case.columns, group)
    if wrong == "no wait":
        b.wgmma_wait(sums)
    return b.finish()


def _filled(
    b: GridBuilder, source: Buffer, extent: int, case: Case, by_steps: bool
) -> tuple[SwizzledMatrix, Buffer]:
    """An operand on its way to shared memory: the steps of a row lie together in `source`."""
    lines, along = (extent, case.steps) if by_steps else (case.steps, extent)
    matrix = SwizzledMatrix(by_steps, lines)
    strips = -(-along // LINE)
    shared = b.shared(source.name, case.operand, strips * matrix.strip, alignment=ALIGNMENT)
    threads = WARPGROUP * case.groups
    size = extent * case.steps

    def each(first: Value) -> None:
        at = first + b.thread_of_block()
        other, step = at // case.steps, at % case.steps
        line, neighbour = (other, step) if by_steps else (step, other)
        place = neighbour // LINE * matrix.strip + line * LINE + neighbour % LINE
        b.store(b.load(source, at), shared, swizzled(place))

    b.loop(0, size, threads, (), each)
    return matrix, shared


def _stored(
    b: GridBuilder, sums: Buffer, z: Buffer, tile: WarpgroupTile, columns: int, group: Value
) -> None:
    thread = b.thread_of_block() % WARPGROUP
    warp, lane = thread // 32, thread % 32
    for at in range(tile.sums):
        row = group * 64 + warp * 16 + lane // 4 + 8 * (at // 2 % 2)
        column = 8 * (at // 4) + lane % 4 * 2 + at % 2
        b.store(b.load(sums, at), z, row * columns + column)


def arrays_of(case: Case) -> tuple[Array, Array, Array]:
    x = RNG.standard_normal((64 * case.groups, case.steps)).astype(DTYPES[case.operand])
    y = RNG.standard_normal((case.columns, case.steps)).astype(DTYPES[case.operand])
    return x, y, np.zeros((64 * case.groups, case.columns), np.float32)


def wanted_of(x: Array, y: Array) -> Array:
    made: Array = x.astype(np.float64) @ y.astype(np.float64).T + 0.5
    return made


ORDERS = [(True, True), (True, False), (False, True), (False, False)]
CASES = [
    *(Case(64, 64, by_steps=order) for order in ORDERS),
    *(Case(128, 128, F16, order, groups=2) for order in ORDERS),
    Case(256, 32, F16, (False, False)), Case(24, 16), Case(192, 192, pending=2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product(case: Case) -> None:
    function, (x, y, z) = product(case), arrays_of(case)
    verify(function)
    simulate(function, [x, y, z], blocks=[1])
    np.testing.assert_allclose(z, wanted_of(x, y), rtol=1e-5, atol=1e-5)


WRONG = {
    "no fence": "with no `wgmma_fence`",
    "no fence of proxies": "was written and not fenced",
    "no barrier": "a race",
    "no wait": "is read, and was not written",
    "early": "changed before a product of it was waited for",
    "another place": "the threads of a warpgroup name different places",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_goes_wrong_is_found(wrong: str) -> None:
    case = Case(wrong=wrong)
    with pytest.raises(VerificationError, match=WRONG[wrong]):
        simulate(product(case), list(arrays_of(case)), blocks=[1])
