"""Notes by the user's line, and many that are alike as one.

Input: notes. Output: `Block`s, one for each line of the user's, the program as a whole last; in
each, `Item`s: a note, and those that are like it. Invariant: every note is in one item of one
block.

Note [Alike]: a layer that is called twelve times makes twelve dispatches that differ in nothing but
the numbers behind their names, and as many decisions. Notes are alike where they read the same with
these numbers left out; lines are alike where their texts and all their notes are.

Note [Encodings that went]: every product that is large enough gets encodings, which wander over
what is near and are taken off again where nothing is packed before a call: many decisions that left
nothing. They are one item of their line. What did remain of an encoding is said by others: which
weight is packed once, and what the target made of it.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby

from stagejit.base.decisions import Decision
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.inspect.explain.notes import Because, Between, Note
from stagejit.rewrites.encodings import choose, elide, propagate

THE_PROGRAM = "the program as a whole"

# Of an op or a dispatch (`map.7`, `@copy.0`), a value (`%7`), a buffer with a box (`t0[0:4]`).
_NUMBERED = re.compile(r"(?<![\w.])([A-Za-z_][\w-]*\.)\d+\b|%\d+|\b([a-z]+)\d+(?=\[)|\bcarry\d+")


@dataclass(frozen=True)
class Item:
    """A note, and others like it: `notes[0]` stands for all of them. is_moot: they are decisions on
    encodings, see Note [Encodings that went]."""

    notes: tuple[Note, ...]
    is_moot: bool = False

    @property
    def first(self) -> Note:
        return self.notes[0]

    @property
    def count(self) -> int:
        return len(self.notes)


@dataclass(frozen=True)
class Block:
    """What is said of a line. loc: UNKNOWN for the program as a whole. source: its text. like:
    further lines of the same file of which the same is said, each with its own items."""

    loc: Loc
    source: str
    items: tuple[Item, ...]
    like: tuple[Block, ...] = ()

    @property
    def title(self) -> str:
        return str(self.loc) if self.loc else THE_PROGRAM

    @property
    def notes(self) -> Iterator[Note]:
        """All notes, those of the lines like it too."""
        for block in (self, *self.like):
            for item in block.items:
                yield from item.notes


def blocks_of(notes: Sequence[Note], *, collapse: bool = True) -> list[Block]:
    """By line, known lines first, otherwise in order. collapse: what is alike is one item."""
    blocks = [Block(loc, source_of(loc), _items(group, collapse)) for loc, group in by_line(notes)]
    return _alike(blocks) if collapse else blocks


def by_line(notes: Iterable[Note]) -> list[tuple[Loc, list[Note]]]:
    """Notes grouped by source line, known lines first, otherwise in order."""

    def line(note: Note) -> tuple[bool, str, int]:
        return (not note.loc, note.loc.file, note.loc.line)

    groups = [list(group) for _, group in groupby(sorted(notes, key=line), key=line)]
    return [
        (Loc(group[0].loc.file, group[0].loc.line) if group[0].loc else UNKNOWN, group)
        for group in groups
    ]


def source_of(loc: Loc) -> str:
    """The text of the line; empty where there is none to read."""
    return linecache.getline(loc.file, loc.line).strip() if loc else ""


def shape_of(note: Note) -> tuple[object, ...]:
    """What notes that are alike have in common. Of other lines that are named, the line. What is
    read does not matter where the same reader is kept apart for the same reason, nor who called a
    line."""
    own = {"loc", "calls", *(("first", "what") if isinstance(note, Between) else ())}
    return (
        type(note),
        *(_shape(getattr(note, field.name)) for field in fields(note) if field.name not in own),
    )


def _shape(value: object) -> object:
    if isinstance(value, str):
        return _NUMBERED.sub(lambda match: f"{match[1] or match[2] or ''}#", value)
    if isinstance(value, Loc):
        return value.file, value.line
    if isinstance(value, Because):
        return tuple(map(_shape, (value.op, value.why, value.value, value.stored)))
    return tuple(map(_shape, value)) if isinstance(value, tuple) else value


def _items(notes: Iterable[Note], collapse: bool) -> tuple[Item, ...]:
    groups: dict[object, list[Note]] = {}
    for number, note in enumerate(notes):
        key = (_MOOT if is_moot(note) else shape_of(note)) if collapse else number
        groups.setdefault(key, []).append(note)
    return tuple(Item(tuple(group), key == _MOOT) for key, group in groups.items())


_MOOT = "moot"


def is_moot(note: Note) -> bool:
    """Whether it is about an encoding that was set, moved or taken off again."""
    if not isinstance(note, Decision):
        return False
    if note.rewrite == choose.NAME:
        return note.reason == choose.MAY_BE_TILED
    return note.rewrite == propagate.NAME or (note.rewrite == elide.NAME and note.applied)


def is_packed_once(note: Note) -> bool:
    """Whether it says that a constant, such as a weight, is packed before any call: it is declined
    to take that away."""
    return (
        isinstance(note, Decision)
        and note.rewrite == elide.NAME
        and note.reason == elide.PACKED_ONCE
    )


def _alike(blocks: Iterable[Block]) -> list[Block]:
    first: dict[object, list[Block]] = {}
    for block in blocks:
        items = tuple((shape_of(item.first), item.count) for item in block.items)
        source = re.sub(r"\d+", "#", block.source)
        key = (block.loc.file, source, items) if source else block.loc
        first.setdefault(key, []).append(block)
    return [
        Block(group[0].loc, group[0].source, group[0].items, tuple(group[1:]))
        for group in first.values()
    ]
