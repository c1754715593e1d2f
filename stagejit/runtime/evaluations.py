"""The programs that make values of weights: one for all values that are computed alike.

Input: options, and how to compile a graph under them. Output: what `BoundWeights` asks for the
program of each value. Invariant: a program is kept as long as somebody reads what it made: so
layers of one shape share one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

from stagejit.graph.ir import Graph
from stagejit.options import Options
from stagejit.rewrites.cloning import copied
from stagejit.rewrites.weights.made import Made
from stagejit.runtime.bound import Compile
from stagejit.runtime.lowering.evaluating import Evaluated
from stagejit.runtime.lowering.staged import Staged

_evaluations: weakref.WeakValueDictionary[tuple[str, Options], Evaluated] = (
    weakref.WeakValueDictionary()
)


def evaluations(options: Options, compiled: Callable[[Graph, Options], Staged]) -> Compile:
    """For programs that are compiled under these options."""
    # A NaN in what is made is found in the calls that read it.
    unchecked = replace(options, target="native", check_nans=False, check_infs=False)

    def evaluation(made: Made) -> Evaluated | None:
        if made.is_packed:
            return None
        known = _evaluations.get((made.text, options))
        if known is None:
            graph = copied(made.graph, made.graph.inputs, made.graph.outputs, ())
            types = [value.type for value in made.graph.outputs]
            known = Evaluated(compiled(graph, unchecked), types)
            _evaluations[made.text, options] = known
        return known

    return evaluation
