"""`Region`: the ops that one dispatch evaluates, and how its results reach memory.

Input: built by dispatch formation from the graph. Output: read by access analysis, scheduling and
kernel generation. Invariant: every op of a region is evaluated element by element from the region's
inputs; only `stores` reach memory; regions partition the graph's ops (cheap producers may be in
several).
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.graph.ir import Op, Value
from stagejit.loc import UNKNOWN, Loc

# Ops whose element is a function of elements of their operands at computed indices: they can be
# evaluated inside any dispatch that reads them.
POINTWISE = frozenset({
    "const", "iota", "fill", "map", "convert", "bitcast", "broadcast", "reshape", "transpose",
    "reverse", "extract_slice", "gather",
})
VIEWS = frozenset({"broadcast", "reshape", "transpose", "reverse", "extract_slice"})


@dataclass(frozen=True, eq=False)
class Store:
    """One result of a region.

    value: what is computed, element by element, over its own shape.
    into: the value whose buffer is written: `value` itself, or the result of the last of `inserts`.
    inserts: the `insert_slice` ops that place `value` in `into`, innermost first; empty for a plain
        store. The rest of `into` is not touched by this store.
    """

    value: Value
    into: Value
    inserts: tuple[Op, ...] = ()


@dataclass(frozen=True, eq=False)
class Region:
    """One dispatch to be.

    kind: `map` (no anchor), `reduce` (one or more reduces over the same rows: see `rows`),
        `contract`, `conv`, `cumulative`, `scatter`, `copy`, `fill`, `delegate`.
    ops: evaluated ops in topological order, `insert_slice`s that only place a store included.
    anchor: the contract, conv, cumulative, scatter or delegate op; the first reduce for `reduce`.
    inputs: values read from memory (function inputs, constants, results of other regions), each
    once. stores: what is written.

    Kind `map`: all stored values have one shape. Kind `reduce`: all reduce ops in `ops` reduce the
    same axes of operands of one shape (the row space). Stores are either in the row space (same
    shape as the reduces' operand, up to views) or in the kept space (shape of the reduces' results,
    up to views).
    """

    name: str
    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    stores: tuple[Store, ...]
    anchor: Op | None = None

    @property
    def loc(self) -> Loc:
        """The user's line: that of the anchor, or of the last located op."""
        if self.anchor is not None and self.anchor.loc:
            return self.anchor.loc
        return next((op.loc for op in reversed(self.ops) if op.loc), UNKNOWN)
