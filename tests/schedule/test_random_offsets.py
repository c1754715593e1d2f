"""Random reads and updates of one buffer at offsets that the host knows, and at others.

The executor shows a dispatch only what the plan of the call (`Plan.at`) says that it reads, lets it
change only what it says that it writes, and runs dispatches in any order that barriers allow.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.options import SWITCHES, Options
from stagejit.schedule.conflicts import hazards, touched
from tests.schedule.constants import turned
from tests.schedule.planning import check, plan_of

ROWS, COLUMNS = 12, 4
D = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
A = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)

# Offsets of i and j, scalar arguments, and v, an array of two.
OFFSETS: dict[str, Any] = {
    "i": lambda i, j, v: i,
    "i + 2": lambda i, j, v: i + 2,
    "near i": lambda i, j, v: jnp.clip(i, 0, 5) + 3,
    "nearer i": lambda i, j, v: jnp.clip(i, 0, 5),
    "j": lambda i, j, v: j,
    "round j": lambda i, j, v: j % 6,
    "larger": lambda i, j, v: jnp.where(i > j, i, 3),
    "constant": lambda i, j, v: jnp.int32(4),
    "v": lambda i, j, v: v[1],
    "sum": lambda i, j, v: v.sum() - i,
}
STEPS = ("update", "set", "add", "read", "scan", "sum", "double")
Step = tuple[str, str, int]


def program(steps: list[Step]) -> Any:
    def fn(d: Any, a: Any, i: Any, j: Any, v: Any) -> Any:
        results, source = [], a
        for number, (kind, offset, size) in enumerate(steps):
            at = OFFSETS[offset](i, j, v)
            part = source[:size] + number
            if kind == "update":
                d = lax.dynamic_update_slice(d, jnp.exp(part), (at, 0))
            elif kind == "set":
                d = d.at[at].set(part[0])
            elif kind == "add":
                d = d.at[at, 1:3].add(part[0, 1:3])
            elif kind == "read":
                results.append(lax.dynamic_slice(d, (at, 1), (size, 2)))
            elif kind == "scan":
                source = lax.cumsum(lax.dynamic_slice(d, (at, 0), (8, COLUMNS)), 0)
            elif kind == "sum":
                results.append(d.sum(1))
            else:
                row = lax.dynamic_slice(d, (at, 0), (size, COLUMNS))
                d = lax.dynamic_update_slice(d, row * 2, (at, 0))
        return d, *results

    return fn


steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(sorted(OFFSETS)), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)
scalars = st.integers(-14, 14)


@pytest.mark.fuzz
@given(
    steps, scalars, scalars, st.lists(scalars, min_size=2, max_size=2), st.booleans(),
    st.sets(st.sampled_from(sorted(SWITCHES)), max_size=3), st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_call_touches_what_its_plan_says(
    made: list[Step], i: int, j: int, v: list[int], donated: bool, off: set[str], rng: Any
) -> None:
    args = [D, A, np.int32(i), np.int32(j), np.array(v, np.int32)]
    options = Options(disable=tuple(sorted(off)))
    check(program(made), *args, donated=[donated], options=options)
    with turned(rng):
        check(program(made), *args, donated=[donated], options=options)


@pytest.mark.fuzz
@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from(("i", "i + 2", "near i", "j")),
                  st.integers(1, 3)),
        min_size=8, max_size=24,
    ),
    scalars, scalars, st.sampled_from([0, 1, 2, 5]), st.booleans(),
)  # fmt: skip
def test_many_updates_at_unknown_offsets(
    made: list[Step], i: int, j: int, most: int, donated: bool
) -> None:
    """After some of them one waits for all, and the others for that one."""
    args = [D, A, np.int32(i), np.int32(j), np.zeros(2, np.int32)]
    before, touched._MOST_UNKNOWN = touched._MOST_UNKNOWN, most
    try:
        check(program(made), *args, donated=[donated])
    finally:
        touched._MOST_UNKNOWN = before


def conflicts(updates: int) -> tuple[int, int]:
    """How many pairs of dispatches are looked at, and how many boxes barriers name, for one update
    after the other at an offset of a call."""

    def fn(d: Any, a: Any, i: Any) -> Any:
        for k in range(updates):
            d = lax.dynamic_update_slice(d, jnp.exp(a[k : k + 1]), (i + k, 0))
        return d

    cache, new = np.zeros((2 * updates, 4), np.float32), np.zeros((updates, 4), np.float32)
    plan = plan_of(fn, cache, new, np.int32(1))
    edges = len([*hazards.hazard_graph(plan.dispatches).edges()])
    return edges, sum(len(barrier.ranges) for barrier in plan.barriers)


def test_updates_at_unknown_offsets_have_no_conflict_a_pair() -> None:
    (edges, boxes), (more_edges, more_boxes) = conflicts(100), conflicts(200)
    assert more_edges <= 2.2 * edges < 2.2 * 100 * (touched._MOST_UNKNOWN + 4)
    assert more_boxes <= 2.2 * boxes


def test_what_comes_after_reads_at_unknown_offsets_has_been_waited_for() -> None:
    """What a slice at an unknown offset leaves out of a buffer has settled by updates around it,
    and the whole by both: see `left_of`."""

    def fn(c: Any, b: Any, i: Any) -> Any:
        o = c.at[0:4, 0:3].set(c[3:7, 0:3])
        w = o.at[0:8].set(lax.dynamic_slice(o, (i + 1, 0), (8, 4)) * 2)
        u = b.at[0:8].set(lax.dynamic_slice(w, (i - 1, 0), (8, 4)) * 2)
        t = jnp.concatenate((w, u, b))
        s = t.at[15:30:2].set(t[15:30:2].sum(1, keepdims=True))
        return s.at[0:28].set(t[2:30])

    check(fn, D[:10], A[:10], np.int32(1))


def test_what_lies_in_a_read_at_an_unknown_offset_is_waited_for_by_itself() -> None:
    """Rows 1 to 7 lie in the slice, whatever i is, but of what is left of the slice behind the
    updates no part has them for certain."""

    def fn(d: Any, i: Any) -> Any:
        d = d.at[1:8, 2:3].set(lax.dynamic_slice(d, (i - 1, 0), (7, 1)) * 2)
        d = d.at[:, 1:3].set(2)
        return d.at[0:11, 0:3].add(lax.dynamic_slice(d, (i, 0), (11, 3)))

    check(fn, D[:, :3], np.int32(5))
