"""What the values of a graph should be, and how far a kernel may be from that.

Input: a graph and its inputs. Output: for each value the interpreter's array, and a tolerance for
it. Invariant: the tolerance follows from what rounding does to this very value: eight times the
distance between the interpreter's result with every op rounded and with none, and a floor of a few
roundings in the coarsest type of the graph. Integers and bools are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stagejit.graph.evaluator import Precision
from stagejit.graph.interpreter import evaluate_op
from stagejit.graph.ir import Graph, Value

Array = np.ndarray[Any, np.dtype[Any]]

# Relative to the greatest magnitude of a value, at least 1.
_FLOOR = {"f64": 1e-9, "f32": 2e-4, "f16": 1e-2, "bf16": 6e-2}
_COARSEST = ("bf16", "f16", "f32", "f64")


class Reference:
    """`declared[value]` is the array; `tolerance(value)` says how much a float may be off."""

    def __init__(self, graph: Graph, inputs: Sequence[Array], values: Iterable[Value]) -> None:
        """values: those that will be asked for; their ops need not be part of the graph."""
        wanted = list(values)
        given = dict(zip(graph.inputs, inputs, strict=True))
        self.declared = dict(given)
        self._wide = {
            value: array.astype(np.float64) if value.type.dtype.is_float else array
            for value, array in given.items()
        }
        _evaluate(wanted, self.declared, "declared")
        _evaluate(wanted, self._wide, "f64")
        names = {value.type.dtype.name for value in self.declared}
        self._floor = next((_FLOOR[name] for name in _COARSEST if name in names), 0.0)

    def tolerance(self, value: Value) -> Array | None:
        """For each element the distance that is allowed; infinite where rounding alone decides
        whether it is finite. None where elements have to be equal."""
        if not value.type.dtype.is_float:
            return None
        declared = self.declared[value].astype(np.float64)
        wide = self._wide[value]
        both = np.isfinite(declared) & np.isfinite(wide)
        distance = np.abs(declared - wide)[both]
        magnitude = np.abs(declared)[both]
        most = 8 * float(distance.max(initial=0.0))
        floor = self._floor * max(1.0, float(magnitude.max(initial=0.0)))
        allowed = np.full(declared.shape, most + floor)
        allowed[np.isfinite(declared) != np.isfinite(wide)] = np.inf
        return allowed


def _evaluate(wanted: Sequence[Value], known: dict[Value, Array], precision: Precision) -> None:
    """Adds to `known` all that `wanted` depend on."""
    pending = list(wanted)
    while pending:
        value = pending[-1]
        missing = [operand for operand in value.op.operands if operand not in known]
        if value in known:
            pending.pop()
        elif missing:
            pending += missing
        else:
            results = evaluate_op(value.op, [known[v] for v in value.op.operands], precision)
            known.update(zip(value.op.results, results, strict=True))
