"""Bodies of loops over what is put together of parts: one for the interior, one for all else.

Input: the `Interior` of loops, and the stores of both. Output: the code of one vector.

See Note [Interiors] in `places/interior.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

from stagejit.base.records import record
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.interior import Interior


@record
class InteriorStores:
    """stores: of the interior; stride: see `Elements.interleaving`; otherwise: what is done
    elsewhere."""

    interior: Interior
    stores: Stores
    stride: int
    otherwise: Callable[[], None]

    def write(self) -> None:
        """One vector; one that is masked may go beyond the interior."""
        elements = self.stores.elements
        if elements.position.mask is not None:
            self.otherwise()
        else:
            elements.b.if_(self._holds(elements), self._inside, self.otherwise)

    def _holds(self, elements: Elements) -> Register:
        """Whether all of a vector lies in the interior."""
        position, found = elements.position, list[Register]()
        for var, (low, inner) in self.interior.first.items():
            at, lanes = position.env[var], position.lanes if var is position.vector else 1
            high = low + inner.extent
            found += [at >= low] if low else []
            found += [at <= high - lanes] if high < var.extent else []
        found.sort(key=lambda each: each.block.depth)
        return reduce(operator.and_, found)

    def _inside(self) -> None:
        elements, loops = self.stores.elements, self.interior.loops
        env, ahead = elements.position.env, elements.ahead
        at = {inner: env[var] - low for var, (low, inner) in self.interior.first.items()}
        elements.ahead = loops.ahead
        with elements.at(at, vector=loops.vector), elements.interleaving(self.stride):
            self.stores.write(enumerate(loops.places))
        elements.ahead = ahead
