"""Loops and branches that only the device knows: by the host, and in a graph, the results are the
same; in a graph the host reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from stagejit.runtime.cuda.driver import Array, Stream
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.launching import ORDERS
from stagejit.runtime.cuda.emulation.memory import EmulationError
from stagejit.runtime.cuda.programs.program import Wait, While, walk
from stagejit.runtime.objects.object_cache import cache_in
from tests.runtime.cuda.decided import DECIDED, exact, is_close
from tests.runtime.cuda.programs import compiled, mutants

_SEEDS = 8


class Counting(EmulatedDriver):
    """How often the host reads."""

    reads = 0

    def copy_out(self, array: Array, address: int, stream: Stream) -> None:
        self.reads += 1
        super().copy_out(array, address, stream)


def driver(seed: int, *, conditions: bool) -> Counting:
    order, cache = ORDERS[seed % len(ORDERS)], cache_in(None)
    return Counting(seed=seed, threads=order, cache=cache, conditions=conditions)


@pytest.mark.parametrize("name", DECIDED)
def test_both_ways_give_the_same(name: str) -> None:
    function, arguments = DECIDED[name]
    executable = compiled(function, arguments[0], step="load").executable
    wanted = [exact(function, x) for x in arguments]
    for seed in range(_SEEDS):
        for conditions in (True, False):
            device = driver(seed, conditions=conditions)
            loaded = executable.on(device)
            for turn in range(3):
                for x, right in zip(arguments, wanted, strict=True):
                    device.reads = 0
                    assert is_close(loaded.on_host([x]), right)
                    by_the_device = conditions and turn == 2
                    assert (device.reads == len(right)) or not by_the_device
            assert bool(loaded.graphs) is conditions


def waits_inside() -> Iterator[tuple[str, int]]:
    """Of waits inside of loops that the device decides about, their numbers among `mutants`."""
    for name, (function, arguments) in DECIDED.items():
        program = compiled(function, arguments[0]).cuda
        inside = {
            id(step)
            for loop in walk(program.steps)
            if isinstance(loop, While)
            for step in walk((*loop.condition, *loop.body))
        }
        waits = [step for step in walk(program.steps) if isinstance(step, Wait)]
        yield from ((name, at) for at, step in enumerate(waits) if id(step) in inside)


def test_an_event_that_is_missing_in_a_loop_of_a_graph_is_seen() -> None:
    found = list(waits_inside())
    assert found
    for name, number in found[:6]:
        function, arguments = DECIDED[name]
        executable = compiled(function, arguments[0], step="load").executable
        what, program = list(mutants(executable.program))[number]
        mutant = replace(executable, program=program, loaded=WeakKeyDictionary())
        right = [exact(function, x) for x in arguments]

        def is_wrong(seed: int, given: Any = (mutant, arguments, right)) -> bool:
            loaded = given[0].on(driver(seed, conditions=True))
            try:
                pairs = zip(given[1] * 3, given[2] * 3, strict=True)
                return not all(is_close(loaded.on_host([x]), y) for x, y in pairs)
            except EmulationError:
                return True

        assert any(map(is_wrong, range(40))), (name, what)
