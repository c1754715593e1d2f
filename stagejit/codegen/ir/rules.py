"""The rules of the loop-nest IR's verifier, by kind of op.

Input: an op. Output: nothing, or a `Fault`. Invariant: see `verifier.py`, which checks scopes and
knows the op's place.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.ir.nodes import I1, I64, Buffer, Callee, Op, Type, Value


class Fault(Exception):
    """What is wrong with a kernel, or with what it does; `reported` adds where."""


def need(condition: bool, message: str) -> None:
    if not condition:
        raise Fault(message)


def types_of(op: Op) -> list[Type]:
    return [operand.type for operand in op.operands]


def result_of(op: Op) -> Type:
    need(len(op.results) == 1, f"`{op.opcode}` has one result")
    return op.results[0].type


def require_count(op: Op, *allowed: int) -> None:
    need(len(op.operands) in allowed, f"`{op.opcode}` takes {allowed} operands")


def _computes(type: Type) -> bool:
    """Floats that arithmetic is done in; 16-bit ones are only moved and converted."""
    return type.elem in ("f32", "f64")


def _same_type(count: int, allowed: Callable[[Type], bool], what: str) -> Callable[[Op], None]:
    def rule(op: Op) -> None:
        require_count(op, count)
        types = [*types_of(op), result_of(op)]
        need(len(set(types)) == 1, f"`{op.opcode}` mixes the types {types}")
        need(allowed(types[0]), f"`{op.opcode}` takes {what}, not {types[0]}")

    return rule


def _float_op(count: int) -> Callable[[Op], None]:
    return _same_type(count, _computes, "f32 or f64")


def _integer_op(count: int) -> Callable[[Op], None]:
    return _same_type(count, lambda t: not t.is_float and t.elem != "i1", "integers")


def _float_or_int_trunc(op: Op) -> None:
    """`trunc` rounds floats towards zero and narrows integers."""
    require_count(op, 1)
    (_float_op(1) if op.operands[0].type.is_float else _cast)(op)


def _dot_bytes(op: Op) -> None:
    _same_type(3, lambda t: t.elem == "i32", "words of 32 bits")(op)
    left, right = op.attrs["signed"]
    need(isinstance(left, bool) and isinstance(right, bool), "`dot_bytes` has two signs")


def _compare(op: Op) -> None:
    require_count(op, 2)
    (a, b), name, predicate = types_of(op), op.opcode, op.attrs["predicate"]
    need(a == b, f"`{name}` compares {a} with {b}")
    need(_computes(a) if name == "fcmp" else not a.is_float, f"`{name}` cannot compare {a}")
    need(predicate in _PREDICATES[name], f"`{name}` has no predicate {predicate}")
    need(result_of(op) == a.with_elem("i1"), f"`{name}` of {a} gives {a.with_elem('i1')}")


_PREDICATES = {
    "fcmp": frozenset(("oeq", "une", "olt", "ole", "ogt", "oge", "uno")),
    "icmp": frozenset(("eq", "ne", *(s + p for s in "su" for p in ("lt", "le", "gt", "ge")))),
}


def _call(op: Op) -> None:
    callee: Callee = op.attrs["callee"]
    wanted, result = [param.type for param in callee.params], callee.result.type
    lanes = result_of(op).lanes
    if lanes and not any(type.lanes for type in (*wanted, result)):  # each lane on its own
        wanted, result = [type.with_lanes(lanes) for type in wanted], result.with_lanes(lanes)
    need(types_of(op) == wanted, f"{callee} takes {wanted}, not {types_of(op)}")
    need(result_of(op) == result, f"{callee} gives {result}")


def _select(op: Op) -> None:
    require_count(op, 3)
    condition, a, b = types_of(op)
    chooses = condition.elem == "i1" and condition.lanes in (0, a.lanes)
    need(chooses, f"`select` of {a} by a condition of type {condition}")
    need(a == b == result_of(op), f"`select` between {a} and {b}")


CASTS: dict[str, Callable[[Type, Type], bool]] = {
    "trunc": lambda a, b: not a.is_float and not b.is_float and a.bits > b.bits,
    "zext": lambda a, b: not a.is_float and not b.is_float and a.bits < b.bits,
    "sext": lambda a, b: not a.is_float and not b.is_float and a.bits < b.bits,
    "fptrunc": lambda a, b: a.is_float and b.is_float and a.bits > b.bits,
    "fpext": lambda a, b: a.is_float and b.is_float and a.bits < b.bits,
    "fptosi": lambda a, b: a.is_float and not b.is_float,
    "fptoui": lambda a, b: a.is_float and not b.is_float,
    "sitofp": lambda a, b: not a.is_float and b.is_float,
    "uitofp": lambda a, b: not a.is_float and b.is_float,
    "bitcast": lambda a, b: a.bits == b.bits,
}


def _cast(op: Op) -> None:
    require_count(op, 1)
    a, b = op.operands[0].type, result_of(op)
    need(a.lanes == b.lanes and CASTS[op.opcode](a, b), f"`{op.opcode}` from {a} to {b}")


# -------------------------------------------------------------------- vectors


def _splat(op: Op) -> None:
    require_count(op, 1)
    a, b = op.operands[0].type, result_of(op)
    need(not a.lanes and b.lanes > 0 and a.elem == b.elem, f"`splat` from {a} to {b}")


def _lane_ids(op: Op) -> None:
    require_count(op, 0)
    need(result_of(op).lanes > 0, "`lane_ids` gives a vector")


def _lane(op: Op) -> None:
    require_count(op, 1 if op.opcode == "extract" else 2)
    (vector, *scalars), result = types_of(op), result_of(op)
    need(0 <= op.attrs["lane"] < vector.lanes, f"{vector} has no lane {op.attrs['lane']}")
    if not scalars:
        need(result == vector.scalar, f"`extract` from {vector} gives {vector.scalar}")
    for scalar in scalars:
        need(result == vector and scalar == vector.scalar, f"`insert` of {scalar} in {vector}")


def _shuffle(op: Op) -> None:
    require_count(op, 1, 2)
    types, result = types_of(op), result_of(op)
    need(len(set(types)) == 1 and types[0].lanes > 0, f"`shuffle` of {types}")
    limit = types[0].lanes * len(types)
    lanes = op.attrs["lanes"]
    need(all(-1 <= lane < limit for lane in lanes), f"`shuffle` picks a lane beyond {limit}")
    need(result == types[0].with_lanes(len(lanes)), f"`shuffle` of {types} gives {result}")


def _lookup(op: Op) -> None:
    index, *table = types_of(op)
    need(len(set(table)) == 1, f"`lookup` in registers of types {table}")
    need(not index.is_float and index.bits == table[0].bits, f"`lookup` of {index} in {table[0]}")
    need(0 < index.lanes <= table[0].lanes, f"`lookup` of {index} in {table[0]}")
    found = table[0].with_lanes(index.lanes)
    need(result_of(op) == found, f"`lookup` of {index} in {table[0]} gives {found}")


_FLOAT_REDUCTIONS = frozenset(("fadd", "fmul", "fminimum", "fmaximum"))
_INT_REDUCTIONS = frozenset(("add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax"))


def _reduce(op: Op) -> None:
    require_count(op, 1)
    a, name = op.operands[0].type, op.attrs["op"]
    known = _INT_REDUCTIONS
    if a.is_float:
        known = _FLOAT_REDUCTIONS if _computes(a) else frozenset()
    need(a.lanes > 0 and name in known, f"`reduce` by {name} of {a}")
    need(result_of(op) == a.scalar, f"`reduce` of {a} gives {a.scalar}")


def _mask_below(op: Op) -> None:
    require_count(op, 2)
    need(types_of(op) == [I64, I64] and result_of(op).elem == "i1", "`mask_below` takes two i64")


# -------------------------------------------------------------------- memory


def _access(op: Op, access: Type, rest: tuple[Value, ...]) -> None:
    """Element type, index and mask of an access; `rest` is (index, mask?)."""
    buffer: Buffer = op.attrs["buffer"]
    need(len(rest) in (1, 2), f"`{op.opcode}` takes an index and at most a mask")
    need(access.scalar == buffer.elem, f"`{op.opcode}` of {access} in {buffer}, of {buffer.elem}")
    index = rest[0].type
    if op.opcode in ("load", "store"):
        need(index == I64, f"`{op.opcode}` is indexed by an i64, not {index}")
        alignment = op.attrs["alignment"]
        need(alignment > 0 and not alignment & (alignment - 1), f"alignment of {alignment}")
    else:
        fits = index.elem in ("i32", "i64") and index.lanes == access.lanes
        need(fits, f"`{op.opcode}` of {access} by indices of type {index}")
    if len(rest) == 2:
        mask = rest[1].type
        need(mask == I1.with_lanes(access.lanes), f"`{op.opcode}` of {access} masked by {mask}")


def _reads(op: Op) -> None:
    _access(op, result_of(op), op.operands)


def _writes(op: Op) -> None:
    need(len(op.operands) >= 2 and not op.results, f"`{op.opcode}` takes a value and an index")
    buffer: Buffer = op.attrs["buffer"]
    need(not buffer.readonly, f"`{op.opcode}` to {buffer}, which is readonly")
    access = op.operands[0].type
    _access(op, access, op.operands[1:])
    if op.attrs.get("nontemporal"):
        natural = min(max(access.lanes, 1) * access.bits // 8, 64)
        need(op.attrs["alignment"] >= natural, f"a nontemporal store aligned below {natural}")


def _prefetch(op: Op) -> None:
    need(types_of(op) == [I64] and not op.results, "`prefetch` takes an i64")
    need(0 <= op.attrs["locality"] <= 3, "locality is 0 to 3")


def _forget(op: Op) -> None:
    need(not op.operands and not op.results, "`forget` takes a buffer alone")
    buffer: Buffer = op.attrs["buffer"]
    need(buffer.space == "scratch" and buffer.once, f"`forget` of {buffer}, which is not `once`")


def _multiply_bytes(op: Op) -> None:
    need(types_of(op) == [I64] * 4 + [I1] and not op.results, "`multiply_bytes` takes four i64")
    buffers = [op.attrs[name] for name in ("left", "right", "buffer")]
    need(all(buffer.elem.elem == "i32" for buffer in buffers), "`multiply_bytes` of words")
    need(not buffers[2].readonly, f"`multiply_bytes` to {buffers[2]}, which is readonly")
    need(op.attrs["shape"].fits, f"registers have no room for {op.attrs['shape']}")


# -------------------------------------------------------------------- control flow


def _for(op: Op) -> None:
    need(len(op.operands) >= 3 and types_of(op)[:3] == [I64] * 3, "`for` takes three i64 bounds")
    step = op.operands[2].const
    need(step != 0, "`for` with a step of 0")
    carried = types_of(op)[3:]
    need(len(op.blocks) == 1, "`for` has one block")
    block = op.blocks[0]
    need([a.type for a in block.args] == [I64, *carried], f"the loop carries {carried}")
    need([y.type for y in block.yields] == carried, f"the loop must yield {carried}")
    need([r.type for r in op.results] == carried, f"the loop gives {carried}")


def _if(op: Op) -> None:
    need(types_of(op) == [I1], "`if` takes a scalar condition")
    need(len(op.blocks) == 2, "`if` has two blocks")
    results = [r.type for r in op.results]
    for block in op.blocks:
        yielded = [y.type for y in block.yields]
        need(yielded == results, f"an arm of `if` yields {yielded}, not {results}")


RULES: dict[str, Callable[[Op], None]] = {
    "const": lambda op: require_count(op, 0), "fneg": _same_type(1, lambda t: t.is_float, "floats"),
    "fma": _float_op(3), "dot_bytes": _dot_bytes, "scalef": _float_op(2),
    "trunc": _float_or_int_trunc, "fcmp": _compare,
    "icmp": _compare, "select": _select, "splat": _splat, "lane_ids": _lane_ids, "extract": _lane,
    "insert": _lane, "shuffle": _shuffle, "lookup": _lookup, "reduce": _reduce,
    "mask_below": _mask_below,
    "load": _reads, "gather": _reads, "store": _writes, "scatter": _writes, "prefetch": _prefetch,
    "for": _for, "if": _if, "forget": _forget, "call": _call,
    "multiply_bytes": _multiply_bytes,
    **dict.fromkeys(("and", "or", "xor"),
                    _same_type(2, lambda t: not t.is_float, "integers or masks")),
    **dict.fromkeys(("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "shl", "lshr", "ashr",
                     "smin", "smax", "umin", "umax", "umulh"), _integer_op(2)),
    **dict.fromkeys(("ctpop", "ctlz", "cttz", "bitreverse", "abs"), _integer_op(1)),
    **dict.fromkeys(("fadd", "fsub", "fmul", "fdiv", "copysign", "fmin", "fmax", "fminimum",
                     "fmaximum"), _float_op(2)),
    **dict.fromkeys(("fabs", "sqrt", "floor", "ceil", "roundeven"), _float_op(1)),
    **{name: _cast for name in CASTS if name != "trunc"},
}  # fmt: skip
