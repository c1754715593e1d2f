"""An explanation as a page.

Input: `Facts`. Output: HTML, in the frame of `inspect/page.py`. Invariant: the same notes as in the
text with kernels; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stagejit.base.decisions import Decision
from stagejit.base.numbers import counted, nbytes_text, number_text, seconds_text
from stagejit.inspect.explain import what_if
from stagejit.inspect.explain.glossary import glossary_of, meaning_of
from stagejit.inspect.explain.notes import (
    Between,
    Chosen,
    Facts,
    Launched,
    Left,
    Note,
    Packed,
    PartOf,
)
from stagejit.inspect.explain.rendering.compilations import headline_of, rows_of, steps_of
from stagejit.inspect.explain.rendering.lines import Block, Item, blocks_of, is_packed_once
from stagejit.inspect.explain.rendering.text import scratch_of, summary_of, without_us
from stagejit.inspect.explain.rendering.wording import (
    calls_of,
    carried_of,
    moot_of,
    ops_text,
    packing_of,
    work_of,
)
from stagejit.inspect.page import Markup, Section, element, fragment, item, joined, page, table
from stagejit.schedule.plans.turns import counted_once, dispatches_text

_MOST_OPEN = 12  # blocks; of more, each is folded to begin with
_MOST_SOURCE = 72  # characters of a line's text in its title


def page_of(facts: Facts) -> str:
    """A document."""
    return page(f"{facts.name}: explain", _sections(facts), note=_headline(facts))


def fragment_of(facts: Facts) -> str:
    """For a notebook."""
    return fragment(f"{facts.name}: explain", _sections(facts), note=_headline(facts))


def _headline(facts: Facts) -> Markup:
    if facts.left_to_xla:
        return element("span", without_us(facts), classes="sj-warn")
    return joined([summary_of(facts, kernels=True)])


def _sections(facts: Facts) -> Iterator[Section | Markup]:
    if facts.what_if:
        head, *rows = what_if.rows_of(facts.what_if)
        notes = (element("p", note) for note in what_if.notes_of(facts.what_if))
        with_them = element("p", what_if.baseline_of(facts.what_if[0]))
        body = joined([with_them, table(head, rows, numbers=set(range(1, len(head)))), *notes])
        yield Section("what rewrites are worth", body, what_if.TITLE)
    yield from _parts(facts)
    past = facts.past
    if past is not None and past.compiled:
        body = table(("", "compiled", "at", "took"), rows_of(past), numbers={0, 3})
        yield Section("compilations", body, headline_of(past), not past.is_known)
    if facts.compile_times is not None:
        yield Section("compile times", element("p", steps_of(facts.compile_times)), is_open=False)
    known = glossary_of(facts)
    if known:
        rows = [(element("code", name), meaning) for name, meaning in known.items()]
        yield Section("what the names mean", table(("name", "meaning"), rows), is_open=False)


def _parts(facts: Facts) -> Iterator[Section | Markup]:
    blocks = blocks_of(facts.notes())
    for block in blocks:
        yield Section(_title(block), _body(block), _badges(block), len(blocks) <= _MOST_OPEN)
    scratch = scratch_of(facts) if facts.scratch_nbytes_per_worker else ""
    if facts.peak is not None and facts.peak_nbytes:
        body = joined(
            [element("pre", str(facts.peak)), *([element("p", scratch)] if scratch else [])]
        )
        yield Section("peak of memory", body, nbytes_text(facts.peak_nbytes))
    elif scratch:
        yield element("p", scratch)
    for inside in facts.inside:
        title = f"inside @{inside.dispatch}, which XLA runs: its {inside.which}"
        parts = joined(
            part.as_markup() if isinstance(part, Section) else part for part in _parts(inside.facts)
        )
        note = summary_of(inside.facts, kernels=True)
        yield Section(title, parts, note)


def _title(block: Block) -> Markup:
    where = block.loc.short or block.title
    hint = element("span", where, title=str(block.loc) if block.loc else None)
    source = block.source
    if len(source) > _MOST_SOURCE:
        source = f"{source[:_MOST_SOURCE]} ..."
    return joined([hint, " ", element("code", source)]) if source else hint


def _badges(block: Block) -> Markup:
    """What there is in a block, and its lines like it, counted."""
    notes = list(block.notes)
    said: list[object] = []
    if block.like:
        said.append(f"and {counted(len(block.like), 'line')} like it")
    launched = [note for note in notes if isinstance(note, Launched)]
    if launched:
        inner = sum(each.is_inner for each in launched)
        said.append(dispatches_text(len(launched) - inner, inner))
    seconds = sum(note.call_seconds or 0.0 for note in launched)
    if seconds:
        least = "at least " * any(note.times is None or note.seconds is None for note in launched)
        said.append(element("span", f"{least}{seconds_text(seconds)} by the model"))
    copied = sum(
        ((note.written_nbytes - note.filled_nbytes) * note.is_copy + note.carried_nbytes)
        * counted_once(note.times)
        for note in launched
    )
    if copied:
        said.append(element("span", f"{nbytes_text(copied)} copied", classes="sj-bad"))
    if left := sum(isinstance(note, Left) for note in notes):
        said.append(element("span", f"{left} left to XLA", classes="sj-warn"))
    decisions = [note for note in notes if isinstance(note, Decision)]
    applied = sum(note.applied for note in decisions)
    if applied:
        said.append(element("span", f"{applied} applied", classes="sj-good"))
    if len(decisions) > applied:
        said.append(element("span", f"{len(decisions) - applied} declined", classes="sj-warn"))
    return joined(_separated(said))


def _separated(said: Iterable[object]) -> Iterator[object]:
    for number, each in enumerate(said):
        if number:
            yield " · "
        yield each


def _body(block: Block) -> Markup:
    parts: list[Markup] = []
    if len(block.source) > _MOST_SOURCE:
        parts.append(element("pre", block.source))
    if block.like:
        lines = ", ".join(str(each.loc.line) for each in block.like)
        parts.append(element("p", f"The same is said of lines {lines}.", classes="sj-soft"))
    work = [each for each in block.items if isinstance(each.first, Launched)]
    if work:
        head = ("dispatch", "kind", "evaluates", "flops", "reads", "writes", "a call", "model")
        parts.append(table(head, map(_work, work), numbers={3, 4, 5, 7}))
    others = [each for each in block.items if not isinstance(each.first, Launched)]
    if others:
        parts.append(_notes(others))
    return joined(parts)


def _work(each: Item) -> tuple[object, ...]:
    note = each.first
    assert isinstance(note, Launched)
    return (
        joined([element("code", f"@{note.dispatch}"), calls_of(each), _more(each)]),
        _named(note),
        ops_text(note.ops),
        number_text(note.flops) if note.flops else "",
        nbytes_text(note.read_nbytes),
        joined(
            [
                element("span", nbytes_text(note.written_nbytes), classes="sj-bad" * note.is_copy),
                element("p", carried_of(note), classes="sj-bad") if note.carried_nbytes else "",
            ]
        ),
        "?" if note.times is None else f"{number_text(note.times)} x",
        "" if note.seconds is None else seconds_text(note.seconds),
    )


def _more(each: Item) -> Markup:
    """How many an item stands for, and on demand which."""
    if each.count == 1:
        return Markup()
    names = list(map(_where, each.notes))
    summary = element("summary", f"x {each.count}")
    return element("details", summary, element("code", ", ".join(names)), classes="sj-more")


def _named(note: Note) -> Markup:
    known = meaning_of(note)
    name, meaning = known or ("placed", "where a part of a larger value is written")
    return element("span", name, title=meaning or None)


def _notes(items: Iterable[Item]) -> Markup:
    rows = (
        item(
            element("td", element("span", _what(each.first), classes=_color(each.first))),
            element("td", _named(each.first), classes="sj-name"),
            element("td", element("code", _where(each.first)), _more(each)),
            element("td", _why(each.first)),
            tag="tr",
        )
        if not each.is_moot
        else _moot(each)
        for each in items
    )
    body = element("table", element("tbody", *rows), classes="sj-table")
    return element("div", body, classes="sj-wide")


def _moot(each: Item) -> Markup:
    """The row of decisions on encodings that came and went."""
    cells = "came and went", "", _more(each), moot_of(each)
    return item(*(element("td", cell) for cell in cells), tag="tr")


def _what(note: Note) -> str:
    if is_packed_once(note):
        return "packed once"
    if isinstance(note, Decision):
        return "applied" if note.applied else "declined"
    words = {Left: "left to XLA", Packed: "packed", Chosen: "chosen", PartOf: "part of"}
    words[Between] = "two dispatches"
    return words.get(type(note), "placed")


def _color(note: Note) -> str:
    if is_packed_once(note) or (isinstance(note, Decision) and note.applied):
        return "sj-good"
    return "sj-warn" if isinstance(note, Decision | Left) else ""


def _where(note: Note) -> str:
    if isinstance(note, Between):
        return f"@{note.first} to @{note.second}"
    return note.op if isinstance(note, Decision) else f"@{note.dispatch}"


def _why(note: Note) -> str:
    if isinstance(note, Decision | Chosen | Left):
        return note.reason
    if isinstance(note, Between):
        return f"{note.what}: {note.reasons[0]}"
    if isinstance(note, Packed):
        return packing_of(note)
    if isinstance(note, PartOf):
        return f"see {note.main or 'the program as a whole'}"
    return work_of(note) if isinstance(note, Launched) else f"writes {note.where}"
