"""Choices of kernel generators, with what they cost by the model.

Input: alternatives and their modelled cost. Output: the cheapest, and a `Choice` that names it and
the next best. Invariant: ties go to the alternative that comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stagejit.codegen.kernel import Choice
from stagejit.index.affine import Var

T = TypeVar("T")


@dataclass(frozen=True)
class Ranked(Generic[T]):
    """best: None where there was nothing to choose from."""

    best: T | None
    choice: Choice


def cheapest(
    name: str,
    alternatives: Sequence[T],
    cost: Callable[[T], float],
    text: Callable[[T], str],
    unit: str,
) -> Ranked[T]:
    """The alternative that costs least. unit: of the costs."""
    costs = [cost(alternative) for alternative in alternatives]
    if not costs:
        return Ranked(None, Choice(name, "there is nothing to choose from"))
    ranked = sorted(range(len(costs)), key=costs.__getitem__)
    best = alternatives[ranked[0]]
    reason = f"{text(best)}: {costs[ranked[0]]:.3g} {unit}"
    if len(ranked) > 1:
        reason += f"; {text(alternatives[ranked[1]])}: {costs[ranked[1]]:.3g}"
    return Ranked(best, Choice(name, reason))


def in_words(var: Var | None) -> str:
    """What vectors along a variable are called."""
    return "scalars" if var is None else f"vectors along {var.name} of {var.extent}"
