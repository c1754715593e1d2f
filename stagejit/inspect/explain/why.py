"""Why two ops, lines or dispatches are in one dispatch, or are not.

Input: `Facts`, two names. Output: sentences, one a line. Invariant: whatever has a name in a text
of the program, and every line with an op of it, has an answer.
"""

from __future__ import annotations

import difflib
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import networkx as nx

from stagejit.base.decisions import Decision
from stagejit.base.loc import Loc
from stagejit.base.numbers import counted
from stagejit.errors import OptionsError
from stagejit.inspect.explain.notes import Between, Facts, Home

_MOST_NAMED = 6
_MOST_SAID = 8  # pairs of dispatches, of lines that became many

_A_LINE = re.compile(r"(.*:)?\d+")  # of a file

Asked = str | int


@dataclass(frozen=True)
class _Subject:
    """What was asked about. dispatches: that evaluate any of it, or write it, in order; ops: of it.
    buffer: what it is, if it is one."""

    said: str
    ops: tuple[Home, ...]
    dispatches: tuple[str, ...]
    folded: tuple[Decision, ...] = ()  # that left nothing of it
    gone: tuple[Home, ...] = ()  # ops of which nothing is left to compute
    buffer: str = ""


class Answer(str):
    """Sentences, which a prompt shows as they are."""

    __slots__ = ()
    __repr__ = str.__str__


def why(facts: Facts, a: Asked, b: Asked) -> Answer:
    """See `Explanation.why`."""
    return Answer(_why(facts, a, b))


def _why(facts: Facts, a: Asked, b: Asked) -> str:
    if facts.left_to_xla:
        return f"JAX runs this call without stagejit: {facts.left_to_xla}."
    one, other = _subject(facts, a), _subject(facts, b)
    if one is not None and other is not None:
        return "\n".join(_said(facts, one, other))
    for inside in facts.inside:
        body = f"inside @{inside.dispatch}, which XLA runs: its {inside.which}"
        found = [_subject(inside.facts, each) for each in (a, b)]
        if all(found):
            return f"{body}\n{_why(inside.facts, a, b)}"
        if any(found) and (one or other):
            apart = f"{a if found[0] else b} is {body}; nothing is fused across its border."
            return apart[0].upper() + apart[1:]
    missing = a if one is None else b
    if lines := _lines(facts, str(missing)):
        raise OptionsError(f"there is no op of line {missing} in {facts.name}", next_step=lines)
    meant = _written(facts, str(missing)) or _close(facts, str(missing))
    raise OptionsError(
        f"there is no dispatch, line or op {missing!r} in {facts.name}",
        next_step=f"{meant}name what a text shows: '@contract.1', "
        "'net.py:7', 7, a function of yours, '%5' of as_text('graph'), or 't0' of the plan",
    )


def _lines(facts: Facts, asked: str) -> str:
    """Which lines there are, where one is asked for; no more than fit a sentence."""
    if not _A_LINE.fullmatch(asked):
        return ""
    locs = sorted({(h.loc.file, h.loc.line): h.loc for h in facts.homes if h.loc}.items())
    by_file: dict[str, list[str]] = {}
    for _, loc in locs:
        by_file.setdefault(loc.short.rpartition(":")[0], []).append(str(loc.line))
    known = [f"{_some(lines)} of {file}" for file, lines in by_file.items()]
    return f"lines with ops are {_some(known)}" if known else ""


def _written(facts: Facts, word: str) -> str:
    """The lines with a word that is no op's name: `mean` becomes a sum and a product."""
    whole = re.compile(rf"\b{re.escape(word)}\b")
    locs = {(home.loc.file, home.loc.line): home.loc for home in facts.homes if home.loc}
    found = [loc.short for at, loc in sorted(locs.items()) if whole.search(linecache.getline(*at))]
    return f"{word!r} is written in {_some(found)}: ask for the line; else " if found else ""


def _close(facts: Facts, name: str) -> str:
    """Names of the program that are like one that it has not."""
    homes = (*facts.homes, *facts.gone)
    known = [f"@{each.dispatch}" for each in facts.dispatches]
    known += [f"@{each.dispatch}" for each in facts.delegated]
    known += [text for home in homes for text in (home.op, home.loc.function, home.loc.short)]
    known += [word for home in facts.homes for word in home.what.split()]
    close = difflib.get_close_matches(name, dict.fromkeys(filter(None, known)), n=4, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}? else " if close else ""


