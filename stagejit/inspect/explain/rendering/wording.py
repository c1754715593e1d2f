"""How numbers and notes are put into words, in texts and in pages alike.

Input: notes. Output: strings. Invariant: the same for the same note, on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stagejit.base.decisions import Decision
from stagejit.base.numbers import counted, flops_text, nbytes_text, number_text, seconds_text
from stagejit.inspect.explain.notes import (
    Between,
    Chosen,
    Launched,
    Left,
    Note,
    Packed,
    PartOf,
    Placement,
)
from stagejit.inspect.explain.rendering.lines import Item, is_packed_once

_MOST_OPS = 8  # that stand one by one
_MOST_CALLS = 4  # of a helper function


def work_of(note: Launched) -> str:
    """What one run of a dispatch does."""
    written = nbytes_text(note.written_nbytes)
    if note.is_copy:
        said = [f"copies {nbytes_text(note.written_nbytes - note.filled_nbytes)}"]
        said += [f"fills {nbytes_text(note.filled_nbytes)}"] if note.filled_nbytes else []
    elif note.kind == "fill":
        said = [f"fills {written}"]
    else:
        said = [flops_text(note.flops)] if note.flops else []
        said += [f"reads {nbytes_text(note.read_nbytes)}", f"writes {written}"]
    if note.carried_nbytes:
        said.append(carried_of(note))
    if note.times is None:
        said.append("as often as the call decides")
    elif note.times != 1:
        said.append(f"{number_text(note.times)} times a call")
    return ", ".join(said)


def carried_of(note: Launched) -> str:
    """What a loop or a branch copies of its carries."""
    return f"copies {nbytes_text(note.carried_nbytes)} of carries ({note.carried})"


def packing_of(note: Packed) -> str:
    """What each call does about an operand that does not lie in tiles."""
    what = f"{nbytes_text(note.nbytes)} as {note.layout}"
    if note.widens:
        how = f"widens blocks of operand {note.operand} in scratch, in each call"
        return f"{how}: {note.widens} in memory, {what}"
    if note.packs:
        return f"packs operand {note.operand} in each call: {what}"
    return f"reads operand {note.operand} as it lies: to pack {what} would take longer"


def between_of(note: Between, firsts: Iterable[str]) -> str:
    """Why those are no one dispatch with the one that reads what they make."""
    return f"{' and '.join(firsts)} to @{note.second}: {note.reasons[0]}"


def calls_of(item: Item) -> str:
    """Where the line of dispatches was called from, where that differs."""
    found = dict.fromkeys(
        call
        for note in item.notes
        if isinstance(note, Launched)
        for call in note.calls
        if call != note.loc.short
    )
    calls = [*found][:_MOST_CALLS] + ["..."] * (len(found) > _MOST_CALLS)
    return f", from {' and from '.join(calls)}" if calls else ""


def moot_of(item: Item) -> str:
    """What is said of decisions on encodings that went."""
    names = dict.fromkeys(note.rewrite for note in item.notes if isinstance(note, Decision))
    many = counted(item.count, "decision")
    return f"{', '.join(names)}: {many} on encodings: set, moved or taken off"


def ops_text(ops: Sequence[str]) -> str:
    """In order; of many, each once with how often it is there."""
    if len(ops) <= _MOST_OPS:
        return ", ".join(ops)
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(ops).items())


def sign_of(note: Note) -> str:
    """`>` a dispatch, `!` left to XLA, `~` an operand out of tiles, `|` why two dispatches are two,
    `+` applied, `-` declined, `=` placed, or packed once, `*` chosen for a kernel."""
    if isinstance(note, Launched | PartOf):
        return ">"
    if isinstance(note, Left):
        return "!"
    if isinstance(note, Packed):
        return "~"
    if isinstance(note, Between):
        return "|"
    if isinstance(note, Placement) or is_packed_once(note):
        return "="
    if isinstance(note, Chosen):
        return "*"
    return "+" if note.applied else "-"


def said_of(note: Note, *, kernels: bool = False) -> str:
    """The note without its sign. kernels: with modelled times."""
    if isinstance(note, Launched):
        ops = f" ({ops_text(note.ops)})" if note.ops else ""
        model = note.seconds if kernels else None
        time = "" if model is None else f"; {seconds_text(model)} by the model"
        return f"@{note.dispatch} {note.kind}{ops}: {work_of(note)}{time}"
    if isinstance(note, PartOf):
        return f"in @{note.dispatch} {note.kind}, see {note.main or 'the program as a whole'}"
    if isinstance(note, Left):
        return f"@{note.dispatch} is left to XLA: {note.reason}"
    if isinstance(note, Packed):
        return f"@{note.dispatch} {packing_of(note)}"
    if isinstance(note, Between | Placement | Chosen):
        return str(note)
    return f"{note.rewrite} @ {note.op}: {note.reason}"
