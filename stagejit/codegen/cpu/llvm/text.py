"""Writes the text of one LLVM IR function: names, constants, intrinsic declarations, basic blocks.

Input: types and values of the loop-nest IR. Output: lines of LLVM IR. Invariant: every name is
numbered in the order of writing, so equal kernels give equal text; constants are always literals.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import ml_dtypes
import numpy as np

from stagejit.codegen.ir.nodes import I1, I64, Block, Type, Value
from stagejit.codegen.target import Target
from stagejit.errors import InternalError

# LLVM scalarizes what it does to vectors of bfloat, bitcasts included, on CPUs without instructions
# for them: their bits travel as integers, and only conversions look at the value.
_LLVM_NAMES = {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double", "p0": "ptr"}
POINTER = Type("p0")  # which only LLVM IR has


@functools.cache
def type_text(type: Type) -> str:
    """`Type` in LLVM's syntax: <16 x float>, i64, ..."""
    name = _LLVM_NAMES.get(type.elem, type.elem)
    return f"<{type.lanes} x {name}>" if type.lanes else name


@functools.cache
def mangled(type: Type) -> str:
    """The suffix that names `type` in an overloaded intrinsic: v16f32, i64, ..."""
    elem = "i16" if type.elem == "bf16" else type.elem
    return f"v{type.lanes}{elem}" if type.lanes else elem


def literal(number: int | float, type: Type) -> str:
    """A constant operand; a vector type gives a splat."""
    text = _float_literal(float(number), type.elem) if type.is_float else _int_literal(number, type)
    return f"splat ({type_text(type.scalar)} {text})" if type.lanes else text


def _int_literal(number: int | float, type: Type) -> str:
    if type.elem == "i1":
        return "true" if number else "false"
    wrapped = int(number) & ((1 << type.bits) - 1)
    return str(wrapped - (1 << type.bits) if wrapped >> (type.bits - 1) else wrapped)


def _float_literal(number: float, elem: str) -> str:
    if elem == "f16":
        with np.errstate(over="ignore"):
            return f"0xH{int(np.float16(number).view(np.uint16)):04X}"
    if elem == "bf16":
        return str(int(np.array(number, ml_dtypes.bfloat16).view(np.int16)))
    if elem == "f32" and abs(number) < math.inf:  # LLVM writes floats as the double of equal value
        try:
            (number,) = struct.unpack("<f", struct.pack("<f", number))
        except OverflowError:
            number = math.copysign(math.inf, number)
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return f"0x{0x7FF8000000000000 if math.isnan(number) else bits:016X}"


class Ref(NamedTuple):
    """An operand: a local name or a literal, with its type."""

    type: Type
    text: str

    def __str__(self) -> str:
        return f"{type_text(self.type)} {self.text}"


