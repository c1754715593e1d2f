"""An element of an operand, or neighbours of it, where the loops over axes and steps stand.

Input: an operand, a position. Output: a register in the type of the sums. Invariant: what is
outside its window, or that somebody says does not exist, is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

from stagejit.codegen.contraction.nest import Operand
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.positions import is_inside
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.index.affine import Var
from stagejit.types import DType


def element_of(
    operand: Operand,
    elements: Elements,
    dtype: DType,
    exists: Sequence[Register] = (),
    missing: float = 0.0,
) -> Register:
    """The element, or the border of the window that it would be in; `missing` where not all of
    `exists` hold. A vector, where the position is one."""
    b, lanes = elements.b, elements.position.lanes if elements.position.vector else 0
    type = element_type(dtype).with_lanes(lanes)
    places, inside = places_of(operand, elements)

    def read() -> Register:
        with elements.at(places, within=bool(inside or exists)):
            raw = elements.value(operand.value, operand.index)
            made = vmath.convert(b, raw, operand.value.type.dtype, dtype)
            return b.splat(made, lanes) if lanes else made

    if inside and exists and str(float(operand.border)) == str(missing):
        inside, exists = [*exists, *inside], ()
    border, nothing = b.const(operand.border, type), b.const(missing, type)
    return where(b, exists, lambda: where(b, inside, read, border), nothing)


def where(
    b: Builder, conditions: Sequence[Register], then: Callable[[], Register], otherwise: Register
) -> Register:
    """What `then` gives where all conditions hold."""
    if not conditions:
        return then()
    (made,) = b.if_(reduce(and_, conditions), lambda: (then(),), lambda: (otherwise,))
    return made


def places_of(operand: Operand, elements: Elements) -> tuple[dict[Var, Register], list[Register]]:
    """Where the variables of windows stand, and what tells that they are inside."""
    places, inside = dict[Var, Register](), list[Register]()
    for var, window in operand.windows.items():
        at = elements.scalar_index(window.at) - window.before
        places[var] = at
        if not window.exact:
            inside.append(is_inside(elements.b, at, window.size))
    return places, inside
