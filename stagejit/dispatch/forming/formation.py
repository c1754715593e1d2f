"""Dispatch formation: a graph is divided into groups, each of which becomes one dispatch.

Input: a verified graph. Output: groups in an order that respects their dependences, and decisions.
Invariant: everything is decided from shapes, bytes and flops, so every target gets the same
groups; each fusion that is possible but not done leaves a decision with its reason.

Note [Steps]: the forward walk makes a group of each anchor (reduce, contract, conv, cumulative,
scatter, sort, loop, branch, call, delegate) and lets elementwise consumers join it, so that they
are applied before the result reaches memory. What joins nothing floats: whoever reads it evaluates
it. `recompute` lets results float again that readers make cheaply. `demand` walks backwards
and stores those floating values that would cost more to evaluate again. `stored` says what each
group stores then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from stagejit.base.decisions import Decision
from stagejit.base.symbolic import Int, Undecided, at_most
from stagejit.dispatch.bodies import known_inside
from stagejit.dispatch.forming.demand import store_what_is_dear
from stagejit.dispatch.forming.destinations import reads_to_keep, update
from stagejit.dispatch.forming.joins import (
    join,
    refuse_length,
    refuse_prologue,
    store,
    store_in_map,
)
from stagejit.dispatch.forming.recompute import drop_what_is_cheap
from stagejit.dispatch.forming.stored import store_what_is_read
from stagejit.dispatch.groups.apart import starting
from stagejit.dispatch.groups.group import Group, Grouping, Location, Refusal
from stagejit.dispatch.groups.legality import (
    locate,
    refuse_order,
    refuse_rows,
    refuse_turn,
)
from stagejit.dispatch.groups.offsets import explain_offsets
from stagejit.dispatch.groups.state import State
from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.dispatch.ranges.scalars import known_arguments
from stagejit.errors import ExtensionError, InternalError, StagejitError, UnsupportedOpError
from stagejit.graph.definition import OwnOp
from stagejit.graph.ir import Graph, Op, Value, in_memory, is_free
from stagejit.graph.ops.control import (
    bodies_of,
    destination_of,
    read_operands,
)
from stagejit.graph.ops.moving.splits import is_uneven, last_part, sums_parts
from stagejit.index.bit_sets import bits
from stagejit.index.coordinates import coordinates
from stagejit.options import Options

_NEIGHBOURS = 8  # how many earlier reductions of a shape are looked at for a merge
# What is reduced: a shape, its axes, and how long the last part is where it is shorter than others.
_Rows = tuple[tuple[int, ...], tuple[int, ...], int]


def form(
    graph: Graph, options: Options | None = None, known: Mapping[Value, Int] | None = None
) -> tuple[Grouping, list[Decision]]:
    """The groups of `graph`, which is in normal form (see `rewrites/normal_form.py`) and stays as
    it is, and of the bodies of its loops and branches.

    known: inputs that the host knows, see `Scalars`; by default those of a graph that is no body.
    """
    options = options or Options()
    former = _Former(graph, options, known_arguments(graph) if known is None else known)
    groups, decisions = former.run()
    bodies: dict[Op, list[Grouping]] = {}
    for op in (group.anchor for group in groups if group.anchor is not None):
        for number, body in enumerate(bodies_of(op)):
            inside = known_inside(op, number, former.state.scalars)
            grouping, inner = form(body, options, inside)
            bodies.setdefault(op, []).append(grouping)
            decisions += inner
    return Grouping(graph, groups, bodies, former.state.apart), decisions


class _Former:
    """The forward walk."""

    def __init__(self, graph: Graph, options: Options, known: Mapping[Value, Int]) -> None:
        self.state = State(graph, options, known)
        self.state.require(stored_outputs(graph).values(), "it is returned")
        self.reductions: dict[_Rows, list[Group]] = {}
        self.rows_from: dict[Group, set[Value]] = {}  # origins of what a group's reduces read

    def run(self) -> tuple[list[Group], list[Decision]]:
        early = self._require()
        seen: set[Op] = set()
        for op in self.state.order:
            for each in (*early.get(op, ()), op):
                if each not in seen and (each is op or _is_ready(each, seen)):
                    seen.add(each)
                    self._visit_for_all_sizes(each)
        if self.state.enabled("fuse-producers"):
            drop_what_is_cheap(self.state)
        store_what_is_dear(self.state)
        return store_what_is_read(self.state), self.state.decisions

    def _require(self) -> dict[Op, list[Op]]:
        """Values that must be stored: what is placed, delegated, or the first contents of a
        buffer. Returns the slices that have to be read before an update, by update."""
        early: dict[Op, list[Op]] = {}
        for op in self.state.order:
            explain_offsets(self.state, op)
            known = op.definition
            kept = reads_to_keep(self.state, op) if known.updates else []
            if kept:
                self.state.require(kept, f"it is read before a {op.kind} overwrites it")
                early[op] = [value.op for value in kept]
            if known.is_stored:
                self.state.require(op.results, "it is laid out for products")
            if known.is_left or known.forwards:
                who = "XLA reads it" if known.is_left else "an optimization barrier passes it on"
                self.state.require(op.operands, who)
            elif known.is_call or known.has_bodies:
                read = map(without_reshapes, read_operands(op))
                self.state.require(read, f"a {op.kind} takes it as memory")
            elif known.is_insert:
                self.state.require(_computed(op.operands[:1]), "it is a part of a larger value")
            if known.updates:
                placed = map(destination_of, op.results)
                self.state.require(_computed(placed), f"a {op.kind} goes on in its memory")
        return early

    def _visit_for_all_sizes(self, op: Op) -> None:
        try:
            self._visit(op)
        except Undecided as undecided:
            raise UnsupportedOpError(
                f"cannot plan `{op.kind}` for all sizes at once: {undecided}",
                loc=op.loc,
                next_step="plan it for arguments with numbers for sizes, as a call does",
            ) from None

    def _visit(self, op: Op) -> None:
        state = self.state
        if not op.definition.is_pointwise:
            state.apart.starts[op] = starting(op)
        if op.definition.is_pointwise:
            self._pointwise(op)
        elif op.definition.is_reduce:
            self._reduce(op)
        elif op.definition.accumulates:
            group = state.new_group(op, op.result.shape, state.deps_of_all(op.operands))
            state.settle(op, group, "out")
        elif op.definition.updates:
            update(state, op)
        elif op.definition.forwards:
            state.deps[op] = state.deps_of_all(op.operands)
        elif op.definition.is_foreign or op.definition.stands_alone:
            group = state.new_group(op, (), state.deps_of_all(op.operands))
            state.settle(op, group)
        elif not op.definition.is_empty:
            raise _without_kernel(op, state.options)

    # ------------------------------------------------------------- pointwise

    def _pointwise(self, op: Op) -> None:
        state = self.state
        if in_memory(op.result):
            return
        state.note_pointwise(op)
        required = op.result in state.required
        known = op.definition
        computes = known.is_elementwise or known.is_gather or known.is_window
        if computes and not op.definition.is_conversion:
            if not join(state, op) and (required or _refuse_floating(state, op)):
                store_in_map(state, op)
        elif required or refuse_length(state, op):
            store(state, op)

    # ------------------------------------------------------------- reductions

    def _reduce(self, op: Op) -> None:
        state, operand = self.state, op.operands[0]
        needed = state.deps_of(operand)
        key = (operand.shape, tuple(op.attrs["axes"]), _short_part(operand))
        group = self._same_rows(op, needed) or self._neighbour(op, needed, key)
        if group is None:
            group = state.new_group(op, operand.shape, needed, key[1])
            self.reductions.setdefault(key, []).append(group)
        state.settle(op, group, "kept")
        self.rows_from.setdefault(group, set()).update(state.origins_of([operand]))

    def _same_rows(self, op: Op, needed: int) -> Group | None:
        """A group whose rows `op` reduces again: its operand is computed from the rows' results."""
        state, operand = self.state, op.operands[0]
        for number in reversed(list(bits(needed))):
            group = state.groups[number]
            rows = group.shape, group.axes
            if not group.definition.is_reduce or rows != (operand.shape, tuple(op.attrs["axes"])):
                if group.definition.is_reduce:
                    state.apart.refuse(op, group, f"it reduces other rows than {group.anchor}")
                continue
            refusal = _refuse_same_rows(state, group, locate(state, group, operand), needed)
            reason = f"reduces rows that {group.anchor} reduces too"
            if state.accept("fuse-rows", op, refusal, reason):
                return group
            state.apart.refuse(op, group, refusal)
        return None

    def _neighbour(self, op: Op, needed: int, key: _Rows) -> Group | None:
        """A group that reads the same array along the same rows."""
        state, operand = self.state, op.operands[0]
        origins = state.origins_of([operand])
        light = at_most(4 * sum(value.type.nbytes for value in origins), operand.type.nbytes)
        for group in reversed(self.reductions.get(key, [])[-_NEIGHBOURS:]):
            shared = [
                value
                for value in origins & self.rows_from[group]
                if at_most(operand.type.size, 2 * value.type.size)
            ]
            merges = self._merges_too(operand, group)
            if needed >> group.id & 1 or not (shared or light or merges):
                continue
            refusal = "" if state.enabled("fuse-rows") else "fuse-rows is disabled"
            how = "what" if shared else "little while" if light else "parts beside those that"
            what = f"{how} {group.anchor} reads"
            refusal = refusal or refuse_turn(state, group, op, needed) or ""
            if state.accept("fuse-rows", op, refusal, f"reads {what}, along the same rows"):
                return group
        return None

    def _merges_too(self, operand: Value, group: Group) -> bool:
        """Whether `operand` is sums of parts, and a group merges others of the same dispatch."""
        home = self.state.home.get(operand.op)
        if home is None or not sums_parts(operand.op):
            return False
        return any(self.state.home.get(value.op) is home for value in self.rows_from[group])


