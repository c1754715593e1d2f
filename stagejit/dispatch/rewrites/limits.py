"""limit-operands: no dispatch touches more buffers than `Options(operand_limit=...)` says.

Input: a graph of dispatches. Output: the same, where a dispatch that reads and writes more buffers
than the limit has become several, which hand values on in memory. Invariant: within the limit are
all dispatches but those that one op, or one insert, needs as they are; an anchor, and a
transcendental that several results need, is evaluated once.

Note [Partial fusion]: fusion joins whatever it may, and this step takes apart what became too much,
so that one place counts. A dispatch is a list of targets, the values that it stores. Its anchors,
and operands that read too much, become targets, too: who needs them in another piece reads them.
Targets are handed out in program order, each to the first piece that has room; a new piece runs
after the ones before. A value that is needed in its own piece only is not stored after all.

Note [Pieces of an update]: a dispatch may read what it overwrites, element by element. Apart,
somebody could read an element after it is overwritten, so such results are stored elsewhere first,
and copied when all other pieces have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stagejit.dispatch.accesses import write_of
from stagejit.dispatch.forming import cost
from stagejit.dispatch.operands import operands_of, read_by, starts_of, stores_of, updated_by
from stagejit.dispatch.rewrites.launch import Inputs, Launch
from stagejit.dispatch.rewrites.restored import restore_order
from stagejit.dispatch.rewrites.views import Views, reshaped
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import read_operands
from stagejit.graph.ops.dispatches import Written, evaluated, kind_of, parts_of, placed
from stagejit.index.box import Box
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driver import Log

NAME = "limit-operands"

_LAST_PIECES = 4  # of those made so far, where room for a target is looked for


def limit_operands(log: Log, views: Views) -> None:
    """%r = f %a, %b, ...  -->  %1 = f' %a, ...; %r = f'' %1, %b, ..."""
    ops, limit = log.graph.ops(), views.options.operand_limit
    pieces: dict[Op, list[Op]] = {}
    for op in ops:
        operands = operands_of(op) if op.definition.stands_alone else 0
        if operands <= limit:
            continue
        if not op.definition.is_dispatch:
            log.decline(NAME, op, _alone(op, operands, limit))
            continue
        if len(parts_of(op)) > 1:
            log.decline(NAME, op, "a border is written beside what it computes")
            continue
        split = _Split(op, limit, _overwriting(views, op))
        split.run()
        for inner, operands_of_inner in split.alone():
            log.decline(NAME, op, _alone(inner, operands_of_inner, limit))
        if len(split.pieces) > 1:
            reason = (
                f"it takes {operands} buffers, more than the {limit} that one dispatch may have"
            )
            log.apply(NAME, op, reason)
            pieces[op], results = _Pieces(log.graph, op, split).put()
            log.put(op, results)
    if pieces:
        views.forget()
        restore_order(log.graph, views, [piece for op in ops for piece in pieces.get(op, [op])])


def _alone(op: Op, operands: int, limit: int) -> str:
    return f"{op.kind} alone takes {operands} operands, more than the limit of {limit}"


def _overwriting(views: Views, op: Op) -> set[int]:
    """Numbers of stores into places that the dispatch also reads."""
    updated = set(map(views.memory, updated_by(op)))
    values = {value for value in read_by(op) if views.memory(value) in updated}
    reads: dict[Value, list[Box]] = {}
    for value, box in views.reads(op, values) if values else ():
        memory = views.memory(value)
        reads.setdefault(memory, []).append(reshaped(box, value, memory))
    if not reads:
        return set()
    region, found = views.region(op), set()
    for at, (store, result) in enumerate(zip(region.stores, region.results, strict=True)):
        memory = views.memory(result)
        box = reshaped(write_of(region, store, result).box, result, memory)
        found.update([at] if any(map(box.overlaps, reads.get(memory, ()))) else [])
    return found


@dataclass(frozen=True, eq=False)
class _Target:
    """A value to be stored. output: that of the part, None for what other pieces only read.
    `native`: the dispatch stored it, or it is the result of an anchor. `late`: stored when all
    others are. `kept`: who needs it in other pieces reads it."""

    made: Written
    output: int | None
    native: bool
    late: bool = False
    kept: bool = False

    @property
    def needs(self) -> tuple[Value, ...]:
        return (self.made.value, *starts_of(self.made))


@dataclass(eq=False)
class _Piece:
    """A dispatch to be. `inputs`: values that it reads from memory."""

    number: int
    ops: set[Op] = field(default_factory=set)
    inputs: set[Value] = field(default_factory=set)
    targets: list[_Target] = field(default_factory=list)

    @property
    def is_anchored(self) -> bool:
        return any(not op.definition.is_pointwise for op in self.ops)

    def suits(self, target: _Target, ops: Iterable[Op]) -> bool:
        """Whether a kernel can store the target, which takes `ops` more, beside the others."""
        if not self.targets:
            return True
        if self.is_anchored:
            return target.native
        shape = self.targets[0].made.value.shape
        return target.made.value.shape == shape and all(op.definition.is_pointwise for op in ops)


