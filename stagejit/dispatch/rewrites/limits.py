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

A result counts as often as it will be stored when its copies are placed where they belong.

Note [Results of one op]: an op that has several, such as a sort, is evaluated once. The piece that
has it stores all of them that anybody needs, even where that is too much.

Note [Order of pieces]: this comes before anybody overwrites what others read. One dispatch that
reads a and returns y puts who made a before who reads y; of two in its place, one may read a and
the other one return y, and nothing would keep that order where it matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from stagejit.dispatch.groups import cost
from stagejit.dispatch.operands import operands_of, starts_of, stores_of
from stagejit.dispatch.rewrites.inserts import copy_of
from stagejit.dispatch.rewrites.pieces import Piece, Pieces, Target
from stagejit.dispatch.rewrites.views import Views
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of, read_operands
from stagejit.graph.ops.dispatches import Written, evaluated, parts_of
from stagejit.rewrites.driving.driver import Log

NAME = "limit-operands"

_FULL = "it takes {} buffers, more than the {} that one dispatch may have"
_BORDER = "a border is written beside what it computes"
_SHARED = "somebody overwrites what others read"

_LAST_PIECES = 4  # of those made so far, where room for a target is looked for


def limit_operands(log: Log, views: Views) -> None:
    """%r = f %a, %b, ...  -->  %1 = f' %a, ...; %r = f'' %1, %b, ..."""
    graph, limit, is_shared = log.graph, views.options.operand_limit, None
    uses = len(graph.outputs) + sum(len(op.operands) for op in graph.ops())
    for op in graph.ops():
        if not op.definition.stands_alone or _most_operands(op, uses) <= limit:
            continue
        if _most_operands(op, graph.links.reads(op)) <= limit:
            continue
        more = _placed_later(graph, op) if graph.links.reads(op) > 1 else {}
        if (operands := operands_of(op) + sum(more.values())) <= limit:
            continue
        if not op.definition.is_dispatch:
            log.decline(NAME, op, _alone(op, operands, limit))
            continue
        if is_shared is None:
            is_shared = _is_shared(graph)
        if is_shared or len(parts_of(op)) > 1:
            log.decline(NAME, op, _SHARED if is_shared else _BORDER)
            continue
        split = _Split(op, limit, more)
        split.run()
        for inner, operands_of_inner in split.alone():
            log.decline(NAME, op, _alone(inner, operands_of_inner, limit))
        if len(split.pieces) > 1:
            log.apply(NAME, op, _FULL.format(operands, limit))
            pieces = Pieces(graph, op, split.ops, split.pieces)
            log.put(op, pieces.put())
            views.divided[op] = pieces.made


def _most_operands(op: Op, uses: int) -> int:
    """As many as it could take, at a glance. uses: of its results, at most; in a small graph, all
    uses of all values are few."""
    ops = len(parts_of(op)[0]) if op.definition.is_dispatch else 0
    return len(op.operands) + len(op.results) + ops + uses


def _is_shared(graph: Graph) -> bool:
    """Whether anybody overwrites what others read."""
    updated = (destination_of(value) for op in graph.ops() for value in op.results)
    reads = cache(graph.uses_by_result)
    return any(
        value is not None and value.type.size and len(reads(value.op)[value.index]) > 1
        for value in updated
    )


def _placed_later(graph: Graph, op: Op) -> dict[int | None, int]:
    """How many stores more it takes to place a result where it is copied, by results."""
    more: dict[int | None, int] = {}
    for number, uses in graph.uses_by_result(op).items():
        result, users = op.results[number], dict.fromkeys(use.user for use in uses)
        copies = [copy for copy in (copy_of(graph, user) for user in users)
                  if copy is not None and copy.source is result]  # fmt: skip
        if len(copies) > 1 or len(users) > len(copies) > 0:
            more[number] = len(copies) - (len(copies) == len(users))
    return more


def _alone(op: Op, operands: int, limit: int) -> str:
    return f"{op.kind} alone takes {operands} operands, more than the limit of {limit}"


