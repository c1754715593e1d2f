"""The timed variant of the interpreter, and the sums and events that it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import llvmlite.binding as llvm
import pytest

import stagejit
from stagejit.codegen.target import Target
from stagejit.runtime.cpu import encoding
from stagejit.runtime.cpu.loader import recorder
from stagejit.runtime.cpu.native import sheets, support
from stagejit.runtime.cpu.recording import clock


@pytest.mark.parametrize("counter", [True, False])
@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"])
def test_architectures_compile_it(
    triple: str, counter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    host = replace(Target.host(), triple=triple)
    monkeypatch.setattr(Target, "host", lambda: host)
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic")
    text = support.timed_ir.__wrapped__(counter)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    assembly = machine.emit_assembly(module)
    assert ("rdtsc" in assembly) == (counter and triple.startswith("x86"))
    assert ("readcyclecounter" in text) == counter


def test_calls_without_times_have_no_stamps() -> None:
    plain = support.support_ir.__wrapped__()
    assert "sj_ticks" not in plain
    assert "sj_stamp" not in plain
    assert "readcyclecounter" not in plain


def programs() -> dict[str, tuple[Any, Any]]:
    def loop(x: Any) -> Any:
        for _ in range(3):
            x = jnp.sin(x) @ x
        return stagejit.jit(lambda x: x)(x), jnp.sort(x, axis=0), jnp.concatenate((x, x * 2), 1)

    return {"small": (loop, jnp.ones((8, 8))), "forked": (loop, jnp.ones((400, 400)))}


@pytest.mark.parametrize("name", ["small", "forked"])
def test_what_takes_time_has_a_slot_of_its_own(name: str) -> None:
    function, x = programs()[name]
    compilation = stagejit.jit(function).lower(x).compilation.run_until("host")
    for program in compilation.hosts.values():
        places = list(encoding.places_of(program))
        slots = {place // sheets.WORDS_OF_SLOT_NBYTES for place in (0, *places)}
        assert len(slots) == len(places) + 1
        assert max(places) < encoding.words_nbytes(program)
        launched = {step.site for step in program.launches()}
        assert {program.sites[site].path for site in launched} <= {
            dispatch.name for dispatch in compilation.plan.all_dispatches()
        }


def test_sums_are_of_whole_calls() -> None:
    staged, x = stagejit.jit(lambda x: jnp.sort(jnp.sin(x))), jnp.ones(5000)
    staged(x).block_until_ready()
    taken = recorder().begin()
    for _ in range(5):
        staged(x).block_until_ready()
    recorder().end(taken)
    (times,) = taken.pieces
    (call,) = times.slots[0]
    steps = [slot for place, found in times.slots.items() if place for slot in found]
    assert call.count == 5
    assert call.least <= call.total / 5 <= call.most
    assert 0 < sum(slot.total for slot in steps) <= call.total
    now = clock()
    assert taken.begin <= now.at(times.events[0].begin) <= taken.end
    assert 0 < now.lasting(call.total) <= taken.end - taken.begin