def _computed(values: Iterable[Value | None]) -> Iterator[Value]:
    """Those that somebody has to compute."""
    return (value for value in values if value is not None and not is_free(value))


def _refuse_floating(state: State, op: Op) -> bool:
    """Whether its readers must not evaluate an op that joins no group."""
    reason: str | None = "fuse-producers is disabled"
    if state.enabled("fuse-producers"):
        reason = refuse_prologue(state, op) or refuse_length(state, op)
    if reason:
        state.apart.store(op.result, reason)
    return bool(reason)


def _is_ready(op: Op, seen: AbstractSet[Op]) -> bool:
    """Whether all that makes its operands has been visited; arguments nobody makes."""
    return all(v.op in seen or v.op.definition.is_input for v in op.operands)


def _refuse_same_rows(
    state: State, group: Group, place: Location | Refusal | None, needed: int
) -> str:
    if not state.enabled("fuse-rows"):
        return "fuse-rows is disabled"
    if group.closed:  # what is read again here would be computed again by who stores it
        return f"{group.kind} has as many ops behind it as one dispatch may have"
    if isinstance(place, Refusal):
        return place or f"it reads from memory what {group.kind} stores"
    if place is None or place.space != "row" or place.index != coordinates(group.shape):
        return f"it does not reduce the rows of {group.kind}"
    return refuse_rows(group) or refuse_order(state, group, needed) or ""


def _short_part(operand: Value) -> int:
    return last_part(operand.op) if is_uneven(operand.op) else 0


def _without_kernel(op: Op, options: Options) -> StagejitError:
    declared = (own for own in options.parts_of(OwnOp) if own.definition is op.definition)
    own = next(declared, None)
    if own is None:
        return InternalError(f"no dispatch is made for {op}", step="form", loc=op.loc)
    return ExtensionError(
        f"op {op.kind!r} has no kernel: its declaration does not say how to compute it",
        loc=own.loc,
        next_step="declare it with is_elementwise=True and code=; or with stands_alone=True, and "
        "give extending.op(..., cpu=..., cuda=...) its kernels; or with pull=, if it is a view; or "
        "give extending.op(..., translate=...), which makes it of ops that there are",
    )
