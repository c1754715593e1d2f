"""`Graph`: a dataflow graph of tensor ops, a `networkx.MultiDiGraph`.

Nodes are `Op`s, an edge `producer -> consumer` is one operand use (`operand`: its position at the
consumer, which is the key of the edge, too; `result`: which result of the producer). `graph.nx` is
the graph itself (see `links.py`), so networkx algorithms apply directly. What an op is stands in
the `OpDef` of its kind; those of the package are declared in `graph/ops/`.

Invariant: the edges and the `operands` of every op agree, the graph is acyclic, inputs come first
and there is exactly one `return`. Only `Graph` methods change any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.numbers import counted
from stagejit.base.records import record
from stagejit.base.showing import Shown
from stagejit.graph.definition import OpDef, definition_of
from stagejit.graph.links import Edges, Links
from stagejit.graph.order import in_order
from stagejit.types import TensorType

if TYPE_CHECKING:
    import networkx as nx

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Value:
    """One result of an op."""

    __slots__ = ("index", "op", "shape", "type")

    def __init__(self, op: Op, index: int, type: TensorType) -> None:
        self.op, self.index, self.type, self.shape = op, index, type, type.shape

    def __repr__(self) -> str:
        return f"{self.op.kind}.{self.op.id}#{self.index}: {self.type}"


class Op:
    """`results = kind operands {attrs}`. Attributes are immutable and hashable (arrays
    excepted).

    definition: what is known of its kind. place: where it stands among ops that need not wait for
    each other: that of the op it was put in place of, or its id. result: of an op that has one
    result, that."""

    __slots__ = ("attrs", "definition", "id", "kind", "loc", "operands", "place", "result",
                 "results")  # fmt: skip

    result: Value

    def __init__(
        self,
        id: int,
        kind: str,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        attrs: dict[str, Any],
        loc: Loc,
    ) -> None:
        """attrs: the op's own from now on."""
        self.definition: OpDef = definition_of(kind)
        self.id, self.kind, self.loc, self.place = id, kind, loc, id
        # A list, for an op of many operands gets new ones one at a time; only a graph writes it.
        self.operands: Sequence[Value] = list(operands)
        self.attrs: Mapping[str, Any] = MappingProxyType(attrs)
        self.results: tuple[Value, ...]
        if len(types) == 1:
            self.result = Value(self, 0, types[0])
            self.results = (self.result,)
        else:
            self.results = tuple(Value(self, i, t) for i, t in enumerate(types))

    def __repr__(self) -> str:
        return f"{self.kind}.{self.id}"


@record
class Use:
    """One operand use: `user.operands[operand]`."""

    user: Op
    operand: int


