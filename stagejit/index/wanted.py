"""Who wants an array to lie in which order: a hint, or a requirement.

Input: layouts, and where they come from. Output: `LayoutHint`s, which passes make and may drop, and
`LayoutRequirement`s, which the caller alone makes and which hold. Invariant: neither is the other
(no common class, no conversion), so a hint is never taken where a requirement is asked for; who
makes requirements is `runtime/lowering/formats.py`, and tests/index/test_wanted.py looks that
nobody else does.

Note [Hint or requirement]: in nvFuser (issue 2425) a pass that prefers an output's order sets its
allocation domain, which a scheduler must then honour. Here what a pass prefers can always be given
up, with a reason; what the caller asked for becomes an explicit transpose of the graph before any
pass runs, which is fused into a load or a store, or is a copy. Where the caller contradicts himself
(an array that was committed to another layout than the function takes; operands and results of
foreign code that share memory), JAX says so, naming both, before anything comes here.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.index.layout import Layout


def in_words(layout: Layout) -> str:
    return str(layout) or "row-major"


@record
class LayoutHint:
    """layout: what a pass would like. source: the name of the pass, as in `Options(disable=)`."""

    layout: Layout
    source: str

    def __str__(self) -> str:
        return f"{in_words(self.layout)}, a hint of {self.source}"


@record
class LayoutRequirement:
    """layout: what has to be. source: what of the caller says so, as in "argument x"."""

    layout: Layout
    source: str

    def __str__(self) -> str:
        return f"{in_words(self.layout)}, which {self.source} requires"