class _Split:
    """Who stores what, of one dispatch. `stores`: outputs and what they are made of; `memory`:
    values that are there before it runs; `plain`: the first fresh output that is a value; `kept`:
    values that some piece stores plainly; `reads`: what evaluating an op alone reads."""

    def __init__(self, op: Op, limit: int, more: Mapping[int | None, int]) -> None:
        self.limit, self.more = limit, more
        (part,) = parts_of(op)
        self.ops = evaluated(part)
        self.position = {op: at for at, op in enumerate(self.ops)}
        self.stores = stores_of(op)
        self.memory = set(part.inputs)
        self.plain: dict[Value, int] = {}
        ties = dict(op.attrs["carried"])
        for output, made in self.stores:
            if output not in ties and self._may_keep(made.value):
                self.plain.setdefault(made.value, output)
        self.native = {made.value for _, made in self.stores}
        self.kept = dict.fromkeys(self.plain)
        self.reads: dict[Op, frozenset[Value]] = {}
        self.pieces: list[Piece] = []
        self.piece_of: dict[Value, Piece] = {}  # by values in `kept`
        self.home_of: dict[Op, Piece] = {}  # by ops of several results

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
        least = {op: len(read) + self._results(op) for op, read in self.reads.items()}
        return [(op, operands) for op, operands in least.items() if operands > self.limit]

    # ------------------------------------------------------------------- cuts

    def _keep_what_is_shared(self) -> None:
        """Anchors, transcendentals and gathers of which pieces could need the result."""
        uses: dict[Value, int] = {}
        for _, made in self.stores:
            uses[made.value] = uses.get(made.value, 0) + 1
        for op in reversed(self.ops):
            counts = [uses.get(result, 0) for result in op.results]
            dear = op.definition.is_gather or op.definition.is_window or cost.is_transcendental(op)
            anchor = not op.definition.is_pointwise
            wanted = [r for r in op.results if uses.get(r, 0) and self._may_keep(r)]
            if anchor or (dear and counts[0] > 1):
                self.kept.update(dict.fromkeys(wanted))
                self.native.update(wanted if anchor else [])
            again = counts[0] if self.kept.keys().isdisjoint(wanted) else 1
            for operand in dict.fromkeys(read_operands(op)):
                uses[operand] = uses.get(operand, 0) + again

    def _narrow(self) -> None:
        """Keeps what no op and no store can read beside the rest."""
        for op in self.ops:
            self.reads[op] = self._narrowed(read_operands(op), self._results(op))
        for _, made in self.stores:
            self._narrowed((made.value, *starts_of(made)))

    def _results(self, op: Op) -> int:
        """How many results are stored where an op is evaluated: of several those that are kept."""
        return max(sum(result in self.kept for result in op.results), 1)

    def _narrowed(self, operands: Sequence[Value], stores: int = 1) -> frozenset[Value]:
        """What reading the operands takes, after some of them are kept if that is too much beside
        so many stores."""
        while True:
            read = self._read(operands)
            if len(read) + stores <= self.limit:
                return read
            floating = [base for base in map(self._base, operands) if self._is_wide(base)]
            if not floating:
                return read
            self.kept[max(floating, key=lambda value: len(self.reads[value.op]))] = None

    def _base(self, value: Value) -> Value:
        """What is worth storing: a broadcast, say, is made again by each reader."""
        while value not in self.memory:
            known = value.op.definition
            if not known.rearranges and not known.is_splat and not known.splits:
                break
            value = value.op.operands[0]
        return value

    def _is_wide(self, value: Value) -> bool:
        keep = self._may_keep(value) and value not in self.kept
        return keep and len(self.reads[value.op]) > 1

    def _may_keep(self, value: Value) -> bool:
        known = value.op.definition
        fresh = value not in self.memory and not known.updates and not known.splits
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

    def _targets(self) -> list[Target]:
        """In program order; first what others read."""
        targets = []
        for value in self.kept:
            at = self.plain.get(value)
            stores = 1 + self.more.get(at, 0)
            targets.append(Target(Written(value), at, value in self.native, True, stores))
        targets += [
            Target(made, output, True, stores=1 + self.more.get(output, 0))
            for output, made in self.stores
            if self.plain.get(made.value) != output
        ]

        def when(target: Target) -> tuple[int, bool]:
            last = max(self.position.get(value.op, -1) for value in target.needs)
            return last, not target.kept

        return sorted(targets, key=when)

    def _hand_out(self, target: Target) -> None:
        home = self.home_of.get(target.made.value.op) if target.kept else None
        pieces = self.pieces[-_LAST_PIECES:] if home is None else [home]
        if any(self._add(piece, target) for piece in pieces):
            return
        piece = Piece(len(self.pieces))
        self.pieces.append(piece)
        self._add(piece, target)

    def _add(self, piece: Piece, target: Target) -> bool:
        """Have a piece store the target, if it can, or has to: see Note [Results of one op]."""
        first, op = not piece.targets, target.made.value.op
        owner = self.home_of.get(op) if target.kept else None
        if owner not in (None, piece):
            return False
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
        stores = sum(one.stores for one in (*piece.targets, target))
        stores += self._results(op) - 1 if op in ops else 0
        operands = len(piece.inputs | inputs) + stores
        if not first and owner is None and (operands > self.limit or not piece.suits(target, ops)):
            return False
        piece.ops |= ops
        piece.inputs |= inputs
        piece.targets.append(target)
        if target.kept:
            self.piece_of[target.made.value] = piece
            self.home_of.update({op: piece} if len(op.results) > 1 else {})
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
