"""Acceptance S: barriers are few, exact, sufficient, and each of them is necessary."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import VerificationError
from stagejit.options import Options
from stagejit.schedule.plan import Plan
from stagejit.schedule.verifier import verify_plan
from tests.acceptance.running import f32, same
from tests.acceptance.test_multi_consumer import dense_block, images, weights_of
from tests.schedule.planning import check, plan_of


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


@programs
def test_s1_an_edge_exists_iff_boxes_overlap_and_one_side_writes(name: str) -> None:
    made = plan(name)
    conflicts: nx.DiGraph[str] = nx.DiGraph()
    conflicts.add_nodes_from(d.name for d in made.dispatches)
    for first, second in itertools.combinations(made.dispatches, 2):
        pairs = [
            *itertools.product(first.writes, (*second.reads, *second.writes)),
            *itertools.product(first.reads, second.writes),
        ]
        if any(a.overlaps(b) for a, b in pairs):
            conflicts.add_edge(first.name, second.name)
    edges = {(b.src, b.dst) for b in made.barriers}
    assert edges == set(nx.transitive_reduction(conflicts).edges)


@programs
def test_s1_ranges_are_what_both_sides_touch(name: str) -> None:
    made = plan(name)
    by_name = {d.name: d for d in made.dispatches}
    for barrier in made.barriers:
        size = made.buffer(barrier.buffer).dtype.itemsize
        assert barrier.nbytes == sum(box.count for box in barrier.ranges) * size
        for box, end in itertools.product(barrier.ranges, (barrier.src, barrier.dst)):
            touched = (*by_name[end].reads, *by_name[end].writes)
            assert any(a.buffer == barrier.buffer and a.box.contains(box) for a in touched)


@programs
@pytest.mark.parametrize("switch", ["", "fuse-pad", "fuse-insert", "read-placed", "pack-slots"])
def test_s2_s4_any_order_that_barriers_allow_gives_the_same_values(name: str, switch: str) -> None:
    """The executor poisons what a dispatch does not declare to read, and all memory before."""
    fn, args = PROGRAMS[name]
    check(fn, *args, options=Options(disable=(switch,) if switch else ()), orders=6)


@programs
def test_s3_every_barrier_is_necessary(name: str) -> None:
    made = plan(name)
    verify_plan(made)
    assert made.barriers
    pairs = {(b.src, b.dst) for b in made.barriers}
    for pair in pairs:
        rest = tuple(b for b in made.barriers if (b.src, b.dst) != pair)
        with pytest.raises(VerificationError, match="does not wait for"):
            verify_plan(dataclasses.replace(made, barriers=rest))


@programs
def test_s3_a_barrier_on_a_part_is_not_enough(name: str) -> None:
    made = plan(name)
    for at, barrier in enumerate(made.barriers):
        box = next(b for b in barrier.ranges if b.count > 1)
        axis = next(d for d, size in enumerate(box.sizes) if size > 1)
        less = tuple(size - (d == axis) for d, size in enumerate(box.sizes))
        smaller = dataclasses.replace(barrier, ranges=(dataclasses.replace(box, sizes=less),))
        barriers = (*made.barriers[:at], smaller, *made.barriers[at + 1 :])
        with pytest.raises(VerificationError, match="does not wait for"):
            verify_plan(dataclasses.replace(made, barriers=barriers))


@pytest.mark.parametrize("side", ["reads", "writes"])
def test_s4_an_undeclared_access_is_caught(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stagejit.schedule import build

    original = getattr(build, f"{side}_of")

    def less(region: Any) -> Any:
        """All boxes one row shorter than they are."""
        touches = []
        for touch in original(region):
            sizes = (max(touch.box.sizes[0] - 1, 1), *touch.box.sizes[1:])
            touches.append(
                dataclasses.replace(touch, box=dataclasses.replace(touch.box, sizes=sizes))
            )
        return touches

    monkeypatch.setattr(build, f"{side}_of", less)
    with pytest.raises(AssertionError):
        check(lambda a: lax.cumsum(jnp.exp(a), 0), f32(6, 4), orders=1)


@programs
def test_s5_full_barriers_give_the_same_values(name: str) -> None:
    fn, args = PROGRAMS[name]
    full = stagejit.jit(fn, options=Options(full_barriers=True))
    plain = stagejit.jit(fn)
    values = jax.tree.map(jnp.asarray, args)
    same(full(*values), plain(*values))
    made = full.plan(*args)
    ordered = {(b.src, b.dst) for b in made.barriers}
    assert all((a.name, b.name) in ordered for a, b in itertools.pairwise(made.dispatches))
    for a, b in zip(jax.tree.leaves(full(*values)), jax.tree.leaves(plain(*values)), strict=True):
        np.testing.assert_array_equal(a, b)
