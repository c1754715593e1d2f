"""Runs a kernel of the loop-nest IR on NumPy arrays, op by op.

Input: a `Function` that the verifier accepts, arrays, parameters, a chunk. Output: arrays that are
written in place, or a VerificationError with the lines around the op that broke a rule: an access
outside a buffer or to what was not written, a broken promise (`runs`, `once`, an alignment), a
division that traps. Invariant: the meaning is that of the builder's docstrings, see
`arithmetic.py` for the freedoms.

Machine code is compared with it, and kernels are run by it that nothing here can execute.

Note [Rows]: a value has a row for each thread, and each op is done for all of them at once: threads
run in lockstep. A value that is the same in all threads has one row, so a kernel without threads
pays nothing. Where threads go different ways, `active` says which of them take part; both arms of
such an `if` are run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagejit.codegen.ir.interpreter.arithmetic import (
    DIVISIONS,
    columns,
    evaluate,
    faults,
    numbers,
)
from stagejit.codegen.ir.interpreter.byte_matrices import places, products
from stagejit.codegen.ir.interpreter.memory import Memory, memory_of
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.nodes import I64, Block, Buffer, Callee, Function, Op, Type, Value
from stagejit.codegen.ir.rules import Fault
from stagejit.codegen.ir.verifier import reported

Row = tuple[Array, ...]


def interpret(
    function: Function,
    arrays: Sequence[np.ndarray[Any, Any]],
    params: Sequence[int] = (),
    lo: int = 0,
    hi: int = 0,
    *,
    has_fma: bool = True,
    unwritten: int | None = None,
) -> None:
    """Runs the chunk [lo, hi) once. An array begins at the element that the call passes.

    has_fma: whether `fma` is rounded once where it need not be, as in `Target`. unwritten: the byte
    that scratch and stack are full of at first. By default nothing may be read before it is
    written; but vectors may reach over the end of what was, if nobody looks at those lanes, which
    two runs with different bytes tell.
    """
    Run(function, arrays, (*params, lo, hi), has_fma=has_fma, unwritten=unwritten).all()


class Run:
    """One run: what every value is, and all memory. given: parameters, and the chunk."""

    threads = 1

    def __init__(
        self,
        function: Function,
        arrays: Sequence[Array],
        given: Sequence[int],
        *,
        has_fma: bool = True,
        unwritten: int | None = None,
    ) -> None:
        self.function, self.arrays = function, arrays
        self.has_fma, self.unwritten = has_fma, unwritten
        self.active: Array | None = None  # which threads take part; None: all
        self.current: Op | None = None
        self.memories: dict[Buffer, Memory] = {}
        names = (*function.params, function.lo, function.hi)
        self.values: dict[Value, Array] = {
            value: numbers([number], I64) for value, number in zip(names, given, strict=True)
        }
        self.effects: dict[str, Callable[[Op], None]] = {
            "for": self._for, "if": self._if, "load": self._load, "gather": self._load,
            "store": self._store, "scatter": self._store, "call": self._call,
            "forget": lambda op: self.memories[op.attrs["buffer"]].forget(),
            "prefetch": lambda op: None, "multiply_bytes": self._multiply_bytes,
        }  # fmt: skip

    def all(self) -> None:
        """Runs the kernel."""
        try:
            with np.errstate(all="ignore"):
                self._start(self.function.buffers)
                self._ops(self.function.body)
                self._end()
        except Fault as fault:
            what = "a kernel breaks a rule"
            raise reported(fault, what, self.function, self.current) from None

    def _start(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self.memories[buffer] = self._memory(buffer)

    def _end(self) -> None:
        """What has to be so when all is done."""

    def _memory(self, buffer: Buffer) -> Memory:
        return memory_of(buffer, self.arrays, self.threads, self.unwritten)

    # ---------------------------------------------------------------- ops

    def _ops(self, block: Block) -> None:
        for op in block.ops:
            self.current = op
            effect = self.effects.get(op.opcode)
            if effect is not None:
                effect(op)
            else:
                self._pure(op)

    def _pure(self, op: Op) -> None:
        if not op.operands and op.results[0] in self.values:
            return  # a constant, the second time
        args = [self.values[operand] for operand in op.operands]
        if op.opcode in DIVISIONS and self._some(faults(op, args)):
            raise Fault(f"`{op.opcode}` of {args[0]} by {args[1]} has no result")
        self.values[op.results[0]] = evaluate(op, args, has_fma=self.has_fma)

    def _some(self, flags: Array) -> bool:
        """Whether one of the flags is on, of the threads that take part."""
        if self.active is not None:
            flags = flags & self.active.reshape(-1, *[1] * (flags.ndim - 1))
        return bool(flags.any())

    def _call(self, op: Op) -> None:
        callee: Callee = op.attrs["callee"]
        args, lanes = [self.values[operand] for operand in op.operands], op.results[0].type.lanes
        if lanes and not callee.result.type.lanes:  # one by one
            made = [self._called(callee, [x[..., k] for x in args]) for k in range(lanes)]
            self.values[op.results[0]] = np.stack(np.broadcast_arrays(*made), -1)
        else:
            self.values[op.results[0]] = self._called(callee, args)
        self.current = op

    def _called(self, callee: Callee, args: Sequence[Array]) -> Array:
        for param, value in zip(callee.params, args, strict=True):
            self.values[param] = value
        self._start(callee.buffers)
        self._ops(callee.body)
        return self.values[callee.result]

    # ---------------------------------------------------------------- memory

    def _load(self, op: Op) -> None:
        memory, access = self.memories[op.attrs["buffer"]], op.results[0].type
        index, on = self._places(op, 0, access)
        self._require_aligned(op, memory, index, on)
        self.values[op.results[0]] = memory.read(index, on)

    def _store(self, op: Op) -> None:
        memory, value = self.memories[op.attrs["buffer"]], op.operands[0]
        index, on = self._places(op, 1, value.type)
        self._require_aligned(op, memory, index, on)
        memory.write(index, self.values[value], on)

    def _multiply_bytes(self, op: Op) -> None:
        left, right, sums = (self.memories[op.attrs[key]] for key in ("left", "right", "buffer"))
        *starts, steps, adds = (int(self.values[operand][0]) for operand in op.operands)
        if steps < 1:
            raise Fault("`multiply_bytes` without a step")
        shape = op.attrs["shape"]
        at = [place + start for place, start in zip(places(shape, steps), starts, strict=True)]
        total = products(shape, left.read(at[0], None), right.read(at[1], None))
        sums.write(at[2], total + sums.read(at[2], None) if adds else total, None)

    def _places(self, op: Op, at: int, access: Type) -> tuple[Array, Array | None]:
        """The index of each lane, and which lanes are on, of operands from `at` on."""
        index, *masks = (self.values[operand] for operand in op.operands[at:])
        index = index.astype(np.int64)
        if access.lanes and index.ndim == 1:
            index = index[:, None] + np.arange(access.lanes)
        if self.threads > 1:  # an access is each thread's own, also where all have one index
            index = np.broadcast_to(index, (self.threads, *index.shape[1:]))
        masks += [] if self.active is None else [columns(self.active, access)]
        if not masks:
            return index, None
        on = masks[0] if len(masks) == 1 else masks[0] & masks[1]
        if on.shape != index.shape:
            index, on = np.broadcast_arrays(index, on)
        return index, on

    def _require_aligned(self, op: Op, memory: Memory, index: Array, on: Array | None) -> None:
        alignment = op.attrs.get("alignment", 0)
        if alignment > memory.elements.itemsize:
            first = index.reshape(len(index), -1)[:, 0]
            used = ... if on is None else on.reshape(len(on), -1).any(axis=1)
            memory.require_aligned(first[used], alignment)

    # ---------------------------------------------------------------- control flow

    def _for(self, op: Op) -> None:
        start, stop, step, *carried = (self.values[operand] for operand in op.operands)
        # A constant step may be negative; any other is positive, as is a chunk of a parallel loop.
        down = op.operands[2].const is not None and op.operands[2].const < 0
        index, around = start, self.active
        running = index > stop if down else index < stop
        if op.attrs["runs"] and self._some(~running):
            raise Fault("a loop that is said to run does not")
        while self._some(running):
            self._take_part(running, around)
            carried = self._iteration(op.blocks[0], index, carried)
            index = index + step
            running = running & (index > stop if down else index < stop)
        self.active, self.current = around, op
        self._bind(op.results, carried)

    def _iteration(self, block: Block, index: Array, carried: list[Array]) -> list[Array]:
        """What a loop carries after one more iteration."""
        self._bind(block.args, [index, *carried])
        self._ops(block)
        after = [self.values[value] for value in block.yields]
        return [self._merged(new, old) for new, old in zip(after, carried, strict=True)]

    def _if(self, op: Op) -> None:
        condition, around = self.values[op.operands[0]], self.active
        found: list[Array] = []
        for taken, block in zip((condition, ~condition), op.blocks, strict=True):
            if self._some(taken):
                self._take_part(taken, around)
                self._ops(block)
                after = [self.values[value] for value in block.yields]
                found = [*map(self._merged, after, found)] if found else after
                self.active = around
        self.current = op
        self._bind(op.results, found)

    def _take_part(self, taken: Array, around: Array | None) -> None:
        """Of the threads that are active `around`, those that are `taken` go on."""
        if around is not None:
            taken = taken & around
        self.active = None if taken.all() else np.broadcast_to(taken, (self.threads,))

    def _merged(self, new: Array, old: Array) -> Array:
        """`new` for the threads that take part."""
        if self.active is None:
            return new
        return np.where(self.active[:, None] if new.ndim > 1 else self.active, new, old)

    def _bind(self, values: Sequence[Value], found: Sequence[Array]) -> None:
        self.values.update(zip(values, found, strict=True))