class Graph(Shown):
    """A program: typed inputs, ops, and returned values.

    `donated[i]` says that the caller gives up input i, so its memory may hold a result; `bound[i]`
    that it is the same in every call (`stagejit.bind`), and no argument of one. `filled` has values
    that are all of one number, by type and bits, of which some may have been erased. While it is
    rewritten, `weights` says what bound inputs are, `sliced` has those that are slices of it, and
    `measures` what is lost where values have fewer bytes (see `Stored`), `factors` what
    has to stay finite (see `Factor`). `of_gradient`: it is one
    of the programs of a gradient, or both, which read the same weights. `changes` counts what was
    done to ops and their operands; `analyses` has what was found of it, by class.
    """

    def __init__(self, name: str = "f") -> None:
        self.name = name
        self._links: Links | None = None  # of a graph that only grew, not made yet
        self.inputs: list[Value] = []
        self.input_names: list[str] = []
        self.donated: list[bool] = []
        self.bound: list[bool] = []
        self.weights: dict[Value, Any] = {}
        self.sliced: dict[Value, Any] = {}
        self.of_gradient = False
        self.measures: dict[tuple[tuple[Any, ...], str], Any] = {}
        self.factors: dict[Any, Any] = {}
        self.filled: dict[tuple[TensorType, bytes], Value] = {}
        self._made: list[Op] = []  # by id, erased ones included
        self._order: list[Op] | None = None  # what `ops` found, until the next change
        self._all_live = False  # what `eliminate_dead` left, until the next change
        self.changes = 0
        self.analyses: dict[type, Any] = {}
        self._return = self._insert("return", (), (), {}, UNKNOWN)

    # ---------------------------------------------------------------- reading

    @property
    def nx(self) -> nx.MultiDiGraph[Op]:
        """The graph itself, for networkx."""
        return self.links.nx

    @property
    def links(self) -> Links:
        """The edges. Many a graph is only made, read and compiled, such as those of dispatches:
        they have edges from the moment that somebody asks for them."""
        if self._links is None:
            self._order = self.ops()  # that of their ids, as long as nothing has gone
            self._links = Links(self._made)
            for op in self._made:
                for index, value in enumerate(op.operands):
                    self._links.link(value.op, op, index, value.index)
        return self._links

    @property
    def _users(self) -> Edges:
        return (self._links or self.links).after

    def is_used(self, op: Op) -> bool:
        """Whether any op reads a result of `op`."""
        return bool(self._users[op])

    @property
    def outputs(self) -> Sequence[Value]:
        return self._return.operands

    @property
    def return_op(self) -> Op:
        return self._return

    def ops(self) -> list[Op]:
        """All ops but inputs and the return, operands before users, otherwise by their places, the
        oldest first."""
        if self._order is None:
            self._order = self._ordered()
        return list(self._order)

    def _ordered(self) -> list[Op]:
        if self._links is None:  # ops came after their operands
            return [op for op in self._made if op.definition.is_step]
        return in_order(self._links, self.inputs)

    @property
    def next_id(self) -> int:
        """The id that the next op will get."""
        return len(self._made)

    def made(self, id: int) -> Op | None:
        """The op of that id, also when it has been erased."""
        return self._made[id] if id < len(self._made) else None

    def ops_since(self, first_id: int) -> list[Op]:
        """Ops added since `next_id` was `first_id` that are still there, oldest first."""
        return [op for op in self._made[first_id:] if op in self]

    def uses(self, value: Value) -> list[Use]:
        """Operand uses of `value`, oldest user first; the return counts as a user."""
        found = [
            Use(user, data["operand"])
            for user, edges in self._users[value.op].items()
            for data in edges.values()
            if data["result"] == value.index
        ]
        return sorted(found, key=lambda use: (use.user.id, use.operand))

    def users(self, value: Value) -> list[Op]:
        """Ops that read `value`, each once."""
        users, alone = self._users[value.op], len(value.op.results) == 1
        return sorted(users if alone else {x.user for x in self.uses(value)}, key=attrgetter("id"))

    def uses_by_result(self, op: Op) -> dict[int, list[Use]]:
        """The uses of each result of `op` that has any, by number: one look at each use."""
        found: dict[int, list[Use]] = {}
        for user, edges in sorted(self._users[op].items(), key=lambda item: item[0].id):
            for data in sorted(edges.values(), key=itemgetter("operand")):
                found.setdefault(data["result"], []).append(Use(user, data["operand"]))
        return found

    def dissolve(self, *, bodies: bool = True) -> None:
        """The end of the graph: ops and values let go of each other, so that nothing waits for a
        garbage collection (a constant may be a large array of the user's). bodies: those in it,
        too, unless another graph has them now."""
        made, self._made, self._order = self._made, [], None
        self.filled, self.analyses = {}, {}
        if self._links is not None:
            self._links.clear()
            self._links = None
        for op in made:
            if bodies and op.definition.has_bodies:
                for body in op.definition.bodies(op):
                    body.dissolve()
            if len(op.results) == 1:
                del op.result
            op.attrs, op.operands, op.results = _NOTHING, (), ()

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops())

    def __contains__(self, op: object) -> bool:
        """Whether an op is of this graph, and has not been erased."""
        return op in self._users

    def __repr__(self) -> str:
        inputs, ops = counted(len(self.inputs), "input"), counted(len(self), "op")
        return f"<graph @{self.name}: {inputs}, {ops}>"

    def __len__(self) -> int:
        ops = len(self._made) if self._links is None else len(self._links.nodes)
        return ops - len(self.inputs) - 1

    def is_donated(self, value: Value) -> bool:
        """Whether it is an input that the caller gives up."""
        return value.op.definition.is_input and self.donated[value.op.attrs["index"]]

    def is_bound(self, value: Value) -> bool:
        """Whether it is an input that is the same in every call."""
        return value.op.definition.is_input and self.bound[value.op.attrs["index"]]

    # ---------------------------------------------------------------- writing

    def add_input(
        self, name: str, type: TensorType, *, donated: bool = False, bound: bool = False
    ) -> Value:
        op = self._insert("input", (), (type,), {"index": len(self.inputs)}, UNKNOWN)
        self.inputs.append(op.result)
        self.input_names.append(name)
        self.donated.append(donated)
        self.bound.append(bound)
        return op.result

    def add(
        self,
        kind: str,
        operands: Sequence[Value],
        types: TensorType | Sequence[TensorType],
        loc: Loc = UNKNOWN,
        **attrs: Any,
    ) -> Op:
        """Append an op. Types are not inferred here: `graph.ops` builds typed ops."""
        results = (types,) if isinstance(types, TensorType) else tuple(types)
        return self._insert(kind, operands, results, attrs, loc)

    def put_at(self, old: Op, *ops: Op) -> None:
        """The new `ops` take the place of `old` in the order, as far as their operands let them."""
        for op in ops:
            op.place = old.place
        self._order = None

    def set_outputs(self, values: Sequence[Value]) -> None:
        self._set_operands(self._return, values)

    def insert_operand(self, op: Op, index: int, value: Value) -> None:
        self._set_operands(op, (*op.operands[:index], value, *op.operands[index:]))

    def set_operand(self, op: Op, index: int, value: Value) -> None:
        operands = op.operands
        assert isinstance(operands, list)
        self.links.unlink(operands[index].op, op, index)
        operands[index] = value
        self._link(op, [index])

    def replace_uses(self, old: Value, new: Value) -> None:
        """Every use of `old` reads `new` from now on."""
        for use in self.uses(old):
            self.set_operand(use.user, use.operand, new)

    def replace_results(self, op: Op, values: Sequence[Value | None]) -> list[Op]:
        """The same for each result of `op` that has a value in its place: one look at each use.
        Returns the ops that read such a result before, oldest first."""
        users = []
        for user, edges in list(self._users[op].items()):
            for at, data in list(edges.items()):
                value = values[data["result"]]
                if value is not None:
                    self.set_operand(user, at, value)
                    users.append(user)
        return sorted(dict.fromkeys(users), key=lambda user: user.id)

    def erase(self, op: Op) -> None:
        """Remove an op whose results have no uses."""
        if self._users[op]:
            raise ValueError(f"cannot erase {op}: its results are used")
        self.links.remove(op)
        self._changed()

    def eliminate_dead(self) -> int:
        """Erase every op that neither an output nor an effect depends on; returns how many."""
        if self._all_live:
            return 0
        self._all_live = True
        # Without cycles, whoever nobody needs has users without users behind it.
        users = self._users
        todo = [op for op, readers in users.items() if not readers]
        dead = 0
        while todo:
            op = todo.pop()
            if op is self._return or op.definition.is_input or op.attrs.get("effects"):
                continue
            self.links.remove(op)
            dead += 1
            todo += {operand.op for operand in op.operands if not users[operand.op]}
        self.changes += dead
        if dead and self._order is not None:  # nobody else waited for them
            self._order = [op for op in self._order if op in users]
        return dead

    def _insert(
        self,
        kind: str,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        attrs: dict[str, Any],
        loc: Loc,
    ) -> Op:
        op = Op(len(self._made), kind, operands, types, attrs, loc)
        self._made.append(op)
        self._changed()
        if self._links is not None:
            self._links.add(op)
            self._link(op, range(len(op.operands)))
        return op

    def _changed(self) -> None:
        self._order, self._all_live = None, False
        self.changes += 1

    def _set_operands(self, op: Op, operands: Sequence[Value]) -> None:
        if self._links is None and op is self._return:  # which comes last in any order
            op.operands = list(operands)
            self.changes += 1
            return
        for index, value in enumerate(op.operands):
            self.links.unlink(value.op, op, index)
        op.operands = list(operands)
        self._link(op, range(len(op.operands)))

    def _link(self, op: Op, operands: Iterable[int]) -> None:
        """Add the edges of these operands. An edge has the number of its operand for its key, so
        that one can go without a look at the others."""
        self._changed()
        for index in operands:
            value = op.operands[index]
            self.links.link(value.op, op, index, value.index)


def in_memory(value: Value) -> bool:
    """Inputs are read from memory, and constants of more than one element, or of a type that no
    kernel computes with; results of an optimization barrier lie where its operands lie."""
    if value.op.definition.is_constant:
        return value.type.size != 1 or not value.type.dtype.is_native
    return value.op.definition.is_input or value.op.definition.forwards


def is_free(value: Value) -> bool:
    """Whether every reader makes the value itself, at no cost."""
    return value.op.definition.is_free and not in_memory(value)
