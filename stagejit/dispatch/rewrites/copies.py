"""elide-copy: what is overwritten is not copied before, where everybody can read it first.

Input: a graph of dispatches, in which whoever overwrites what others read, too, overwrites a copy.
Output: the same without some of these copies. Invariant: the memory that is overwritten instead may
be overwritten, and who reads of it what is overwritten comes first, in any order that edges allow.
"""

from __future__ import annotations

from stagejit.dispatch.in_place import refuse_update
from stagejit.dispatch.rewrites.views import Users, Views, users_of
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.dispatches import destination, parts_of
from stagejit.graph.ops.views import behind_aliases
from stagejit.rewrites.driver import Log

NAME = "elide-copy"

First = dict[Value, list[Op]]  # by updates those who have to come before them


def elide_copies(log: Log, views: Views) -> None:
    """%1 = copy %0; %2 = f into %1  -->  %1 = after %0, readers of %0; %2 = f into %1"""
    for op in log.graph.ops():
        copying: Op | None = views.now(op)
        while copying is not None and copying.definition.is_dispatch:
            copying = _without_a_copy(log, views, copying)


def _without_a_copy(log: Log, views: Views, op: Op) -> Op | None:
    """What is left of a dispatch without one of the copies that it makes, if that is anything."""
    for result in op.results:
        copied = _copied(result)
        if copied is None:
            continue
        users = users_of(log.graph, result)
        if users.update is None or not _may_be_overwritten(views, copied):
            continue
        outcome = _who_comes_first(views, copied, users)
        if isinstance(outcome, str):
            log.decline(NAME, op, outcome)
            continue
        log.apply(NAME, op, "what it copied is overwritten when everybody has read it")
        return _elide(log, views, result, copied, outcome)
    return None


def _copied(result: Value) -> Value | None:
    """The operand that a result is a copy of, element by element in its place."""
    part = parts_of(result.op)[0]
    value = part.outputs[result.index]
    if not value.op.definition.is_input or destination(part, result.index) is not None:
        return None
    number: int = value.op.attrs["index"]
    return result.op.operands[number]


def _may_be_overwritten(views: Views, value: Value) -> bool:
    """Whether anybody may write in the memory of a value."""
    memory = views.memory(value)
    definition = memory.op.definition
    if definition.is_input:
        return views.graph.is_donated(memory) and views.options.enabled("reuse-arguments")
    return not (definition.is_constant or definition.is_call or definition.is_left)


def _who_comes_first(views: Views, copied: Value, copy: Users) -> First | str:
    """Who reads of `copied` what updates of its copy overwrite, by the first of these updates; or
    why they cannot all come first."""
    version, chain = behind_aliases(copied), views.chain(copy.version)
    users = users_of(views.graph, version)
    if version.op.definition.forwards or users.passed or chain.is_passed:
        return "a barrier passes it on"
    if users.update is not None:
        return "another update overwrites what is copied"
    memory = views.memory(copied)
    if memory.op.definition.is_input and views.returned_in(memory) is not chain.versions[-1]:
        return "it lies in an argument that is donated for another result"
    first: First = {}
    for reader, box in views.readers(users):
        if reader is views.graph.return_op:
            return "it is returned as it is"
        if reader is copy.version.op:
            continue
        for update in chain.overwriting(copy.version, box):
            if reader is update.op:
                fault = _refuse_own(views, update, users)
                if fault:
                    return fault
            elif views.order.comes_before(update.op, reader):
                return "it is read after it is overwritten"
            else:
                first.setdefault(update, []).append(reader)
            break  # later updates come after this one
    return first


def _refuse_own(views: Views, update: Value, users: Users) -> str:
    """Why an op that reads a version cannot overwrite it; empty if it can."""
    if not update.op.definition.is_dispatch:
        return f"the {update.op.kind} reads what it overwrites"
    region, values = views.region(update.op), {value for _, value in users.readers}
    read = [own for own, value in zip(region.inputs, region.operands, strict=True)
            if value in values]  # fmt: skip
    stores = zip(region.stores, region.results, strict=True)
    written = [store for store, result in stores if result is update]
    faults = (refuse_update(region, own, store, store.into) for own in read for store in written)
    return next(filter(None, faults), "")


def _elide(log: Log, views: Views, result: Value, copied: Value, first: First) -> Op | None:
    """Has the updates of a copy overwrite what is copied; returns what is left of who copies."""
    graph, op = log.graph, result.op
    updates = views.chain(result).versions[1:]
    graph.replace_uses(result, copied)
    views.merge(result, copied)
    left = None
    if len(op.results) > 1:
        left = views.drop(log, result)
        views.order.put_first([left], updates[0], always=True)
    else:
        log.put(op, [None])
    for update, readers in first.items():
        views.order.put_first(readers, update)
    return left
