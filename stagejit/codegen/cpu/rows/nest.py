"""`VectorNest`: the loops of a `reduce` region in vectors.

Input: planned by `reduce.py`. Output: `VectorPolicy`, the base of those in `loops.py` and
`panels.py`. Invariant: as in `codegen/rows/nest.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.codegen.costs import region_seconds
from stagejit.codegen.nest.items import in_items, panel_in_words, panel_width
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.rows.nest import RowNest, RowPolicy


@dataclass(frozen=True, kw_only=True)
class VectorNest(RowNest):
    """straight: rows are short enough to be unrolled, so that what passes share stays in
    registers."""

    straight: bool

    @property
    def width(self) -> int:
        if self.vector not in self.kept:
            return 1
        far, seconds = self.ahead is not None, region_seconds(self.region, self.target)
        return panel_width(self.kept, self.vector, self.lanes, self.target, seconds, far=far)


class VectorPolicy(RowPolicy):
    """An item is a row, or as many as advance together."""

    def tree(self) -> Parallel:
        nest = self.nest
        loops = [(var, 1) for var in nest.kept if var is not nest.vector]
        if nest.vector in nest.kept:
            loops.append((nest.vector, nest.width))
            self.emitter.chose("panel", panel_in_words(nest.vector, nest.width, nest.target.cores))
        return in_items(loops, self.rows(), nest.target.cores)