class Emitter:
    """Collects the lines of one function and what they need at module level."""

    def __init__(self, symbol: str, target: Target, *, verify: bool) -> None:
        self.symbol, self.target, self.verify = symbol, target, verify
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.block = "entry"
        self.uses_nontemporal = False
        self._refs: dict[Value, Ref] = {}
        self._sums: dict[Value, tuple[Value, int]] = {}  # which are not written yet
        self._places: dict[tuple[str, Type, Value], tuple[Ref, int]] = {}
        self._scopes: list[tuple[list[Value], list[tuple[str, Type, Value]]]] = [([], [])]
        self._count = 0

    # ---------------------------------------------------------------- values of the loop-nest IR

    def ref(self, value: Value) -> Ref:
        """The operand for a value: its literal if it is a constant."""
        known = self._refs.get(value)
        if known is None:
            if value.const is not None:
                known = Ref(value.type, literal(value.const, value.type))
            elif value in self._sums:
                rest, number = self._sums[value]
                known = self.binary("add", self.ref(rest), number)
                self._scopes[-1][0].append(value)
            else:
                raise InternalError(f"{value} is used before it is made", step="llvm")
            self._refs[value] = known
        return known

    def bind(self, value: Value, ref: Ref) -> None:
        self._refs[value] = ref

    def has(self, value: Value) -> bool:
        return value in self._refs

    def bind_sum(self, value: Value, rest: Value, number: int) -> None:
        """A sum with a constant: it is written where it is wanted, as most are addresses, of which
        the constant is a displacement."""
        self._sums[value] = rest, number

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is written only where it is wanted does not leave this."""
        self._scopes.append(([], []))
        try:
            yield
        finally:
            values, places = self._scopes.pop()
            for value in values:
                del self._refs[value]
            for place in places:
                del self._places[place]

    # ---------------------------------------------------------------- lines

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def fresh_label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def op(self, text: str, type: Type) -> Ref:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return Ref(type, name)

    def start(self, label: str) -> None:
        """Begin the basic block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: Ref, then: str, otherwise: str, metadata: str = "") -> None:
        self.line(f"br i1 {condition.text}, label %{then}, label %{otherwise}{metadata}")

    def phi(self, type: Type, incoming: Sequence[tuple[Ref, str]]) -> Ref:
        pairs = ", ".join(f"[ {ref.text}, %{block} ]" for ref, block in incoming)
        return self.op(f"phi {type_text(type)} {pairs}", type)

    # ---------------------------------------------------------------- instructions

    def const(self, number: int | float, type: Type) -> Ref:
        return Ref(type, literal(number, type))

    def binary(self, opcode: str, a: Ref, b: Ref | int | float) -> Ref:
        other = b if isinstance(b, Ref) else self.const(b, a.type)
        return self.op(f"{opcode} {a}, {other.text}", a.type)

    def times(self, a: Ref, number: int) -> Ref:
        """Of an integer, which may be a literal."""
        if a.text.startswith("%"):
            return self.binary("mul", a, number)
        return self.const(int(a.text) * number, a.type)

    def compare(self, predicate: str, a: Ref, b: Ref | int | float) -> Ref:
        other = b if isinstance(b, Ref) else self.const(b, a.type)
        opcode = "fcmp" if a.type.is_float else "icmp"
        return self.op(f"{opcode} {predicate} {a}, {other.text}", a.type.with_elem("i1"))

    def select(self, condition: Ref, a: Ref, b: Ref | int | float) -> Ref:
        other = b if isinstance(b, Ref) else self.const(b, a.type)
        return self.op(f"select {condition}, {a}, {other}", a.type)

    def cast(self, opcode: str, a: Ref, type: Type) -> Ref:
        if a.type == type:
            return a
        return self.op(f"{opcode} {a} to {type_text(type)}", type)

    def bits(self, a: Ref) -> Ref:
        return self.cast("bitcast", a, a.type.as_int)

    def splat(self, a: Ref, lanes: int) -> Ref:
        type = a.type.with_lanes(lanes)
        text = type_text(type)
        first = self.op(f"insertelement {text} poison, {a}, i64 0", type)
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.op(f"shufflevector {first}, {text} poison, {zeros}", type)

    def shuffle(self, a: Ref, b: Ref | None, lanes: Sequence[int]) -> Ref:
        picks = ", ".join(f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes)
        other = str(b) if b is not None else f"{type_text(a.type)} poison"
        type = a.type.with_lanes(len(lanes))
        return self.op(f"shufflevector {a}, {other}, <{len(lanes)} x i32> <{picks}>", type)

    def hidden(self, a: Ref) -> Ref:
        """The same integer, which LLVM cannot know to be that: an assembly statement without an
        instruction."""
        return self.op(f'call {type_text(a.type)} asm "", "=r,0"({a})', a.type)

    def lane_ids(self, type: Type) -> Ref:
        items = ", ".join(str(self.const(k, type.scalar)) for k in range(type.lanes))
        return Ref(type, f"<{items}>")

    def call(
        self,
        name: str,
        result: Type,
        args: Sequence[Ref | str],
        mangle: Sequence[Type] | None = None,
        *,
        flags: str = "",
        hints: str = "",
    ) -> Ref:
        """The value of intrinsic `@llvm.<name>.<mangled types>`, by default those of the result.
        Text arguments are written as they are: "ptr %p". flags: fast-math flags before the type;
        hints: metadata after the call."""
        full = self._declared(name, type_text(result), args, [result] if mangle is None else mangle)
        return self.op(f"call {flags}{full}{hints}", result)

    def effect(
        self, name: str, args: Sequence[Ref | str], mangle: Sequence[Type] = (), *, hints: str = ""
    ) -> None:
        """A call of an intrinsic that gives no value."""
        self.line(f"call {self._declared(name, 'void', args, mangle)}{hints}")

    def _declared(
        self, name: str, returns: str, args: Sequence[Ref | str], mangle: Sequence[Type]
    ) -> str:
        full = "@llvm." + ".".join([name, *map(mangled, mangle)])
        kinds = (type_text(a.type) if isinstance(a, Ref) else a.rsplit(" ", 1)[0] for a in args)
        self.declarations.setdefault(full, f"declare {returns} {full}({', '.join(kinds)})")
        return f"{returns} {full}({', '.join(map(str, args))})"

    def any(self, mask: Ref) -> Ref:
        return self.call("vector.reduce.or", I1, [mask], [mask.type]) if mask.type.lanes else mask

    def begin(self, base: Ref, elem: Type, index: Value, block: Block) -> None:
        """Of a sum of what `block` makes and of what is known before it, the address that belongs
        to the latter: `place` adds to it."""
        for fixed, moving in _summands(self._sum(index)[0]):
            if fixed.block is not block and moving.block is block and fixed.const is None:
                self._address(base, elem, fixed)

    def place(self, base: Ref, elem: Type, index: Value) -> Ref:
        """As `pointer`; the elements a constant apart from each other share an address."""
        if index.type.lanes or index.const is not None:
            return self.pointer(base, elem, self.ref(index))
        address, number = self._address(base, elem, index)
        if not number:
            return address
        offset = literal(number * elem.bits // 8, I64)
        return self.op(f"getelementptr i8, {address}, i64 {offset}", POINTER)

    def _address(self, base: Ref, elem: Type, index: Value) -> tuple[Ref, int]:
        """The address of an element, and how many elements before `index` that one is."""
        rest, number = self._sum(index)
        known = self._places.get((base.text, elem, rest))
        if known is None:
            known = self._begun(base, elem, rest) or (self.pointer(base, elem, self.ref(rest)), 0)
            self._places[base.text, elem, rest] = known
            self._scopes[-1][1].append((base.text, elem, rest))
        return known[0], known[1] + number

    def _begun(self, base: Ref, elem: Type, index: Value) -> tuple[Ref, int] | None:
        """The same of a sum, if there is an address for a part of it."""
        for fixed, moving in _summands(index):
            start, number = self._sum(fixed)
            if (known := self._places.get((base.text, elem, start))) is not None:
                return self.pointer(known[0], elem, self.ref(moving)), known[1] + number
        return None

    def _sum(self, index: Value) -> tuple[Value, int]:
        """What a constant is added to, and the constant, 0 where none is."""
        return self._sums.get(index, (index, 0))

    def pointer(self, base: Ref, elem: Type, index: Ref) -> Ref:
        """To the element of `base` at `index`; a vector of pointers for a vector of indices."""
        type = POINTER.with_lanes(index.type.lanes)
        return self.op(f"getelementptr {type_text(elem)}, {base}, {index}", type)


def _summands(index: Value) -> tuple[tuple[Value, Value], ...]:
    """Of a sum, both orders; of anything else, none."""
    if index.op is None or index.op.opcode != "add":
        return ()
    a, b = index.op.operands
    return (a, b), (b, a)
