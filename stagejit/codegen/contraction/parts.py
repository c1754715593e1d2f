"""Sums that are cut into parts of which the last is shorter, where the loops stand in one of them.

Input: a nest, the emitter of its tree. Output: the steps that a part has. Invariant: the loops over
parts are around what asks.
"""

from __future__ import annotations

import math

from stagejit.codegen.contraction.nest import Cut, Nest
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Node


def in_part(nest: Nest, emitter: Emitter, body: Node) -> Node:
    """`body`, which goes through as many steps as the part has."""
    cut = nest.cut
    if cut is None:
        return body
    return emitter.within("steps of the part", lambda: {cut.step: steps_of(cut, emitter)}, body)


def steps_of(cut: Cut, emitter: Emitter, times: int = 1) -> Span:
    """The steps of the part. times: as many stand for one of the cut."""
    b, last, whole = emitter.b, cut.last * times, cut.step.extent * times
    at = emitter.elements.position.env.get(cut.part, b.const(0))
    is_last = b.compare("eq", at, cut.part.extent - 1)
    steps = b.select(is_last, b.const(last), b.const(whole))
    return Span(b.const(0), None, steps, fewest=last, unit=math.gcd(last, whole))
