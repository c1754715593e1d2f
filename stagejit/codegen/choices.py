"""Choices of kernel generators, with what they cost by the model.

Input: alternatives and their modelled cost. Output: the cheapest, and a `Choice` that names it and
the next best. Invariant: ties go to the alternative that comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stagejit.base.records import record
from stagejit.codegen.kernel import Choice
from stagejit.index.affine import Var

T = TypeVar("T")


BY_ROWS = "row by row: several lie on a page of memory, of which lines would be read in turn"


@record
class Ranked(Generic[T]):
    """The cheapest alternative, what is told of it, and what it costs."""

    best: T
    choice: Choice
    cost: float = math.inf


def cheapest(
    name: str,
    alternatives: Sequence[T],
    cost: Callable[[T], float],
    text: Callable[[T], str],
    unit: str,
    is_known: Callable[[T], bool] = lambda _: True,
) -> Ranked[T]:
    """The alternative that costs least, of at least one. unit: of the costs. is_known: of an
    alternative that does not cost less, but may cost more, it is not; the best one's is."""
    costs = [cost(alternative) for alternative in alternatives]
    ranked = sorted(range(len(costs)), key=costs.__getitem__)
    best = alternatives[ranked[0]]
    reason = f"{text(best)}: {costs[ranked[0]]:.3g} {unit}"
    if len(ranked) > 1:
        other = alternatives[ranked[1]]
        least = "" if is_known(other) else "at least "
        reason += f"; {text(other)}: {least}{costs[ranked[1]]:.3g}"
    return Ranked(best, Choice(name, reason), costs[ranked[0]])


def cheapest_vector(
    variables: Sequence[Var],
    cost: Callable[[Var, Var | None], float],
    between: Sequence[tuple[Var, Var]] = (),
) -> Ranked[tuple[Var | None, Var | None]]:
    """The variable of the vectors and, in some of the pairs `between`, one that lies between their
    lanes; (None, None) if nothing loops. cost: memory operations an element."""
    pairs = [*((var, None) for var in variables), *between]
    if not pairs:
        return Ranked((None, None), Choice("vector", "there is nothing to choose from"))
    ranked = cheapest(
        "vector", pairs, lambda pair: cost(*pair), _in_words, "memory operations an element"
    )
    return Ranked(ranked.best, ranked.choice, ranked.cost)


def _in_words(pair: tuple[Var, Var | None]) -> str:
    var, between = pair
    gap = f" with {between.extent} between lanes" if between else ""
    return f"vectors along {var.name} of {var.extent}{gap}"
