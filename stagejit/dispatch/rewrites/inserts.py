"""fuse-insert: who computes a value writes it where it is placed.

Input: a graph of dispatches, in which a value that is placed in a larger buffer is stored, then
copied there. Output: the same, where most of these copies are stores of who computes the value, one
for each place. Invariant: a dispatch that writes into a buffer depends on nothing that comes after
itself, and overwrites nothing that anybody has to read later.

A value that is a buffer, written in boxes by several dispatches, is placed by all of them: box in
box.

Note [Groups]: which copies a dispatch can make is asked one copy at a time, for each one changes
what comes before what. The copies stay in the graph meanwhile, joined with the dispatch in the
order of ops; each dispatch is put together once, when all of its copies are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

from stagejit.base.records import record
from stagejit.base.threads.locks import remembered
from stagejit.dispatch.groups.offsets import ANYWHERE
from stagejit.dispatch.in_place import refuse_updates
from stagejit.dispatch.operands import operands_of, read_by, stores_of
from stagejit.dispatch.rewrites.assembled import Assembled, versions_of
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of, same
from stagejit.dispatch.rewrites.targets import Target, find_target, updated, version_before
from stagejit.dispatch.rewrites.views import Views, users_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import parts_of, written
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driving.driver import Log

NAME = "fuse-insert"

_DYNAMIC = f"; its offset is computed from arrays, so {ANYWHERE}"


@record
class Copy:
    """A dispatch that does nothing but store a value elsewhere. own: the input of its part that is
    stored."""

    op: Op
    own: Value

    @property
    def source(self) -> Value:
        """What is stored, as it is called now."""
        return self.op.operands[self.operand]

    @property
    def operand(self) -> int:
        number: int = self.own.op.attrs["index"]
        return number

    @property
    def version(self) -> Value | None:
        """What it updates, None if it makes a buffer."""
        return version_before(self.op.result)

    def append(self, graph: Graph, value: Value, reads: Inputs, into: Value | None) -> Value:
        """Appends what it does to a part: stores `value`, such as into a destination."""
        (part,) = parts_of(self.op)
        given = inputs_of(self.op, part, reads, {}) | {self.own: value}
        if into is not None:
            given |= {own: into for own in part.inputs if part.is_donated(own)}
        return appended(graph, part.ops(), given)[part.outputs[0]]


def copy_of(graph: Graph, op: Op) -> Copy | None:
    """The copy that a dispatch is: of a value into a box, or of the first contents of a buffer."""
    if not op.definition.is_dispatch or len(op.results) > 1 or len(parts_of(op)) > 1:
        return None
    (part,) = parts_of(op)
    made = written(part, 0)
    own = made[0].value
    if len(made) > 1 or not own.op.definition.is_input:
        return None
    if not made[0].inserts and users_of(graph, op.result).update is None:
        return None
    return Copy(op, own)


@record
class _Group:
    """A dispatch, and copies that it makes, too, in their order."""

    graph: Graph
    host: Op
    copies: tuple[Copy, ...]

    def operands(self, uses: Callable[[Value], int]) -> int:
        """How many buffers the dispatch will take; uses: how many each of its results has."""
        copied = Counter(c.source for c in self.copies if c.source.op is self.host)
        dropped = sum(uses(source) == count for source, count in copied.items())
        reads = {*read_by(self.host), *self._more}
        return len(reads) + len(stores_of(self.host)) + len(self.copies) - dropped

    @remembered
    def _more(self) -> dict[Value, None]:
        """What the copies read that the host does not make."""
        reads = (read for copy in self.copies for read in read_by(copy.op))
        return {read: None for read in reads if read.op is not self.host}

    @remembered
    def _dropped(self) -> set[Value]:
        """Results that are only made to be copied."""
        copies = {copy.op for copy in self.copies}
        return {
            source
            for source in dict.fromkeys(copy.source for copy in self.copies)
            if source.op is self.host and all(u.user in copies for u in self.graph.uses(source))
        }

    @remembered
    def _outputs(self) -> dict[Value, int]:
        """The number of the output that each result becomes, of those dropped, too."""
        numbers = {value: value.index for value in self.host.results}
        for copy in self.copies:
            new = len({*numbers.values()})
            version = copy.version
            numbers[copy.op.result] = new if version is None else numbers.get(version, new)
        return numbers

    def put(self) -> tuple[Op, dict[Value, Value]]:
        """The dispatch, at the place of the last copy, and what each result becomes."""
        first, *borders = parts_of(self.host)
        launch = Launch(self.host)
        launch.reads.update(self._more)
        for copy in self.copies:
            if copy.version is not None and copy.version not in self._outputs:
                launch.destinations[updated(copy.op.result)] = None
        launch.parts = [(first.name, self._part)]
        launch.parts += [(border.name, same(self.host, border)) for border in borders]
        made = launch.put(self.graph, self.copies[-1].op)
        numbers = dict.fromkeys(at for v, at in self._outputs.items() if v not in self._dropped)
        results = dict(zip(numbers, made.results, strict=True))
        return made, {v: results[at] for v, at in self._outputs.items() if at in results}

    def _part(self, graph: Graph, reads: Inputs, into: Inputs) -> list[Value]:
        part = parts_of(self.host)[0]
        made = appended(graph, part.ops(), inputs_of(self.host, part, reads, into))
        outputs = dict(enumerate(made[output] for output in part.outputs))
        for copy in self.copies:
            source, at = copy.source, self._outputs[copy.op.result]
            value = made[part.outputs[source.index]] if source.op is self.host else reads[source]
            whole = outputs.get(at)
            if whole is None and copy.version is not None:
                whole = into[updated(copy.op.result)]
            outputs[at] = copy.append(graph, value, reads, whole)
        dropped = {value.index for value in self._dropped}
        return [value for at, value in outputs.items() if at not in dropped]


def fuse_inserts(log: Log, views: Views) -> None:
    """%v = f; %b = place %v into %d  -->  %v, %b = f into %d"""
    _Inserts(log, views).run()


class _Inserts:
    """`groups`: copies by hosts; `others`: dispatches that copy what the one that makes it cannot
    copy itself, by that (or by the value, where nobody could) and by shape; `refused`: why who
    writes a buffer cannot write where that is copied."""

    def __init__(self, log: Log, views: Views) -> None:
        self.log, self.graph, self.views = log, log.graph, views
        self.groups: dict[Op, tuple[Copy, ...]] = {}
        self.others: dict[tuple[object, ...], Op] = {}
        self.refused: dict[Op, str] = {}
        # How often a value is used; a host may be asked for each of many copies.
        self.uses = cache(lambda value: len(log.graph.uses(value)))
        limit = views.options.operand_limit
        self.full = f"the producer has the {limit} operands that one dispatch may have"

    def run(self) -> None:
        for op in reversed(self.graph.ops()):  # from the outside to the inside
            self._place_buffer(self.views.now(op))
        for op in self.graph.ops():
            copy = copy_of(self.graph, op)
            if copy is not None:
                self._place(copy)
        for host, copies in self.groups.items():
            made, now = _Group(self.graph, host, copies).put()
            self.views.put(self.log, host, made, list(map(now.get, host.results)))
            for copy in copies:
                result = now[copy.op.result]
                self.graph.replace_uses(copy.op.result, result)
                self.views.take_over(copy.op, made, result)

    def _place_buffer(self, op: Op) -> None:
        """Has those who write a buffer that is placed as a whole write where it is placed."""
        copy = copy_of(self.graph, op)
        if copy is None or not _is_tied(copy.source) or not _is_tied(op.result):
            return
        versions = versions_of(self.graph, copy.source, op)
        if versions is not None:
            reason = Assembled(versions, op, copy.operand).place(self.log, self.views)
            if reason:
                self.refused[op] = reason
            elif op not in self.graph:
                self.log.apply(NAME, op, "the producers write into the destination")

    def _place(self, copy: Copy) -> None:
        """Has who computes a value, or copies it already, copy it once more."""
        op, host = copy.op, self._maker(copy)
        reason = self._join(copy, host) if host is not None else self._why_nobody(copy)
        if host is None or reason is self.full:
            key = (host or copy.source, copy.own.shape)
            refused = self._join(copy, self.others[key]) if key in self.others else self.full
            if refused is self.full:
                self.others[key] = op
            elif refused:
                reason = refused
        if not reason:
            range = "" if self.views.writes_to(op.result)[0].exact else _DYNAMIC
            self.log.apply(NAME, op, f"the producer writes into the destination{range}")
        elif host is not None or op in self.refused or _is_tied(op.result):
            self.log.decline(NAME, op, reason)

    def _maker(self, copy: Copy) -> Op | None:
        """The dispatch that computes what is copied, if it could store it elsewhere, too."""
        maker = copy.source.op
        return maker if maker.definition.is_dispatch and not _is_tied(copy.source) else None

    def _why_nobody(self, copy: Copy) -> str:
        """Why there is no dispatch that could store what is copied elsewhere, too."""
        if copy.op in self.refused:
            return self.refused[copy.op]
        maker = behind_aliases(copy.source).op
        if maker.definition.is_input:
            name = self.graph.input_names[maker.attrs["index"]]
            return f"what is copied is the argument {name}, which nobody computes"
        if maker.definition.is_constant:
            return "what is copied is a constant"
        if maker.definition.is_dispatch:
            return "what is copied is a buffer that something else needs where it is"
        return f"what is copied is made by a {maker.kind}, which stores nothing elsewhere"

    # -------------------------------------------------------------------- how

    def _join(self, copy: Copy, host: Op) -> str:
        """Has `host` make the copy, or says why it cannot."""
        group = _Group(self.graph, host, (*self.groups.get(host, ()), copy))
        if group.operands(self.uses) > max(self.views.options.operand_limit, operands_of(host)):
            return self.full
        if _is_tied(copy.op.result):
            target = find_target(self.views, copy.op, copy.source, [host])
            if isinstance(target, str):
                return target
            fault = self._overwrites_itself(group, target)
            if fault:
                return fault
            self._start(copy, host, target)
        self.views.order.join(copy.op, host)
        self.groups[host] = group.copies
        return ""

    def _start(self, copy: Copy, host: Op, target: Target) -> None:
        """Has the copy update the target, when all who have to come first have run."""
        order, waits, version = self.views.order, target.waits, target.version
        first: Value | None = None  # of the updates of the buffer that the host makes
        while order.home(version.op) is host and (earlier := version_before(version)) is not None:
            first, version = version, earlier
        if first is not None:
            order.put_first(waits, first)
            waits = ()
        target.start(self.views, copy.op.result, waits)

    def _overwrites_itself(self, group: _Group, target: Target) -> str:
        """Why a dispatch that makes one copy more cannot overwrite what it reads of the buffer."""
        *others, copy = group.copies
        boxes = self.views.boxes_of(copy.op.result)
        if any(self.views.read_in(other.op, target.version, boxes) for other in others):
            return "another copy reads what this one overwrites"
        read = self.views.read_in(group.host, target.version, boxes)
        if not read:
            return ""
        made, now = _Group(self.graph, group.host, (copy,)).put()
        fault = refuse_updates(self.views.region(made), read, now[copy.op.result])
        self.graph.erase(made)
        return fault


def _is_tied(value: Value) -> bool:
    return destination_of(value) is not None
