"""Why groups are several, as formation says it where it declines to make them one.

Input: the notes (`Apart`) of the forward walk and of its later steps. Output: for each two groups
of which one reads what the other stores the reasons, each with the op that was kept out. Invariant:
nothing is worked out here: a reason is what was asked, and answered, when the op got its group.

Note [Two questions]: a value that one group stores and another one reads is a question to both: why
does the reader not evaluate it itself (`stored`), and why is the reader not evaluated where the
value is (`refused`, `starts`)? What an anchor makes nobody else evaluates: there is one answer. So
there is of what is stored only at last, when the readers have their groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import record
from stagejit.dispatch.groups.group import Apart, Group, Grouping
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import destination_of


@record(eq=False)
class Reason:
    """Why two groups are not one. value: what one stores and the other one reads. stored: why it is
    stored; op, why: what was not evaluated with it, and why not; one of both may be empty. goes_on:
    whether the second one overwrites parts of what the first one stores, and leaves the rest."""

    value: Value
    op: Op
    why: str
    stored: str = ""
    goes_on: bool = False


def starting(op: Op) -> str:
    """Why an anchor is the first op of a group, whatever made its operands."""
    known = op.definition
    if known.is_left:
        return "XLA runs it"
    if known.is_call:
        return "code of a library runs it"
    if known.has_bodies:
        return _alone(op)
    if known.is_insert:
        return "it is written into a part of a larger array"
    if known.updates:
        return f"a {op.kind} overwrites parts of an array that has to be in memory before"
    if known.is_product:
        return "it needs each element many times, so what it reads is computed once and stored"
    if known.is_reduce:
        return "a reduction begins a dispatch, unless an earlier one goes over the same rows"
    if known.accumulates:
        return "it goes along a whole axis in order, so what it reads is stored before"
    return _alone(op)


def behind(anchor: Op) -> str:
    """Why nothing that reads its results is evaluated with an anchor that stands alone."""
    known = anchor.definition
    if known.is_left:
        return "XLA makes what it reads"
    if known.is_call:
        return "code of a library makes what it reads"
    if known.has_bodies:
        return _alone(anchor)
    if known.is_insert:
        return "what is written in parts is stored, so that each part is written once"
    return _alone(anchor)


def _alone(op: Op) -> str:
    """Why nothing is evaluated with it, before it or behind it."""
    if op.definition.has_bodies:
        return f"no op moves into or out of the body of a {op.kind}"
    return f"nothing else is evaluated with a {op.kind}"


def reasons_of(grouping: Grouping) -> dict[tuple[Group, Group], list[Reason]]:
    """The reasons for each two groups of a graph, not of its bodies."""
    found: dict[tuple[Group, Group], list[Reason]] = {}
    makers = _makers(grouping)
    copiers = {g.copies_for: g for g in grouping.groups if g.copies_for is not None}
    for group in grouping.groups:
        for maker, reason in _of_group(grouping.apart, group, makers, copiers):
            if maker is not group:
                found.setdefault((maker, group), []).append(reason)
    return found


def _makers(grouping: Grouping) -> dict[Value, Group]:
    """Who stores each value."""
    makers: dict[Value, Group] = {}
    for group in grouping.groups:
        if group.copies_for is None:
            makers.update(dict.fromkeys(group.stores, group))
        if group.anchor is not None and group.stands_alone:
            makers.update(dict.fromkeys(group.anchor.results, group))
    return makers


def _of_group(
    apart: Apart, group: Group, makers: Mapping[Value, Group], copiers: Mapping[Value, Group]
) -> Iterator[tuple[Group, Reason]]:
    users: dict[Value, list[Op]] = {}
    for op in group.ops:
        for operand in op.operands:
            users.setdefault(operand, []).append(op)
    for value in group.reads:
        made = passed_on(value)
        maker = makers.get(made)
        if maker is None or maker is group:
            continue
        stored = apart.stored.get(made, "")
        if group.copies_for is not None:
            yield maker, Reason(made, group.copies_for.op, apart.copied[group.copies_for], stored)
            continue
        kept_out = list(_kept_out(apart, maker, users, value))
        if stored:
            kept_out = kept_out or [(_first(group, users, value), "")]
        for op, why in kept_out:
            yield maker, Reason(made, op, why, stored)
    if group.anchor is not None and group.copies_for is None:
        yield from _going_on(apart, group.anchor, makers, copiers)


def _first(group: Group, users: Mapping[Value, Sequence[Op]], value: Value) -> Op:
    """Who reads a value first: a loop reads what its operands are reshapes of."""
    return users[value][0] if value in users else group.ops[0]


def passed_on(value: Value) -> Value:
    """What barriers pass on as `value`."""
    while value.op.definition.forwards:
        value = value.op.operands[value.index]
    return value


def _kept_out(
    apart: Apart, maker: Group, users: Mapping[Value, Sequence[Op]], value: Value
) -> Iterator[tuple[Op, str]]:
    """The first ops behind a value that were not evaluated where it is made, and why: behind views
    and the like of which nobody asked."""
    pending, seen = [value], {value}
    while pending:
        for op in users.get(pending.pop(), ()):
            why = apart.refused.get((op, maker)) or apart.starts.get(op)
            if why:
                yield op, why
                continue
            for result in op.results:
                if result not in seen:
                    seen.add(result)
                    pending.append(result)


def _going_on(
    apart: Apart,
    anchor: Op,
    makers: Mapping[Value, Group],
    copiers: Mapping[Value, Group],
) -> Iterator[tuple[Group, Reason]]:
    """Who makes, or copies, what an anchor updates."""
    for result in anchor.results:
        destination = destination_of(result)
        if destination is None:
            continue
        made = passed_on(destination)
        maker = copiers.get(result) or makers.get(made)
        if maker is not None:
            stored = apart.stored.get(made, "")
            yield maker, Reason(made, anchor, apart.starts[anchor], stored, goes_on=True)
