"""`OpDef`: all that the compiler knows of one op kind, in one declaration.

Input: declarations, those of the package in `graph/ops/`, others anywhere: `define(OpDef(...))` for
the whole process, `stagejit.extending.op` for those who compile with it.
Output: `definition_of(kind)`, and `op.definition` of each op. Invariant: what a pass may do with an
op follows from its declaration, so a view that nobody has heard of goes through every stage.

Functions of a declaration take the op (an `ir.Op`, which is built on this file, hence `Any`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from stagejit.base.extension import Extension
from stagejit.errors import VerificationError
from stagejit.index.affine import Affine, Index
from stagejit.types import TensorType

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
# (op, operand, extent): the offset read from that operand at run time, clamped to [0, extent).
DynamicStart = Callable[[Any, int, int], Affine]
Names = Mapping[Any, str]


def states_its_types(operands: Types, attrs: Attrs) -> None:
    """`infer` of an op whose result types are the caller's, a library's or an equation's."""


def no_ties(op: Any, result: int) -> None:
    """Of an op that updates nothing."""


def no_bodies(op: Any) -> tuple[Any, ...]:
    """Of an op without graphs of its own."""
    return ()


def no_flops(op: Any) -> int:
    """Of an op that only moves elements, or is not ours to count."""
    return 0


