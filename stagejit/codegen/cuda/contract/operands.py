"""An element of an operand, where the loops over axes and steps stand.

Input: an operand, a position. Output: a register in the type of the sums. Invariant: an element
outside its window, or that somebody says does not exist, is never read.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from stagejit.codegen.contraction.nest import Operand
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.positions import is_inside
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.index.affine import Var
from stagejit.types import DType


def element_of(operand: Operand, elements: Elements, dtype: DType) -> Register:
    """The element, or the border of the window that it would be in."""
    places, inside = _places(operand, elements)

    def read() -> Register:
        with elements.at(places, within=bool(inside)):
            raw = elements.value(operand.value, operand.index)
            return vmath.convert(elements.b, raw, operand.value.type.dtype, dtype)

    if not inside:
        return read()
    border = elements.b.const(operand.border, element_type(dtype))
    condition = reduce(and_, inside)
    (made,) = elements.b.if_(condition, lambda: (read(),), lambda: (border,))
    return made


def _places(operand: Operand, elements: Elements) -> tuple[dict[Var, Register], list[Register]]:
    """Where the variables of windows stand, and what tells that they are inside."""
    places, inside = dict[Var, Register](), list[Register]()
    for var, window in operand.windows.items():
        at = elements.scalar_index(window.at) - window.before
        places[var] = at
        if not window.exact:
            inside.append(is_inside(elements.b, at, window.size))
    return places, inside
