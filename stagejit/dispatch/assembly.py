"""From drafts to a graph of dispatches: every value of it lies in memory.

Input: a graph and its drafts, in order. Output: a `Graph` of `dispatch`es, loops, branches, calls,
delegated equations and barriers. Invariant: it means what the graph means; every order of its ops
that its edges allow is right, for who overwrites what another one reads comes after that one.

A buffer that is written in pieces has a version after each of them. A draft reads the latest one,
and what it writes a part of gives the next. So the versions of a buffer are a chain of ties, whose
base is `empty`, a fresh result, or an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagejit.dispatch.accesses import Touch, reads_of, writes_of
from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.dispatch.region import Draft, Store
from stagejit.dispatch.roots import Roots
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.control import before
from stagejit.graph.ops.dispatches import add_dispatch, placed
from stagejit.index.box_index import BoxIndex
from stagejit.types import TensorType


def assemble(graph: Graph, drafts: Sequence[Draft]) -> tuple[Graph, dict[Draft, Op]]:
    """The graph of dispatches of `graph`, which may be a body, in the order of its drafts, and the
    op that each draft became, those of bodies too."""
    assembly = _Assembly(graph, drafts)
    return assembly.run(), assembly.launched


class _Assembly:
    """`latest`: the newest version of each buffer, by its root. `passed`: results of barriers, with
    the version in memory that each passes on. `readers`: by root, who reads it, since somebody last
    asked what; `read`: what was found then. `before`: for each op the ops that its edges put before
    it, as a bit set of ids."""

    def __init__(self, graph: Graph, drafts: Sequence[Draft]) -> None:
        self.graph, self.drafts, self.roots = graph, drafts, Roots(drafts)
        self.made = Graph(graph.name)
        self.latest: dict[Value, Value] = {}
        self.passed: dict[Value, tuple[Value, Value]] = {}
        self.readers: dict[Value, list[tuple[Draft, Op]]] = {}
        self.read: dict[Value, BoxIndex[Op]] = {}
        self.reads: dict[Draft, list[Touch]] = {}
        self.before: dict[Op, int] = {}
        self.launched: dict[Draft, Op] = {}
        self.behind: dict[Value, Value | None] = {}  # what `_barrier_behind` found
        for value, name in zip(graph.inputs, graph.input_names, strict=True):
            self.latest[value] = self.made.add_input(
                name, value.type, donated=graph.is_donated(value)
            )

    def run(self) -> Graph:
        for draft in self.drafts:
            if draft.has_kernel:
                op = self._dispatch(draft)
            else:
                op = self._outside(draft)
            self._note(draft, op)
            self.launched[draft] = op
        stored = stored_outputs(self.graph)
        outputs = [self._read(stored[value], value.shape) for value in self.graph.outputs]
        self.made.set_outputs(outputs)
        return self.made

    # --------------------------------------------------------------- versions

    def _read(self, value: Value, shape: Sequence[int] | None = None) -> Value:
        """What is read where `value` is wanted, in its own or another row-major shape."""
        version = self._version(value)
        shape = value.shape if shape is None else tuple(shape)
        if version.shape == shape:
            return version
        return build(self.made, "alias", [version], value.op.loc, shape=shape)

    def _version(self, value: Value) -> Value:
        """The newest version of the memory of `value`."""
        root = self.roots[value]
        if root not in self.latest:
            self.latest[root] = self._first(root)
        behind = self._barrier_behind(value)
        if behind is None:
            return self.latest[root]
        result, was = self._pass(behind)
        return result if self.latest[root] is was else self.latest[root]

    def _first(self, root: Value) -> Value:
        """A constant; memory that nobody has written for others."""
        op, type = root.op, root.type
        if op.definition.is_constant:
            return self.made.add("const", (), type, op.loc, **op.attrs).result
        return build(self.made, "empty", [], shape=type.shape, dtype=type.dtype)

    def _barrier_behind(self, value: Value) -> Value | None:
        """The result of a barrier that `value` is, or is an update of."""
        root, passed, found = self.roots[value], [], None
        while value is not root:
            if value in self.behind:
                found = self.behind[value]
                break
            passed.append(value)
            if value.op.definition.forwards:
                found = value
                break
            earlier = before(value)
            if earlier is None:
                break
            value = earlier
        self.behind.update(dict.fromkeys(passed, found))
        return found

    def _pass(self, value: Value) -> tuple[Value, Value]:
        """What the barrier of `value` gives for it, and the version in memory at that time."""
        if value not in self.passed:
            op = value.op
            operands = [self._read(operand) for operand in op.operands]
            types = [operand.type for operand in operands]
            barrier = self.made.add(op.kind, operands, types, op.loc, **op.attrs)
            self._order(barrier)
            for old, new in zip(op.results, barrier.results, strict=True):
                self.passed[old] = new, self.latest[self.roots[old]]
        return self.passed[value]

    # -------------------------------------------------------------------- ops

    def _outside(self, draft: Draft) -> Op:
        """A loop, a branch, a library call or a delegated equation: as it is, between buffers."""
        assert draft.anchor is not None
        op = draft.anchor
        ties = {op.definition.tied_operand(op, result.index): result for result in op.results}
        ties.pop(None, None)
        read = {
            at: self._read(
                operand if op.definition.is_left else without_reshapes(operand), operand.shape
            )
            for at, operand in enumerate(op.operands)
            if at not in ties
        }
        updated = self._updated(draft, list(ties.values()), read.values())
        given = read | dict(zip(ties, updated, strict=True))
        operands = [given[at] for at in range(len(op.operands))]
        attrs = dict(op.attrs)
        if op.definition.with_bodies is not None:
            bodies = [assemble(body.graph, body.drafts) for body in draft.bodies]
            attrs |= op.definition.with_bodies([graph for graph, _ in bodies])
            for _, inner in bodies:
                self.launched |= inner
        types = [value.type for value in op.results]
        made = self.made.add(op.kind, operands, types, op.loc, **attrs)
        for old, new in zip(op.results, made.results, strict=True):
            self.latest[self.roots[old]] = new
        return made

    def _dispatch(self, draft: Draft) -> Op:
        reads = dict.fromkeys(draft.reads)
        groups: dict[Value, list[Store]] = {}
        for store in draft.stores:
            groups.setdefault(self.roots[store.into], []).append(store)
        tied = [root for root, stores in groups.items() if _is_update(draft, stores)]
        operands = [self._read(value) for value in reads]
        operands += self._updated(draft, [groups[root][0].into for root in tied], operands)
        first = _Part(draft, reads, [(root, v.type) for root, v in zip(
            tied, operands[len(reads):], strict=True)])  # fmt: skip
        first.graph.set_outputs(
            [
                first.update(root, stores) if root in tied else first.values[stores[0].value]
                for root, stores in groups.items()
            ]
        )
        op = add_dispatch(self.made, operands, [first.graph])
        for root, result in zip(groups, op.results, strict=True):
            self.latest[root] = result
        return op

    # ------------------------------------------------------------------ order

    def _updated(self, draft: Draft, tied: Sequence[Value], reads: Iterable[Value]) -> list[Value]:
        """The versions that updates of the memory of `tied` start from, once all earlier readers of
        what they overwrite have run. reads: the other operands."""
        versions = [self._version(value) for value in tied]
        if not versions:
            return []
        known = 0
        for value in (*versions, *reads):
            known |= self._until(value.op)
        waits = self._readers(draft, known)
        if not waits:
            return versions
        after = self.made.add("after", [versions[0], *waits], versions[0].type)
        self._order(after)
        return [after.result, *versions[1:]]

    def _readers(self, draft: Draft, known: int) -> list[Value]:
        """A result of each earlier reader of what the draft overwrites; not of those who come
        before another one, or are known to come first. Nobody asks for them again: all that is
        written there later is made from what the draft leaves."""
        indices = {root: self._read_of(root) for root in map(self.roots.__getitem__, draft.writes)}
        if all(index is None for index in indices.values()):
            return []
        found: dict[Op, None] = {}
        for touch in writes_of(draft):
            index = indices[self.roots[touch.value]]
            for reader in index.taken(touch.box) if index is not None else ():
                found[reader] = None
        waits: list[Op] = []
        for reader in sorted(found, key=lambda op: -op.id):
            if not known >> reader.id & 1 and reader.results:
                known |= self._until(reader)
                waits.append(reader)
        return [reader.results[0] for reader in reversed(waits)]

    def _read_of(self, root: Value) -> BoxIndex[Op] | None:
        """What is read of a buffer so far, and by whom."""
        for draft, op in self.readers.pop(root, ()):
            if draft not in self.reads:
                self.reads[draft] = reads_of(draft)
            for touch in self.reads[draft]:
                if self.roots[touch.value] is root:
                    self.read.setdefault(root, BoxIndex()).add(touch.box, op)
        return self.read.get(root)

    def _until(self, op: Op) -> int:
        return self.before.get(op, 0) | 1 << op.id

    def _order(self, op: Op) -> None:
        known = 0
        for operand in op.operands:
            known |= self._until(operand.op)
        self.before[op] = known

    def _note(self, draft: Draft, op: Op) -> None:
        """From now on `op` is somewhere in the order, and reads what the draft reads."""
        self._order(op)
        for root in dict.fromkeys(self.roots[value] for value in draft.reads):
            self.readers.setdefault(root, []).append((draft, op))


class _Part:
    """A part of a dispatch in the making. reads: what its first inputs stand for; destinations:
    roots of what the other ones stand for, and their types. values: what stands for each value of
    the graph inside of the part."""

    def __init__(
        self,
        draft: Draft,
        reads: Iterable[Value],
        destinations: Sequence[tuple[Value, TensorType]],
    ) -> None:
        self.graph = Graph(draft.kind)
        self.values: dict[Value, Value] = {}
        for at, value in enumerate(reads):
            self.values[value] = self.graph.add_input(f"a{at}", value.type)
        self.into = {
            root: self.graph.add_input(f"d{at}", type, donated=True)
            for at, (root, type) in enumerate(destinations)
        }
        for op in draft.ops:
            if not op.definition.is_insert:
                self._add(op)

    def _add(self, op: Op) -> None:
        operands = list(op.operands)
        if op.definition.updates:  # a scatter, into the only destination
            (into,) = self.into.values()
            tied = op.definition.tied_operand(op, 0)
            given = [into if at == tied else self.values[v] for at, v in enumerate(operands)]
        else:
            given = [self.values[value] for value in operands]
        types = [result.type for result in op.results]
        made = self.graph.add(op.kind, given, types, op.loc, **op.attrs)
        self.values.update(zip(op.results, made.results, strict=True))

    def update(self, root: Value, stores: Iterable[Store]) -> Value:
        """What the stores make of a destination."""
        value = self.into[root]
        for store in stores:
            made = self.values[store.value]
            value = placed(self.graph, made, store.inserts, value, self.values)
        return value


def _is_update(draft: Draft, stores: Sequence[Store]) -> bool:
    """Whether stores into one buffer leave something of what was there."""
    anchor = draft.anchor if draft.updates else None
    return any(store.inserts or store.value.op is anchor for store in stores)
