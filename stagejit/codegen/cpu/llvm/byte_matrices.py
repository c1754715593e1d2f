"""Products of matrices of bytes as LLVM IR, in the matrix registers of AMX.

Input: a `multiply_bytes`. Output: a loop over its steps. Invariant: registers are given back at its
end, as long as they are in use, processes are slow to switch.

Registers 0, 1 ... hold sums, row by row; behind them are those of the left operand, then those of
the right one. What a register has of rows and of bytes is told by 64 bytes in memory, as Intel's
manual has it under `LDTILECFG`: a 1, at 16 the bytes of a row of each, two bytes each, and at 48
the rows of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from stagejit.codegen.cpu.llvm.text import POINTER, Emitter, Ref
from stagejit.codegen.ir.byte_matrices import MOST, ByteMatrices
from stagejit.codegen.ir.nodes import I32, I64

_WORD = 4  # bytes
_KINDS = {(True, True): "ss", (True, False): "su", (False, True): "us", (False, False): "uu"}


def multiply_bytes(
    e: Emitter, shape: ByteMatrices, bases: Sequence[Ref], at: Sequence[Ref], adds: Ref
) -> None:
    """bases: of left, right and sums. at: where these begin, and how many steps there are."""
    (*starts, steps), (rows, columns) = at, shape.blocks
    left, right, sums = (e.pointer(*each) for each in zip(bases, [I32] * 3, starts, strict=True))
    pairs = list(itertools.product(range(len(rows)), range(len(columns))))
    lefts = [len(pairs) + row for row in range(len(rows))]
    rights = [len(pairs) + len(rows) + column for column in range(len(columns))]
    e.effect("x86.ldtilecfg", [f"ptr {_configuration(e, shape)}"])

    def place(pointer: Ref, words: int) -> Ref:
        return e.op(f"getelementptr i8, {pointer}, i64 {words * _WORD}", POINTER)

    def of_sums(name: str) -> None:
        for number, (row, column) in enumerate(pairs):
            start = place(sums, MOST * (row * shape.sums.row + column))
            e.effect(f"x86.{name}", [f"i8 {number}", start, f"i64 {shape.sums.row * _WORD}"])

    known, clear, loop = (e.fresh_label(name) for name in ("sums", "clear", "steps"))
    e.branch(adds, known, clear)
    e.start(known)
    of_sums("tileloadd64")
    e.jump(loop)
    e.start(clear)
    for number in range(len(pairs)):
        e.effect("x86.tilezero", [f"i8 {number}"])
    e.jump(loop)
    e.start(loop)
    step, following, done = Ref(I64, e.fresh()), Ref(I64, e.fresh()), e.fresh_label("done")
    e.line(f"{step.text} = phi i64 [ 0, %{known} ], [ 0, %{clear} ], [ {following.text}, %{loop} ]")
    for registers, operand, rows_of, of_block in (
        (lefts, left, shape.left, MOST * shape.left.row), (rights, right, shape.right, MOST),
    ):  # fmt: skip
        here = e.pointer(operand, I32, e.binary("mul", step, rows_of.step))
        for number, register in enumerate(registers):
            start = place(here, number * of_block)
            e.effect("x86.tileloadd64", [f"i8 {register}", start, f"i64 {rows_of.row * _WORD}"])
    for number, (row, column) in enumerate(pairs):
        operands = [f"i8 {register}" for register in (number, lefts[row], rights[column])]
        e.effect(f"x86.tdpb{_KINDS[shape.signed]}d", operands)
    e.line(f"{following.text} = add i64 {step.text}, 1")
    e.branch(e.compare("slt", following, steps), loop, done, ", !llvm.loop !2")
    e.start(done)
    of_sums("tilestored64")
    e.effect("x86.tilerelease", [])


def _configuration(e: Emitter, shape: ByteMatrices) -> str:
    """The name of the constant that tells what registers have."""
    rows, columns = shape.blocks
    registers = [(row, column * _WORD) for row in rows for column in columns]
    registers += [(row, shape.depth * _WORD) for row in rows]
    registers += [(shape.depth, column * _WORD) for column in columns]
    octets = bytearray(64)
    octets[0] = 1
    for number, (count, nbytes) in enumerate(registers):
        octets[16 + 2 * number], octets[48 + number] = nbytes, count
    name = f"@{e.symbol}.registers{shape.rows}x{shape.columns}x{shape.depth}"
    text = "".join(f"\\{octet:02x}" for octet in octets)
    constant = f'{name} = private unnamed_addr constant [64 x i8] c"{text}", align 64'
    e.declarations[name] = constant
    return name
