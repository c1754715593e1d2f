"""Encodings become layouts: the one step at which a target says how operands of products lie.

Input: a graph of dispatches, and what the target makes of an encoding: a `Layout`, or None where it
has no tiles for it. Output: a graph without encodings that means the same, decisions, and which
operands are packed in each call. Invariant: where the target has no tiles, the graph is that of a
program in which nothing was ever encoded.

Note [Constants]: what is encoded of a constant is a constant again, of another layout, and so is a
bound input: who owns their memory packs them once (`Layout.laid_out`), and no call does.

Note [One copy]: other programs may keep what a bound input is. Then this one reads that as it lies
there, whatever tiles its own products want: a copy costs as much memory again, and they pack what
they read. Where others than dispatches read it, who take it for row-major, there are two copies.

Note [Several targets]: what a dispatch makes lies as its own target says, and constants as the
target of who reads them does. Where a dispatch for another target reads it, and wants other tiles,
a copy stands on that edge, one for all readers of these tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.records import record
from stagejit.dispatch.layouts.retyped import empty_like, inserted, retyped
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops.control import given, is_sliced
from stagejit.graph.ops.dispatches import add_dispatch, parts_of
from stagejit.index.encoding import Encoding
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.rewrites.driving.driver import describe
from stagejit.rewrites.driving.rules import Declined
from stagejit.rewrites.encodings.elide import MOST_GROWTH
from stagejit.types import TensorType

NAME = "data-tiling"  # the switch without which nothing is encoded
# How the target wants an array of this type, which is encoded so; None: as it lies.
Resolver = Callable[[Encoding, TensorType], Layout | None]


@dataclass(frozen=True, eq=False, repr=False)
class OwnResolver(Extension):
    """How a user wants encoded operands to lie: as a `Resolver` of the package, but that it may
    decline. backend: the kind of machine that it is for, "cpu" or "cuda"."""

    function: Callable[[Encoding, TensorType, Any], Layout | Declined | None]
    backend: str


@record
class OwnFirst:
    """A resolver that asks those of users, then the package's. target: handed to them."""

    own: tuple[OwnResolver, ...]
    otherwise: Resolver
    target: Any

    def __call__(self, encoding: Encoding, type: TensorType) -> Layout | None:
        return self._asked(encoding, type)[1]

    def decider(self, encoding: Encoding, type: TensorType) -> str:
        """The name of the extension that decides about it, else that of the package's rewrite."""
        return self._asked(encoding, type)[0]

    def _asked(self, encoding: Encoding, type: TensorType) -> tuple[str, Layout | None]:
        for each in self.own:
            with each.running(f"failed at {encoding} of {type}"):
                found = each.function(encoding, type, self.target)
            if isinstance(found, Declined):
                continue
            if found is not None and not isinstance(found, Layout):
                raise each.fault(f"returned a {found.__class__.__name__}, and no Layout")
            # One of another rank that changes nothing has become the row-major one, which fits all.
            if found is not None and not (found.fits(type.shape) and found.ranks <= {type.rank}):
                told = str(found) or f"one of {' and '.join(map(str, sorted(found.ranks)))} axes"
                raise each.fault(f"returned {told}, which is no layout of {type}")
            return each.name, found
        return NAME, self.otherwise(encoding, type)


def untiled(encoding: Encoding, type: TensorType) -> None:
    """Of a target that has no tiles."""


@dataclass
class Resolved:
    """A graph without encodings, and why it is as it is. bound: how bound inputs lie, by their
    numbers among those, where that is not row-major. origins: of its ops, those of the
    graph with encodings."""

    graph: Graph
    decisions: list[Decision] = field(default_factory=list)
    bound: Mapping[int, Layout] = field(default_factory=dict)
    origins: Mapping[Op, Op] = field(default_factory=dict)


def resolve_encodings(
    graph: Graph,
    resolver: Resolver,
    of: Callable[[Op], Resolver] | None = None,
    kept: Sequence[Set[Layout]] = (),
    given: Mapping[Value, Layout] | None = None,
) -> Resolved:
    """`graph` itself, if nothing in it is encoded. of: the resolver of the target that a dispatch
    is for, where they are for several; see Note [Several targets]. kept: by the number of a bound
    input, how it lies in memory already; see Note [One copy]. given: how inputs of a body that are
    encoded lie."""
    if not _has_encodings(graph) and not any(each - {ROW_MAJOR} for each in kept):
        return Resolved(graph)
    resolution = _Resolution(graph, of or (lambda op: resolver), kept, given or {})
    made = resolution.run()
    return Resolved(made, resolution.decisions, resolution.bound, resolution.origins)


