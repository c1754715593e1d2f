"""What is said of trees that leave elements out: of random ones just those that do."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagejit.codegen.nest.covering import STORE, left_out
from stagejit.codegen.nest.tree import (
    At,
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    Tail,
    Within,
    serial,
    vectors,
)
from stagejit.index.affine import Var
from tests.codegen.nest.test_emitter import LANES, Recorder

WAYS: list[list[tuple[int, bool, Tail]]] = [
    [(LANES, True, "masked")],
    [(LANES, True, "all masked")],
    [(LANES, True, "none")],
    [(LANES, True, "none"), (1, False, "none")],
    [(LANES, True, "none"), (3, False, "shorter")],
    [(1, False, "none")],
]


def loop(var: Var, chunks: list[tuple[int, bool, Tail]], body: Node) -> Loop:
    return Loop(var, tuple(Chunk(n, body, vector=lane, tail=tail) for n, lane, tail in chunks))


@settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    extent=st.integers(1, 120),
    item=st.integers(1, 50),
    outer=st.lists(st.tuples(st.integers(2, 40), st.sampled_from(["none", "shorter"])), max_size=2),
    way=st.sampled_from(WAYS),
)
def test_trees_that_leave_elements_out_are_known(
    run_kernel: Any, extent: int, item: int, outer: list[Any], way: list[Any]
) -> None:
    recorder = Recorder(Var(extent))
    visit = Do(STORE, recorder.visit.run, recorder.visit.sets)
    body: Node = visit
    if way[-1][0] == 3:  # a block of several elements has a loop
        body = loop(recorder.var, WAYS[-1], visit)
        chunks = [Chunk(LANES, visit, vector=True), Chunk(3, body, tail="shorter")]
        body = Loop(recorder.var, tuple(chunks))
    else:
        body = loop(recorder.var, way, visit)
    for size, tail in reversed(outer):
        body = Loop(recorder.var, (Chunk(size, body, tail=tail),))
    tree = Parallel(((recorder.var, item),), (recorder.start, body))
    order, _ = recorder.run(run_kernel, tree, tree.items)
    assert ("left over" in left_out(tree)) == (0 in order)
    assert left_out(tree) == "" or 0 in order


def store(what: str = STORE) -> Do:
    return Do(what, lambda: None)


def test_what_another_loop_or_a_context_may_reach_is_not_left_out() -> None:
    var = Var(21, "i")
    whole, rest = vectors(var, LANES, store(), tail="none"), Var(5, "i")
    tail = At(((var, 16),), store(), vector=var, lanes=LANES, used=5)
    around = Within("a part", nullcontext, whole)
    apart = (vectors(var, LANES, store("clear"), tail="none"), vectors(var, LANES, store()))
    for body in ((whole, tail), around, apart, (whole, vectors(var, LANES, store()))):
        assert left_out(Parallel(((var, 21),), body)) == ""
    assert "left over" in left_out(Parallel(((var, 21),), (whole, store("clear"))))
    assert "left over" in left_out(Parallel(((var, 21),), (whole, vectors(rest, 1, whole))))


@pytest.mark.parametrize(
    ("fields", "threads"),
    [({"together": 4}, 1), ({"before": 1}, 1), ({"last": False}, 1), ({"before": 0}, 64)],
)
def test_items_that_nobody_has_are_left_out(fields: dict[str, Any], threads: int) -> None:
    tree = Parallel(((Var(21, "i"), 1),), store(), **fields)
    assert "belong to nobody" in left_out(tree, threads)


def test_threads_of_a_block_share_items() -> None:
    assert left_out(Parallel(((Var(21, "i"), 1),), store(), together=64), 64) == ""


@pytest.mark.parametrize(
    "other", [store, None, "store", [store()]], ids=["f", "None", "str", "list"]
)
@pytest.mark.parametrize("place", range(6))
def test_what_is_no_statement_and_no_loop_is_told_wherever_it_stands(
    place: int, other: Any
) -> None:
    var = Var(21, "i")
    bodies = (
        other,
        (store(), other),
        vectors(var, LANES, other),
        serial([var], (store(), (other,))),
        Within("a part", nullcontext, other),
        At(((var, 1),), other),
    )
    assert "give a statement" in left_out(Parallel(((var, 21),), bodies[place]))