# -- what is meant -------------------------------------------------------------------------------


def _subject(facts: Facts, asked: Asked) -> _Subject | None:
    name = str(asked).strip()
    if _A_LINE.fullmatch(name):
        return _line(facts, name)
    ways = (_dispatch, _op, _function, _buffer)
    return next(filter(None, (way(facts, name) for way in ways)), None)


def _dispatch(facts: Facts, name: str) -> _Subject | None:
    name = name.removeprefix("@")
    known = {each.dispatch: each.kind for each in facts.dispatches}
    known |= {each.dispatch: "delegate" for each in facts.delegated}
    if name not in known:
        return None
    ops = tuple(home for home in facts.homes if name in home.dispatches)
    return _Subject(f"@{name}", ops, (name,))


def _op(facts: Facts, name: str) -> _Subject | None:
    """By its name, or all that do the same, or are of that kind: `map tanh`, `tanh`, `map`."""
    number = name.split(maxsplit=1)[0] if name.startswith("%") else None
    ops = tuple(
        home
        for home in facts.homes
        if (_is_named(home, number) if number else name in (home.what, *home.what.split()))
    )
    gone = () if ops or not number else tuple(h for h in facts.gone if _is_named(h, number))
    return _Subject(name, ops, _dispatches(ops), gone=gone) if ops or gone else None


def _is_named(home: Home, name: str) -> bool:
    return name == home.op or name in home.also


def _buffer(facts: Facts, name: str) -> _Subject | None:
    """Of that name, or of that path of names: in several bodies there may be others of the name."""
    exact = [each for each in facts.buffers if each.buffer == name]
    found = exact or [each for each in facts.buffers if each.buffer.rpartition("/")[2] == name]
    if not found:
        return None
    writers = dict.fromkeys(writer for each in found for writer in each.writers)
    what = ", ".join(dict.fromkeys(each.what for each in found))
    return _Subject(name, (), tuple(writers), buffer=what)


def _function(facts: Facts, name: str) -> _Subject | None:
    """All ops of a function of the user's."""
    ops = tuple(home for home in facts.homes if name in _functions(home.loc))
    return _Subject(f"function {name}", ops, _dispatches(ops)) if ops else None


def _functions(loc: Loc) -> tuple[str, str]:
    return loc.function, loc.function.rpartition(".")[2]


def _line(facts: Facts, name: str) -> _Subject | None:
    file, _, line = name.rpartition(":")

    def is_there(note: Home | Decision) -> bool:
        own, _, number = str(note.loc).rpartition(":")
        there = not file or own == file or own.endswith(f"/{file}")
        return bool(note.loc) and number == line and there

    ops = tuple(filter(is_there, facts.homes))
    folded = () if ops else tuple(filter(is_there, facts.decisions))
    gone = () if ops or folded else tuple(filter(is_there, facts.gone))
    said = f"line {name}" if not file else name
    is_known = ops or folded or gone
    return _Subject(said, ops, _dispatches(ops), folded, gone) if is_known else None


def _dispatches(ops: Iterable[Home]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for home in ops for name in home.dispatches))


# -- what is said --------------------------------------------------------------------------------


def _said(facts: Facts, one: _Subject, other: _Subject) -> Iterator[str]:
    for subject in dict.fromkeys((one, other)):
        yield f"{subject.said} {_where(subject)}."
    if not one.dispatches or not other.dispatches:
        return
    common = [name for name in one.dispatches if name in other.dispatches]
    if common:
        yield f"Both are in {_names(common)}."
        yield from _what_put_them_there(facts, (*one.ops, *other.ops), common)
    yield from _apart(facts, one.dispatches, other.dispatches, direct_only=bool(common))


def _where(subject: _Subject) -> str:
    if subject.gone:
        op = subject.gone[0]
        return f"({op.what}) is {op.gone}"
    if subject.buffer:
        written = f"written by {_names(subject.dispatches)}" if subject.dispatches else "only read"
        return f"({subject.buffer}) is {written}"
    if subject.folded:
        first = subject.folded[0]
        more = f", and {len(subject.folded) - 1} more" if len(subject.folded) > 1 else ""
        return f"left no op of its own ({first.rewrite}: {first.reason}{more})"
    computing = [home for home in subject.ops if home.computes] or subject.ops
    ops = [f"{home.op} {home.what}".strip() for home in computing]
    what = f" ({_some(ops)})" if ops else ""
    if subject.said.removeprefix("@") in subject.dispatches:
        return f"evaluates {_some(ops)}" if ops else "evaluates nothing of the graph"
    return f"is evaluated in {_names(subject.dispatches)}{what}"


