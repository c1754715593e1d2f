"""The operand limit: no dispatch touches more buffers than `Options(operand_limit=...)` says.

Input: regions in order. Output: the same, where a region that reads and writes more buffers than
the limit has become several, which hand values on in memory. Invariant: within the limit are all
regions but those that one op, or one insert, needs as they are; an anchor, and a transcendental
that several results need, is evaluated once.

Note [Partial fusion]: fusion joins whatever it may, and this step takes apart what became too much,
so that one place counts. A region is a list of targets, the values that it stores. Its anchors,
and operands that read too much, become targets, too: who needs them in another part reads them.
Targets are handed out in program order, each to the first part that has room; a new part runs
after the ones before. A value that is needed in its own part only is not stored after all.

Note [Parts of an update]: a region may read what it overwrites, element by element. Apart, somebody
could read an element after it is overwritten, so such results are stored elsewhere first, and
copied when all other parts have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stagejit.dispatch import cost
from stagejit.dispatch.accesses import reads_of, writes_of
from stagejit.dispatch.region import Draft, Store, draft_of
from stagejit.dispatch.roots import Roots
from stagejit.dispatch.state import State
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import read_operands

_LAST_PARTS = 4  # of those made so far, where room for a target is looked for


def limit_operands(state: State, regions: Sequence[Draft]) -> list[Draft]:
    """%r with too many buffers  -->  %r', %r'', ..., where %r'' reads values that %r' stores"""
    limited: list[Draft] = []
    stored: set[Value] = set()
    roots: Roots | None = None
    for region in regions:
        if operands_of(region) <= state.options.operand_limit:
            limited.append(region)
        elif region.stands_alone and not region.definition.is_scatter:
            assert region.anchor is not None
            _decide_alone(state, region.anchor, operands_of(region))
            limited.append(region)
        else:
            roots = roots or Roots(regions)
            limited += _Split(state, region, stored, roots).run()
    return limited


def operands_of(region: Draft) -> int:
    """How many buffers a region takes: each value that it reads, each result that it stores.
    Borders write where a result is stored."""
    return len({*region.reads}) + len(region.stores)


def least_operands(region: Draft) -> int:
    """How many the widest op, or insert, of a region takes by itself."""
    ops = [len({*read_operands(op)}) for op in region.ops if not op.definition.is_insert]
    inserts = [1 + len({*_starts(store)}) for store in region.stores]
    return 1 + max([*ops, *inserts])


def _decide_alone(state: State, op: Op, operands: int) -> None:
    limit = state.options.operand_limit
    reason = f"{op.kind} alone takes {operands} operands, more than the limit of {limit}"
    state.decide("fuse-producers", op, False, reason)


def _starts(store: Store) -> list[Value]:
    return [start for insert in store.inserts for start in insert.operands[2:]]


@dataclass(frozen=True)
class _Target:
    """A value to be stored. `native`: the region stored it, or it is the result of an anchor.
    `late`: stored when all others are."""

    store: Store
    native: bool
    late: bool = False

    @property
    def is_plain(self) -> bool:
        return self.store.into is self.store.value


@dataclass(eq=False)
class _Part:
    """A region to be. `inputs`: values that it reads from memory."""

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
        shape = self.targets[0].store.value.shape
        return target.store.value.shape == shape and all(op.definition.is_pointwise for op in ops)


class _Split:
    """Takes one region apart. `memory`: values that are there before it runs; `kept`: those that
    some part stores plainly; `reads`: what evaluating an op alone reads."""

    def __init__(self, state: State, region: Draft, stored: set[Value], roots: Roots) -> None:
        self.state, self.region, self.stored = state, region, stored
        self.limit = state.options.operand_limit
        self.ops = [op for op in region.ops if not op.definition.is_insert]
        self.memory = set(region.inputs) | stored
        self.native = {store.value for store in region.stores}
        self.kept: dict[Value, None] = {}
        self.reads: dict[Op, frozenset[Value]] = {}
        self.late = _overwriting(region, roots)
        self.parts: list[_Part] = []
        self.part_of: dict[Value, _Part] = {}  # by values in `kept`

    def run(self) -> list[Draft]:
        self._keep_what_is_shared()
        known = -1
        while known != len(self.kept):  # who reads what is kept for another reads one value more
            known = len(self.kept)
            self._narrow()
        for op, reads in self.reads.items():
            if len(reads) >= self.limit:
                _decide_alone(self.state, op, len(reads) + 1)
        for target in self._targets():
            self._hand_out(target)
        self._drop_what_nobody_reads()
        self._explain()
        self.stored.update(self.kept)
        return [self._region(part) for part in self.parts]

    # ------------------------------------------------------------------- cuts

    def _keep_what_is_shared(self) -> None:
        """Anchors, transcendentals and gathers of which parts could need the result."""
        uses: dict[Value, int] = {}
        for store in self.region.stores:
            plain = store.into is store.value
            if plain and self._may_keep(store.value):
                self.kept[store.value] = None
            uses[store.value] = uses.get(store.value, 0) + 1
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
        for store in self.region.stores:
            reads = (store.value, *_starts(store))
            if store in self.late:  # computed before any of them is written
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
        return value not in self.memory and bool(value.type.size)

    def _read(self, operands: Iterable[Value]) -> frozenset[Value]:
        read: set[Value] = set()
        for value in operands:
            if value in self.memory or value in self.kept:
                read.add(value)
            else:
                read |= self.reads[value.op]
        return frozenset(read)

    # ------------------------------------------------------------------ parts

    def _targets(self) -> list[_Target]:
        """In program order; first what others read."""
        position = {op: at for at, op in enumerate(self.ops)}
        own = {store.value for store in self.region.stores if store.into is store.value}
        targets = [_Target(Store(value, value), value in self.native) for value in self.kept]
        for store in self.region.stores:
            if store.value not in own or store.into is not store.value:
                targets.append(_Target(store, True, store in self.late))

        def when(target: _Target) -> tuple[bool, int, bool]:
            needs = (target.store.value, *_starts(target.store))
            last = max(position.get(value.op, -1) for value in needs)
            return target.late, last, not target.is_plain

        return sorted(targets, key=when)

    def _hand_out(self, target: _Target) -> None:
        for part in self.parts[-_LAST_PARTS:]:
            if target.late and not part.targets[0].late:
                continue  # what is late comes last, so a part has either late targets or none
            if self._add(part, target):
                return
        part = _Part(len(self.parts))
        self.parts.append(part)
        self._add(part, target)

    def _add(self, part: _Part, target: _Target) -> bool:
        """Have a part store the target, if it can."""
        value, first = target.store.value, not part.targets
        ops: set[Op] = set()
        inputs: set[Value] = set()
        pending = [value, *_starts(target.store)]
        while pending:
            current = pending.pop()
            home = self.part_of.get(current)
            if current in self.memory or home not in (None, part):
                if home is not None and home.number > part.number:
                    return False
                inputs.add(current)
            elif current.op not in part.ops and current.op not in ops:
                ops.add(current.op)
                pending += read_operands(current.op)
        operands = len(part.inputs | inputs) + len(part.targets) + 1
        if not first and (operands > self.limit or not part.suits(target, ops)):
            return False
        part.ops |= ops
        part.inputs |= inputs
        part.targets.append(target)
        if target.is_plain:
            self.part_of[value] = part
        return True

    def _drop_what_nobody_reads(self) -> None:
        plain = {store.value for store in self.region.stores if store.into is store.value}
        needed = plain.union(*(part.inputs for part in self.parts))
        for part in self.parts:
            part.targets = [
                target
                for target in part.targets
                if not target.is_plain or target.store.value in needed
            ]
        self.kept = {value: None for value in self.kept if value in needed}

    def _region(self, part: _Part) -> Draft:
        state, inserts = self.state, {op for t in part.targets for op in t.store.inserts}
        ops = sorted(part.ops | inserts, key=lambda op: state.position[op])
        inputs = sorted(part.inputs, key=lambda v: (state.position.get(v.op, -1), v.op.id, v.index))
        anchor = self.region.anchor if part.is_anchored else None
        stores = [target.store for target in part.targets]
        return draft_of(self.region.kind, ops, inputs, stores, anchor, self.region.scalars)

    # --------------------------------------------------------------- decisions

    def _explain(self) -> None:
        """Takes back what was said of fusions that are undone."""
        full = f"the {self.limit} operands that one dispatch may have"
        plain = {store.value for store in self.region.stores if store.into is store.value}
        anchor = self.region.anchor
        first = next(part for part in self.parts if any(t.native for t in part.targets))
        for part in self.parts:
            for target in part.targets:
                store, op = target.store, target.store.value.op
                if not target.is_plain:
                    if store.value in part.inputs and store.value not in self.region.inputs:
                        place = store.inserts[0] if store.inserts else store.into.op
                        copied = "" if store.inserts else "copied on write: "
                        self.state.revise("fuse-insert", place, f"{copied}the producer has {full}")
                elif store.value not in plain and op.definition.is_pointwise:
                    self.state.revise("fuse-producers", op, f"stored: who reads it has {full}")
                elif part is not first and (anchor is None or op is not anchor):
                    rows = "fuse-rows" if op.definition.is_reduce else "fuse-epilogues"
                    switch = rows if anchor is not None else "fuse-producers"
                    self.state.revise(switch, op, f"{self.region.kind} has {full}")


def _overwriting(region: Draft, roots: Roots) -> set[Store]:
    """Stores into places that the region also reads."""
    if region.stands_alone:
        return set()
    reads = [(roots[touch.value], touch.box) for touch in reads_of(region)]
    return {
        store
        for store, touch in zip(region.stores, writes_of(region), strict=True)
        if any(root is roots[touch.value] and box.overlaps(touch.box) for root, box in reads)
    }
