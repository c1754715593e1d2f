"""Runs of long sums: elements that are accumulated from nothing before they meet a total, and runs
of runs, so that rounding errors grow with the number of levels, not of elements.

Input: the loops over a row. Output: the same, in blocks. Invariant: depends on extents only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stagejit.codegen.nest.tree import Node, blocks, serial
from stagejit.codegen.reducers import Reducer
from stagejit.index.affine import Var

MOST_ADDED = 128  # to one accumulator

T = TypeVar("T")
Runs = list[tuple[Var, list[int]]]  # for each loop the iterations of a run, of the longest first


def has_rounding(reducer: Reducer) -> bool:
    """Whether it matters in which order elements meet: a product's roundings are as many in any
    order, a maximum has none."""
    return reducer.fn in ("add", "logaddexp") and reducer.dtype.is_float


def runs_of(variables: Sequence[Var], added: float) -> Runs:
    """For loops one inside the other, the innermost of which adds so much in an iteration."""
    found: Runs = []
    for var in reversed(variables):
        sizes: list[int] = []
        count = var.extent
        while added * count > MOST_ADDED:
            sizes.append((sizes or [1])[-1] * max(int(MOST_ADDED / added), 1))
            count, added = -(-var.extent // sizes[-1]), 1
        added *= count
        found.append((var, sizes[::-1]))
    return found[::-1]


def in_words(runs: Runs) -> str:
    """For the user to read; "" where there are none."""
    found = [f"{' in '.join(map(str, sizes))} of {var.extent}" for var, sizes in runs if sizes]
    return f"sums of {', '.join(found)} iterations meet the others" if found else ""


def over_runs(
    runs: Runs, into: T, run: Callable[[T, Callable[[T], Node]], Node], body: Callable[[T], Node]
) -> Node:
    """Loops over all but the last variable, which `body` covers, as far as it is handed down.
    body: accumulates into what it is given. run: accumulates by what it is given into something new
    and that into the first."""
    if not runs:
        return body(into)
    (var, sizes), *inner = runs
    if sizes:
        rest = [(var, sizes[1:]), *inner]
        return blocks(var, sizes[0], run(into, lambda part: over_runs(rest, part, run, body)))
    return serial([var], over_runs(inner, into, run, body)) if inner else body(into)
