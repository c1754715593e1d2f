"""eliminate-common-subexpressions: what is merged, and what must stay apart."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from stagejit.rewrites.driving.driver import LocalStep, run_steps
from stagejit.rewrites.subexpressions import NAME, SHARING
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = LocalStep(NAME, (), SHARING)


def test_equal_ops_on_equal_operands_are_one() -> None:
    text = """graph @f(%x: f32[4]) {
      %0: f32[] = const 2.0
      %1: f32[] = const 2.0
      %2: f32[4] = fill %0
      %3: f32[4] = fill %1
      %4: f32[4] = map mul %x, %2
      %5: f32[4] = map mul %x, %3
      %6: f32[4] = map add %4, %5
      return %6
    }"""
    assert rewritten(STEP, text) == (
        "%0: f32[] = const 2.0\n"
        "%1: f32[4] = fill %0\n"
        "%2: f32[4] = map mul %x, %1\n"
        "%3: f32[4] = map add %2, %2\n"
        "return %3"
    )


def both_orders(fn: str) -> str:
    return f"""graph @f(%x: f32[4], %y: f32[4]) {{
      %0: f32[4] = map {fn} %x, %y
      %1: f32[4] = map {fn} %y, %x
      return %0, %1
    }}"""


@pytest.mark.parametrize("fn", ["add", "max", "min"])
def test_operands_of_a_commutative_function_are_compared_in_any_order(fn: str) -> None:
    assert rewritten(STEP, both_orders(fn)) == f"%0: f32[4] = map {fn} %x, %y\nreturn %0, %0"


@pytest.mark.parametrize("fn", ["sub", "atan2"])
def test_dont_merge_functions_whose_order_matters(fn: str) -> None:
    assert unchanged(STEP, both_orders(fn))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("f32[4] = map exp %x", "f32[4] = map sin %x"),
        ("f32[4] = map exp %x", "f32[4] = map exp %y"),
        ("f32[] = const 0.0", "f32[] = const -0.0"),
        ("f32[] = const 1.0", "f64[] = const 1.0"),
        ("i32[4] = convert %x", "i64[4] = convert %x"),
        ("f32[2] = extract_slice %x at (0)", "f32[2] = extract_slice %x at (1)"),
    ],
)
def test_dont_merge_different_ops(first: str, second: str) -> None:
    text = "\n".join(["graph @f(%x: f32[4], %y: f32[4]) {", f"%0: {first}", f"%1: {second}",
                      "return %0, %1", "}"])  # fmt: skip
    assert unchanged(STEP, text)


def test_dont_share_uninitialised_destinations() -> None:
    text = """graph @f(%x: f32[2]) {
      %0: f32[4] = empty
      %1: f32[4] = empty
      %2: f32[4] = insert_slice %x into %0 at (0)
      %3: f32[4] = insert_slice %x into %1 at (1)
      return %2, %3
    }"""
    assert unchanged(STEP, text)


def test_dont_share_a_fill_that_is_written_into() -> None:
    text = """graph @f(%x: f32[2], %s: f32[]) {
      %0: f32[4] = fill %s
      %1: f32[4] = fill %s
      %2: f32[4] = insert_slice %x into %0 at (0)
      %3: f32[4] = insert_slice %x into %1 at (1)
      return %2, %3
    }"""
    assert reasons(STEP, text) == ["it is written into, so sharing it would add a copy"]


def test_dont_merge_delegated_equations() -> None:
    text = """graph @f(%x: f32[2]) {
      %0: f32[2] = delegate %x effects=() reason="sort"
      %1: f32[2] = delegate %x effects=() reason="sort"
      return %0, %1
    }"""
    assert unchanged(STEP, text)


def loops(first: str, second: str, trip: int = 4, init: str = "%y") -> str:
    return f"""graph @f(%x: f32[2], %y: f32[2]) {{
      %0: f32[2] = loop %y, %x carries=1 reverse=false trip=4 xs=0
        graph @body(%c: f32[2] donated, %w: f32[2]) {{
          %0: f32[2] = {first}
          return %0
        }}
      %1: f32[2] = loop {init}, %x carries=1 reverse=false trip={trip} xs=0
        graph @other(%d: f32[2] donated, %v: f32[2]) {{
          %0: f32[2] = {second}
          return %0
        }}
      %2: f32[2] = map add %0, %1
      return %2
    }}"""


def test_equal_loops_are_one() -> None:
    """whatever the names in them"""
    assert rewritten(STEP, loops("map mul %c, %w", "map mul %d, %v")).splitlines()[4:] == [
        "}",
        "%1: f32[2] = map add %0, %0",
        "return %1",
    ]


@pytest.mark.parametrize(
    "other",
    [
        loops("map mul %c, %w", "map add %d, %v"),
        loops("map sub %c, %w", "map sub %v, %d"),
        loops("map mul %c, %w", "map mul %d, %v", trip=5),
        loops("map mul %c, %w", "map mul %d, %v", init="%x"),
    ],
)
def test_dont_merge_loops_that_differ(other: str) -> None:
    assert unchanged(STEP, other)


def test_equal_branches_are_one() -> None:
    branch = """branch %p, %x carried=()
        graph @a(%c: f32[2]) {
          %0: f32[2] = map exp %c
          return %0
        }
        graph @b(%c: f32[2]) {
          return %c
        }"""
    text = f"""graph @f(%x: f32[2], %p: bool[]) {{
      %0: f32[2] = {branch}
      %1: f32[2] = {branch}
      return %0, %1
    }}"""
    assert rewritten(STEP, text).endswith("return %0, %0")
    assert unchanged(STEP, text.replace("exp", "sin", 1))


def test_dont_merge_loops_that_call_python() -> None:
    def f(x: Any) -> Any:
        def turn(k: Any, c: Any) -> Any:
            kind = jax.ShapeDtypeStruct((), np.float32)
            return jax.pure_callback(lambda v: v + 1, kind, c, vmap_method="sequential")

        return lax.fori_loop(0, 3, turn, x) + lax.fori_loop(0, 3, turn, x)

    graph = graph_of(f, np.float32(1))
    run_steps(graph, (STEP,), Options(verify=True))
    assert [op.kind for op in graph if op.kind in ("loop", "delegate")] == ["loop", "loop"]


def test_equal_library_calls_are_one() -> None:
    """all of their results"""
    call = 'call %x attributes=() column_major=((true), (true, false)) target="lapack_sgeqrf_ffi"'
    text = f"""graph @f(%x: f32[4,4]) {{
      %0: f32[4,4], %1: f32[4] = {call}
      %2: f32[4,4], %3: f32[4] = {call}
      return %0, %3
    }}"""
    assert rewritten(STEP, text) == f"%0: f32[4,4], %1: f32[4] = {call}\nreturn %0, %1"
