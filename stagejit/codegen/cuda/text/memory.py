"""Loads, stores and atomics in CUDA C++.

Input: an op and the values so far. Output: lines, and what the op gives. Invariant: a lane that is
masked off touches no memory; lanes that are consecutive and aligned move together, up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.codegen.cuda.text.expressions import infix
from stagejit.codegen.cuda.text.tiles import tile_name, way_of
from stagejit.codegen.cuda.text.types import LOOSE, SUM, Expr, access_nbytes, c_type, constant
from stagejit.codegen.cuda.text.values import Values
from stagejit.codegen.ir.nodes import Buffer, Op, Type, Value


def load(v: Values, op: Op) -> None:
    (result,) = op.results
    if not v.is_used(result):
        return
    index, *mask = op.operands
    access = result.type
    if not access.lanes:
        expr = Expr(_element(v, op, _index(v, index, 0)))
        if mask:
            zero = _zero(access)
            expr = Expr(f"{v.scalar(mask[0]).inside(SUM)} ? {expr} : {zero}", LOOSE)
        v.bind(op, expr)
        return
    together = _together(op, access)
    if op.opcode == "load" and not mask and together > 1:
        at = _element(v, op, v.scalar(index))
        v.declare(result, f"load<{together}, {access.lanes}>(&{at})")
        return
    elements = [Expr(_element(v, op, at)) for at in _indices(v, index, access.lanes)]
    if mask:
        zero = _zero(access.scalar)
        elements = [
            Expr(f"{v.lane(mask[0], k).inside(SUM)} ? {e} : {zero}", LOOSE)
            for k, e in enumerate(elements)
        ]
    v.bind_lanes(result, elements)


def store(v: Values, op: Op) -> None:
    value, index, *mask = op.operands
    access = value.type
    if not access.lanes:
        line = f"{_element(v, op, _index(v, index, 0))} = {v.scalar(value)};"
        v.line(f"if ({v.scalar(mask[0])}) {line}" if mask else line)
        return
    together = _together(op, access)
    if op.opcode == "store" and not mask and together > 1:
        at = _element(v, op, v.scalar(index))
        v.line(f"store<{together}>(&{at}, {v.text(value)});")
        return
    for k, place in enumerate(_indices(v, index, access.lanes)):
        line = f"{_element(v, op, place)} = {v.lane(value, k)};"
        v.line(f"if ({v.lane(mask[0], k)}) {line}" if mask else line)


def _zero(type: Type) -> Expr:
    return constant(0, type)


def _together(op: Op, access: Type) -> int:
    """Elements that each access moves."""
    nbytes = access_nbytes(access, op.attrs.get("alignment", 1))
    return nbytes // (access.bits // 8)


def _element(v: Values, op: Op, at: Expr) -> str:
    return f"{v.buffers[op.attrs['buffer']]}[{at.bare or at}]"


def _index(v: Values, index: Value, lane: int) -> Expr:
    at = v.lane(index, lane)
    return Expr(f"i32({at})") if index.type.elem == "i32" else at


def _indices(v: Values, index: Value, lanes: int) -> list[Expr]:
    """Of each lane of a consecutive access, or of one by indices."""
    if index.type.lanes:
        return [_index(v, index, k) for k in range(lanes)]
    first = v.short(index)
    if first.is_const:
        return [constant(int(first.bare) + k, index.type) for k in range(lanes)]
    return [infix("+", first, Expr(str(k))) if k else first for k in range(lanes)]


# -------------------------------------------------------------------- atomics

_ATOMIC = {"add": "Add", "fadd": "Add", "smin": "Min", "smax": "Max", "umin": "Min", "umax": "Max"}


def atomic(v: Values, op: Op) -> None:
    count = 2 if op.opcode == "cas" else 1
    values = [v.scalar(value) for value in op.operands[:count]]
    index, *mask = op.operands[count:]
    buffer: Buffer = op.attrs["buffer"]
    place = f"&{_element(v, op, v.scalar(index))}"
    _guarded(v, op, mask, _change(op, place, values, buffer.elem))


def _change(op: Op, place: str, values: Sequence[Expr], elem: Type) -> str:
    if op.opcode == "cas":
        return f"atomicCAS({place}, {values[0]}, {values[1]})"
    name: str = op.attrs["op"]
    (value,) = values
    if name in ("fminimum", "fmaximum"):
        choose = f"[](float a, float b) {{ return {name[1:]}(a, b); }}"
        return f"atomic_extremum({place}, {value}, {choose})"
    function = f"atomic{_ATOMIC[name]}"
    if name in ("smin", "smax"):
        kind = f"i{elem.bits}"
        changed = f"{function}(reinterpret_cast<{kind}*>({place}), {kind}({value}))"
        return f"{c_type(elem)}({changed})"
    return f"{function}({place}, {value})"


def _guarded(v: Values, op: Op, mask: Sequence[Value], change: str) -> None:
    (result,) = op.results
    condition = f"if ({v.scalar(mask[0])}) " if mask else ""
    if not v.is_used(result):
        v.line(f"{condition}{change};")
    elif not mask:
        v.declare(result, change)
    else:
        name = v.declare(result, str(_zero(result.type)), const=False)
        v.line(f"{condition}{name} = {change};")


# -------------------------------------------------------------------- tiles


def tile_load(v: Values, op: Op) -> None:
    (result,) = op.results
    role, way = op.attrs["role"], way_of(op)
    args = _matrix(v, op, op.operands)
    if way:
        first, *strides = args.split(", ")
        args = ", ".join([first, strides[strides[0] == "1"]])
    name = tile_name(f"load_{role}{way}", op.attrs["tile"])
    v.declare(result, f"{name}({args})", wanted=f"{role}_tile")


def tile_product(v: Values, op: Op) -> None:
    args = ", ".join(v.text(operand) for operand in op.operands)
    v.declare(op.results[0], f"{tile_name('product', op.attrs['tile'])}({args})")


def tile_store(v: Values, op: Op) -> None:
    value, *where = op.operands
    v.line(f"{tile_name('store', op.attrs['tile'])}({_matrix(v, op, where)}, {v.text(value)});")


def _matrix(v: Values, op: Op, where: Sequence[Value]) -> str:
    index, down, along = (v.scalar(x) for x in where)
    first = f"&{_element(v, op, index)}"
    return ", ".join([first, down.bare or down.text, along.bare or along.text])


# -------------------------------------------------------------------- copies


def copy_ahead(v: Values, op: Op) -> None:
    at, place = (v.scalar(x) for x in op.operands)
    target, source = (v.buffers[op.attrs[name]] for name in ("buffer", "source"))
    v.line(f"copy_ahead(&{target}[{place.bare or place}], &{source}[{at.bare or at}]);")


def commit_copies(v: Values, op: Op) -> None:
    v.line("commit_copies();")


def wait_for_copies(v: Values, op: Op) -> None:
    v.line(f"wait_for_copies<{op.attrs['behind']}>();")


MEMORY: dict[str, Callable[[Values, Op], None]] = {
    "load": load, "gather": load, "store": store, "scatter": store, "atomic": atomic,
    "cas": atomic, "copy_ahead": copy_ahead, "commit_copies": commit_copies,
    "wait_for_copies": wait_for_copies, "tile_load": tile_load, "tile_product": tile_product,
    "tile_store": tile_store,
}  # fmt: skip
