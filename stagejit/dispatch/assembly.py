"""From groups to a graph of dispatches: every value of it lies in memory.

Input: the groups of a graph, in order. Output: a `Graph` of `dispatch`es, loops, branches, calls,
delegated equations and barriers. Invariant: it means what the graph means; every order of its ops
that its edges allow is right, for who overwrites what others use, too, overwrites a copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stagejit.dispatch.groups.group import Group, Grouping
from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops import build
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import add_dispatch, kind_of
from stagejit.rewrites.cloning import appended


def assemble(grouping: Grouping) -> tuple[Graph, dict[Group, Op]]:
    """The graph of dispatches of a graph, which may be a body, in the order of its groups, and the
    op that each group became, those of bodies too."""
    assembly = _Assembly(grouping)
    return assembly.run(), assembly.launched


class _Assembly:
    """`values`: what stands for each value that lies in memory; `copies`: by results of updates,
    what they start from if that is a copy; `first`: the first dispatch of equal groups."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping, graph = grouping, grouping.graph
        self.made = Graph(graph.name)
        self.launched: dict[Group, Op] = {}
        self.copies: dict[Value, Value] = {}
        self.first: dict[Hashable, Op] = {}
        self.values = {
            value: self.made.add_input(
                name, value.type, donated=graph.is_donated(value), bound=graph.is_bound(value)
            )
            for value, name in zip(graph.inputs, graph.input_names, strict=True)
        }

    def run(self) -> Graph:
        for group in self.grouping.groups:
            anchor = group.anchor
            if anchor is not None and not group.has_kernel:
                self.launched[group] = self._outside(anchor)
            else:
                self.launched[group] = self._dispatch(group)
        stored = stored_outputs(self.grouping.graph)
        outputs = [self._read(stored[value], value.shape) for value in self.grouping.graph.outputs]
        self.made.set_outputs(outputs)
        return self.made

    # ----------------------------------------------------------------- values

    def _read(self, value: Value, shape: Sequence[int] | None = None) -> Value:
        """What is read where `value` is wanted, in its own or another row-major shape."""
        if value not in self.values:
            self._make(value)
        found = self.values[value]
        shape = value.shape if shape is None else tuple(shape)
        if found.shape == shape:
            return found
        return build(self.made, "alias", [found], value.op.loc, shape=shape)

    def _make(self, value: Value) -> None:
        """What no group stores: constants, what barriers pass on, and what has no elements."""
        op = value.op
        if op.definition.is_constant:
            self._add(op, [])
        elif op.definition.forwards:
            self._add(op, [self._read(operand) for operand in op.operands])
        elif op.definition.is_insert:
            self.values[value] = self._start(value)
        else:
            self.values[value] = self._empty(value)

    def _add(self, op: Op, operands: Sequence[Value], **attrs: object) -> Op:
        """The op as it is, between values in memory."""
        types = [value.type for value in op.results]
        made = self.made.add(op.kind, operands, types, op.loc, **{**op.attrs, **attrs})
        self.values.update(zip(op.results, made.results, strict=True))
        return made

    def _empty(self, value: Value) -> Value:
        return build(self.made, "empty", [], shape=value.shape, dtype=value.type.dtype)

    def _start(self, result: Value) -> Value:
        """What the update that gives `result` starts from."""
        destination = destination_of(result)
        assert destination is not None
        if result in self.copies:
            return self.copies[result]
        fresh = destination.op.definition.is_empty
        return self._empty(result) if fresh else self._read(destination)

    # -------------------------------------------------------------------- ops

    def _outside(self, op: Op) -> Op:
        """A loop, a branch, a library call or a delegated equation."""
        ties = {op.definition.tied_operand(op, result.index): result for result in op.results}
        given = {
            at: self._read(value if op.definition.is_left else without_reshapes(value), value.shape)
            for at, value in enumerate(op.operands)
            if at not in ties
        }
        given |= {at: self._start(result) for at, result in ties.items() if at is not None}
        attrs = {}
        if op.definition.with_bodies is not None:
            bodies = [assemble(body) for body in self.grouping.bodies[op]]
            attrs = op.definition.with_bodies([graph for graph, _ in bodies])
            for _, inner in bodies:
                self.launched |= inner
        return self._add(op, [given[at] for at in range(len(op.operands))], **attrs)

    def _dispatch(self, group: Group) -> Op:
        """What a group evaluates, as the only part of a dispatch."""
        operands = [self._read(value) for value in group.reads]
        anchor = group.anchor
        if anchor is not None and anchor.definition.updates:
            operands.append(self._start(anchor.result))
        has_others = len(self.grouping.groups) > 1
        key = (_key(group) if has_others else None) or group
        first = self.first.get(key)
        if first is None:
            op = self.first[key] = add_dispatch(self.made, operands, [_part(group)])
        else:
            types = [value.type for value in first.results]
            op = self.made.add(first.kind, operands, types, first.loc, **first.attrs)
        if group.copies_for is None:
            self.values.update(zip(group.stores, op.results, strict=True))
        else:
            self.copies[group.copies_for] = op.result
        return op


def _key(group: Group) -> Hashable:
    """Groups of equal keys evaluate the same, made of the same lines: floats, of which the host
    knows nothing, so that whatever is said of one part holds for each dispatch of it."""
    if not all(value.type.dtype.is_float for value in group.reads):
        return None
    numbers = {value: at for at, value in enumerate(group.reads)}
    ops = []
    for op in group.ops:
        if op.definition.updates:
            return None
        attrs = [(name, attribute_key(value)) for name, value in op.attrs.items()]
        operands = [numbers[value] for value in op.operands]
        types = [result.type for result in op.results]
        ops.append((op.kind, op.loc, *attrs, *operands, *types))
        for result in op.results:
            numbers[result] = len(numbers)
    stores = [numbers[value] for value in group.stores]
    return tuple(value.type for value in group.reads), tuple(ops), tuple(stores)


def _part(group: Group) -> Graph:
    """What a group evaluates."""
    part = Graph(kind_of([op for op in group.ops if not op.definition.is_insert]))
    made = {value: part.add_input(f"a{at}", value.type) for at, value in enumerate(group.reads)}
    anchor = group.anchor
    if anchor is not None and anchor.definition.updates:
        into = part.add_input("d0", anchor.result.type, donated=True)
        made = appended(part, group.ops[:-1], made)
        tied = anchor.definition.tied_operand(anchor, 0)
        given = [into if at == tied else made[v] for at, v in enumerate(anchor.operands)]
        update = part.add(anchor.kind, given, into.type, anchor.loc, **anchor.attrs)
        part.set_outputs(update.results)
    else:
        made = appended(part, group.ops, made)
        part.set_outputs([made[value] for value in group.stores])
    return part
