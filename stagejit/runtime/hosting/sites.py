"""What a step of a host program belongs to: a dispatch of the plan, as times and errors name it.

Input: dispatches. Output: `Site`s. Invariant: a site keeps nothing of the compilation alive; the
path of a dispatch is its name after those of the loops and branches around it, and unique.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagejit.base.decisions import path_inside
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.records import record

if TYPE_CHECKING:  # `lowering/staged.py` is imported with the package, and the compiler is not
    from stagejit.schedule.plans.plan import Body, Dispatch

NOWHERE = -1
_MOST_BOXES = 3


@record
class Site:
    """A dispatch. path: as in "loop.1/contract.0"; flops, nbytes, sizes: of one
    execution. different_nbytes: that it touches at least, each byte counted once."""

    path: str
    kind: str = ""
    ops: tuple[str, ...] = ()
    loc: Loc = UNKNOWN
    flops: int = 0
    nbytes: int = 0
    sizes: str = ""
    different_nbytes: int = 0


@dataclass
class Sites:
    """Those of a program, numbered in the order in which they are met."""

    found: dict[str, int] = field(default_factory=dict)
    made: list[Site] = field(default_factory=list)

    def number_of(self, dispatch: Dispatch, around: str) -> int:
        """That of a dispatch inside of others, whose path ends with a slash."""
        path = f"{around}{dispatch.name}"
        if path not in self.found:
            self.found[path] = len(self.made)
            self.made.append(site_of(dispatch, around))
        return self.found[path]


def site_of(dispatch: Dispatch, around: str = "") -> Site:
    """The site of a dispatch inside of others, whose path ends with a slash."""
    path = f"{around}{dispatch.name}"
    found = dispatch.flops, dispatch.nbytes, _sizes(dispatch), _different_nbytes(dispatch)
    return Site(path, dispatch.kind, dispatch.ops, dispatch.loc, *found)


def _different_nbytes(dispatch: Dispatch) -> int:
    """Boxes of one buffer may have elements in common."""
    largest: dict[str, int] = {}
    for access in (*dispatch.reads, *dispatch.writes):
        if access.must:
            largest[access.buffer] = max(largest.get(access.buffer, 0), access.nbytes)
    return sum(largest.values())


def _sizes(dispatch: Dispatch) -> str:
    """Of the boxes that are read, and of those that are written."""
    sides = (
        ", ".join("x".join(map(str, access.sizes)) or "scalar" for access in side[:_MOST_BOXES])
        + (", ..." if len(side) > _MOST_BOXES else "")
        for side in (dispatch.reads, dispatch.writes)
    )
    return " -> ".join(filter(None, sides))


def inside(around: str, dispatch: Dispatch, body: Body) -> str:
    """The path of what is in a body."""
    return path_inside(around, dispatch.name, body.plan.name)