def no_check(op: Any) -> None:
    """Of an op whose result types say all that has to fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpDef:
    """One kind of op. What is left out has the meaning that most ops have.

    What it means:

    infer: operand types and attributes --> result types. Raises VerificationError, ValueError,
        KeyError, ... for what does not fit. None for an op that states its own.
    interpret: (evaluator, op, *operands) --> the result in NumPy; a list where there are several,
        or may be. Floats may come wider than they are declared; the evaluator rounds.
    check: raises VerificationError for what types do not tell.
    opaque_attributes: names of attributes that may hold anything; others are plain values.

    How it is written (see `text/syntax.py`):

    implied: attributes that the result type tells: among shape, sizes, dtype,
        layout, encoding.
    write: (op, names) --> the text after the kind. None: operands, then attributes by name.
    read: (tokens, definition, values, types) --> operands and attributes; the inverse.

    What it is built of:

    bodies: the graphs inside.
    with_bodies: graphs --> the attributes that hold them; raises ValueError.
    tied_operand: (op, number of a result) --> number of the operand that this result is an update
        of, and whose memory it takes over; None for a fresh result.

    Which elements it needs:

    pull: of a view, whose elements are elements of operand 0: (op, index, strict, start) --> the
        index into operand 0 at which the element `index` lies; see `pull_view`.
    push: of a view that has each element of its operand once, where it has as many: the inverse of
        `pull`, (op, index into operand 0) --> index. Of one that keeps the order, that follows.
    undone: of a view that has each element of its operand once: op --> the kind and the attributes
        of the view that makes the operand of the result.
    divisions: of a view: (op, index) --> what `pull` divides on the way, and by what, as far as it
        has to mean the same where loops become one (see `space.merge`). None: all that it divides.
    separate: of what accumulates: (op, axis of the result) --> for each operand the axis along
        which a place of that axis needs the same place only, None where it needs all of the
        operand; see `axes.py`.
    summed: of what accumulates: (op, number of an operand, axis of that) --> the same where places
        of that axis are summed over, and partial results of some places each can be put together
        by `partial.py`; None where they are not, or cannot.
    is_elementwise: an element is a function of the elements of all operands at its own index.
    code: of those: (builder, op, registers with the elements of its operands) --> a register with
        the element, see `codegen/ir/builder.py`. None: the code generator has it, which it does
        for the package's kinds only.
    is_free: a source of elements that nobody has to store: they cost nothing.
    is_splat: each of its elements is the only one of operand 0.
    overlays: an element of a box, which the attributes `offsets` and `strides` name, is one of
        operand 0, any other one is that of operand 1 at its own index; whoever needs it evaluates
        it, and no memory is updated.
    is_stored: its result lies in memory: who needs an element reads it there.
    is_encoding: of a view: it is its operand, but for where that lies in memory; `is_stored` where
        it puts an encoding on, not where it takes one off.
    is_indexed: operand 1 holds the indices of the elements of operand 0 that it reads or updates,
        in the dimension numbers of `gather` and `scatter`, which the code generator reads.
    counts: a source of elements, each its own index along the attribute `axis`.
    repeats: of a view: an element of operand 0 is there once for each index along the axes that
        the attribute `axes`, which has one for each of operand 0, does not name.
    splits: of a view: its axis 0 numbers the parts of an axis of operand 0, of which the last may
        be shorter; what that lacks nobody evaluates (see `ops/moving/splits.py`).
    accumulates: an element is a sum (a maximum, ...) over many elements of operands.
    is_product: of those: of products of elements of two operands.
    is_windowed: of those: operand 1 moves over operand 0, in the dimension numbers of `conv`.
    is_window: an element is made of the elements of operand 0 in a window, in the dimension numbers
        of `WindowDims`; whoever needs it may evaluate it.
    is_foreign: code that is not ours runs it: XLA, or a library.
    stands_alone: its dispatch evaluates nothing else, and stores nothing but its results.
    forwards: result k is operand k, in its memory, though no pass may say that they are equal.
    orders: who reads a result comes after all operands.
    is_loop, is_branch, is_dispatch: of bodies: they run over and over; one of them runs, operand 0
        says which; they are the parts of one kernel, each of which is given all operands.
    applies: of bodies: they say what becomes of an element, and are evaluated where the op makes
        it; a dispatch may do that, and passes that look for programs inside find none.
    is_input, is_return: an argument of the graph; its results.
    is_constant: elements that the attribute `value` holds.
    is_weight: those of an array that is the same in every call; an input as soon as it is traced.
    is_empty: memory that nobody has written yet.
    is_left, is_call: XLA evaluates it, from the equation that it holds; a library does.
    keeps_order: the elements of operand 0, in the same row-major order.
    is_conversion: an element is that of operand 0, in another type.
    is_reduce: an element is made of a row, the elements of operand 0 along the attribute `axes`;
        those that reduce the same rows may share a dispatch.
    is_cumulative: an element is made of those of operand 0 before it along the attribute `axis`.
    boxed: the operand of which the attributes `offsets` and `strides` name a box. An offset may be
        None: the operands after that one are these offsets, read at run time.
    is_view: it has a `pull`.
    rearranges: a view of which the inverse is known: it may follow a sum or a product.
    is_pointwise: a view, elementwise, free, a window, a gather or an overlay: whoever needs an
        element may evaluate it.
    has_bodies, updates: whether there may be bodies that are programs, or ties.
    is_extract: the result is the box; is_insert: it is the boxed operand, operand 0 being the box.
    is_gather, is_scatter: an element is one of operand 0, at an index; operand 0, with elements of
        operand 2 at indices.
    is_step: what happens between the arguments and the return.

    What it costs:

    flops: arithmetic operations of all of it; a multiply-add counts two.
    element_flops: what one element of a pointwise op costs, in additions, its operands given.
    """

    kind: str
    infer: Callable[[Types, Attrs], Sequence[TensorType] | TensorType | None]
    interpret: Callable[..., Any]
    check: Callable[[Any], None] = no_check
    opaque_attributes: frozenset[str] = frozenset()

    implied: frozenset[str] = frozenset()
    write: Callable[[Any, Names], str] | None = None
    read: Callable[[Any, OpDef, Any, Any], tuple[list[Any], dict[str, Any]]] | None = None

    bodies: Callable[[Any], tuple[Any, ...]] = no_bodies
    with_bodies: Callable[[Sequence[Any]], dict[str, Any]] | None = None
    tied_operand: Callable[[Any, int], int | None] = no_ties

    pull: Callable[[Any, Index, bool, DynamicStart], Index] | None = None
    push: Callable[[Any, Index], Index] | None = None
    undone: Callable[[Any], tuple[str, dict[str, Any]]] | None = None
    divisions: Callable[[Any, Index], list[tuple[Affine, int]]] | None = None
    separate: Callable[[Any, int], tuple[int | None, ...]] | None = None
    summed: Callable[[Any, int, int], tuple[int | None, ...] | None] | None = None
    is_elementwise: bool = False
    code: Callable[[Any, Any, Sequence[Any]], Any] | None = None
    is_free: bool = False
    is_splat: bool = False
    overlays: bool = False
    is_stored: bool = False
    is_encoding: bool = False
    is_indexed: bool = False
    counts: bool = False
    repeats: bool = False
    splits: bool = False
    accumulates: bool = False
    is_product: bool = False
    is_windowed: bool = False
    is_window: bool = False
    is_foreign: bool = False
    is_loop: bool = False
    is_branch: bool = False
    is_dispatch: bool = False
    applies: bool = False
    is_input: bool = False
    is_return: bool = False
    is_constant: bool = False
    is_weight: bool = False
    is_empty: bool = False
    is_left: bool = False
    is_call: bool = False
    keeps_order: bool = False
    is_conversion: bool = False
    is_reduce: bool = False
    is_cumulative: bool = False
    boxed: int | None = None
    stands_alone: bool = False
    forwards: bool = False
    orders: bool = False

    flops: Callable[[Any], int] = no_flops
    element_flops: Callable[[Any], float] = no_flops

    # What follows from the rest, as plain fields, for passes ask it of every op.
    is_view: bool = field(init=False)
    rearranges: bool = field(init=False)
    is_pointwise: bool = field(init=False)
    has_bodies: bool = field(init=False)
    updates: bool = field(init=False)
    is_extract: bool = field(init=False)
    is_insert: bool = field(init=False)
    is_gather: bool = field(init=False)
    is_scatter: bool = field(init=False)
    is_step: bool = field(init=False)

    def __post_init__(self) -> None:
        is_view, updates = self.pull is not None, self.tied_operand is not no_ties
        is_gather = self.is_indexed and not updates
        few = is_view or self.is_elementwise or self.is_free or is_gather or self.is_window
        few = few or self.overlays
        derived = {
            "is_view": is_view,
            "rearranges": is_view and (self.push is not None or self.keeps_order),
            "is_pointwise": few,
            "has_bodies": self.with_bodies is not None and not self.applies,
            "updates": updates,
            "is_extract": self.boxed is not None and not updates,
            "is_insert": self.boxed is not None and updates,
            "is_gather": is_gather,
            "is_scatter": self.is_indexed and updates,
            "is_step": not self.is_input and not self.is_return,
        }
        for name, holds in derived.items():
            object.__setattr__(self, name, holds)


_DEFINITIONS: dict[str, OpDef] = {}
# Of extensions, while something is compiled with them.
_declared: ContextVar[Mapping[str, OpDef]] = ContextVar("declared op kinds")


def define(definition: OpDef) -> OpDef:
    """Makes a kind known. Raises ValueError for one that is."""
    if _DEFINITIONS.setdefault(definition.kind, definition) is not definition:
        raise ValueError(f"there is an op kind {definition.kind!r}: choose another name")
    return definition


def definition_of(kind: str) -> OpDef:
    """Raises VerificationError for a kind that nobody has defined."""
    definition = _DEFINITIONS.get(kind) or _declared.get({}).get(kind)
    if definition is None:
        close = difflib.get_close_matches(kind, [*_DEFINITIONS, *_declared.get({})], n=1)
        meant = "".join(f": did you mean {known!r}?" for known in close)
        raise VerificationError(f"unknown op kind {kind!r}{meant}")
    return definition


@dataclass(frozen=True, eq=False, repr=False)
class OwnOp(Extension):
    """A kind that a user declares."""

    definition: OpDef


_NOTHING = nullcontext()


def declaring(own: Sequence[OwnOp]) -> AbstractContextManager[None]:
    """Inside, on this thread, these kinds are known as well. Raises ExtensionError for two of one
    name."""
    return _declaring(own) if own else _NOTHING


@contextmanager
def _declaring(own: Sequence[OwnOp]) -> Iterator[None]:
    kinds: dict[str, OwnOp] = {}
    for each in own:
        other = kinds.setdefault(each.definition.kind, each)
        if other is not each:
            raise each.fault(f"declares {each.definition.kind!r}, as {other} does")
    token = _declared.set({kind: each.definition for kind, each in kinds.items()})
    try:
        yield
    finally:
        _declared.reset(token)


def is_defined(kind: str) -> bool:
    """Whether it is a kind of the package's, or one that `define` made known."""
    return kind in _DEFINITIONS


def known_kinds() -> list[str]:
    """Those of the package and, while something is compiled with extensions, of these."""
    return sorted({*_DEFINITIONS, *_declared.get({})})


def require(condition: bool, message: str, *given: object) -> None:
    """What `infer` says of operands that do not fit. given: what stands in the message, in place of
    each {}: most operands fit, and of these no text is made."""
    if not condition:
        raise ValueError(message.format(*given) if given else message)