class _Split:
    """Who stores what, of one dispatch. `stores`: outputs and what they are made of; `memory`:
    values that are there before it runs; `plain`: the first fresh output that is a value; `kept`:
    values that some piece stores plainly; `reads`: what evaluating an op alone reads."""

    def __init__(self, op: Op, limit: int, late: set[int]) -> None:
        self.limit = limit
        (part,) = parts_of(op)
        self.ops = evaluated(part)
        self.position = {op: at for at, op in enumerate(self.ops)}
        self.stores = stores_of(op)
        self.late = late
        self.memory = set(part.inputs)
        self.plain: dict[Value, int] = {}
        ties = dict(op.attrs["carried"])
        for output, made in self.stores:
            if output not in ties and self._may_keep(made.value):
                self.plain.setdefault(made.value, output)
        self.native = {made.value for _, made in self.stores}
        self.kept = dict.fromkeys(self.plain)
        self.reads: dict[Op, frozenset[Value]] = {}
        self.pieces: list[_Piece] = []
        self.piece_of: dict[Value, _Piece] = {}  # by values in `kept`

    def run(self) -> None:
        self._keep_what_is_shared()
        known = -1
        while known != len(self.kept):  # who reads what is kept for another reads one value more
            known = len(self.kept)
            self._narrow()
        for target in self._targets():
            self._hand_out(target)
        self._drop_what_nobody_reads()

    def alone(self) -> list[tuple[Op, int]]:
        """Ops that take too many operands by themselves, and how many."""
        return [(op, len(r) + 1) for op, r in self.reads.items() if len(r) >= self.limit]

    # ------------------------------------------------------------------- cuts

    def _keep_what_is_shared(self) -> None:
        """Anchors, transcendentals and gathers of which pieces could need the result."""
        uses: dict[Value, int] = {}
        for _, made in self.stores:
            uses[made.value] = uses.get(made.value, 0) + 1
        for op in reversed(self.ops):
            result, count = op.result, uses.get(op.result, 0)
            dear = op.definition.is_gather or cost.is_transcendental(op)
            anchor = not op.definition.is_pointwise
            if (anchor or (dear and count > 1)) and self._may_keep(result):
                self.kept[result] = None
                self.native.update([result] if anchor else [])
            again = 1 if result in self.kept else count
            for operand in dict.fromkeys(read_operands(op)):
                uses[operand] = uses.get(operand, 0) + again

    def _narrow(self) -> None:
        """Keeps what no op and no store can read beside the rest."""
        for op in self.ops:
            self.reads[op] = self._narrowed(read_operands(op))
        for at, (_, made) in enumerate(self.stores):
            reads = (made.value, *starts_of(made))
            if at in self.late:  # computed before any of them is written
                self.kept.update((value, None) for value in reads if self._may_keep(value))
            self._narrowed(reads)

    def _narrowed(self, operands: Sequence[Value]) -> frozenset[Value]:
        """What reading the operands takes, after some of them are kept if that is too much."""
        while True:
            read = self._read(operands)
            if len(read) < self.limit:
                return read
            floating = [base for base in map(self._base, operands) if self._is_wide(base)]
            if not floating:
                return read
            self.kept[max(floating, key=lambda value: len(self.reads[value.op]))] = None

    def _base(self, value: Value) -> Value:
        """What is worth storing: a broadcast, say, is made again by each reader."""
        while value not in self.memory:
            known = value.op.definition
            if not known.rearranges and not known.is_splat:
                break
            value = value.op.operands[0]
        return value

    def _is_wide(self, value: Value) -> bool:
        keep = self._may_keep(value) and value not in self.kept
        return keep and len(self.reads[value.op]) > 1

    def _may_keep(self, value: Value) -> bool:
        fresh = value not in self.memory and not value.op.definition.updates
        return fresh and bool(value.type.size)

    def _read(self, operands: Iterable[Value]) -> frozenset[Value]:
        read: set[Value] = set()
        for value in operands:
            if value in self.memory or value in self.kept:
                read.add(value)
            else:
                read |= self.reads[value.op]
        return frozenset(read)

    # ----------------------------------------------------------------- pieces

    def _targets(self) -> list[_Target]:
        """In program order; first what others read."""
        targets = [
            _Target(Written(value), self.plain.get(value), value in self.native, kept=True)
            for value in self.kept
        ]
        targets += [
            _Target(made, output, True, at in self.late)
            for at, (output, made) in enumerate(self.stores)
            if self.plain.get(made.value) != output
        ]

        def when(target: _Target) -> tuple[bool, int, bool]:
            last = max(self.position.get(value.op, -1) for value in target.needs)
            return target.late, last, not target.kept

        return sorted(targets, key=when)

    def _hand_out(self, target: _Target) -> None:
        for piece in self.pieces[-_LAST_PIECES:]:
            if target.late and not piece.targets[0].late:
                continue  # what is late comes last, so a piece has either late targets or none
            if self._add(piece, target):
                return
        piece = _Piece(len(self.pieces))
        self.pieces.append(piece)
        self._add(piece, target)

    def _add(self, piece: _Piece, target: _Target) -> bool:
        """Have a piece store the target, if it can."""
        first = not piece.targets
        ops: set[Op] = set()
        inputs: set[Value] = set()
        pending = [*target.needs]
        while pending:
            value = pending.pop()
            home = self.piece_of.get(value)
            if value in self.memory or home not in (None, piece):
                if home is not None and home.number > piece.number:
                    return False
                inputs.add(value)
            elif value.op not in piece.ops and value.op not in ops:
                ops.add(value.op)
                pending += read_operands(value.op)
        operands = len(piece.inputs | inputs) + len(piece.targets) + 1
        if not first and (operands > self.limit or not piece.suits(target, ops)):
            return False
        piece.ops |= ops
        piece.inputs |= inputs
        piece.targets.append(target)
        if target.kept:
            self.piece_of[target.made.value] = piece
        return True

    def _drop_what_nobody_reads(self) -> None:
        read = set().union(*(piece.inputs for piece in self.pieces))
        for piece in self.pieces:
            piece.targets = [
                target
                for target in piece.targets
                if target.output is not None or target.made.value in read
            ]
        self.pieces = [piece for piece in self.pieces if piece.targets]


