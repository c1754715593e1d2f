"""Builds loop-nest IR: the ops that there are, with constants folded and scalars splatted.

Input: calls from the kernel generators. Output: a `Function`. Invariant: see `Hoisting`, which
hoists and numbers values as they are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from stagejit.codegen.ir.byte_matrices import ByteMatrices
from stagejit.codegen.ir.folding import folded_comparison, of_positive, positive, simplified
from stagejit.codegen.ir.hoisting import Hoisting
from stagejit.codegen.ir.nodes import I1, I32, I64, Buffer, Callee, Type, Value
from stagejit.codegen.ir.sums import regrouped, trips

Number = int | float | bool
Operand = Value | Number

_FLOAT_NAMES = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_NAMES = {"div": "sdiv", "rem": "srem"}
_LETTERS = {
    "scratch": "s",
    "stack": "s",
    "table": "t",
    "shared": "b",
    "words": "w",
}  # in names of buffers


class Builder(Hoisting):
    """Writes one kernel. Vector and scalar operands mix: scalars are splatted as needed. `calls`,
    `is_callee` and `by_lanes`: see `shared_code`; `few`: see Note [Few values], `math/core.py`."""

    def __init__(
        self, *, calls: bool = False, is_callee: bool = False, by_lanes: bool = False
    ) -> None:
        super().__init__()
        self.calls, self.is_callee, self.by_lanes, self.few = calls, is_callee, by_lanes, False
        self.written: Counter[Any] = Counter()  # places, by code that could be called

    # ---------------------------------------------------------------- arguments and memory

    def buffer(self, name: str, elem: Type, *, readonly: bool = False) -> Buffer:
        """The next buffer argument."""
        index = sum(b.space == "arg" for b in self._buffers)
        return self._declared(f"{name}.{index}", elem, "arg", index=index, readonly=readonly)

    def _declared(self, name: str, elem: Type, space: str, **rest: Any) -> Buffer:
        if space in _LETTERS:
            name = f"{name}.{_LETTERS[space]}{len(self._buffers)}"
        made = Buffer(name, elem, space, **rest)
        self._buffers.append(made)
        return made

    def param(self, type: Type = I64) -> Value:
        """The next run-time parameter, an `i64`; of code that is called, a register of any type."""
        value = self._value(type, self.body)
        self._params.append(value)
        return value

    def scratch(self, name: str, elem: Type, size: int, *, once: bool = False) -> Buffer:
        """`size` elements of the worker's scratch, 64-byte aligned; contents undefined at entry.
        once: see `Buffer`; such a buffer starts with a `forget`."""
        offset = self._scratch_nbytes
        self._scratch_nbytes += -(-size * (elem.bits // 8) // 64) * 64
        return self._declared(name, elem, "scratch", size=size, offset_nbytes=offset, once=once)

    def words(self, argument: Buffer) -> Buffer:
        """An argument of bytes, in words of 32 bits; the same for each call."""
        for known in self._buffers:
            if known.space == "words" and known.index == argument.index:
                return known
        name, readonly = argument.name.split(".")[0], argument.readonly
        return self._declared(name, I32, "words", index=argument.index, readonly=readonly)

    def stack(self, name: str, elem: Type, size: int) -> Buffer:
        """A small array (at most a few KiB) in the kernel's frame."""
        return self._declared(name, elem, "stack", size=size)

    def table(self, name: str, elem: Type, data: Sequence[Number]) -> Buffer:
        """Constants in memory, for lookups by a computed index; equal tables are one."""
        values = tuple(data)
        for known in self._buffers:
            if known.space == "table" and (known.elem, known.data) == (elem, values):
                return known
        return self._declared(name, elem, "table", size=len(values), readonly=True, data=values)

    # ---------------------------------------------------------------- constants and arithmetic

    def const(self, number: Number, type: Type = I64) -> Value:
        """A constant of `type`; a vector type gives a splat. Floats round to the type."""
        key: str | int
        if type.is_float:
            number = float(number)
            key = number.hex()  # zeros have signs
        else:
            number = key = int(number)
        known = self._constants.get((type, key))
        if known is None:
            known = self._constants[type, key] = self._pure("const", (), type, value=str(key))
            known.const = number
        return known

    def as_value(self, operand: Operand, like: Type) -> Value:
        """`operand` with the lanes of `like`: numbers become constants, scalars splats."""
        if not isinstance(operand, Value):
            return self.const(operand, like)
        if like.lanes and not operand.type.lanes:
            return self.splat(operand, like.lanes)
        return operand

    def _pair(self, a: Operand, b: Operand) -> Sequence[Value]:
        if isinstance(a, Value):
            if not isinstance(b, Value):
                return a, self.const(b, a.type)
            if a.type.lanes == b.type.lanes:
                return a, b
        return self._unify((a, b))

    def _unify(self, operands: Sequence[Operand]) -> list[Value]:
        types = [o.type for o in operands if isinstance(o, Value)]
        widest = max(types, key=lambda t: t.lanes)
        return [self.as_value(o, widest) for o in operands]

    def _folded(self, opcode: str, x: Value, y: Value) -> Value | None:
        """Of integers."""
        if x.type.elem != "i64":
            number = of_positive(opcode, x.const, y.const, x.type.bits)
            return None if number is None else self.const(number, x.type)
        found = simplified(opcode, x.const, y.const)
        if found is None:
            return None if x.type.lanes else regrouped(opcode, x, y)
        return self.const(found, x.type) if isinstance(found, int) else (x, y)[found == "second"]

    def unary(self, opcode: str, a: Value) -> Value:
        """fneg fabs sqrt floor ceil trunc roundeven | ctpop ctlz cttz bitreverse abs."""
        return self._pure(opcode, (a,), a.type)

    def binary(self, opcode: str, a: Operand, b: Operand) -> Value:
        """add sub mul div rem (`div` and `rem` are signed for integers, `//` and `%` of values are
        not; `math/` has the remainder of floats); and or xor shl lshr ashr; smin smax umin umax;
        umulh (upper half of the unsigned product); copysign; fmin fmax (x86 semantics: `a < b ? a :
        b`); fminimum fmaximum (NaN propagates, -0 < +0). Index arithmetic on constants and neutral
        elements folds."""
        x, y = self._pair(a, b)
        if x.type.is_float:
            opcode = _FLOAT_NAMES.get(opcode, opcode)
        else:
            opcode = _INT_NAMES.get(opcode, opcode)
            folded = self._folded(opcode, x, y)
            if folded is not None:
                return folded
        if y.const is None and x.const is not None and opcode in ("add", "mul"):
            x, y = y, x
        return self._pure(opcode, (x, y), x.type)

    def fma(self, a: Operand, b: Operand, c: Operand, *, exact: bool = False) -> Value:
        """a * b + c, rounded once. A target without it lowers to mul and add or, where `exact`
        asks for it because the rounding error of a * b matters, to a longer emulation."""
        x, y, z = self._unify((a, b, c))
        return self._pure("fma", (x, y, z), x.type, **({"exact": True} if exact else {}))

    def dot_bytes(self, a: Value, b: Value, c: Value, signed: tuple[bool, bool]) -> Value:
        """c + the products of the four bytes of `a` with those of `b`, words of 32 bits, in which
        the sum wraps. signed: whether bytes of `a`, and of `b`, have a sign."""
        x, y, z = self._unify((a, b, c))
        return self._pure("dot_bytes", (x, y, z), z.type, signed=signed)

    def scalef(self, a: Value, exponent: Value) -> Value:
        """a * 2^exponent for integral float `exponent` and |a| in [1/4, 4], with correct over- and
        underflow. NaN in `a` gives NaN; where only the exponent is NaN, anything may come out."""
        return self._pure("scalef", (a, self.as_value(exponent, a.type)), a.type)

    def compare(self, predicate: str, a: Operand, b: Operand, *, signed: bool = True) -> Value:
        """eq ne lt le gt ge -> i1 lanes. For floats: ordered, except `ne`, which is true for NaN.
        `uno` (either is NaN) is for floats only."""
        x, y = self._pair(a, b)
        if x.type.is_float:
            name = {"ne": "une", "uno": "uno"}.get(predicate, "o" + predicate)
            return self._pure("fcmp", (x, y), x.type.with_elem("i1"), predicate=name)
        ordered = predicate in ("lt", "le", "gt", "ge")
        name = ("s" if signed else "u") + predicate if ordered else predicate
        if x.type.elem == "i64" and isinstance(x.const, int) and isinstance(y.const, int):
            known = folded_comparison(name, x.const, y.const)
            if known is not None:
                return self.const(known, x.type.with_elem("i1"))
        return self._pure("icmp", (x, y), x.type.with_elem("i1"), predicate=name)

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """a where condition holds, else b; `condition` may be scalar for vector values."""
        like = next(o.type for o in (a, b) if isinstance(o, Value))
        lanes = max([condition.type.lanes, *(o.type.lanes for o in (a, b) if isinstance(o, Value))])
        x, y = (self.as_value(operand, like.with_lanes(lanes)) for operand in (a, b))
        known = None if condition.const is None else x if condition.const else y
        return self._pure("select", (condition, x, y), x.type) if known is None else known

    def cast(self, opcode: str, a: Value, elem: str) -> Value:
        """trunc zext sext fptrunc fpext fptosi fptoui sitofp uitofp bitcast; `fptosi`/`fptoui`
        saturate and send NaN to 0."""
        to = a.type.with_elem(elem)
        if opcode == "trunc" and (number := positive(a.const, to.bits)) is not None:
            return self.const(number, to)
        return a if a.type == to else self._pure(opcode, (a,), to)

    # ---------------------------------------------------------------- vectors

    def splat(self, a: Operand, lanes: int) -> Value:
        if not isinstance(a, Value):
            return self.const(a, I64.with_lanes(lanes))
        if a.type.lanes:
            return a
        if a.const is not None:
            return self.const(a.const, a.type.with_lanes(lanes))
        return self._pure("splat", (a,), a.type.with_lanes(lanes))

    def lane_ids(self, lanes: int, elem: Type = I64) -> Value:
        """<0, 1, 2, ...>"""
        return self._pure("lane_ids", (), elem.with_lanes(lanes))

    def extract(self, a: Value, lane: int) -> Value:
        return self._pure("extract", (a,), a.type.scalar, lane=lane)

    def insert(self, a: Value, scalar: Value, lane: int) -> Value:
        return self._pure("insert", (a, scalar), a.type, lane=lane)

    def shuffle(
        self, a: Value, b: Value | None, lanes: Sequence[int], *, ends: bool = False
    ) -> Value:
        """Lanes of `a` (0..n) and `b` (n..2n); -1 leaves a lane undefined. ends: a compiler of the
        text should not look for a better way from what leads here to what reads it."""
        operands, type = (a,) if b is None else (a, b), a.type.with_lanes(len(lanes))
        more = {"ends": True} if ends else {}
        return self._pure("shuffle", operands, type, lanes=tuple(lanes), **more)

    def lookup(self, index: Value, table: Sequence[Value]) -> Value:
        """Of each lane of `index`, an integer as wide as an element, the element with that number
        of the vectors of a table end to end; of one beyond, any."""
        return self._pure("lookup", (index, *table), table[0].type.with_lanes(index.type.lanes))

    def reduce(self, opcode: str, a: Value) -> Value:
        """Horizontal add mul and or xor smin smax umin umax fadd fmul fminimum fmaximum; of floats
        the lower half of the lanes meets the upper one, until one is left."""
        return self._pure("reduce", (a,), a.type.scalar, op=opcode)

    def mask_below(self, index: Operand, limit: Operand, lanes: int) -> Value:
        """Lane k is on where `index + k < limit`."""
        i, n = self.as_value(index, I64), self.as_value(limit, I64)
        return self._pure("mask_below", (i, n), I1.with_lanes(lanes))

    def active(self, count: int, lanes: int) -> Value:
        """A constant mask with the first `count` of `lanes` lanes on."""
        return self.mask_below(0, count, lanes)

    # ---------------------------------------------------------------- memory

    def load(
        self,
        buffer: Buffer,
        index: Operand,
        lanes: int = 0,
        *,
        mask: Value | None = None,
        alignment: int = 0,
    ) -> Value:
        """Element `index`, or `lanes` consecutive ones; lanes that are masked off are zero."""
        alignment = alignment or buffer.elem.bits // 8
        type = buffer.elem.with_lanes(lanes)
        return self._memory("load", self._at(index, mask), buffer, type, alignment=alignment)

    def _at(self, index: Operand, mask: Value | None) -> tuple[Value, ...]:
        where = self.as_value(index, I64)
        return (where,) if mask is None else (where, mask)

    def store(
        self,
        value: Value,
        buffer: Buffer,
        index: Operand,
        *,
        mask: Value | None = None,
        alignment: int = 0,
        nontemporal: bool = False,
    ) -> None:
        alignment = alignment or buffer.elem.bits // 8
        self._effect(
            "store", (value, *self._at(index, mask)),
            buffer=buffer, alignment=alignment, nontemporal=nontemporal,
        )  # fmt: skip

    def gather(
        self, buffer: Buffer, indices: Value, *, mask: Value | None = None, room: int = 0
    ) -> Value:
        """One element per lane of `indices` (i64 or i32); masked-off lanes are zero. room: so many
        elements of the buffer, from its first, may be read besides, as words of 32 bits hold
        several."""
        type = buffer.elem.with_lanes(indices.type.lanes)
        more = {"room": room} if room and buffer.elem.bits < 32 else {}
        return self._memory("gather", self._at(indices, mask), buffer, type, **more)

    def scatter(
        self, value: Value, buffer: Buffer, indices: Value, *, mask: Value | None = None
    ) -> None:
        """Stores lane by lane, in lane order."""
        self._effect("scatter", (value, *self._at(indices, mask)), buffer=buffer)

    def forget(self, buffer: Buffer) -> None:
        """From here on the contents of a `once` buffer are undefined. Costs nothing; with `verify`
        it is checked that nothing reads them."""
        self._effect("forget", (), buffer=buffer)

    def prefetch(
        self, buffer: Buffer, index: Operand, *, write: bool = False, locality: int = 3
    ) -> None:
        """A hint; `index` may lie outside the buffer. locality: 3 = L1, 2 = L2, 0 = streaming."""
        at = self._at(index, None)
        self._effect("prefetch", at, buffer=buffer, write=write, locality=locality)

    def multiply_bytes(
        self,
        shape: ByteMatrices,
        left: tuple[Buffer, Value],
        right: tuple[Buffer, Value],
        sums: tuple[Buffer, Value],
        steps: Operand,
        adds: Operand,
    ) -> None:
        """See `byte_matrices`: where each operand and the sums begin, how many steps there are, at
        least one, and whether the sums have a value already, to which products are added."""
        places = (left[1], right[1], sums[1], self.as_value(steps, I64), self.as_value(adds, I1))
        self._effect(
            "multiply_bytes", places,
            shape=shape, left=left[0], right=right[0], buffer=sums[0],
        )  # fmt: skip

    # ---------------------------------------------------------------- control flow

    def loop(
        self,
        lo: Operand,
        hi: Operand,
        step: Operand,
        carried: Sequence[Value],
        body: Callable[..., Sequence[Value] | None],
        *,
        runs: bool = False,
        unrolled: bool = False,
        apart: bool = False,
    ) -> tuple[Value, ...]:
        """`for i in range(lo, hi, step): carried = body(i, *carried)`; returns the final values.

        runs: True where at least one iteration is certain; found by itself where the bounds are a
            constant apart. A loop of one iteration is that iteration.
        unrolled: a compiler of the text should write each iteration out, so that what is on the
            stack may lie in registers.
        apart: one iteration is a loop, too: LLVM looks at all of a block at once.
        """
        start, stop, stride = (self.as_value(v, I64) for v in (lo, hi, step))
        count = trips(start, stop, stride)
        if count == 0:
            return tuple(carried)
        if count == 1 and not apart:
            return tuple(body(start, *carried) or ())
        runs = runs or count is not None
        with self._nested(runs, is_loop=True) as block:
            block.args = tuple(self._value(t, block) for t in (I64, *(c.type for c in carried)))
            block.yields = tuple(body(*block.args) or ())
        wanted, types = [c.type for c in carried], [y.type for y in block.yields]
        if types != wanted:
            raise TypeError(f"loop carries {wanted}, body returned {types}")
        operands = (start, stop, stride, *carried)
        attrs = {"runs": runs, **({"unrolled": True} if unrolled else {})}
        return self._put("for", operands, types, attrs, (block,))

    def if_(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value] | None],
        otherwise: Callable[[], Sequence[Value] | None] | None = None,
    ) -> tuple[Value, ...]:
        """Scalar conditional; the values of the arm that ran. No `otherwise`: no values."""
        if condition.const is not None:
            return tuple((then if condition.const else otherwise or (lambda: ()))() or ())
        arms = []
        for arm in (then, otherwise or (lambda: ())):
            with self._nested(False) as block:
                block.yields = tuple(arm() or ())
            arms.append(block)
        return self._put("if", (condition,), [y.type for y in arms[0].yields], {}, tuple(arms))

    # ---------------------------------------------------------------- shared code

    def call(self, callee: Callee, args: Sequence[Value]) -> Value:
        """Code of one lane is called for each lane of its arguments."""
        result = callee.result.type
        if args and args[0].type != callee.params[0].type:
            result = result.with_lanes(args[0].type.lanes)
        return self._pure("call", tuple(args), result, callee=callee)
