"""Where the values of a kernel are in its CUDA C++: an expression, or one for each lane.

Input: values that were bound. Output: expressions, and lines. Invariant: a value is written where
it is used if that is the only place, in the same block; otherwise it has a line and a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.codegen.cuda.text.names import OF_OPS, Names
from stagejit.codegen.cuda.text.types import Expr, c_type, constant
from stagejit.codegen.ir.nodes import Block, Buffer, Op, Type, Value

Bound = Expr | tuple[Expr, ...]  # a scalar, or the lanes of a vector
_LONGEST = 70  # characters that an expression may have before it gets a name


def names_of(function_buffers: Sequence[Buffer], names: Names) -> dict[Buffer, str]:
    return {b: names.fresh(b.name.split(".")[0]) for b in function_buffers}


class Values:
    """The lines of one function so far, and the values that are bound."""

    def __init__(
        self, names: Names, buffers: dict[Buffer, str], body: Block, *results: Value
    ) -> None:
        self.names, self.buffers = names, buffers
        self.lines: list[str] = []
        self.depth = 1
        self.bound: dict[Value, Bound] = {}
        self.whole: dict[tuple[Expr, ...], str] = {}  # names of vectors, by their lanes
        self.uses: dict[Value, list[Block]] = {}
        self.home: dict[Value, Block] = {}
        for value in results:
            self.uses[value] = [body]
        _count(body, self.uses, self.home)

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    # ---------------------------------------------------------------- operands

    def scalar(self, value: Value) -> Expr:
        if value.const is not None:
            return constant(value.const, value.type)
        found = self.bound[value]
        assert isinstance(found, Expr)
        return found

    def lane(self, value: Value, lane: int) -> Expr:
        """One lane; a scalar is the same in all."""
        if value.const is not None:
            return constant(value.const, value.type.scalar)
        found = self.bound[value]
        return found if isinstance(found, Expr) else found[lane]

    def lanes(self, value: Value) -> list[Expr]:
        return [self.lane(value, k) for k in range(value.type.lanes)]

    def short(self, value: Value) -> Expr:
        """A scalar that may be written several times."""
        found = self.scalar(value)
        if value.const is None and not found.is_simple:
            found = self.named(found, value.type, self.wanted(value))
            self.bound[value] = found
        return found

    def text(self, value: Value) -> str:
        """A value as a whole, scalar or vector."""
        if not value.type.lanes:
            return self.scalar(value).text
        lanes = tuple(self.lanes(value))
        return self.whole.get(lanes) or f"{c_type(value.type)}{{{', '.join(map(str, lanes))}}}"

    # ---------------------------------------------------------------- results

    def wanted(self, value: Value) -> str:
        """What a value should be called."""
        op = value.op
        if op is None:
            return "value"
        if op.opcode in ("load", "gather"):
            return f"{self.buffers[op.attrs['buffer']]}_at"
        if op.opcode == "call":
            return f"{op.attrs['callee'].name.split('.')[0]}_of"
        if value.type.elem == "i64" and op.opcode in ("add", "sub", "mul"):
            return "at"
        return OF_OPS.get(op.opcode, "value")

    def named(self, expr: Expr, type: Type, wanted: str) -> Expr:
        """A new name for an expression."""
        name = self.names.fresh(wanted)
        self.line(f"const {c_type(type)} {name} = {expr};")
        return Expr(name)

    def bind(self, op: Op, expr: Expr) -> None:
        """The scalar result of an op without side effects."""
        (value,) = op.results
        once = self.uses[value] == [self.home[value]] and len(expr.text) <= _LONGEST
        changes = op.opcode == "load" and not op.attrs["buffer"].readonly
        if changes or not (once or expr.is_simple):
            expr = self.named(expr, value.type, self.wanted(value))
        self.bound[value] = expr

    def bind_lanes(self, value: Value, lanes: Sequence[Expr]) -> None:
        """Lanes that get a name together."""
        self.declare(value, f"{{{', '.join(map(str, lanes))}}}")

    def declare(self, value: Value, text: str, *, const: bool = True, wanted: str = "") -> str:
        """A line for a value, and its name."""
        name = self.names.fresh(wanted or self.wanted(value))
        start = "const " if const else ""
        end = f" = {text}" if text else ""
        self.line(f"{start}{c_type(value.type)} {name}{end};")
        self.bind_name(value, name)
        return name

    def bind_name(self, value: Value, name: str) -> None:
        """A variable that holds it."""
        if not value.type.lanes:
            self.bound[value] = Expr(name)
            return
        lanes = tuple(Expr(f"{name}[{k}]") for k in range(value.type.lanes))
        self.bound[value], self.whole[lanes] = lanes, name

    def alias(self, value: Value, known: Bound) -> None:
        self.bound[value] = known

    def is_used(self, value: Value) -> bool:
        return value in self.uses

    def indented(self, write: Callable[[], None]) -> None:
        self.depth += 1
        write()
        self.depth -= 1


def _count(block: Block, uses: dict[Value, list[Block]], home: dict[Value, Block]) -> None:
    """From the last op to the first, so that what only unused values use is unused too."""
    for value in block.yields:
        uses.setdefault(value, []).append(block)
    for op in reversed(block.ops):
        for result in op.results:
            home[result] = block
        for inner in reversed(op.blocks):
            _count(inner, uses, home)
        if op.opcode in _ALWAYS or any(result in uses for result in op.results):
            for value in op.operands:
                uses.setdefault(value, []).append(block)


# Ops that do something else than to give a value, or are done by threads together.
_ALWAYS = frozenset(("store", "scatter", "atomic", "cas", "tile_store", "tile_load", "tile_product",
                     "exchange", "vote", "copy_ahead", "for", "if", "wgmma"))  # fmt: skip
