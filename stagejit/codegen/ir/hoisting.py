"""Where the ops of a kernel go: hoisted as they are written, and each value made once.

Input: ops, from `Builder`. Output: blocks of them, and the `Function` around. A pure op is not
appended to the current block but just outside the loops that it does not depend on: loop-invariant
code leaves its loops the moment it is written, and equal ops become one. So kernels need no
optimizer afterwards.

Invariant: an op that may fault (a load, an integer division) never leaves a block that may not run;
an op that reads or writes mutable memory stays where it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagejit.codegen.ir.nodes import I64, Block, Buffer, Callee, Function, Op, Type, Value
from stagejit.codegen.ir.nodes import numbering_key as _key

_MAY_FAULT = {"sdiv", "udiv", "srem", "urem", "load", "gather"}


class _Inside:
    """While it is open, a kernel is written to a block, which it gives."""

    def __init__(self, code: Hoisting, block: Block) -> None:
        self.code, self.block, self.around = code, block, code.block

    def __enter__(self) -> Block:
        self.code.block = self.block
        return self.block

    def __exit__(self, *exc: object) -> None:
        self.code.block = self.around


class Hoisting:
    """The blocks of one kernel, and what it declares."""

    def __init__(self) -> None:
        self._count = 0
        self._written = 0  # stores so far, and all else that loads must not pass
        self._buffers: list[Buffer] = []
        self._params: list[Value] = []
        self._scratch_nbytes = 0
        self._constants: dict[tuple[Type, str | int], Value] = {}
        self.callees: dict[Any, Callee] = {}
        self._known: dict[Any, Value] = {}  # the last of each pure op
        self.body = Block()
        self.block = self.body
        self.lo, self.hi = self._value(I64, self.body), self._value(I64, self.body)

    def finish(self) -> Function:
        buffers, params, callees = tuple(self._buffers), tuple(self._params), self.callees.values()
        nbytes = self._scratch_nbytes
        return Function(buffers, params, self.lo, self.hi, self.body, nbytes, tuple(callees))

    # ---------------------------------------------------------------- blocks

    def inside(self, block: Block) -> _Inside:
        """Write to `block`; if it is around the current one, before the loop that is open in it."""
        return _Inside(self, block)

    def sees(self, block: Block) -> bool:
        """Whether a value of `block` may be used where this writes."""
        here: Block | None = self.block
        while here is not None and here.depth > block.depth:
            here = here.parent
        return here is block

    def _nested(self, always_runs: bool, *, is_loop: bool = False) -> _Inside:
        return _Inside(self, Block(self.block, self.block.depth + 1, always_runs, is_loop))

    # ---------------------------------------------------------------- ops

    def _value(self, type: Type, block: Block) -> Value:
        self._count += 1
        return Value(type, self._count, block, self)

    def _put(
        self,
        opcode: str,
        operands: tuple[Value, ...],
        types: Sequence[Type],
        attrs: dict[str, Any],
        blocks: tuple[Block, ...] = (),
    ) -> tuple[Value, ...]:
        """Appends an op where this writes; its results."""
        results = tuple(self._value(type, self.block) for type in types)
        op = Op(opcode, operands, results, attrs, blocks)
        self.block.ops.append(op)
        for result in results:
            result.op = op
        return results

    def _effect(
        self, opcode: str, operands: tuple[Value, ...], *types: Type, **attrs: Any
    ) -> tuple[Value, ...]:
        """The same of an op that loads do not pass."""
        self._written += 1
        return self._put(opcode, operands, types, attrs)

    def _memory(
        self, opcode: str, operands: tuple[Value, ...], buffer: Buffer, type: Type, **attrs: Any
    ) -> Value:
        if buffer.readonly:
            return self._pure(opcode, operands, type, buffer=buffer, **attrs)
        # Until something is written, and in this block: one around it may be a loop that stores.
        attrs["buffer"] = buffer
        key = (*_key(opcode, operands, type, attrs), self._written)
        numbering = self.block.numbering
        if key not in numbering:
            (numbering[key],) = self._put(opcode, operands, (type,), attrs)
        return numbering[key]

    def _pure(self, opcode: str, operands: tuple[Value, ...], type: Type, **attrs: Any) -> Value:
        key = _key(opcode, operands, type, attrs)
        known = self._known.get(key)
        if known is not None and self.sees(known.block):
            return known
        depth = 0
        for operand in operands:
            if operand.block.depth > depth:
                depth = operand.block.depth
        home = self._home(depth, opcode in _MAY_FAULT) if operands else self.body
        self._count += 1
        value = self._known[key] = Value(type, self._count, home, self)
        value.op = Op(opcode, operands, (value,), attrs)
        home.ops.append(value.op)
        return value

    def _home(self, depth: int, may_fault: bool) -> Block:
        """Where an op goes whose deepest operand stands at `depth`: see Note [Hoisting]."""
        # Note [Hoisting]: all operand blocks are ancestors of the current block. Leaving a loop
        # pays, leaving an arm of an `if` alone does not (the arm may be the rare one), so the op
        # goes just outside the outermost loop that it can leave. An open loop is appended to its
        # parent only when it closes, so appending to an outer block places the op before the loop.
        home = block = self.block
        while block.depth > depth and (block.always_runs or not may_fault):
            assert block.parent is not None
            if block.is_loop:
                home = block.parent
            block = block.parent
        return home
