"""Turns the constants of formation, schedule and rewrites that decide what pays: no value of theirs
may change a result.

Input: a source of random choices. Invariant: the constants are back when the block ends. With them
as they are, small programs never reach what large ones do: two buffers that change places, reading
where a value is placed, hoisting, rows that are too large to be read again.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CONSTANTS: dict[str, tuple[Any, ...]] = {
    "dispatch.rewrites.pads:MOST_PIECES": (1, 3, 50),
    "dispatch.groups.cost:BYTES_PER_FLOP": (0.01, 50.0),
    "dispatch.groups.cost:DISPATCH_NBYTES": (1,),
    "dispatch.groups.cost:PROLOGUE_FLOPS": (0.0, 100.0),
    "graph.functions:_TRANSCENDENTAL": (frozenset({"mul"}), frozenset({"add", "neg"})),
    "dispatch.forming.demand:_LONGEST_CHAIN": (1,),
    "dispatch.forming.destinations:_UPDATES_AHEAD": (0, 1),
    "dispatch.forming.formation:_NEIGHBOURS": (1,),
    "dispatch.groups.chains:LONGEST_CHAIN": (2, 4),
    "dispatch.groups.chains:_LONG_ENOUGH": (0, 1, 3),
    "dispatch.groups.chains:_LONG_ENOUGH_IN_MEMORY": (1, 3),
    "dispatch.groups.chains:_NEAR": (1, 3),
    "dispatch.forming.joins:_NEIGHBOURS": (1,),
    "dispatch.groups.legality:FEWEST_ROWS": (1, 2),
    "dispatch.groups.legality:ROW_NBYTES": (1, 64),
    "dispatch.groups.cost:SMALL_SPACE_NBYTES": (1, 64),
    "dispatch.groups.legality:_ROWS_ABREAST": (1, 4),
    "dispatch.rewrites.limits:_LAST_PIECES": (1,),
    "dispatch.rewrites.targets:_FARTHEST": (1, 2),
    "dispatch.forming.recompute:_CHEAP_FLOPS": (0.0, 2.0, 100.0),
    "dispatch.ranges.scalars:LONGEST_FORMULA": (5, 40),
    "dispatch.groups.state:_MOST_ORIGINS": (1, 3),
    "dispatch.ranges.updates:MOST_BOXES": (1, 2),
    "rewrites.constants:SMALL_NBYTES": (1,),
    "rewrites.loops:FEWEST_ELEMENTS": (1,),
    "rewrites.loops:MOST_GROWTH": (1, 1000),
    "rewrites.moving.prefixes:SHORTEST_RUN_NBYTES": (1,),
    "rewrites.moving.repeats:SHORTEST_RUN_NBYTES": (1,),
    "rewrites.split.scans:_PART_NBYTES": (16, 64),
    "rewrites.split.scans:_WORTH": (1e9,),
    "schedule.conflicts.order:_MOST_BESIDE": (1, 2),
    "schedule.conflicts.touched:_MOST_UNKNOWN": (0, 1, 3),
    "schedule.conflicts.touched:MOST_VERSIONS": (0, 1, 3),
    "schedule.bodies:ALTERNATE_FROM_NBYTES": (1, 64),
    "schedule.bodies:MOST_DISPATCHES_TWICE": (1, 1000),
    "schedule.memory.packing:_MOST_TRIED": (1,),
    "schedule.slots:_WORTH_WAITING": (0.0,),
}


@contextmanager
def turned(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Half of the constants have another value in the block, which is given by name."""
    found = {key: rng.choice(values) for key, values in CONSTANTS.items() if rng.random() < 0.5}
    before: dict[str, Any] = {}
    try:
        for key, value in found.items():
            before[key] = _set(key, value)
        yield found
    finally:
        for key, value in before.items():
            _set(key, value)


def _set(key: str, value: Any) -> Any:
    """Gives the constant a value; returns the one that it had."""
    module, name = key.split(":")
    owner = importlib.import_module(f"stagejit.{module}")
    before = getattr(owner, name)
    setattr(owner, name, value)
    return before