def _has_encodings(graph: Graph) -> bool:
    return any(value.type.encoding is not None for value in graph.inputs) or any(
        op.definition.is_encoding or any(map(_has_encodings, op.definition.bodies(op)))
        for op in graph.ops()
    )


class _Resolution:
    """`values`: what stands for each value; `parts`: of those that are made already, by what they
    were made of; `relaid`: copies of values in other layouts."""

    def __init__(
        self,
        graph: Graph,
        of: Callable[[Op], Resolver],
        kept: Sequence[Set[Layout]],
        given: Mapping[Value, Layout],
    ) -> None:
        self.graph, self.of, self.made = graph, of, Graph(graph.name)
        self.kept, self.given = kept, given
        self.relaid: dict[tuple[Value, Layout], Value] = {}
        self.decisions: list[Decision] = []
        self.values: dict[Value, Value] = {}
        self.parts: dict[Any, tuple[Graph, ...]] = {}
        self.constants: dict[tuple[Value, Layout], Value] = {}
        self.layouts: dict[tuple[Op, int], Layout] = {}  # of outputs that are encoded
        self.settled: dict[tuple[Op, Value], Decision] = {}  # of outputs that are encoded
        self.resolvers: dict[tuple[Op, Value], Resolver] = {}  # of outputs that are encoded
        self.bound: dict[int, Layout] = {}
        self.origins: dict[Op, Op] = {}

    def run(self) -> Graph:
        for op in self.graph.ops():
            if op.definition.is_dispatch:
                for number, output in enumerate(parts_of(op)[0].outputs):
                    if output.type.encoding is not None:
                        self.layouts[op, number] = self._resolve(op, output)
        numbers = itertools.count()
        for value, name in zip(self.graph.inputs, self.graph.input_names, strict=True):
            donated, bound = self.graph.is_donated(value), self.graph.is_bound(value)
            layout = self.given.get(value, ROW_MAJOR)
            if bound:
                layout = self._of_bound(value, next(numbers))
            type = TensorType(value.type.dtype, value.shape, layout)
            self.values[value] = self.made.add_input(name, type, donated=donated, bound=bound)
        for op in self.graph.ops():
            if op.definition.is_dispatch:
                self._dispatch(op)
            else:
                self._other(op)
        self.made.set_outputs([self.values[value] for value in self.graph.outputs])
        self.made.eliminate_dead()
        self.decisions[:0] = self.settled.values()
        return self.made

    def _other(self, op: Op) -> None:
        attrs = op.attrs
        if op.definition.with_bodies is not None:
            bodies, given = [], self._given(op)
            for body in op.definition.bodies(op):
                inner = resolve_encodings(body, untiled, self.of, given=given)
                self.decisions += inner.decisions
                self.origins |= inner.origins
                bodies.append(inner.graph)
            attrs = {**attrs, **op.definition.with_bodies(bodies)}
        operands = [self.values[value] for value in op.operands]
        types = [value.type for value in op.results]
        clone = self.made.add(op.kind, operands, types, op.loc, **attrs)
        self.origins[clone] = op
        self.values.update(zip(op.results, clone.results, strict=True))

    def _given(self, op: Op) -> dict[Value, Layout]:
        """How inputs of bodies lie that operands are, whole or in slices."""
        found: dict[Value, Layout] = {}
        for at, inputs in given(op).items() if op.definition.has_bodies else ():
            layout = self.values[op.operands[at]].type.layout
            layout = layout.of_slice if is_sliced(op, at) else layout
            found.update((inner, layout) for _, inner in inputs)
        return found

    def _of_bound(self, value: Value, number: int) -> Layout:
        """How a bound input lies: as other programs keep it, or as all that read it want it, and
        row-major where they differ, or where one reads it as it is."""
        uses = self.graph.uses(value)
        found = {layout for use in uses for layout in self._read_as(use)}
        layout = wanted = found.pop() if len(found) == 1 else ROW_MAJOR
        kept = self.kept[number] if number < len(self.kept) else frozenset()
        if kept and wanted not in kept and all(use.user.definition.is_dispatch for use in uses):
            layout = min(kept, key=str)
            self._read_as_kept(uses, layout)
        if not layout.is_row_major:
            self.bound[number] = layout
        return layout

    def _read_as_kept(self, uses: Sequence[Use], layout: Layout) -> None:
        """Those that want other tiles do without."""
        for use in uses:
            part = parts_of(use.user)[0]
            for op in part.users(part.inputs[use.operand]):
                if not op.definition.is_encoding or op.result not in part.outputs:
                    continue
                self.layouts[use.user, part.outputs.index(op.result)] = layout
                reason = f"another program keeps it as {str(layout) or 'it is'}, and reads it, too"
                self._decide(NAME, use.user, op.result, ROW_MAJOR, reason)

    def _read_as(self, use: Use) -> Iterator[Layout]:
        """How an operand is packed by its user, for each op there that reads it."""
        if not use.user.definition.is_dispatch:
            yield ROW_MAJOR
            return
        for part in parts_of(use.user):
            for op in part.users(part.inputs[use.operand]):
                encoded = op.definition.is_encoding and op.result in part.outputs
                number = part.outputs.index(op.result) if encoded else -1
                yield self.layouts.get((use.user, number), ROW_MAJOR)

    # ------------------------------------------------------------- dispatches

    def _dispatch(self, op: Op) -> None:
        """Outputs that are encoded become outputs of a layout, or go: a constant packs itself, and
        what is only handed on is there."""
        first = parts_of(op)[0]
        placed: dict[int, Layout] = {}
        gone: dict[int, Value | int] = {}  # what stands for an output: a value, or another output
        for number, output in enumerate(first.outputs):
            if output.type.encoding is None:
                continue
            layout, source = self.layouts[op, number], output.op.operands[0]
            at = _operand(first, source)
            constant = None if at is None else self._constant(op.operands[at], layout)
            if constant is not None:
                gone[number] = constant
            elif at is not None and self.values[op.operands[at]].type.layout == layout:
                gone[number] = self.values[op.operands[at]]
            elif not layout.is_row_major:
                placed[number] = layout
            elif source in first.outputs:
                gone[number] = first.outputs.index(source)
        kept = [number for number in range(len(first.outputs)) if number not in gone]
        if kept:
            self._keep(op, kept, placed)
        for number, stands in gone.items():
            value = self.values[op.results[stands]] if isinstance(stands, int) else stands
            self.values[op.results[number]] = value

    def _resolve(self, op: Op, output: Value) -> Layout:
        """How an encoded output lies."""
        encoding, plain = output.type.encoding, TensorType(output.type.dtype, output.shape)
        assert encoding is not None
        resolver = self._resolver(op, output)
        layout = resolver(encoding, plain) or ROW_MAJOR
        name = resolver.decider(encoding, plain) if isinstance(resolver, OwnFirst) else NAME
        reason = f"{encoding} is {layout}" if layout != ROW_MAJOR else f"no tiles for {encoding}"
        if layout != ROW_MAJOR and layout.keeps_order(plain.shape):
            reason, layout = f"{layout} is how it lies", ROW_MAJOR
        if not layout.has_slices and self._is_cut(op, output):
            reason, layout = f"in {layout} the slices that a loop reads lie apart", ROW_MAJOR
        nbytes = TensorType(plain.dtype, plain.shape, layout).nbytes
        at = _operand(parts_of(op)[0], output.op.operands[0])
        known = at is not None and self._is_weight(op.operands[at])
        if known and nbytes > MOST_GROWTH * plain.nbytes:
            reason = f"{layout} takes {nbytes} bytes, over {MOST_GROWTH} times {plain.nbytes}"
            layout = ROW_MAJOR
        self._decide(name, op, output, layout, reason)
        return layout

    def _is_cut(self, op: Op, output: Value) -> bool:
        """Whether a loop has slices of an output."""
        uses = self.graph.uses(op.results[parts_of(op)[0].outputs.index(output)])
        return any(is_sliced(use.user, use.operand) for use in uses)

    def _decide(self, name: str, op: Op, output: Value, layout: Layout, reason: str) -> None:
        what, loc, applied = describe(output.op), output.op.loc, not layout.is_row_major
        self.settled[op, output] = Decision(name, what, applied, reason, loc, parts_of(op)[0])

    def _resolver(self, op: Op, output: Value) -> Resolver:
        """Of the target that an output is for: that of the dispatch, or, where it only packs, of
        the first one that reads it."""
        known = self.resolvers.get((op, output))
        if known is None:
            part = parts_of(op)[0]
            packs = _operand(part, output.op.operands[0]) is not None
            number = part.outputs.index(output)
            readers = self.graph.users(op.results[number]) if packs else ()
            known = self.resolvers[op, output] = self.of(readers[0] if readers else op)
        return known

    def _as_wanted(self, op: Op, value: Value) -> Value:
        """What `op` reads of an operand: a copy, where its target wants it in other tiles than that
        of whoever made it."""
        encoding, made = value.type.encoding, self.values[value]
        if encoding is None or value.op.definition.is_input:
            return made
        part = parts_of(value.op)[0]
        output = part.outputs[value.index]
        maker = self._resolver(value.op, output)
        if self.of(op) is maker:
            return made
        layout = self.of(op)(encoding, TensorType(made.type.dtype, made.shape)) or ROW_MAJOR
        if layout == made.type.layout or (layout.keeps_order(made.shape) and _is_plain(made)):
            return made
        at = _operand(part, output.op.operands[0])
        if at is not None and value.op.operands[at].op.definition.is_constant:
            source = value.op.operands[at]
            return self._constant(source, layout) or self.values[source]
        if (made, layout) not in self.relaid:
            self.relaid[made, layout] = self._copy(op, made, layout)
        return self.relaid[made, layout]

    def _copy(self, op: Op, value: Value, layout: Layout) -> Value:
        into = empty_like(self.made, op, value.type, layout)
        part = Graph("copy")
        source = part.add_input("a0", value.type)
        whole = part.add_input("d0", into.type, donated=True)
        part.set_outputs([inserted(part, source, whole)])
        what = f"{value.type} for another target, which wants {layout}"
        self.decisions.append(Decision(NAME, describe(op), True, what, op.loc, self.graph))
        return add_dispatch(self.made, [value, into], [part]).result

    def _is_weight(self, value: Value) -> bool:
        return value.op.definition.is_constant or self.graph.is_bound(value)

    def _constant(self, value: Value, layout: Layout) -> Value | None:
        """The constant in that layout; None for what is no constant."""
        if not value.op.definition.is_constant or layout.is_row_major:
            return None
        if (value, layout) not in self.constants:
            attrs = {**value.op.attrs, "layout": layout}
            type = TensorType(value.type.dtype, value.shape, layout)
            made = self.made.add("const", (), type, value.op.loc, **attrs)
            self.made.put_at(value.op, made)
            self.constants[value, layout] = made.result
        return self.constants[value, layout]

    def _keep(self, op: Op, kept: Sequence[int], placed: Mapping[int, Layout]) -> None:
        operands = [self._as_wanted(op, value) for value in op.operands]
        for number, layout in placed.items():
            operands.append(empty_like(self.made, op, op.results[number].type, layout))
        types = tuple(value.type for value in operands)
        key = (parts_of(op), types, tuple(kept), tuple(placed.items()))
        if key not in self.parts:
            first, *borders = parts_of(op)
            without = partial(retyped, types=types, stem="e", passes=_is_encoding)
            made = [without(first, placed=list(placed), kept=kept), *map(without, borders)]
            self.parts[key] = tuple(made)
        clone = add_dispatch(self.made, operands, self.parts[key])
        clone.loc = op.loc
        self.origins[clone] = op
        results = [op.results[number] for number in kept]
        self.values.update(zip(results, clone.results, strict=True))


def _is_plain(value: Value) -> bool:
    return value.type.layout.is_row_major


def _is_encoding(op: Op) -> bool:
    return op.definition.is_encoding


def _operand(part: Graph, value: Value) -> int | None:
    """The number of the input that a value is, if it is one."""
    return part.inputs.index(value) if value in part.inputs else None
