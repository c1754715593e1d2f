"""What the values of a graph of dispatches should be, and how far a kernel may be from that.

Input: a graph of dispatches and its inputs. Output: for each value the interpreter's array, and a
tolerance for it; those inside of a dispatch as that sees them. Invariant: the tolerance follows
from what rounding does to this very value: eight times the distance between the interpreter's
result with every op rounded and with none, and a floor of a few roundings in the coarsest type of
the graph. Integers and bools are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Evaluator, Precision
from stagejit.graph.meaning.interpreter import evaluate_op
from stagejit.graph.ops.dispatches import parts_of

Array = np.ndarray[Any, np.dtype[Any]]

# Relative to the greatest magnitude of a value, at least 1.
_FLOOR = {"f64": 1e-9, "f32": 2e-4, "f16": 1e-2, "bf16": 6e-2}
_COARSEST = ("bf16", "f16", "f32", "f64")


class Reference:
    """`declared[value]` is the array; `tolerance(value)` says how much a float may be off."""

    def __init__(self, graph: Graph, inputs: Sequence[Array]) -> None:
        given = dict(zip(graph.inputs, inputs, strict=True))
        self.declared = dict(given)
        self._wide = {
            value: array.astype(np.float64) if value.type.dtype.is_float else array
            for value, array in given.items()
        }
        _evaluate(graph, self.declared, "declared")
        _evaluate(graph, self._wide, "f64")
        names = {value.type.dtype.name for value in _computed(graph)}  # what rounding there is
        self._floor = next((_FLOOR[name] for name in _COARSEST if name in names), 0.0)

    def seen_by(self, region: Region) -> Reference:
        """The same, with what is inside of `region`; its part may be that of other dispatches."""
        op, seen = region.op, copy(self)
        seen.declared, seen._wide = dict(self.declared), dict(self._wide)
        for part in parts_of(op) if op.definition.is_dispatch else ():
            for known in (seen.declared, seen._wide):
                known.update(zip(part.inputs, (known[v] for v in op.operands), strict=True))
            _evaluate(part, seen.declared, "declared")
            _evaluate(part, seen._wide, "f64")
        return seen

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


def interpret_over_zeros(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The results of a graph where memory that was never written holds zeros. Where they differ
    from those of `interpret`, the graph leaves them open: a dispatch may store anything there."""
    with np.errstate(all="ignore"):
        return _OverZeros("declared").graph(graph, inputs)


class _OverZeros(Evaluator):
    def op(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        if op.definition.is_empty:
            return [np.zeros(op.result.shape, self.storage(op.result.type.dtype))]
        return super().op(op, operands)


def _evaluate(graph: Graph, known: dict[Value, Array], precision: Precision) -> None:
    """Adds to `known` all that ops of the graph give."""
    for op in graph.ops():
        results = evaluate_op(op, [known[value] for value in op.operands], precision)
        known.update(zip(op.results, results, strict=True))


def _computed(graph: Graph) -> Iterator[Value]:
    """What ops of the graph, and of the parts of its dispatches, give."""
    for op in graph.ops():
        yield from op.results
        for part in parts_of(op) if op.definition.is_dispatch else ():
            yield from _computed(part)
