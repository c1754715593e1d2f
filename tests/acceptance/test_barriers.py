"""Acceptance S: barriers are few, exact, sufficient, and each of them is necessary."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.schedule.plans.plan import Access, Plan
from tests.acceptance.consumers.dense_blocks import dense_block, images, weights_of
from tests.acceptance.running import f32, same
from tests.schedule.execution.executor import POISON, Executor
from tests.schedule.execution.machine import Concurrent, Machine
from tests.schedule.execution.settling import Settling
from tests.schedule.mutations import check_mutations, mutations
from tests.schedule.planning import check, plan_of, prepared, schedule_graph


def updates(d: Any, a: Any, b: Any) -> Any:
    """Writes, reads and overwrites parts of one buffer."""
    d = d.at[0:4].set(jnp.exp(a))
    s = lax.cumsum(d[2:6], 0)
    d = d.at[8:12].set(s)
    t = lax.cumsum(d[6:10], 1)
    return d.at[4:8].set(b * 2), t


def pads(a: Any, b: Any, c: Any) -> Any:
    x = jnp.pad(jnp.concatenate([lax.cumsum(a, 0), b * 2, c + 1]), 1, constant_values=3.0)
    return lax.cumsum(x, 1), x.sum(0)


def block(*args: Any) -> Any:
    return dense_block(args[0], args[1], args[2:])


PROGRAMS: dict[str, tuple[Any, list[Any]]] = {
    "updates": (updates, [f32(12, 16), f32(4, 16), f32(4, 16, seed=1)]),
    "pads": (pads, [f32(40, 60), f32(9, 60), f32(7, 60)]),
    "block": (block, [*images(1, 8, 6, 5), *weights_of(8)]),
}
programs = pytest.mark.parametrize("name", PROGRAMS)


def plan(name: str, **options: Any) -> Plan:
    fn, args = PROGRAMS[name]
    return plan_of(fn, *args, options=Options(**options))


def meet(made: Plan, a: Access, b: Access) -> bool:
    """Whether two accesses touch an element of one buffer, or bytes of memory that two share."""
    if a.buffer == b.buffer:
        return a.overlaps(b)
    (one, start), (other, begin) = place(made, a.buffer), place(made, b.buffer)
    return one == other and start + a.hull[0] < begin + b.hull[1] and begin + b.hull[0] < (
        start + a.hull[1])  # fmt: skip


def place(made: Plan, name: str) -> tuple[str, int]:
    """The memory of a buffer, and where it lies in it."""
    buffer = made.buffer(name)
    return (name, 0) if buffer.slot is None else (buffer.host or "the arena", buffer.slot)


@programs
def test_s1_an_edge_exists_iff_boxes_overlap_and_one_side_writes(name: str) -> None:
    """Or iff bytes do. The others that a chain of edges stands for are left out, if that chain
    settles their ranges: the next test but one."""
    made = plan(name)
    conflicts: nx.DiGraph[str] = nx.DiGraph()
    conflicts.add_nodes_from(d.name for d in made.dispatches)
    for first, second in itertools.combinations(made.dispatches, 2):
        pairs = [
            *itertools.product(first.writes, (*second.reads, *second.writes)),
            *itertools.product(first.reads, second.writes),
        ]
        if any(meet(made, a, b) for a, b in pairs):
            conflicts.add_edge(first.name, second.name)
    edges = {(b.src, b.dst) for b in made.barriers}
    assert set(nx.transitive_reduction(conflicts).edges) <= edges <= set(conflicts.edges)


@programs
def test_s1_ranges_are_what_both_sides_touch(name: str) -> None:
    made = plan(name)
    by_name = {d.name: d for d in made.dispatches}
    for barrier in made.barriers:
        buffer = made.buffer(barrier.buffer)
        assert barrier.nbytes == sum(box.count for box in barrier.ranges) * buffer.dtype.itemsize
        for box, end in itertools.product(barrier.ranges, (barrier.src, barrier.dst)):
            touched = (*by_name[end].reads, *by_name[end].writes)
            within = any(a.buffer == buffer.name and a.box.contains(box) for a in touched)
            ours = Access.of(buffer, box)
            elsewhere = any(a.buffer != buffer.name and meet(made, ours, a) for a in touched)
            assert within or (end == barrier.dst and elsewhere)


@programs
@pytest.mark.parametrize("switch", ["", "fuse-pad", "fuse-insert", "read-placed", "pack-slots"])
def test_s2_s4_any_order_that_barriers_allow_gives_the_same_values(name: str, switch: str) -> None:
    """The executor poisons what a dispatch does not declare to read, and all memory before."""
    fn, args = PROGRAMS[name]
    check(fn, *args, options=Options(disable=(switch,) if switch else ()), orders=6)


@programs
@pytest.mark.parametrize("seed", range(4))
def test_s2_s4_the_machine_code_stays_in_its_ranges(name: str, seed: int) -> None:
    """Poison mode: NaN around everything that a dispatch declares, in any order that the barriers
    allow, and on as many threads as there are dispatches, with random delays."""
    fn, args = PROGRAMS[name]
    graph = prepared(fn, args)
    made = schedule_graph(graph)
    expected = jax.tree.leaves(interpret(graph, args, precision="f64"))
    for run in (Machine, Concurrent):
        same(run(made, random.Random(seed))(args), expected)


@programs
@pytest.mark.parametrize("switch", ["", "fuse-pad", "fuse-insert", "read-placed", "pack-slots"])
def test_s3_s7_every_barrier_and_every_element_of_it_is_necessary(name: str, switch: str) -> None:
    """The checker rejects the plan without any one barrier, and with any range shorter by one."""
    made = plan(name, disable=(switch,) if switch else ())
    assert made.barriers
    assert check_mutations(made) > len(made.barriers)


@programs
@pytest.mark.parametrize("switch", ["", "fuse-pad", "fuse-insert", "read-placed", "pack-slots"])
def test_s7_nothing_has_settled_but_what_barriers_name(name: str, switch: str) -> None:
    fn, args = PROGRAMS[name]
    options = Options(disable=(switch,) if switch else ())
    graph = prepared(fn, args, options=options)
    made, expected = schedule_graph(graph, options), interpret(graph, args)
    for seed in range(4):
        got = Settling(made, random.Random(seed) if seed else None)(args)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@programs
def test_s7_an_executor_that_counts_on_ranges_sees_a_narrow_one(name: str) -> None:
    """Each plan that the checker rejects goes wrong in the executor, too: nothing is rejected that
    would be right."""
    fn, args = PROGRAMS[name]
    graph = prepared(fn, args)
    made, expected = schedule_graph(graph), interpret(graph, args)

    def goes_wrong(mutated: Plan) -> bool:
        with contextlib.suppress(AssertionError):
            for seed in range(3):
                run = Settling(replace(made, plan=mutated), random.Random(seed))
                for a, b in zip(run(args), expected, strict=True):
                    np.testing.assert_array_equal(a, b)
            return False
        return True

    some = random.Random(0).sample(all_mutations := list(mutations(made.plan)), min(
        len(all_mutations), 12))  # fmt: skip
    for what, mutated in some:
        assert goes_wrong(mutated), what


@pytest.mark.parametrize("run", [Executor, Machine])
@pytest.mark.parametrize("side", ["reads", "writes"])
def test_s4_an_undeclared_access_is_caught(
    side: str, run: type[Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All boxes one row shorter than what the kernels touch: a read finds NaN, a write is seen."""
    from stagejit.schedule import bufferize

    original = getattr(bufferize, f"{side}_of")

    def less(region: Any) -> Any:
        touches = []
        for touch in original(region):
            sizes = (max(touch.box.sizes[0] - 1, 1), *touch.box.sizes[1:])
            touches.append(replace(touch, box=replace(touch.box, sizes=sizes)))
        return touches

    graph = prepared(lambda a: lax.cumsum(jnp.exp(a), 0), [f32(6, 4)])
    expected = interpret(graph, [f32(6, 4)])
    same(run(schedule_graph(graph))([f32(6, 4)]), expected)
    monkeypatch.setattr(bufferize, f"{side}_of", less)
    with pytest.raises(AssertionError, match="undeclared write" if side == "writes" else "nan"):
        same(run(schedule_graph(graph))([f32(6, 4)]), expected)


