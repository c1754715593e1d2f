"""Checks a kernel of the loop-nest IR: scopes, types, buffers, masks.

Input: a `Function`. Output: nothing, or a `VerificationError` with the lines around the first
fault. Invariant: a kernel that passes lowers to LLVM IR that LLVM's own verifier accepts.
"""

from __future__ import annotations

from stagejit.codegen.ir.grid.rules import GRID_RULES, require_threads
from stagejit.codegen.ir.nodes import Block, Buffer, Callee, Function, Op, Value
from stagejit.codegen.ir.rules import RULES, Fault, need
from stagejit.errors import VerificationError

_CONTEXT = 3  # lines shown before and after a fault


def verify(function: Function) -> None:
    """Raises VerificationError at the first op that breaks a rule."""
    scope = _Scope(function)
    try:
        for buffer in function.buffers:
            scope.memory(buffer)
        scope.block(function.body)
        for callee in function.callees:
            scope.callee(callee)
    except Fault as fault:
        raise reported(fault, "invalid kernel", function, scope.current) from None


def reported(fault: Fault, what: str, function: Function, op: Op | None) -> VerificationError:
    """A fault, with the lines around the op where it was found."""
    return VerificationError(
        f"{what}: {fault}\n{excerpt(function, op)}",
        next_step="a generator built this kernel; report it with the text above",
    )


class _Scope:
    """Walks blocks in order, with the values that are visible."""

    def __init__(self, function: Function) -> None:
        self.buffers = set(map(id, function.buffers))
        self.visible: set[Value] = {*function.params, function.lo, function.hi}
        self.threads = function.threads
        self.current: Op | None = None

    def memory(self, buffer: Buffer) -> None:
        """Blocks of threads share memory; workers have scratch."""
        need(buffer.space != "shared" or bool(self.threads), f"{buffer} is shared, without threads")
        own = buffer.space == "scratch" and bool(self.threads)
        need(not own, f"{buffer} is scratch, which only workers have")

    def block(self, block: Block) -> None:
        outer = set(self.visible)
        self.visible.update(block.args)
        for op in block.ops:
            self.op(op)
        for value in block.yields:
            if value not in self.visible:
                raise Fault("the block yields a value that is not visible at its end")
        self.visible = outer

    def callee(self, callee: Callee) -> None:
        """Nothing of the kernel is visible in it."""
        self.visible, self.buffers = set(callee.params), set(map(id, callee.buffers))
        self.threads = ()
        own = all(buffer.space in ("table", "stack") for buffer in callee.buffers)
        need(own, f"{callee} uses memory that is not its own")
        for op in callee.body.ops:
            self.op(op)
        self.current = None
        need(callee.result in self.visible, f"{callee} returns a value that it does not define")

    def op(self, op: Op) -> None:
        self.current = op
        for position, operand in enumerate(op.operands):
            if operand not in self.visible:
                raise Fault(f"operand {position} of `{op.opcode}` is not defined here")
        rule = RULES.get(op.opcode) or GRID_RULES.get(op.opcode)
        if rule is None:
            raise Fault(f"unknown op `{op.opcode}`")
        for name in ("buffer", "source", "left", "right"):
            if name in op.attrs and id(op.attrs[name]) not in self.buffers:
                raise Fault(f"{op.attrs[name]} is not a buffer of this kernel")
        if op.opcode in GRID_RULES:
            require_threads(op, self.threads)
        rule(op)
        for inner in op.blocks:
            self.block(inner)
            self.current = op
        self.visible.update(op.results)


def excerpt(function: Function, op: Op | None) -> str:
    """The lines around an op."""
    lines = list(function.lines())
    at = next((number for number, (_, shown) in enumerate(lines) if op and shown is op), 0)
    shown = range(max(at - _CONTEXT, 0), min(at + _CONTEXT + 1, len(lines)))
    return "\n".join(f"{'-->' if k == at else '   '} {lines[k][0]}" for k in shown)
