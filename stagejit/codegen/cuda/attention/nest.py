"""The loops of an attention: what is read and stored, over as few variables as possible.

Input: a region around an `attend`. Output: `Attention`: groups of variables (batch, rows of
queries, keys, depth, features of values), and the index of each operand in terms of them.
Invariant: variables of different groups are never joined; an element of a group is a number, of
which `places` makes the positions of its variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.walk import made_of_anchor
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Loops, Walked, loops_of
from stagejit.codegen.places.space import Space
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.attention import Roles, roles_of
from stagejit.index.affine import Affine, Index, Var


@record(eq=False)
class Group:
    """Variables, the outermost first, as one: elements [0, extent). var: stands for all."""

    variables: tuple[Var, ...]
    var: Var

    @property
    def extent(self) -> int:
        return self.var.extent

    @property
    def only(self) -> Var | None:
        """Its variable, if that is the only one: the elements of the group are its own."""
        return self.variables[0] if len(self.variables) == 1 else None

    def places(self, number: Register) -> dict[Var, Register]:
        """Where the variables stand at an element."""
        found: dict[Var, Register] = {}
        for var in reversed(self.variables[1:]):
            found[var] = number % var.extent
            number = number // var.extent
        return {**found, **dict.fromkeys(self.variables[:1], number)}


@record
class Indices:
    """Of queries, keys, values, scores and weights."""

    q: Index
    k: Index
    v: Index
    f: Index
    w: Index


@record
class Attention:
    """at: indices in terms of the variables. loops: with those, and the offsets, of what is
    stored."""

    op: Op
    loops: Loops
    batch: tuple[Var, ...]
    rows: Group
    keys: Group
    depth: Group
    features: Group
    at: Indices

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]:
        return self.loops.reads

    @property
    def offsets(self) -> Sequence[Affine]:
        return self.loops.offsets

    @property
    def batches(self) -> int:
        return math.prod(var.extent for var in self.batch)


def attention_of(region: ClosedRegion, machine: Machine) -> Attention:
    """The loops of a region."""
    op = region.anchor_op
    axes = _Axes(op)
    space = Space(axes.shape)
    loops = loops_of(region, machine, space, axes.groups, partial(_walk, region, axes))
    # `Loops` has the index of the space: of an operand it is what that makes of its own axes.
    batch, *others = loops.groups
    rows, keys, depth, features = (
        Group(variables, Var(math.prod(var.extent for var in variables), name))
        for name, variables in zip(("m", "n", "k", "e"), others, strict=True)
    )
    at = axes.indices(loops.index)
    return Attention(op, loops, batch, rows, keys, depth, features, at)


class _Axes:
    """The axes of an attention as those of a space: of the batch, rows, keys, depth, features."""

    def __init__(self, op: Op) -> None:
        self.op, attrs = op, op.attrs
        q, _, v, *_ = op.operands
        roles = roles_of(attrs, q.type)
        assert isinstance(roles, Roles)
        self.roles, w = roles, attrs["weights"].outputs[0]
        known = (*attrs["value_contracting"][1], *attrs["value_batch"][1])
        self.depth_axes: tuple[int, ...] = attrs["contracting"][0]
        self.feature_axes = [axis for axis in range(v.type.rank) if axis not in known]
        sizes = [[w.shape[axis] for axis in axes]
                 for axes in (roles.batch, roles.rows, roles.keys)]  # fmt: skip
        sizes.append([q.shape[axis] for axis in self.depth_axes])
        sizes.append([v.shape[axis] for axis in self.feature_axes])
        self.shape = [size for group in sizes for size in group]
        self.groups, first = [], 0
        for group in sizes:
            self.groups.append(range(first, first + len(group)))
            first += len(group)

    def indices(self, index: Index) -> Indices:
        """At an element of the space."""
        op, roles, attrs = self.op, self.roles, self.op.attrs
        parts = [[index[at] for at in group] for group in self.groups]
        batch, rows, keys, depth, features = parts
        axes = (*roles.batch, *roles.rows, *roles.keys)
        named = dict(zip(axes, (*batch, *rows, *keys), strict=True))
        w = tuple(named[axis] for axis in range(len(named)))
        f, product = ({axis: w[at] for at, axis in enumerate(of) if axis is not None}
                      for of in (roles.scores, roles.product))  # fmt: skip
        free = len(attrs["batch"][0])
        sides: list[Index] = []
        for value, summed, batched in zip(
            op.operands[:2], attrs["contracting"], attrs["batch"], strict=True
        ):
            own: dict[int, Affine] = dict(zip(summed, depth, strict=True))
            own |= {axis: product.get(at, Affine()) for at, axis in enumerate(batched)}
            for axis in range(value.type.rank):
                if axis not in own:
                    own[axis] = product.get(free, Affine())
                    free += 1
            sides.append(_ordered(own))
        of_v = dict(zip(self.feature_axes, features, strict=True))
        for name in ("value_contracting", "value_batch"):
            of_v |= {axis: w[of_w] for of_w, axis in zip(*attrs[name], strict=True)}
        rank = attrs["scores"].outputs[0].type.rank
        of_f = tuple(f.get(axis, Affine()) for axis in range(rank))
        return Indices(sides[0], sides[1], _ordered(of_v), of_f, w)

    def result(self, index: Index) -> Index:
        """Of the result: the batch and the rows of weights, as a contraction has them."""
        w, attrs = self.indices(index).w, self.op.attrs
        summed, batch = attrs["value_contracting"][0], attrs["value_batch"][0]
        free = [at for at in range(len(w)) if at not in (*summed, *batch)]
        features = [index[at] for at in self.groups[-1]]
        return (*(w[at] for at in (*batch, *free)), *features)


def _ordered(index: Mapping[int, Affine]) -> Index:
    return tuple(index[axis] for axis in sorted(index))


def _walk(region: ClosedRegion, axes: _Axes, footprint: Footprint, index: Index) -> Walked:
    """All that an element of the space needs."""
    op = axes.op
    at = axes.indices(index)
    for value, own in zip(op.operands, (at.q, at.k, at.v), strict=False):
        footprint.value(value, own)
    for name, own in (("scores", at.f), ("weights", at.w)):
        body = op.attrs[name]
        footprint.bound = {*footprint.bound, *body.inputs}
        for output in body.outputs:
            footprint.value(output, own)
        given = dict(zip(body.inputs[1:], op.operands[3:], strict=True))
        for value, asked in list(footprint.asked):
            if value in given:
                footprint.value(given[value], asked)
    footprint.bound = {*footprint.bound, op.result}
    where = made_of_anchor(region, footprint, axes.result(index))
    places = [where[store.value] for store in region.stores]
    return index, places, [*map(footprint.write, region.stores, places)]
