"""What is lost where weights have fewer bytes: |stored - w| / |w| in the Frobenius norm.

Input: a value, and what it is once it is read again. Output: a graph that gives both sums of
squares, with the bound inputs that it is of; those of bodies, whose inputs may be slices, become
sums over all iterations. Invariant: sums are in f64, in which no square of an f32 is too large or
too small; so the first is infinite where a finite element is read as an infinite one, and NaN where
an element is no finite number, unless its form has such: of those it counts the finite ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.cloning import cloned_alike, copied
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.weights.behind import weights_behind
from stagejit.rewrites.weights.inside import handed_on, slices_of
from stagejit.trace.weights import Weight
from stagejit.types import TensorType, bool_, f32, f64

_TINY = 1e-200
# Of which weights, and the text of what is computed of them.
Stored = tuple[tuple[Weight, ...], str]


@record
class Lost:
    """Of one value. of: the bound inputs that the inputs of both graphs are. squares: of what is
    lost, and of all of it. restored: what stands for the value. Other values may have both."""

    value: Value
    of: tuple[Value, ...]
    squares: Graph
    restored: Graph


class _Alike(dict[Hashable, tuple[Graph, Graph]]):
    """The graphs of values of one graph, by how they are made and stored: those of layers of one
    shape are built once."""

    @classmethod
    def of(cls, graph: Graph) -> _Alike:
        found: _Alike = graph.analyses.setdefault(cls, cls())
        return found


def lost_of(
    graph: Graph, value: Value, restored: Value, has_infinities: bool, how: Hashable
) -> Lost:
    """restored: what is read instead; has_infinities: Inf and NaN are so, too. how: equal for
    values that are made of weights, and stored, in the same way."""
    alike, behind = _Alike.of(graph), weights_behind(graph, value)
    if how not in alike:
        alike[how] = _graphs(behind, value, restored, has_infinities)
    return Lost(value, behind, *alike[how])


def _graphs(
    behind: Sequence[Value], value: Value, restored: Value, has_infinities: bool
) -> tuple[Graph, Graph]:
    squares, again = Graph("error"), Graph("restored")
    known = {w: squares.add_input(f"w{at}", w.type) for at, w in enumerate(behind)}
    known |= cloned_alike(squares, [value, restored], known)
    given, found = (converted(squares, known[x], f64) for x in (value, restored))
    both = [mapped(squares, "sub", found, given), given]
    if has_infinities:
        finite = build(squares, "map", [given], fn="is_finite", dtype=bool_)
        zero = filled(squares, 0.0, given.type)
        both = [build(squares, "map", [finite, x, zero], fn="select", dtype=f64) for x in both]
    squares.set_outputs([_sum(squares, mapped(squares, "mul", x, x)) for x in both])
    known = {w: again.add_input(f"w{at}", w.type) for at, w in enumerate(behind)}
    again.set_outputs([cloned_alike(again, [restored], known)[restored]])
    return squares, again


def of_body(op: Op, body: Graph) -> dict[Stored, Lost]:
    """Those of a body, of what is outside of it."""
    outside = {inner: operand for operand, where, inner in handed_on(op) if where is body}
    slices, found = slices_of(op), dict[Stored, Lost]()
    for stored, lost in body.measures.items():
        sliced = [value in slices for value in lost.of]
        of = tuple(outside[value] for value in lost.of)
        made = replace(lost, value=outside.get(lost.value, lost.value), of=of)
        if any(sliced):
            squares = _stacked(op, lost.squares, of, sliced)
            squares.set_outputs([_sum(squares, value) for value in squares.outputs])
            restored = _stacked(op, lost.restored, of, sliced)
            made = replace(made, squares=squares, restored=restored)
        found[stored] = made
    return found


def _stacked(op: Op, graph: Graph, of: Sequence[Value], sliced: Sequence[bool]) -> Graph:
    """What a graph gives for each slice."""
    made, trip = Graph(graph.name), op.attrs["trip"]
    inputs = [made.add_input(f"w{at}", value.type) for at, value in enumerate(of)]
    order = sorted(range(len(of)), key=lambda at: not sliced[at])  # slices come first
    body = copied(graph, [graph.inputs[at] for at in order], graph.outputs, (), name="layer")
    types = [TensorType(x.type.dtype, (trip, *x.shape)) for x in body.outputs]
    loop = made.add(
        "loop", [inputs[at] for at in order], types, op.loc,
        body=body, condition=None, trip=trip, carries=0, xs=sum(sliced), reverse=False,
    )  # fmt: skip
    made.set_outputs(loop.results)
    return made


def _sum(graph: Graph, value: Value) -> Value:
    return build(graph, "reduce", [value], fn="add", axes=tuple(range(value.type.rank)))


def error_of(lost: Lost) -> Graph:
    """The number that is shown."""
    made = copied(lost.squares, lost.squares.inputs, lost.squares.outputs, ())
    part, whole = made.outputs
    whole = mapped(made, "max", whole, filled(made, _TINY, whole.type))
    made.set_outputs([converted(made, mapped(made, "sqrt", mapped(made, "div", part, whole)), f32)])
    return made