class _Pieces:
    """Puts the pieces of one dispatch in its place. `stored`: where values of its part lie;
    `order`: numbers of all values; `destinations`: of each output that is an update, the input
    that it is made of; `updated`: the latest version of its memory; `results`: for each output what
    is in its place."""

    def __init__(self, graph: Graph, op: Op, split: _Split) -> None:
        self.graph, self.op, self.split = graph, op, split
        (part,) = parts_of(op)
        self.stored = dict(zip(part.inputs, op.operands, strict=True))
        computed = (value for op in split.ops for value in op.results)
        self.order = {value: at for at, value in enumerate((*part.inputs, *computed))}
        self.destinations: dict[int | None, Value] = {}
        for output, at in op.attrs["carried"]:
            self.destinations[output] = part.inputs[at]
        self.updated = {output: self.stored[own] for output, own in self.destinations.items()}
        self.results: dict[int | None, Value] = {}

    def put(self) -> tuple[list[Op], list[Value]]:
        """The new dispatches, and what is in place of the results."""
        made = [self._put(piece) for piece in self.split.pieces]
        return made, [self.results[value.index] for value in self.op.results]

    def _put(self, piece: _Piece) -> Op:
        # What each result is made of: the only target of a fresh one, all of one update.
        made_of: dict[object, list[_Target]] = {}
        for target in piece.targets:
            key = target.output if target.output in self.updated else target
            made_of.setdefault(key, []).append(target)
        groups = list(made_of.values())
        inputs = sorted(piece.inputs, key=self.order.__getitem__)
        ops = sorted(piece.ops, key=self.split.position.__getitem__)
        launch = Launch()
        launch.reads = {self.stored[value]: None for value in inputs}
        launch.destinations = {
            self.updated[targets[0].output]: None
            for targets in groups
            if targets[0].output in self.updated
        }
        launch.parts = [(kind_of(ops), partial(self._part, inputs, ops, groups))]
        made = launch.put(self.graph, self.op)
        for (target, *_), result in zip(groups, made.results, strict=True):
            self.results[target.output] = result
            if target.kept:
                self.stored[target.made.value] = result
            if target.output in self.updated:
                self.updated[target.output] = result
        return made

    def _part(
        self,
        inputs: Sequence[Value],
        ops: Sequence[Op],
        groups: Sequence[Sequence[_Target]],
        graph: Graph,
        reads: Inputs,
        into: Inputs,
    ) -> list[Value]:
        """The part of a piece. groups: what each of its outputs is made of."""
        known = {value: reads[self.stored[value]] for value in inputs}
        for target, *_ in groups:
            if target.output in self.updated:  # a scatter is given what it updates
                known[self.destinations[target.output]] = into[self.updated[target.output]]
        made = appended(graph, ops, known)
        outputs = []
        for targets in groups:
            value = made[targets[0].made.value]
            if targets[0].output in self.updated:
                value = into[self.updated[targets[0].output]]
                for target in targets:
                    value = placed(graph, made[target.made.value], target.made.inserts, value, made)
            outputs.append(value)
        return outputs