def _names(dispatches: Sequence[str]) -> str:
    return _some([f"@{name}" for name in dispatches])


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _what_put_them_there(facts: Facts, ops: Iterable[Home], common: Sequence[str]) -> Iterator[str]:
    """What was applied to ops of one dispatch."""
    wanted = [home for home in ops if not set(home.dispatches).isdisjoint(common)]
    names = {f"{home.op} {home.what}" for home in wanted if home.op}
    found = [
        f"  {each.rewrite} @ {each.op}: {each.reason}"
        for each in facts.decisions
        if each.applied and each.rewrite.startswith("fuse-") and _is_of(each, names, common)
    ]
    yield from dict.fromkeys(found)


def _is_of(decision: Decision, names: Iterable[str], dispatches: Sequence[str]) -> bool:
    op = decision.op.partition(": ")[0]
    return op in names or op.removeprefix("@") in dispatches


def _apart(
    facts: Facts, firsts: Sequence[str], seconds: Sequence[str], *, direct_only: bool
) -> Iterator[str]:
    """direct_only: nothing is said of those between which there are others."""
    edges = {(each.first, each.second): each for each in facts.between}
    pairs = [(a, b) for a, b in product(firsts, seconds) if a != b]
    both = (pair for a, b in pairs for pair in _directions(a, b))
    direct = list(dict.fromkeys(pair for pair in both if pair in edges))
    for pair in direct[:_MOST_SAID]:
        yield from _edge(edges[pair])
    if len(direct) > _MOST_SAID:
        yield f"... and {counted(len(direct) - _MOST_SAID, 'pair')} of dispatches more."
    if direct or direct_only or not pairs:
        return
    ways = [way for a, b in pairs for way in [_way(facts, a, b)] if way]
    if not ways:
        yield from _no_flow(facts, pairs)
        return
    way = min(ways, key=len)
    yield f"Data goes {' to '.join(f'@{name}' for name in way)}:"
    for a, b in pairwise(way):
        yield from _edge(edges[a, b]) if (a, b) in edges else ()


def _directions(a: str, b: str) -> Iterator[tuple[str, str]]:
    """Of dispatches in different loops those around them that stand side by side."""
    a, b = side_by_side(a, b)
    yield a, b
    yield b, a


def side_by_side(a: str, b: str) -> tuple[str, str]:
    """The dispatches in the same graph that two are in, or are: themselves, or loops around."""
    one, other = a.split("/"), b.split("/")
    depth = 0
    while depth < min(len(one), len(other)) - 1 and one[depth] == other[depth]:
        depth += 1
    return "/".join(one[: depth + 1]), "/".join(other[: depth + 1])


def _edge(edge: Between) -> Iterator[str]:
    yield f"@{edge.second} reads {edge.what}, which @{edge.first} makes; they are two because:"
    for number, reason in enumerate(edge.reasons):
        if number == 1:
            yield "and besides:"
        at = f" ({reason.loc})" if reason.loc else ""
        yield f"  {reason}{at}"


def _way(facts: Facts, a: str, b: str) -> list[str]:
    """The dispatches on the shortest way from one to the other, empty without one."""
    a, b = side_by_side(a, b)
    graph: nx.DiGraph[str] = nx.DiGraph((each.first, each.second) for each in facts.between)
    for start, end in ((a, b), (b, a)):
        if a != b and start in graph and end in graph and nx.has_path(graph, start, end):
            found: list[str] = nx.shortest_path(graph, start, end)
            return found
    return []


def _no_flow(facts: Facts, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    a, b = pairs[0]
    one, other = side_by_side(a, b)
    if one == other:
        yield f"One of them is inside of the other, @{one}: nothing is fused across its border."
        return
    yield f"No data flows between them: neither {_either(pairs)} needs what the other one makes."
    for first, second in ((one, other), (other, one)):
        if (first, second) in facts.waits:
            yield f"@{second} only waits until @{first} has read what it overwrites."


def _either(pairs: Sequence[tuple[str, str]]) -> str:
    a, b = pairs[0]
    return f"@{a} nor @{b}" if len(pairs) == 1 else "dispatch"
