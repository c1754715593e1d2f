"""From text back to a `Plan`: the inverse of `Plan.as_text`.

Input: the text form. Output: the plan; locations and decisions are not in the text.
Invariant: `parse_plan(text).as_text() == text`. Raises ParseError with the line for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from stagejit.base.formulas import evaluate
from stagejit.base.symbolic import Int, Symbol, expr, size_named
from stagejit.dispatch.packs import Pack
from stagejit.errors import ParseError
from stagejit.graph.text.quoting import QUOTED, unquoted
from stagejit.graph.text.tokens import read_layout
from stagejit.index.box import Box
from stagejit.schedule.plans.plan import (
    Access,
    Barrier,
    Binding,
    Body,
    Buffer,
    BufferKind,
    Carry,
    Counter,
    Delegated,
    Dispatch,
    Hazard,
    HostScalar,
    Parts,
    Plan,
)
from stagejit.types import dtype_named

_NAME = r"[\w.<>\-]+(?:\[\w+\])*"
_BOX = r"\[((?:[\w+*-]+:[\w+*-]+(?::\d+)?(?:, )?)*)\]"
_SIZE = re.compile(r"size (\w+)")
_SYMBOL = re.compile(r"symbol (\w+) in (-?\d+):(-?\d+) = (.+?)(?: counts (-?\d+) ([+-]) (\d+)\*i)?")
_HEADER = re.compile(rf"plan @({QUOTED}) \{{")
_BUFFER = re.compile(
    rf"buffer ({_NAME}): ([\w.<>]+)\[([\w,+*-]*)\]({{[\d,;]+}})?"
    r" (argument|weight|result|transient|constant)(?: (\d+))?(?: (?:slot (\d+)|(passed|unplaced)))?"
    rf"(?: of ({_NAME}))?(?: over ({_NAME}))?(?: result (\d+))?"
)
_DISPATCH = re.compile(
    r"dispatch @(\S+) (\w+) \((.*?)\)(?:  reads (.*?))?(?:  writes (.*?))?(?:  flops ([\w+*-]+))?"
)
_PARTS = re.compile(r"parts (?:(\w+) in )?(\d+)(?::(\d+))?(?:  reads (.*?))?(?:  writes (.*?))?")
_BARRIER = re.compile(r"barrier (.*?)  // (RAW|WAR|WAW|FULL|ORDER) @(\S+) -> @(\S+)")
_PACK = re.compile(r"may pack @(\S+) operand (\d+) (\S+) as ({[\d,;]+})  // (\d+) bytes")
_DELEGATED = re.compile(r"delegated @(\S+) (.*?)  // (.*)")
_BODY = re.compile(
    rf"body @({QUOTED}) of @(\S+) (?:until its condition fails|(\d+) times)"
    rf"(?: on (\d+) threads)?(?: in ({_NAME}))? \{{"
)
_BINDING = re.compile(rf"bind ({_NAME}) = ({_NAME})(?: \+ (\d+))?(?: ([+-]) (\d+)\*i)?")
_CARRY = re.compile(rf"carry ({_NAME}) -> ({_NAME}) (copied|change places)")
_COUNTER = re.compile(rf"count ({_NAME}) = (-?\d+) ([+-]) (\d+)\*i to ({_NAME})")
_ACCESS = re.compile(rf"(\??)(~?)({_NAME}?){_BOX}")


def parse_plan(text: str) -> Plan:
    """The plan that `text` describes."""
    lines = [
        (number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    if not lines or lines[-1][1] != "}":
        raise ParseError("a plan starts with 'plan @name {' and ends with '}'")
    (name,) = _match(_HEADER, *lines[0])
    rest = iter(lines[1:])
    made = _plan(unquoted(name), rest, _Lines())
    for number, line in rest:
        raise ParseError(f"line {number}: nothing follows the end of a plan: {line!r}")
    return made


@dataclass
class _Lines:
    """What only a body has."""

    bindings: list[Binding] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)


def _plan(name: str, lines: Iterator[tuple[int, str]], of_body: _Lines) -> Plan:
    """The lines up to "}". Those that only a body has go to `of_body`."""
    buffers: dict[str, Buffer] = {}
    dispatches: list[Dispatch] = []
    barriers: list[Barrier] = []
    delegated: list[Delegated] = []
    packs: list[Pack] = []
    scalars: dict[str, HostScalar] = {}
    sizes: dict[str, Int] = {}
    for number, line in lines:
        word = line.split(" ", 1)[0]
        if word == "}":
            break
        if word == "body" and dispatches:
            body = _body(number, line, lines)
            dispatches[-1] = replace(dispatches[-1], bodies=(*dispatches[-1].bodies, body))
        elif word == "bind":
            of_body.bindings.append(_binding(number, line))
        elif word == "carry":
            result, argument, how = _match(_CARRY, number, line)
            of_body.carries.append(Carry(result, argument, how == "change places"))
        elif word == "count":
            buffer_name, first, sign, step, outer = _match(_COUNTER, number, line)
            of_body.counters.append(Counter(buffer_name, outer, int(first), int(sign + step)))
        elif word == "size":
            (size,) = _match(_SIZE, number, line)
            sizes[size] = size_named(size)
        elif word == "buffer":
            buffer = _buffer(number, line, sizes)
            buffers[buffer.name] = buffer
        elif word == "symbol":
            scalar = _scalar(number, line)
            scalars[scalar.symbol.name] = scalar
        elif word == "dispatch":
            dispatches.append(_dispatch(number, line, buffers, sizes | _values(scalars)))
        elif word == "parts" and dispatches:
            parts = _parts(number, line, buffers, sizes | _values(scalars))
            dispatches[-1] = replace(dispatches[-1], parts=(*dispatches[-1].parts, parts))
        elif word == "barrier":
            barriers.append(_barrier(number, line, buffers, sizes | _values(scalars)))
        elif word == "delegated":
            dispatch, equation, reason = _match(_DELEGATED, number, line)
            delegated.append(Delegated(dispatch, equation, reason))
        elif word == "may":
            dispatch, operand, encoding, tiles, nbytes = _match(_PACK, number, line)
            packs.append(Pack(dispatch, int(operand), encoding, tiles, int(nbytes)))
        else:
            raise ParseError(f"line {number}: a plan has no {word!r}")
    return Plan(
        name,
        tuple(dispatches),
        tuple(barriers),
        tuple(buffers.values()),
        tuple(delegated),
        scalars=tuple(scalars.values()),
        packs=tuple(packs),
    )


_Values = Mapping[str, Int]  # of the symbols of a plan


def _values(scalars: Mapping[str, HostScalar]) -> dict[str, Int]:
    return {name: expr(scalar.symbol) for name, scalar in scalars.items()}


def _body(number: int, line: str, lines: Iterator[tuple[int, str]]) -> Body:
    name, _, trip, threads, workspace = _match(_BODY, number, line)
    found = _Lines()
    plan = _plan(unquoted(name), lines, found)
    return Body(
        plan,
        _int(trip),
        tuple(found.bindings),
        workspace or "",
        tuple(found.carries),
        int(threads or 1),
        tuple(found.counters),
    )


def _scalar(number: int, line: str) -> HostScalar:
    name, low, stop, formula, first, sign, step = _match(_SYMBOL, number, line)
    counts = None if step is None else (int(first), int(f"{sign}{step}"))
    return HostScalar(Symbol(name, int(low), int(stop) - 1), formula, counts)


def _binding(number: int, line: str) -> Binding:
    buffer, outer, offset, sign, stride = _match(_BINDING, number, line)
    factor = -1 if sign == "-" else 1
    return Binding(buffer, outer, int(offset or 0), factor * int(stride or 0))


def _match(pattern: re.Pattern[str], number: int, line: str) -> tuple[str, ...]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ParseError(f"line {number}: cannot read {line!r}")
    return found.groups()


def _buffer(number: int, line: str, sizes: _Values) -> Buffer:
    name, dtype, shape, layout, kind, index, slot, _, host, over, result = _match(
        _BUFFER, number, line
    )
    extents = tuple(_evaluated(number, size, sizes) for size in shape.split(",") if size)
    return Buffer(
        name,
        extents,
        dtype_named(dtype),
        cast(BufferKind, kind),
        _int(index),
        _int(slot),
        _int(result),
        host or "",
        over or "",
        read_layout(layout or "", extents, lambda fault: ParseError(f"line {number}: {fault}")),
    )


def _evaluated(number: int, text: str, values: _Values) -> int:
    """A number, or a sum of products of symbolic sizes, which counts as one."""
    try:
        return cast(int, evaluate(text, values))
    except (KeyError, ValueError) as fault:
        raise ParseError(f"line {number}: cannot read {text!r}: {fault}") from None


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _dispatch(number: int, line: str, buffers: dict[str, Buffer], values: _Values) -> Dispatch:
    name, kind, ops, reads, writes, flops = _match(_DISPATCH, number, line)
    return Dispatch(
        name,
        kind,
        tuple(op for op in ops.split(", ") if op),
        tuple(_accesses(number, reads or "", buffers, values)),
        tuple(_accesses(number, writes or "", buffers, values)),
        _evaluated(number, flops or "0", values),
    )


def _parts(number: int, line: str, buffers: dict[str, Buffer], values: _Values) -> Parts:
    name, first, stop, reads, writes = _match(_PARTS, number, line)
    count = 1 if stop is None else int(stop) - int(first)
    symbol = Symbol(name or "part", int(first), int(first) + count - 1)
    if name:
        values = {**values, name: expr(symbol)}
    touched = (tuple(_accesses(number, text or "", buffers, values)) for text in (reads, writes))
    return Parts(int(first), count, symbol, *touched)


def _accesses(
    number: int, text: str, buffers: dict[str, Buffer], values: _Values
) -> Iterator[Access]:
    for name, box, may, inexact in _boxes(number, text, values):
        if name not in buffers:
            raise ParseError(f"line {number}: no buffer is called {name!r}")
        yield Access.of(buffers[name], box, exact=not inexact, may=may)


def _boxes(number: int, text: str, values: _Values) -> Iterator[tuple[str, Box, bool, bool]]:
    rest = text
    while rest:
        found = _ACCESS.match(rest)
        if found is None:
            raise ParseError(f"line {number}: cannot read the ranges {text!r}")
        rest = rest[found.end() :].removeprefix(", ")
        try:
            yield found[3], _box(found[4], values), bool(found[1]), bool(found[2])
        except (KeyError, ValueError) as fault:
            raise ParseError(f"line {number}: cannot read {found[0]!r}: {fault}") from None


def _box(text: str, values: _Values) -> Box:
    dims = []
    for part in text.split(", ") if text else []:
        first, stop, *steps = part.split(":")
        offset: Int = evaluate(first, values)
        span, step = evaluate(stop, values) - offset, int(steps[0]) if steps else 1
        dims.append((offset, -(-span // step), step))
    return Box.of(dims)


def _barrier(number: int, line: str, buffers: dict[str, Buffer], values: _Values) -> Barrier:
    ranges, hazard, src, dst = _match(_BARRIER, number, line)
    boxes = [] if ranges == "*" else list(_boxes(number, ranges, values))
    name = boxes[0][0] if boxes else ""
    if name and name not in buffers:
        raise ParseError(f"line {number}: no buffer is called {name!r}")
    nbytes = sum(box.count for _, box, *_ in boxes) * (buffers[name].dtype.itemsize if name else 0)
    return Barrier(src, dst, cast(Hazard, hazard), name, tuple(box for _, box, *_ in boxes), nbytes)
