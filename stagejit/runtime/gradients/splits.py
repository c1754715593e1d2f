"""A program that reads weights as two, each of which is bound where JAX would bind its own.

Input: the two parts that JAX made of a program whose weights are operands or its own. Output: a
`Split`, whose first part is called with the operands of the program, and which says what the second
one takes before its own. Invariant: what the second part takes is of the moment of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core.primitives import jit_p as _jit_p

from stagejit.base.records import record
from stagejit.runtime.gradients.again import (
    made_again,
    moments_in,
    of_one_moment,
    with_weights_inside,
)
from stagejit.runtime.gradients.alone import opened
from stagejit.runtime.gradients.held import held_snapshot
from stagejit.runtime.lowering.marks import call_params
from stagejit.trace.weights import Weight

jit_p: Any = _jit_p


@record
class Split:
    """first: returns the results, then what others are found by. residuals: of each that `second`
    takes, before all else, what it is: a "result" of `first`, an "operand", a "constant" or a
    "snapshot", and which one. places: of the results of `first` that were there before. held: of
    which moments both parts take a snapshot, the first one before all else."""

    first: Any
    second: Any
    residuals: tuple[tuple[str, int], ...]
    places: dict[int, int]
    held: tuple[Weight, ...]

    def bound(
        self, params: dict[str, Any], operands: Sequence[Any], numbers: Sequence[int],
        results: Sequence[int], constants: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """The results of the first part, and the residuals. numbers, results: of what the program
        takes and returns, those that this part does."""
        others = [None] * (len(opened(self.first).outvars) - len(results))
        snapshot = [held_snapshot(self.held)] if self.held else []
        inputs = [*[None] * len(snapshot), *numbers]
        called = call_params(params, self.first, inputs, [*results, *others])
        found = jit_p.bind(*snapshot, *operands, **called)
        given = {"result": found, "operand": operands, "constant": constants, "snapshot": snapshot}
        return found, [given[kind][number] for kind, number in self.residuals]


def in_two(
    first: Any,
    second: Any,
    weights: Sequence[Weight],
    forwards: Sequence[int | None],
    constants: int,
    results: int,
    at_once: bool,
) -> Split:
    """Of what JAX made of a program whose first operands are these weights. forwards: for each
    residual, which constant or operand of the program it is, or None for the next result of the
    first part, behind its own `results`."""
    sources = _sources(results, constants, len(weights), forwards)
    asked = {at: weights[number] for at, (kind, number) in enumerate(sources) if kind == "weight"}
    first = with_weights_inside(first, dict(enumerate(weights)))
    second = with_weights_inside(second, asked)
    sources = [source for source in sources if source[0] != "weight"]
    pairs = [(number, at) for at, (kind, number) in enumerate(sources) if kind == "result"]
    count = len(opened(first).outvars)
    parts = of_one_moment(made_again(first, second, pairs), is_held=at_once)
    places = {number: at for at, number in enumerate(without(range(count), parts.moved))}
    then = [("result", len(places) + at) for at in range(len(parts.moments))]
    left = [
        (kind, places[number] if kind == "result" else number)
        for kind, number in without(sources, parts.taken)
    ]
    added = [("operand", at) for at in parts.added]
    held = dict.fromkeys((*moments_in(parts.first), *moments_in(parts.second)))
    given = [("snapshot", 0)] if parts.is_held else []
    return Split(
        parts.first, parts.second, (*then, *given, *added, *left), places,
        tuple(held) if parts.is_held else (),
    )  # fmt: skip


def _sources(
    nresults: int, nconstants: int, nweights: int, forwards: Sequence[int | None]
) -> list[tuple[str, int]]:
    """What each residual is, by JAX's numbers: of constants, then operands, the weights first; or
    else the next result behind those of the program."""
    found, numbers = list[tuple[str, int]](), itertools.count(nresults)
    for at in forwards:
        if at is None:
            found.append(("result", next(numbers)))
        elif at < nconstants:
            found.append(("constant", at))
        elif at < nconstants + nweights:
            found.append(("weight", at - nconstants))
        else:
            found.append(("operand", at - nconstants - nweights))
    return found


def without(values: Sequence[Any], numbers: Collection[int]) -> list[Any]:
    return [each for number, each in enumerate(values) if number not in numbers]
