"""Sums of index arithmetic: constants go outwards, so what stands a constant apart shares the rest.

Input: an opcode, two `i64` operands. Output: the value, None where there is nothing to rewrite.
Invariant: what the machine would compute: integers wrap, so sums and products may be regrouped.

    (x + 1) * 8 + y  -->  (x * 8 + y) + 8
    (x + 8) - x      -->  8

Note [Constants outwards]: the rows and columns of a tile, which kernels write out one by one, stand
a constant apart. With the constant outermost, what is left is the same value for all of them, is
numbered once, and the constant is the displacement of an address: it takes no instruction. Where
the ends of a loop are so far apart, their distance is a number, and no code is made for what is
left over.
"""

from __future__ import annotations

from stagejit.codegen.ir.folding import wrapped
from stagejit.codegen.ir.nodes import Value


def regrouped(opcode: str, x: Value, y: Value) -> Value | None:
    """`opcode x, y`, of which not both are constants, with its constant outermost."""
    if opcode == "add":
        return _sum(x, y)
    if opcode == "sub":
        return _difference(x, y)
    if opcode == "mul":
        return _product(x, y)
    return None


def parted(value: Value) -> tuple[Value, int]:
    """What is left of a sum without its constant, and that constant."""
    op = value.op
    if op is None or op.opcode != "add":
        return value, 0
    rest, last = op.operands
    return (value, 0) if last.const is None else (rest, int(last.const))


def trips(start: Value, stop: Value, step: Value) -> int | None:
    """How often a loop runs, where that is a number; more than once where its step is none. What
    does not end has no number: the verifier refuses it. Indices do not wrap."""
    if start.const is not None and stop.const is not None:
        distance = wrapped(int(stop.const)) - wrapped(int(start.const))
    else:
        (rest, more), (other, plus) = parted(start), parted(stop)
        if rest is not other:
            return None
        distance = plus - more
    stride = 1 if step.const is None else wrapped(int(step.const))
    if not stride:
        return None
    count = max(0, -(-distance // stride))
    return min(count, 1) * 2 if step.const is None else count


def _operands(value: Value, opcode: str) -> tuple[Value, Value] | None:
    op = value.op
    if op is None or op.opcode != opcode:
        return None
    first, second = op.operands
    return first, second


def _sum(x: Value, y: Value) -> Value | None:
    if x.const is not None:
        x, y = y, x
    (rest, more), number = parted(x), y.const
    if number is not None:
        return rest + wrapped(more + int(number)) if more else None
    other, plus = parted(y)
    if more or plus:
        return (rest + other) + wrapped(more + plus)
    for whole, part in ((x, y), (y, x)):
        known = _operands(whole, "sub")
        if known and known[1] is part:
            return known[0]
    return None


def _difference(x: Value, y: Value) -> Value | None:
    if y.const is not None:
        return x + wrapped(-int(y.const))
    (rest, more), (other, plus) = parted(x), parted(y)
    if rest is other:
        return x.builder.const(wrapped(more - plus))  # type: ignore[no-any-return]
    if x.const is None and (more or plus):
        return (rest - other) + wrapped(more - plus)
    terms = _operands(x, "add")
    if terms and any(term is y for term in terms):
        return terms[terms[0] is y]
    return None


def _product(x: Value, y: Value) -> Value | None:
    if x.const is not None:
        x, y = y, x
    if y.const is None:
        return None
    factor = int(y.const)
    rest, more = parted(x)
    if more:
        return rest * factor + wrapped(more * factor)
    known = _operands(x, "mul")
    if known and known[1].const is not None:
        return known[0] * wrapped(int(known[1].const) * factor)
    return None