def test_s4_poison_is_everywhere_else() -> None:
    """What no dispatch writes is NaN before and after, in transients as in results."""
    graph = prepared(lambda d, a: d.at[2:4].set(jnp.exp(a)), [f32(8, 4), f32(2, 4)], (True, False))
    run = Machine(schedule_graph(graph))
    seen: list[Any] = []
    original = run._steps

    def watched(steps: Any, memory: Any) -> None:
        (name,) = (b.name for b in run.buffers.values() if b.result == 0)
        memory[name][:] = POISON
        original(steps, memory)
        seen.append(memory[name].view(np.float32).reshape(8, 4).copy())

    run._steps = watched  # type: ignore[method-assign]
    run([f32(8, 4), f32(2, 4)])
    (after,) = seen
    np.testing.assert_allclose(after[2:4], np.exp(f32(2, 4)), rtol=1e-6)
    assert np.isnan(after[:2]).all()
    assert np.isnan(after[4:]).all()


@programs
def test_s5_full_barriers_give_the_same_values(name: str, on_target: str) -> None:
    fn, args = PROGRAMS[name]
    full = stagejit.jit(fn, options=Options(full_barriers=True, target=on_target))
    plain = stagejit.jit(fn)
    values = jax.tree.map(jnp.asarray, args)
    same(full(*values), plain(*values))
    made = full.plan(*args)
    ordered = {(b.src, b.dst) for b in made.barriers}
    assert all((a.name, b.name) in ordered for a, b in itertools.pairwise(made.dispatches))
    for a, b in zip(jax.tree.leaves(full(*values)), jax.tree.leaves(plain(*values)), strict=True):
        np.testing.assert_array_equal(a, b)
