"""`Decision`: one choice of the compiler, applied or declined, with its reason.

Input: made by rewrite drivers, dispatch formation and the scheduler. Output: `plan.decisions` and
`explain`. Invariant: in a plan it is plain data without references to graphs, so keeping decisions
keeps nothing alive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stagejit.base.loc import UNKNOWN, Loc

_NAMED = re.compile(r"@(?=[A-Za-z_])")  # a dispatch


def path_inside(around: str, dispatch: str, body: str) -> str:
    """The path of what is in a body of a dispatch, whose own ends with a slash: "loop.1/",
    "branch.2/case1/"."""
    return f"{around}{dispatch}/" + ("" if body == "body" else f"{body}/")


@dataclass(frozen=True)
class Decision:
    """A rewrite tried on one op.

    rewrite: name of the rewrite or fusion, as in `Options(disable=...)`.
    op: text of the op it was tried on. applied: whether it happened.
    reason: why, or why not, in one sentence. loc: the user's line that the op came from.
    about: while it is compiled, the graph whose ops both texts name,
        see `dispatch/origins/naming.py`.
    """

    rewrite: str
    op: str
    applied: bool
    reason: str
    loc: Loc = UNKNOWN
    about: object = field(default=None, compare=False, repr=False)

    def inside(self, path: str) -> Decision:
        """The same, of dispatches in a body, whose path ends with a slash."""
        at = f"@{path}"  # once for each body around: no more calls than it takes
        op, reason = _NAMED.sub(at, self.op), _NAMED.sub(at, self.reason)
        return type(self)(self.rewrite, op, self.applied, reason, self.loc, self.about)

    def __str__(self) -> str:
        where = f"  // {self.loc}" if self.loc else ""
        return (
            f"{'applied' if self.applied else 'declined'} {self.rewrite} @ {self.op}: "
            f"{self.reason}{where}"
        )
