"""Register transposes and strides, on every target and vector width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, F64, I8, I16, Type, Value
from stagejit.codegen.ir.strides import dealing_cost, dealt, interleaved, is_dealt
from stagejit.codegen.ir.transposes import lane_sums, transpose_registers
from stagejit.codegen.target import Target

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
ELEMENTS = {"f32": (F32, np.float32), "f64": (F64, np.float64), "i8": (I8, np.int8),
            "i16": (I16, np.int16)}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("elem", ELEMENTS)
def test_squares(run_kernel: Any, elem: str, target: str) -> None:
    type, dtype = ELEMENTS[elem]
    chosen = TARGETS[target]()
    lanes = min(chosen.vector_nbytes * 8 // type.bits, 16)
    for rows in {lanes, lanes - 1, 1}:
        found = transposed(run_kernel, type, dtype, lanes, rows, chosen)
        wanted = np.zeros((lanes, lanes), dtype)
        wanted[:, :rows] = np.arange(rows * lanes).reshape(rows, lanes).T.astype(dtype)
        np.testing.assert_array_equal(found, wanted)


def transposed(
    run_kernel: Any, type: Type, dtype: Any, lanes: int, rows: int, target: Target
) -> np.ndarray[Any, Any]:
    b = Builder()
    source, into = b.buffer("in", type, readonly=True), b.buffer("out", type)
    registers = [b.load(source, row * lanes, lanes) for row in range(rows)]
    for column, register in enumerate(transpose_registers(b, registers, lanes)):
        b.store(register, into, column * lanes)
    values = np.arange(rows * lanes).astype(dtype)
    found = np.full((lanes, lanes), 99, dtype)
    run_kernel(b.finish(), [values, found], (), 0, 1, target=target)
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("elem", ELEMENTS)
def test_sums_of_lanes(run_kernel: Any, elem: str, target: str) -> None:
    type, dtype = ELEMENTS[elem]
    chosen = TARGETS[target]()
    lanes = min(chosen.vector_nbytes * 8 // type.bits, 16)
    for rows in (1 << power for power in range(lanes.bit_length())):
        b = Builder()
        source, into = b.buffer("in", type, readonly=True), b.buffer("out", type)
        b.store(lane_sums(b, [b.load(source, row * lanes, lanes) for row in range(rows)]), into, 0)
        values = (np.arange(rows * lanes) % 7).astype(dtype)
        found = np.full(lanes, 99, dtype)
        run_kernel(b.finish(), [values, found], (), 0, 1, target=chosen)
        np.testing.assert_array_equal(found[:rows], values.reshape(rows, lanes).sum(1))
        assert (found[rows:] == 99).all()


def test_sums_of_lanes_take_fewer_shuffles_together() -> None:
    b = Builder()
    source = b.buffer("in", F32, readonly=True)
    total = lane_sums(b, [b.load(source, row * 16, 16) for row in range(16)])
    b.store(total, b.buffer("out", F32), 0)
    shuffles = [op for op in b.finish().walk() if op.opcode == "shuffle"]
    assert len(shuffles) == 2 * 15


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_columns_that_nobody_wants_are_not_made(lanes: int) -> None:
    def made(wanted: int | None) -> tuple[list[str], int]:
        b = Builder()
        source = b.buffer("in", F32, readonly=True)
        rows = [b.load(source, row * lanes, lanes) for row in range(lanes)]
        columns = transpose_registers(b, rows, lanes, wanted)
        shuffles = [op for op in b.finish().walk() if op.opcode == "shuffle"]
        return [_leads_to(column) for column in columns], len(shuffles)

    all_columns, most = made(None)
    assert most == lanes * (lanes.bit_length() - 1)
    counts = []
    for wanted in range(1, lanes + 1):
        columns, count = made(wanted)
        assert columns == all_columns[:wanted]
        counts.append(count)
    assert counts[0] == lanes - 1
    assert counts == sorted(counts)
    assert counts[-1] == most


def _leads_to(value: Value) -> str:
    """How a column is made of rows."""
    op = value.op
    assert op is not None
    if op.opcode != "shuffle":
        return str(op.operands[0].const)
    return f"({' '.join(map(_leads_to, op.operands))} {op.attrs['lanes']})"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8])
def test_dealing_and_interleaving_are_inverse(run_kernel: Any, stride: int, target: str) -> None:
    chosen = TARGETS[target]()
    lanes = chosen.lanes("f32")
    b = Builder()
    source = b.buffer("in", F32, readonly=True)
    phases_out, again = b.buffer("phases", F32), b.buffer("again", F32)
    wide = b.load(source, 0, lanes * stride)
    phases = [dealt(b, wide, stride, phase) for phase in range(stride)]
    for phase, register in enumerate(phases):
        b.store(register, phases_out, phase * lanes)
    b.store(interleaved(b, phases), again, 0)
    values = np.arange(lanes * stride, dtype=np.float32)
    dealt_out, back = np.zeros((stride, lanes), np.float32), np.zeros_like(values)
    run_kernel(b.finish(), [values, dealt_out, back], (), 0, 1, target=chosen)
    np.testing.assert_array_equal(dealt_out, values.reshape(lanes, stride).T)
    np.testing.assert_array_equal(back, values)


def test_when_whole_vectors_pay() -> None:
    assert is_dealt(3, 16, shared=False)
    assert is_dealt(16, 16, shared=True)
    assert not is_dealt(16, 16, shared=False)
    assert is_dealt(32, 16, shared=True)
    assert not is_dealt(33, 16, shared=True)
    assert not is_dealt(1, 16, shared=True)
    assert not is_dealt(-2, 16, shared=False)
    for stride in range(2, 33):
        assert 0 < dealing_cost(stride, 16, shared=True) <= 16
