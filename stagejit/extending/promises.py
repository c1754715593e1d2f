"""What a declaration of a user's promises of its ops, beyond what `infer` says: looked at for each.

Input: an op of a kind that a user declares. Output: nothing, or an `ExtensionError` that names the
op, the operand and what to do. Invariant: what kernels and plans take from a declaration without a
look at the operands holds of them, so that none reads or writes outside of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from stagejit.base.extension import Extension
from stagejit.base.symbolic import Undecided
from stagejit.errors import ExtensionError
from stagejit.graph.definition import OpDef
from stagejit.index.affine import Affine, Var
from stagejit.index.coordinates import coordinates, variables

_MOST_PLACES = 4096  # of a view, at which an index that may leave the operand is evaluated
_SOME_PLACES = 64  # the same for what is looked at of each view that declares it
_BROADCAST = (
    "broadcast it first, in extending.op(..., translate=...): a function (emit, site, *operands); "
    "see stagejit/extending/README.md"
)


def keeping(definition: OpDef, own: Extension) -> Callable[[Any], None]:
    """The check of a declaration, and after it that of what it promises."""

    def checked(op: Any) -> None:
        definition.check(op)
        try:
            _check(op, own)
        except Undecided:  # of sizes that only a call knows, which has numbers for them
            return

    return checked


def _check(op: Any, own: Extension) -> None:
    known = op.definition
    if known.is_elementwise:
        _check_shapes(op, own)
    if known.keeps_order and op.operands and op.operands[0].type.size != op.result.type.size:
        said = _differs(op, 0, op.result.type)
        _broken(op, own, f"keeps the elements of operand 0 in their order, and {said}")
    if known.is_view:
        _check_view(op, own)
        _check_order(op, own)
    for number, result in enumerate(op.results if known.updates or known.forwards else ()):
        tied = number if known.forwards else known.tied_operand(op, number)
        if tied is not None and tied >= len(op.operands):
            _broken(op, own, f"takes over operand {tied} of {op}{_line(op)}, which there is not")
        if tied is not None and op.operands[tied].type != result.type:
            said = _differs(op, tied, result.type)
            _broken(op, own, f"takes over the memory of an operand, and {said}")


def _check_shapes(op: Any, own: Extension) -> None:
    for number, value in enumerate(op.operands):
        if value.type.shape != op.result.type.shape:
            said = _differs(op, number, op.result.type)
            _broken(op, own, f"is an elementwise op, and {said}", _BROADCAST)


def _check_view(op: Any, own: Extension) -> None:
    if not op.operands:
        _broken(op, own, f"is a view, and {op} has no operand")
    viewed = op.operands[0].type
    if viewed.dtype != op.result.type.dtype:
        _broken(op, own, f"is a view, and {_differs(op, 0, op.result.type)}")
    for last in (False, True):  # offsets that are read at run time
        found = _outside(op, lambda op, number, extent, last=last: Affine((), last * (extent - 1)))
        if found is not None:
            at, place = found
            _broken(
                op,
                own,
                f"is a view, and its pull says that element {list(at)} of {op}{_line(op)} is that "
                f"at {list(place)} of operand 0, which is {viewed}",
                "correct pull: an index into operand 0 for each index of the result",
            )


def _outside(op: Any, start: Any) -> tuple[Sequence[int], Sequence[int]] | None:
    """An index of the result and the one that it has in operand 0, if that has no such element."""
    shape, viewed = op.result.type.shape, op.operands[0].type.shape
    if not op.result.type.size:
        return None
    pulled = tuple(op.definition.pull(op, coordinates(shape), False, start))
    if len(pulled) != len(viewed):
        return (0,) * len(shape), (0,) * len(pulled)
    ranges = (part.range() for part in pulled)
    if all(low >= 0 and high < size for (low, high), size in zip(ranges, viewed, strict=True)):
        return None
    # Ranges of quotients and remainders together may be too wide.
    for at, place in _pairs(op, pulled, _MOST_PLACES):
        if not all(0 <= each < size for each, size in zip(place, viewed, strict=True)):
            return at, place
    return None


def _check_order(op: Any, own: Extension) -> None:
    """Of a view of all elements of operand 0: its inverse, its order."""
    known, shape, viewed = op.definition, op.result.type.shape, op.operands[0].type.shape
    if not known.rearranges or not op.result.type.size:
        return
    pulled = tuple(known.pull(op, coordinates(shape), False, lambda *given: Affine()))
    for at, place in _pairs(op, pulled, _SOME_PLACES):
        told = f"element {list(at)} of {op}{_line(op)} is that at {list(place)} of operand 0"
        if known.push is not None:
            back = tuple(known.push(op, tuple(Affine((), number) for number in place)))
            if back != tuple(Affine((), number) for number in at):
                said = ", ".join(map(str, back))
                _broken(op, own, f"is a view, {told}, and its push brings that to [{said}]")
        elif np.ravel_multi_index(at, shape) != np.ravel_multi_index(place, viewed):
            _broken(op, own, f"keeps the elements of operand 0 in their order, and {told}")


def _pairs(
    op: Any, pulled: Sequence[Affine], most: int
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Indices of the result, with those in operand 0. pulled: these in the result's variables."""
    shape = op.result.type.shape
    for at in itertools.islice(_places(shape), most):
        numbers: dict[Var, Affine] = {
            var: Affine((), number) for var, number in zip(variables(shape), at, strict=True)
        }
        place = [part.substitute(numbers) for part in pulled]
        if all(not part.terms for part in place):
            yield at, [part.const for part in place]


def _places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Of few elements each; else the corners first, at which indices without divisions are most."""
    ends = (sorted({0, size - 1}) for size in shape)
    inner = itertools.product(*map(range, shape))
    return itertools.chain(itertools.product(*ends), inner)


def _differs(op: Any, number: int, wanted: Any) -> str:
    operand = op.operands[number].type
    return f"operand {number} of {op}{_line(op)} is {operand} where the result is {wanted}"


def _line(op: Any) -> str:
    return f" ({op.loc})" if op.loc else ""


def _broken(op: Any, own: Extension, said: str, next_step: str = "") -> NoReturn:
    fault = own.fault(said)
    raise ExtensionError(fault.what, loc=fault.loc, next_step=next_step or fault.next_step)
