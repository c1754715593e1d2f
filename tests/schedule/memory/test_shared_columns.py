"""Buffers that share memory, one of them written column by column: what is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.conflicts.access import Access, Buffer
from stagejit.schedule.conflicts.hazards import HazardGraph
from stagejit.schedule.memory.shared import Place, add_shared
from stagejit.types import f32


@dataclass(frozen=True)
class Touching:
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


def test_writes_do_not_look_at_those_of_their_own_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes are around those of the columns before."""
    number, looked_at = 300, 0
    find = BoxIndex._found

    def counted(self: BoxIndex[Any], box: Box) -> list[Any]:
        nonlocal looked_at
        found = find(self, box)
        looked_at += len(found)
        return found

    monkeypatch.setattr(BoxIndex, "_found", counted)
    old, new = (Buffer(name, (8, number), f32, "transient") for name in ("t0", "t1"))
    columns = [Access.of(old, Box((0, at), (8, 1), (1, 1))) for at in range(number)]
    steps = [Touching((), (column,)) for column in columns]
    steps.append(Touching((), (Access.of(new, Box.whole(new.shape)),)))
    graph = HazardGraph(len(steps))
    place = Place("m", 0, new.nbytes)
    add_shared(graph, steps, {"t0": place, "t1": place})
    assert len(graph.before[number]) == number
    assert looked_at <= 8 * number
