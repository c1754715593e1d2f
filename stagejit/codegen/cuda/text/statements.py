"""Blocks of the loop-nest IR as statements of CUDA C++: loops, conditionals, values.

Input: a block. Output: lines. Invariant: in the order of the block; what a loop carries is a
variable, all other names are constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from stagejit.codegen.cuda.text.casts import signed
from stagejit.codegen.cuda.text.expressions import called, infix, reduced, scalar
from stagejit.codegen.cuda.text.memory import MEMORY
from stagejit.codegen.cuda.text.names import called_name
from stagejit.codegen.cuda.text.types import Expr, c_type, constant
from stagejit.codegen.cuda.text.values import Values
from stagejit.codegen.cuda.text.warpgroups import WARPGROUPS
from stagejit.codegen.cuda.text.warps import WARPS
from stagejit.codegen.ir.nodes import Block, Op, Value


def write_block(v: Values, block: Block) -> None:
    for op in block.ops:
        write = _WRITERS.get(op.opcode)
        if write is not None:
            write(v, op)
        elif v.is_used(op.results[0]):
            _REGISTERS.get(op.opcode, _pure)(v, op)


# -------------------------------------------------------------------- without side effects


def _pure(v: Values, op: Op) -> None:
    (result,) = op.results
    if not result.type.lanes:
        v.bind(op, scalar(op, [v.scalar(x) for x in op.operands]))
        return
    for operand in op.operands:
        if not operand.type.lanes:
            v.short(operand)
    lanes = range(result.type.lanes)
    v.bind_lanes(result, [scalar(op, [v.lane(x, k) for x in op.operands]) for k in lanes])


def _splat(v: Values, op: Op) -> None:
    v.alias(op.results[0], (v.short(op.operands[0]),) * op.results[0].type.lanes)


def _lane_ids(v: Values, op: Op) -> None:
    type = op.results[0].type
    v.alias(op.results[0], tuple(constant(k, type.scalar) for k in range(type.lanes)))


def _extract(v: Values, op: Op) -> None:
    v.alias(op.results[0], v.lane(op.operands[0], op.attrs["lane"]))


def _insert(v: Values, op: Op) -> None:
    lanes = v.lanes(op.operands[0])
    lanes[op.attrs["lane"]] = v.short(op.operands[1])
    v.alias(op.results[0], tuple(lanes))


def _shuffle(v: Values, op: Op) -> None:
    lanes = [lane for operand in op.operands for lane in v.lanes(operand)]
    zero = constant(0, op.results[0].type.scalar)
    v.alias(op.results[0], tuple(lanes[k] if k >= 0 else zero for k in op.attrs["lanes"]))


def _reduce(v: Values, op: Op) -> None:
    (result,) = op.results
    v.bind(op, reduced(op.attrs["op"], v.lanes(op.operands[0]), result.type,
                       lambda part: v.named(part, result.type, "partial")))  # fmt: skip


def _mask_below(v: Values, op: Op) -> None:
    """Lane k is on where `index + k < limit`."""
    (result,), (index, limit) = op.results, op.operands
    left = v.scalar(limit)
    if index.const != 0:
        at = v.scalar(index)
        left = infix("-", left, Expr(at.bare or at.text, at.level))
    count = signed(left, limit.type)
    if not result.type.lanes:
        v.bind(op, infix(">", count, Expr("0")))
        return
    name = v.names.fresh("left")
    v.line(f"const i64 {name} = {count};")
    v.bind_lanes(result, [infix(">", Expr(name), Expr(str(k))) for k in range(result.type.lanes)])


def _call(v: Values, op: Op) -> None:
    callee, (result,) = op.attrs["callee"], op.results
    function, lanes = called_name(callee), range(result.type.lanes)
    if not lanes:
        v.bind(op, called(function, *map(v.scalar, op.operands)))
    elif callee.result.type.lanes:
        v.declare(result, f"{function}({', '.join(map(v.text, op.operands))})")
    else:
        parts = [called(function, *(v.lane(x, k) for x in op.operands)) for k in lanes]
        v.bind_lanes(result, parts)


# -------------------------------------------------------------------- control flow


def _for(v: Values, op: Op) -> None:
    start, stop, step, *carried = op.operands
    (block,) = op.blocks
    number, *inside = block.args
    first, last, stride = (v.short(x) for x in (start, stop, step))
    names = [_variable(v, init, result) for init, result in zip(carried, op.results, strict=True)]
    for argument, name in zip(inside, names, strict=True):
        v.bind_name(argument, name)
    i = v.names.fresh("ijklmn"[min(v.depth - 1, 5)])
    v.bind_name(number, i)
    down = step.const is not None and step.const < 0
    if op.attrs.get("unrolled"):
        v.line("#pragma unroll")
    elif any(inner.opcode == "wgmma" for inner in block.ops):
        v.line("#pragma unroll 1")  # sums have all registers: there are none for two turns
    v.line(f"for (u64 {i} = {first.bare or first}; {_goes_on(i, start, stop, last, down)}; "
           f"{_advanced(i, step, stride)}) {{")  # fmt: skip
    v.indented(lambda: _iteration(v, block, names))
    v.line("}")
    v.names.taken.discard(i)


def _variable(v: Values, init: Value, result: Value) -> str:
    """A variable for a value that a loop carries; after the loop it is the result."""
    wanted = "carried" if init.type.lanes or init.op is None else v.wanted(init)
    name = v.names.fresh(wanted if init.const is None else "total")
    v.line(f"{c_type(init.type)} {name} = {v.text(init)};")
    v.bind_name(result, name)
    return name


def _goes_on(i: str, start: Value, stop: Value, last: Expr, down: bool) -> str:
    known = [x.const for x in (start, stop)]
    if not down and all(x is not None and x >= 0 for x in known):
        return f"{i} < {last.bare}"  # no sign to look at
    return str(infix(">" if down else "<", Expr(f"i64({i})"), signed(last, stop.type)))


def _advanced(i: str, step: Value, stride: Expr) -> str:
    if step.const == 1:
        return f"++{i}"
    if stride.bare.startswith("-"):
        return f"{i} -= {stride.bare[1:]}"
    return f"{i} += {stride.bare or stride}"


def _iteration(v: Values, block: Block, names: Sequence[str]) -> None:
    write_block(v, block)
    _assign(v, names, block.yields)


def _assign(v: Values, names: Sequence[str], values: Sequence[Value]) -> None:
    """All at once: what is read again after its variable has changed gets a name first."""
    texts = [v.text(value) for value in values]
    pairs = [(n, t, x) for n, t, x in zip(names, texts, values, strict=True) if n != t]
    ready = []
    for k, (name, text, value) in enumerate(pairs):
        if any(re.search(rf"\b{earlier}\b", text) for earlier, _, _ in pairs[:k]):
            new = v.names.fresh(f"next_{name}")
            v.line(f"const {c_type(value.type)} {new} = {text};")
            text = new
        ready.append((name, text))
    for name, text in ready:
        v.line(f"{name} = {text};")


def _if(v: Values, op: Op) -> None:
    then, otherwise = op.blocks
    condition = v.scalar(op.operands[0])
    names = [v.declare(result, "", const=False, wanted="either") for result in op.results]
    v.line(f"if ({condition}) {{")
    v.indented(lambda: _iteration(v, then, names))
    if otherwise.ops or names:
        v.line("} else {")
        v.indented(lambda: _iteration(v, otherwise, names))
    v.line("}")


def _nothing(v: Values, op: Op) -> None:
    """Constants are written where they are used; prefetches are for a CPU's caches."""


_WRITERS: dict[str, Callable[[Values, Op], None]] = {
    **MEMORY, **WARPS, **WARPGROUPS, "for": _for, "if": _if,
    **dict.fromkeys(("const", "prefetch"), _nothing),
}  # fmt: skip
_REGISTERS: dict[str, Callable[[Values, Op], None]] = {
    "splat": _splat, "lane_ids": _lane_ids, "extract": _extract, "insert": _insert,
    "shuffle": _shuffle, "reduce": _reduce, "mask_below": _mask_below, "call": _call,
}  # fmt: skip
