"""An explanation as plain data; see `schema.py`.

Input: `Facts`. Output: dictionaries and lists. Invariant: every note is in it once, whatever texts
collapse.
"""

from __future__ import annotations

from typing import cast

from stagejit.base.decisions import Decision
from stagejit.inspect.explain.glossary import glossary_of
from stagejit.inspect.explain.notes import (
    Between,
    Chosen,
    Facts,
    Launched,
    Left,
    Packed,
    Placement,
)
from stagejit.inspect.explain.rendering.lines import Block, blocks_of
from stagejit.inspect.explain.schema import (
    BetweenData,
    ChoiceData,
    DecisionData,
    DelegatedData,
    DispatchData,
    LineData,
    PackData,
    PeakData,
    PlacementData,
    ProgramData,
    Size,
    SummaryData,
)


def data_of(facts: Facts) -> ProgramData:
    """All of it."""
    return {
        "name": facts.name,
        "target": facts.target,
        "left_to_xla": facts.left_to_xla,
        "summary": _summary(facts),
        "peak": None if facts.peak is None else cast("PeakData", facts.peak.as_json()),
        "lines": [_line(block) for block in blocks_of(facts.notes(), collapse=False)],
        "inside": [
            {"dispatch": each.dispatch, "which": each.which, "program": data_of(each.facts)}
            for each in facts.inside
        ],
        "glossary": glossary_of(facts),
        "compile_seconds": dict(facts.compile_times.seconds_by_step) if facts.compile_times else {},
    }


def _size(size: int) -> Size:
    return size if isinstance(size, int) else str(size)


def _summary(facts: Facts) -> SummaryData:
    applied = sum(decision.applied for decision in facts.decisions)
    return {
        "dispatches": len(facts.dispatches),
        "copies": len(facts.copies),
        "copied_nbytes": _size(facts.copied_nbytes),
        "filled_nbytes": _size(facts.filled_nbytes),
        "carried_nbytes": _size(facts.carried_nbytes),
        "packs": facts.packing,
        "delegated": len(facts.delegated),
        "barriers": facts.barriers,
        "transient_nbytes": _size(facts.transient_nbytes),
        "peak_nbytes": _size(facts.peak_nbytes),
        "scratch_nbytes_per_worker": facts.scratch_nbytes_per_worker,
        "applied": applied,
        "declined": len(facts.decisions) - applied,
        "placed": len(facts.placements),
        "seconds": facts.seconds,
        "uncounted": list(facts.uncounted),
    }


def _line(block: Block) -> LineData:
    notes = list(block.notes)
    return {
        "file": block.loc.file,
        "line": block.loc.line,
        "source": block.source,
        "dispatches": [_dispatch(note) for note in notes if isinstance(note, Launched)],
        "delegated": [_left(note) for note in notes if isinstance(note, Left)],
        "packs": [_pack(note) for note in notes if isinstance(note, Packed)],
        "between": [_between(note) for note in notes if isinstance(note, Between)],
        "decisions": [_decision(note) for note in notes if isinstance(note, Decision)],
        "placements": [_placement(note) for note in notes if isinstance(note, Placement)],
        "choices": [_choice(note) for note in notes if isinstance(note, Chosen)],
    }


def _dispatch(note: Launched) -> DispatchData:
    return {
        "name": note.dispatch,
        "kind": note.kind,
        "ops": list(note.ops),
        "flops": _size(note.flops),
        "read_nbytes": _size(note.read_nbytes),
        "written_nbytes": _size(note.written_nbytes),
        "filled_nbytes": _size(note.filled_nbytes),
        "carried_nbytes": _size(note.carried_nbytes),
        "carried": note.carried,
        "times": note.times,
        "seconds": note.seconds,
        "also": list(map(str, note.also)),
        "calls": list(note.calls),
    }


def _left(note: Left) -> DelegatedData:
    return {"dispatch": note.dispatch, "equation": note.equation, "reason": note.reason}


def _pack(note: Packed) -> PackData:
    return {
        "dispatch": note.dispatch,
        "operand": note.operand,
        "layout": note.layout,
        "nbytes": _size(note.nbytes),
        "packs": note.packs,
    }


def _between(note: Between) -> BetweenData:
    return {
        "first": note.first,
        "second": note.second,
        "what": note.what,
        "reasons": [
            {
                "op": each.op,
                "why": each.why,
                "value": each.value,
                "stored": each.stored,
                "line": str(each.loc) if each.loc else "",
            }
            for each in note.reasons
        ],
    }


def _decision(note: Decision) -> DecisionData:
    return {
        "rewrite": note.rewrite,
        "op": note.op,
        "applied": note.applied,
        "reason": note.reason,
    }


def _placement(note: Placement) -> PlacementData:
    return {"dispatch": note.dispatch, "where": note.where}


def _choice(note: Chosen) -> ChoiceData:
    return {"dispatch": note.dispatch, "name": note.name, "reason": note.reason}
