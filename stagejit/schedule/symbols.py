"""Short names for the offsets that the host computes.

Input: dispatches whose boxes have formulas for symbols. Output: the same with `s0`, `s1`, ... and
what these stand for. Invariant: equal formulas with equal bounds get one name, in order of
appearance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stagejit.formulas import bare, renamed
from stagejit.graph.ir import Value
from stagejit.schedule.access import Access, Buffer, HostScalar
from stagejit.schedule.names import Names
from stagejit.schedule.plan import Dispatch
from stagejit.schedule.schedule import Schedule
from stagejit.symbolic import Int, Symbol, expr


def with_counts(schedule: Schedule, counted: Mapping[Value, tuple[int, int]]) -> Schedule:
    """The schedule of a loop's body, whose scalars say how they count its iterations.

    counted: the first value and the step of inputs of the body."""
    names = {schedule.buffer_of.get(value, ""): counts for value, counts in counted.items()}
    scalars = tuple(
        replace(scalar, counts=names.get(scalar.formula)) for scalar in schedule.plan.scalars
    )
    return replace(schedule, plan=replace(schedule.plan, scalars=scalars))


def with_short_symbols(
    dispatches: Sequence[Dispatch], buffers: Mapping[str, Buffer], arguments: Sequence[str]
) -> tuple[list[Dispatch], tuple[HostScalar, ...]]:
    """arguments: the names of the function's arguments as given, in order."""
    names = Names(arguments)
    found: dict[Symbol, HostScalar] = {}
    for dispatch in dispatches:
        for access in (*dispatch.reads, *dispatch.writes):
            for symbol in access.box.symbols():
                if symbol not in found:
                    formula = renamed(bare(symbol.name), names.given)
                    short = Symbol(names.new("s"), symbol.low, symbol.high)
                    found[symbol] = HostScalar(short, formula)
    if not found:
        return list(dispatches), ()
    values: dict[Symbol, Int] = {symbol: expr(each.symbol) for symbol, each in found.items()}

    def renamed_in(accesses: Sequence[Access]) -> tuple[Access, ...]:
        return tuple(
            Access.of(
                buffers[access.buffer], access.box.at(values), exact=access.exact, may=access.may
            )
            for access in accesses
        )

    made = [
        replace(dispatch, reads=renamed_in(dispatch.reads), writes=renamed_in(dispatch.writes))
        for dispatch in dispatches
    ]
    return made, tuple(found.values())
