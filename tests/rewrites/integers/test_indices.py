"""known-ranges: what goes where a range allows it, and one test for each guard."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driving.driver import LocalStep
from stagejit.rewrites.integers import indices
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = LocalStep("ranges", indices.RULES)
X, ROWS = np.ones((10, 4), np.float32), np.zeros(3, np.int32)


def ops(f: Any, *args: Any, off: tuple[str, ...] = ()) -> Graph:
    graph = graph_of(f, *args)
    rewrite_graph(graph, Options(verify=True, disable=off))
    return graph


def functions(graph: Graph) -> list[str]:
    return [op.attrs["fn"] for op in graph if op.kind == "map"]


# ------------------------------------------------------------------------- as programs write it


@pytest.mark.parametrize(
    ("f", "left"),
    [
        (lambda x, i: x[i], ["lt", "add", "select"]),  # may be negative
        (lambda x, i: x[i % 10], ["rem", "lt", "add", "select"]),  # of Python's modulo
        (lambda x, i: x[jnp.clip(i, 0, 9)], ["max", "min"]),
        (lambda x, i: x[jnp.argmax(x, 0)], []),
        (lambda x, i: x[jnp.abs(i % 5) + 2], ["rem", "lt", "add", "select", "add"]),
        (lambda x, i: x[i.astype(jnp.uint8)], []),
        (lambda x, i: x[(i > 3).astype(jnp.int32)], ["gt"]),
        (lambda x, i: x[i & 7], ["and"]),
    ],
)
def test_indices_that_are_not_negative_are_not_wrapped(f: Any, left: list[str]) -> None:
    assert functions(ops(f, X, ROWS)) == left


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: jnp.take_along_axis(x, jnp.argmax(x, 1)[:, None], 1),
        lambda x, i: x.at[i % 10].get(mode="fill"),
        lambda x, i: x.at[i % 10].set(1.0),
        lambda x, i: x.at[i % 9].add(1.0),
    ],
)
def test_indices_that_are_in_bounds_need_no_mask(f: Any) -> None:
    (mode,) = (op.attrs["mode"] for op in ops(f, X, ROWS) if "mode" in op.attrs)
    assert mode == "clip"


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.at[i % 11].get(mode="fill"),
        lambda x, i: x.at[i % 11].set(1.0),
        lambda x, i: x.at[i % 11].set(1.0, mode="promise_in_bounds"),
    ],
)
def test_dont_take_the_mask_of_an_index_that_may_be_beyond(f: Any) -> None:
    assert [op.attrs["mode"] for op in ops(f, X, ROWS) if "mode" in op.attrs] == ["fill"]


# ---------------------------------------------------------------------------------- loop bodies


def body_functions(f: Any, *args: Any) -> list[str]:
    (loop,) = (op for op in ops(f, *args) if op.kind == "loop")
    return functions(loop.attrs["body"])


def test_a_counter_is_not_negative() -> None:
    def times(x: Any) -> Any:
        return lax.fori_loop(0, 10, lambda k, c: c + x[k], jnp.zeros(4))

    def as_long_as(x: Any, n: Any) -> Any:
        return lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + x[s[0]]), (0, jnp.zeros(4))
        )

    assert body_functions(times, X) == ["add", "add"]
    assert body_functions(as_long_as, X, np.int32(3)) == ["add", "add"]


def test_what_a_scan_reads_is_in_the_range_of_all() -> None:
    def f(x: Any, i: Any) -> Any:
        return lax.scan(lambda c, k: (c + x[k], None), jnp.zeros(4), i % 10)[0]

    assert body_functions(f, X, ROWS) == ["add"]


def test_a_carry_that_is_brought_back_is_in_range() -> None:
    def f(x: Any) -> Any:
        def step(k: Any, s: Any) -> Any:
            return (s[0] * 5 + 3) % 10, s[1] + x[s[0]]

        return lax.fori_loop(0, 30, step, (1, jnp.zeros(4)))

    assert "select" not in body_functions(f, X)


@pytest.mark.parametrize(
    ("start", "step", "trip"), [(0, 1, 129), (-1, 1, 3), (5, -1, 7), (0, 100, 3)]
)
def test_dont_count_on_a_counter_that_wraps_or_gets_negative(
    start: int, step: int, trip: int
) -> None:
    def f(x: Any) -> Any:
        def turn(k: Any, s: Any) -> Any:
            return s[0] + jnp.int8(step), s[1] + (s[0] < 0)

        return lax.fori_loop(0, trip, turn, (jnp.int8(start), jnp.zeros((), jnp.int32)))

    assert "lt" in body_functions(f, X)


def test_dont_count_on_a_counter_without_a_bound_that_it_meets() -> None:
    def f(n: Any) -> Any:
        return lax.while_loop(
            lambda s: s[1] < n, lambda s: (s[0] + 1, s[1] + (s[0] < 0) + 1), (0, 0)
        )

    def beyond(n: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 2, s[1] + (s[0] < 0)), (0, 0))

    for program in (f, beyond):  # 2**31 - 2 < n wraps
        assert "lt" in body_functions(program, np.int32(3))


# ---------------------------------------------------------------------------- text in, text out


def of(*lines: str, inputs: str = "%i: i8[3]") -> str:
    return "\n".join([f"graph @f({inputs}) {{", *lines, "}"])


def number(value: int, dtype: str = "i8", at: int = 0) -> tuple[str, str]:
    return f"%{at}: {dtype}[] = const {value}", f"%{at + 1}: {dtype}[3] = fill %{at}"


MASKED = "%0: i8[] = const 3\n%1: i8[3] = fill %0\n%2: i8[3] = map and %i, %1\nreturn %2"
SEVENS = "%0: i8[] = const 7\n%1: i8[3] = fill %0\nreturn %1"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("map max %3, %1", SEVENS),
        ("map min %3, %1", MASKED),
        ("map rem %3, %1", MASKED),
        ("map abs %3", MASKED),
        ("map and %3, %1", MASKED),
        ("map clamp %8, %3, %1", MASKED),
    ],
)
def test_a_bound_that_holds_goes(line: str, left: str) -> None:
    """of what is in [0, 3], with 7"""
    text = of(
        *number(7), *number(3, at=5), *number(0, at=7), "%3: i8[3] = map and %i, %6",
        f"%4: i8[3] = {line}", "return %4",
    )  # fmt: skip
    assert rewritten(STEP, text) == left


@pytest.mark.parametrize(
    "line",
    [
        "map max %i, %1",
        "map min %i, %1",
        "map rem %i, %1",
        "map rem %3, %6",  # [0, 3] by 3
        "map abs %i",
        "map and %3, %8",  # with 5, which is no mask of all low bits
        "map clamp %6, %i, %1",
        "map add %3, %1",
    ],
)
def test_dont_take_a_bound_that_may_not_hold(line: str) -> None:
    text = of(
        *number(7), *number(3, at=5), *number(5, at=7), "%3: i8[3] = map and %i, %6",
        f"%4: i8[3] = {line}", "return %4, %3, %8, %1",
    )  # fmt: skip
    assert unchanged(STEP, text)


def test_a_comparison_that_is_known_is_a_number() -> None:
    text = of(*number(-1), "%2: bool[3] = map lt %i, %1", "return %2", inputs="%i: i8[3]")
    assert unchanged(STEP, text)
    text = of(*number(0, "u8"), "%2: bool[3] = map lt %i, %1", "return %2", inputs="%i: u8[3]")
    assert rewritten(STEP, text) == "%0: bool[] = const false\n%1: bool[3] = fill %0\nreturn %1"


def test_dont_take_a_sum_that_wraps_for_one_that_does_not() -> None:
    """i & 127 is not negative; with 1 more it may be"""
    text = of(
        *number(127), *number(1, at=2), *number(0, at=4), "%6: i8[3] = map and %i, %1",
        "%7: i8[3] = map add %6, %3", "%8: bool[3] = map lt %7, %5", "return %8",
    )  # fmt: skip
    assert unchanged(STEP, text)


@pytest.mark.parametrize(
    ("p", "q"),
    [("lt %i, %1", "ne %i, %j"), ("lt %i, %3", "ne %i, %1"), ("lt %i, %3", "gt %i, %1")],
)
def test_dont_take_a_condition_that_is_not_implied(p: str, q: str) -> None:
    assert unchanged(STEP, both(p, q))


@pytest.mark.parametrize("q", ["ne %i, %1", "le %i, %3", "ge %1, %i"])
def test_a_condition_that_is_implied_goes(q: str) -> None:
    assert "map lt %i, %1\n%5: bool[3] = map" in both("lt %i, %1", q)
    assert rewritten(STEP, both("lt %i, %1", q)).endswith("map lt %i, %1\nreturn %4, %1, %3")


def both(p: str, q: str) -> str:
    return of(
        *number(0), *number(5, at=2), f"%4: bool[3] = map {p}", f"%5: bool[3] = map {q}",
        "%6: bool[3] = map and %4, %5", "return %6, %1, %3", inputs="%i: i8[3], %j: i8[3]",
    )  # fmt: skip


# -------------------------------------------------------------------------------------- gathers


def gather(
    index: list[str], shape: str, *, window: str = "(1, 2)", collapsed: str = "(0)",
    offset: str = "(1)", mode: str = "clip", result: str = "f32[4,2]", start: str = "(0)",
) -> str:  # fmt: skip
    fill = "none" if mode != "fill" else "nan"
    at = len(index)
    return of(
        *index,
        f"%{at}: {result} = gather %x, %{at - 1} collapsed_axes={collapsed} fill_value={fill} "
        f'index_batch_axes=() mode="{mode}" offset_axes={offset} operand_batch_axes=() '
        f"sizes={window} start_axes={start}",
        f"return %{at}",
        inputs=f"%x: f32[{shape}], %s: i32[]",
    )


def test_a_mask_that_stays_says_why() -> None:
    line = ["%0: i32[4,1] = iota axis=0"]
    rules = LocalStep("masks", (indices.gather_in_bounds, indices.scatter_in_bounds))
    assert unchanged(rules, gather(line, "3,2", mode="fill"))
    assert reasons(rules, gather(line, "3,2", mode="fill")) == ["an index may be out of bounds"]
    assert 'mode="clip"' in rewritten(rules, gather(line, "4,2", mode="fill"))


def test_components_are_told_apart() -> None:
    """the second one is beyond what the first one may be"""

    def f(x: Any, i: Any) -> Any:
        return x.at[jnp.minimum(i, 2) & 3, (i & 7) + 2].get(mode="fill")

    def beyond(x: Any, i: Any) -> Any:
        return x.at[(i & 7) + 2, i & 3].get(mode="fill")

    x = np.ones((4, 10), np.float32)
    assert [op.attrs["mode"] for op in ops(f, x, ROWS) if op.kind == "gather"] == ["clip"]
    assert [op.attrs["mode"] for op in ops(beyond, x, ROWS) if op.kind == "gather"] == ["fill"]


def test_switched_off_nothing_is_known() -> None:
    f = jax.tree_util.Partial(lambda x, i: x[jnp.clip(i, 0, 9)])
    assert "select" in functions(ops(f, X, ROWS, off=("known-ranges",)))
