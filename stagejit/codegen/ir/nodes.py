"""The loop-nest IR: structured SSA over scalars, fixed-width vectors and buffers.

One kernel is a `Function`: buffers, run-time `i64` parameters, the chunk `[lo, hi)` of its parallel
loop, and a body of nested blocks. Loops, conditionals, masked vector memory operations, shuffles
and prefetches are ops; a target lowers them one by one (`codegen/cpu/llvm/`) without looking back
at the program they came from. Nothing here knows a target; widths were chosen when the kernel was
built.

Invariant: a value is used only inside the block that defines it or blocks nested in that one.
Integers are signless, as in LLVM; signedness is part of the opcode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple, NoReturn

from stagejit.types import DType

_FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
_MANTISSAS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
_INTS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


class Type(NamedTuple):
    """An element type and a number of lanes; `lanes == 0` is a scalar. A tuple, since each op is
    looked up by its type."""

    elem: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.elem}>" if self.lanes else self.elem

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_float(self) -> bool:
        return self.elem in _FLOATS

    @property
    def bits(self) -> int:
        """Bits of one lane."""
        return _FLOATS.get(self.elem) or _INTS[self.elem]

    @property
    def mantissa(self) -> int:
        """Stored bits of a float's mantissa; what is left is sign and exponent."""
        return _MANTISSAS[self.elem]

    @property
    def bias(self) -> int:
        """What a float's exponent is stored with."""
        return (1 << (self.bits - 2 - self.mantissa)) - 1

    @property
    def infinity(self) -> int:
        """The bits of a float's infinity."""
        return (2 * self.bias + 1) << self.mantissa

    @property
    def tiny(self) -> float:
        """A float's smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def sign(self) -> int:
        """The sign bit alone, as a number."""
        return -(1 << (self.bits - 1))

    @property
    def scalar(self) -> Type:
        return Type(self.elem)

    def with_elem(self, elem: str) -> Type:
        return Type(elem, self.lanes)

    def with_lanes(self, lanes: int) -> Type:
        return Type(self.elem, lanes)

    @property
    def as_int(self) -> Type:
        """The integer type of the same width and lanes."""
        return Type(f"i{self.bits}", self.lanes)


I1, I8, I16, I32, I64 = (Type(name) for name in _INTS)
F16, BF16, F32, F64 = (Type(name) for name in _FLOATS)


def element_type(dtype: DType) -> Type:
    """The scalar type that arithmetic on `dtype` uses: a bool is `i1` in registers."""
    if dtype.kind == "bool":
        return I1
    return Type(dtype.name) if dtype.is_float else Type(f"i{dtype.bits}")


def storage_type(dtype: DType) -> Type:
    """The scalar type of one element in memory: a bool is a byte."""
    return I8 if dtype.kind == "bool" else element_type(dtype)


def _operator(name: str, method: str = "binary", *, swap: bool = False) -> Callable[..., Value]:
    def written(self: Value, other: Any) -> Value:
        x, y = (other, self) if swap else (self, other)
        return getattr(self.builder, method)(name, x, y)  # type: ignore[no-any-return]

    return written


class Value:
    """The result of one op. Arithmetic operators build ops through the builder that made it."""

    __slots__ = ("block", "builder", "const", "id", "op", "type")

    def __init__(self, type: Type, id: int, block: Block, builder: Any) -> None:
        self.type, self.id, self.block, self.builder = type, id, block, builder
        self.op: Op | None = None
        self.const: int | float | None = None  # the number, where this is a (splat) constant

    def __str__(self) -> str:
        return f"%{self.id}"

    __repr__ = __str__

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.builder.unary("fneg", self)  # type: ignore[no-any-return]
        return 0 - self

    def __invert__(self) -> Value:
        return self ^ (1 if self.type.elem == "i1" else -1)

    def __abs__(self) -> Value:
        """Of a float."""
        return self.builder.unary("fabs", self)  # type: ignore[no-any-return]

    __add__, __radd__ = _operator("add"), _operator("add", swap=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swap=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swap=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swap=True)
    __floordiv__, __mod__ = _operator("udiv"), _operator("urem")  # of unsigned numbers
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")  # "ashr" keeps the sign
    __lt__, __le__ = _operator("lt", "compare"), _operator("le", "compare")
    __gt__, __ge__ = _operator("gt", "compare"), _operator("ge", "compare")
    __eq__ = _operator("eq", "compare")  # type: ignore[assignment]
    __ne__ = _operator("ne", "compare")  # type: ignore[assignment]
    __hash__ = object.__hash__  # of which register it is

    def __bool__(self) -> NoReturn:
        """Raises TypeError: what a register holds is known when the kernel runs."""
        raise TypeError(
            f"{self} of type {self.type} is true or false only when its kernel runs: choose a value"
            " by the builder's `select`, the larger one by its `binary('max', ...)`"
        )


@dataclass(eq=False)
class Buffer:
    """Memory that a kernel reads or writes, addressed in elements from its base.

    space: "arg" (the `index`-th pointer of the call), "scratch" (`offset_nbytes` into the worker's
    scratch), "stack" (fixed `size` elements in the frame, 64-byte aligned), "table" (the
    constants `data`, part of the kernel's object code), "shared" (of a block of threads) or "words"
    (the whole words of 32 bits in the bytes that the `index`-th pointer of the call points to).
    readonly: nothing in this kernel writes it, so its loads may move and merge.
    once: between two `forget`s of it each element is written at most once, and read after that.
    alignment: bytes of which the place of a shared one is a multiple, if any access asks for more
    than an aligned one of 16 bytes does.
    """

    name: str
    elem: Type
    space: str
    index: int = 0
    offset_nbytes: int = 0
    size: int = 0
    readonly: bool = False
    once: bool = False
    data: tuple[int | float, ...] = ()
    alignment: int = 0

    def __str__(self) -> str:
        return f"@{self.name}"

    def as_text(self) -> str:
        """The line that declares it, if it is no argument."""
        if self.space == "table":
            return f"  {self}: {self.elem} = [{', '.join(map(repr, self.data))}]"
        if self.space == "words":
            return f"  {self}: {self.elem} in the bytes of argument {self.index}"
        once = " once" if self.once else ""
        place = {
            "scratch": f"at scratch + {self.offset_nbytes}{once}", "stack": "on stack",
            "shared": f"shared by {self.alignment}" if self.alignment else "shared",
        }  # fmt: skip
        return f"  {self}: {self.elem}[{self.size}] {place[self.space]}"


@dataclass(eq=False)
class Op:
    """`results = opcode operands {attrs} (blocks)`. Buffers are attributes, not operands."""

    opcode: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()


@dataclass(eq=False)
class Block:
    """A straight list of ops; `args` are the loop variable and the carried values.

    `yields` are the values handed to the next iteration (or out of an `if` arm).
    `always_runs` is False for blocks that may not run at all although their parent runs: values
    that could fault must not leave them.
    `is_loop` tells a loop's body from an arm of an `if`, which values have no reason to leave.
    """

    parent: Block | None = None
    depth: int = 0
    always_runs: bool = True
    is_loop: bool = False
    args: tuple[Value, ...] = ()
    ops: list[Op] = field(default_factory=list)
    yields: tuple[Value, ...] = ()
    numbering: dict[Any, Value] = field(default_factory=dict, repr=False)


_id_of = attrgetter("id")


def numbering_key(
    opcode: str, operands: tuple[Value, ...], type: Type, attrs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Equal for ops that give equal values."""
    key: tuple[Any, ...] = (opcode, type, *map(_id_of, operands))
    if attrs:
        for name in sorted(attrs) if len(attrs) > 1 else attrs:
            value = attrs[name]
            key += (name, id(value) if isinstance(value, Buffer) else value)
    return key


CalleeKind = Literal["repeated", "rare", "long", "inlined", "often"]


@dataclass(eq=False)
class Callee:
    """Code that a kernel has once and calls from several places: a pure function of registers.
    `buffers`: tables and stack of its own. `kind`: why it is called, see `shared_code`."""

    name: str
    params: tuple[Value, ...]
    body: Block
    result: Value
    buffers: tuple[Buffer, ...]
    kind: CalleeKind = "repeated"

    def __str__(self) -> str:
        return f"@{self.name}"

    def as_text(self) -> str:
        names = _numbered(self.params, self.body)
        params = ", ".join(f"{names[p]}: {p.type}" for p in self.params)
        lines = [f"function {self}({params}) {{", *(b.as_text() for b in self.buffers)]
        lines += [text for text, _ in _printed(self.body, names)]
        return "\n".join([*lines, f"  return {names[self.result]}", "}"])


@dataclass(eq=False)
class Function:
    """One kernel. `params` are `i64` values read from the call's parameter array. `threads`: of a
    block, along each of its axes, see `grid/`; a CPU's kernel has none. `resident`: blocks that a
    multiprocessor has to hold at least; 0: what seems best to whoever gives out registers."""

    buffers: tuple[Buffer, ...]
    params: tuple[Value, ...]
    lo: Value
    hi: Value
    body: Block
    scratch_nbytes: int = 0
    callees: tuple[Callee, ...] = ()
    threads: tuple[int, ...] = ()
    resident: int = 0

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner."""
        for block in _blocks(self.body):
            yield from block.ops

    def as_text(self) -> str:
        """The stable text form; equal text means an equal kernel."""
        lines = [text for text, _ in self.lines()]
        return "\n".join([*lines, *(callee.as_text() for callee in self.callees)])

    def lines(self) -> Iterator[tuple[str, Op | None]]:
        """The lines of the text, without callees, each with the op that it shows, if any."""
        names = _numbered((*self.params, self.lo, self.hi), self.body)
        arguments = [
            f"{b}: {b.elem}{' readonly' if b.readonly else ''}"
            for b in self.buffers
            if b.space == "arg"
        ]
        arguments += [f"{names[p]}: i64" for p in self.params]
        blocks = f" by blocks of {' x '.join(map(str, self.threads))}" if self.threads else ""
        chunk = f"[{names[self.lo]}, {names[self.hi]}){blocks}"
        yield f"kernel({', '.join(arguments)}) for {chunk} {{", None
        for buffer in self.buffers:
            if buffer.space != "arg":
                yield buffer.as_text(), None
        yield from _printed(self.body, names)
        yield "}", None


def forget_places(code: Function) -> None:
    """Makes values and blocks forget where they were made, which only a builder asks.

    What is left refers to nothing that refers to it, so it is freed when nobody holds it, and does
    not wait for Python's search for cycles: a process that compiles much does not grow by them.
    """
    values = [*code.params, code.lo, code.hi]
    for block in _blocks(code.body):
        block.parent, block.numbering = None, {}
        values += block.args
        for op in block.ops:
            values += op.results
    for value in values:
        value.op = None
        del value.block, value.builder


def _numbered(given: Iterable[Value], body: Block) -> dict[Value, str]:
    """The names of all values, in the order of printing."""
    return {value: f"%{number}" for number, value in enumerate((*given, *_defined(body)))}


def _defined(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.ops:
        for inner in op.blocks:
            yield from _defined(inner)
        yield from op.results


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from _blocks(inner)


def _printed(
    block: Block, names: dict[Value, str], indent: str = "  "
) -> Iterator[tuple[str, Op | None]]:
    """The lines of a block, with the op that a line shows, if any."""
    for op in block.ops:
        results = ", ".join(f"{names[r]}: {r.type}" for r in op.results)
        operands = ", ".join(names.get(o, "%undefined") for o in op.operands)
        attrs = " ".join(f"{key}={value}" for key, value in sorted(op.attrs.items()))
        text = " ".join(filter(None, (op.opcode, operands, f"{{{attrs}}}" if attrs else "")))
        yield f"{indent}{results} = {text}" if results else f"{indent}{text}", op
        for inner in op.blocks:
            args = ", ".join(f"{names[a]}: {a.type}" for a in inner.args)
            yield f"{indent}({args}) {{", None
            yield from _printed(inner, names, indent + "  ")
            yield f"{indent}}}", None
    if block.yields:
        yields = ", ".join(names.get(y, "%undefined") for y in block.yields)
        yield f"{indent}yield {yields}", None
