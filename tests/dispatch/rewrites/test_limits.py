"""limit-operands: no dispatch touches more buffers than one op needs or the limit allows."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.dispatch.operands import verify_operands
from stagejit.dispatch.rewrites.limits import limit_operands
from stagejit.errors import VerificationError
from stagejit.options import SWITCHES, Options
from stagejit.schedule.plans.plan import Plan
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten
from tests.schedule.planning import check, checked_dispatches, plan_of, prepared, regions_in
from tests.strategies import RandomProgram, programs

Fn = Callable[..., Any]


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def touched(plan: Plan) -> list[int]:
    return [len({a.buffer for a in (*d.reads, *d.writes)}) for d in plan.dispatches]


def reasons(plan: Plan, applied: bool = False) -> list[str]:
    found = (d for d in plan.decisions if d.rewrite == "limit-operands")
    return [d.reason for d in found if d.applied == applied]


def limited(text: str, limit: int) -> tuple[str, list[str]]:
    """The graph of dispatches after this rewrite alone, and what it says of it."""
    return rewritten(text, limit_operands, Options(operand_limit=limit))


# --------------------------------------------------------------- text to text

SUM = """
    graph @f(%a: f32[4], %b: f32[4], %c: f32[4], %d: f32[4]) {
      %0: f32[4] = dispatch map %a, %b, %c, %d
        graph @map(%a0: f32[4], %a1: f32[4], %a2: f32[4], %a3: f32[4]) {
          %0: f32[4] = map add %a0, %a1
          %1: f32[4] = map mul %0, %a2
          %2: f32[4] = map sub %1, %a3
          return %2
        }
      return %0
    }"""


def test_a_dispatch_becomes_two_that_hand_a_value_on() -> None:
    text, said = limited(SUM, 4)
    assert text == plain("""
        graph @f(%a: f32[4], %b: f32[4], %c: f32[4], %d: f32[4]) {
          %0: f32[4] = dispatch map %a, %b, %c
            graph @map(%a0: f32[4], %a1: f32[4], %a2: f32[4]) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[4] = map mul %0, %a2
              return %1
            }
          %1: f32[4] = dispatch map %d, %0
            graph @map(%a0: f32[4], %a1: f32[4]) {
              %0: f32[4] = map sub %a1, %a0
              return %0
            }
          return %1
        }""")
    assert said == ["+ it takes 5 buffers, more than the 4 that one dispatch may have"]


def test_boxes_of_one_destination_are_written_one_after_the_other() -> None:
    text, _ = limited(
        """
        graph @f(%a: f32[4], %b: f32[4], %c: f32[4], %d: f32[4]) {
          %0: f32[8] = empty
          %1: f32[8] = dispatch map %a, %b, %c, %d into %0 [0:4] [4:8]
            graph @map(%a0: f32[4], %a1: f32[4], %a2: f32[4], %a3: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[4] = map mul %a2, %a3
              %2: f32[8] = insert_slice %0 into %d0 at (0)
              %3: f32[8] = insert_slice %1 into %2 at (4)
              return %3
            }
          return %1
        }""",
        3,
    )
    assert text == plain("""
        graph @f(%a: f32[4], %b: f32[4], %c: f32[4], %d: f32[4]) {
          %0: f32[8] = empty
          %1: f32[8] = dispatch map %a, %b into %0 [0:4]
            graph @map(%a0: f32[4], %a1: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[8] = insert_slice %0 into %d0 at (0)
              return %1
            }
          %2: f32[8] = dispatch map %c, %d into %1 [4:8]
            graph @map(%a0: f32[4], %a1: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = map mul %a0, %a1
              %1: f32[8] = insert_slice %0 into %d0 at (4)
              return %1
            }
          return %2
        }""")


def test_dont_take_apart_what_reads_what_it_overwrites() -> None:
    text = plain("""
        graph @f(%d: f32[8] donated, %a: f32[4], %b: f32[4]) {
          %0: f32[8], %1: f32[4] = dispatch map %d, %a, %b into %d [0:4]
            graph @map(%a0: f32[8], %a1: f32[4], %a2: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = extract_slice %a0 at (0)
              %1: f32[4] = map add %0, %a1
              %2: f32[4] = map mul %0, %a2
              %3: f32[8] = insert_slice %1 into %d0 at (0)
              return %3, %2
            }
          return %0, %1
        }""")
    assert limited(text, 3) == (text, ["- somebody overwrites what others read"])


def test_dont_take_apart_what_others_have_their_order_from() -> None:
    """Who reads %d comes before who overwrites it, for one makes what the dispatch reads, and the
    other one reads what it makes."""
    text = expanded(
        """
        graph @f(%d: f32[4] donated, %a: f32[4], %b: f32[4], %c: f32[4]) {
          %0: f32[4] = dispatch map %d : exp
          %1: f32[4], %2: f32[4] = dispatch map %0, %a, %b, %c : both
          %3: f32[4] = dispatch copy %2 into %d [0:2] : put
          return %1, %3
        }""", exp=part("f32[4] = map exp %a0", "%0", a0="f32[4]"),
        both=part("f32[4] = map add %a0, %a1", "f32[4] = map mul %a2, %a3", "%0, %1",
                  a0="f32[4]", a1="f32[4]", a2="f32[4]", a3="f32[4]"),
        put=part("f32[2] = extract_slice %a0 at (1)", "f32[4] = insert_slice %0 into %d0 at (0)",
                 "%1", a0="f32[4]", d0="f32[4]"))  # fmt: skip
    assert limited(text, 3) == (text, ["- somebody overwrites what others read"])


def test_a_result_counts_as_often_as_it_will_be_placed() -> None:
    text, _ = limited(
        expanded(
            """
            graph @f(%a: f32[2], %d: f32[4] donated, %e: f32[4] donated) {
              %0: f32[2], %1: f32[2] = dispatch map %a : both
              %2: f32[4] = dispatch copy %0 into %d [0:2] : put
              %3: f32[4] = dispatch copy %0 into %e [0:2] : put
              return %1, %2, %3
            }""", put=part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[2]",
                           d0="f32[4]"),
            both=part("f32[2] = map neg %a0", "f32[2] = map abs %a0", "%0, %1", a0="f32[2]")),
        3)  # fmt: skip
    assert outline(text).splitlines()[1:3] == [
        "  %0: f32[2] = dispatch map %a",
        "  %1: f32[2] = dispatch map %a",
    ]


def test_a_box_in_a_box_at_an_offset_that_is_read() -> None:
    text, _ = limited(
        """
        graph @f(%a: f32[2], %b: f32[2], %c: f32[2], %i: i32[]) {
          %0: f32[9] = empty
          %1: f32[9], %2: f32[2] = dispatch map %a, %b, %c, %i into %0 ~[0:9]
            graph @map(%a0: f32[2], %a1: f32[2], %a2: f32[2], %a3: i32[], %d0: f32[9] donated) {
              %0: f32[2] = map add %a0, %a1
              %1: f32[2] = map mul %0, %a2
              %2: f32[4] = extract_slice %d0 at (%a3)
              %3: f32[4] = insert_slice %1 into %2 at (1)
              %4: f32[9] = insert_slice %3 into %d0 at (%a3)
              return %4, %0
            }
          return %1, %2
        }""",
        4,
    )
    assert text == plain("""
        graph @f(%a: f32[2], %b: f32[2], %c: f32[2], %i: i32[]) {
          %0: f32[9] = empty
          %1: f32[2] = dispatch map %a, %b
            graph @map(%a0: f32[2], %a1: f32[2]) {
              %0: f32[2] = map add %a0, %a1
              return %0
            }
          %2: f32[9] = dispatch map %c, %i, %1 into %0 ~[0:9]
            graph @map(%a0: f32[2], %a1: i32[], %a2: f32[2], %d0: f32[9] donated) {
              %0: f32[2] = map mul %a2, %a0
              %1: f32[4] = extract_slice %d0 at (%a1)
              %2: f32[4] = insert_slice %0 into %1 at (1)
              %3: f32[9] = insert_slice %2 into %d0 at (%a1)
              return %3
            }
          return %2, %1
        }""")


def test_dont_touch_what_is_within_the_limit() -> None:
    assert limited(SUM, 5) == (plain(SUM), [])


def test_dont_take_apart_what_one_op_needs() -> None:
    text = plain("""
        graph @f(%p: bool[4], %x: f32[4], %y: f32[4]) {
          %0: f32[4] = dispatch map %p, %x, %y
            graph @map(%a0: bool[4], %a1: f32[4], %a2: f32[4]) {
              %0: f32[4] = map select %a0, %a1, %a2
              return %0
            }
          return %0
        }""")
    assert limited(text, 3) == (
        text,
        ["- map alone takes 4 operands, more than the limit of 3"],
    )


SCATTER = """
    graph @f(%d: f32[4] donated, %i: i32[2,1], %x: f32[2], %y: f32[2]) {
      %0: f32[4] = dispatch scatter %i, %x, %y into %d ~[0:4]
        graph @scatter(%a0: i32[2,1], %a1: f32[2], %a2: f32[2], %d0: f32[4] donated) {
          %0: f32[2] = map mul %a1, %a2
          %1: f32[4] = scatter add %d0, %a0, %0 index_batch_axes=() inserted_axes=(0) \
mode="fill" operand_batch_axes=() sorted=false start_axes=(0) unique=false window_axes=()
          return %1
        }
      return %0
    }"""


def test_what_a_scatter_reads_is_stored() -> None:
    text, said = limited(SCATTER, 3)
    assert text == plain("""
        graph @f(%d: f32[4] donated, %i: i32[2,1], %x: f32[2], %y: f32[2]) {
          %0: f32[2] = dispatch map %x, %y
            graph @map(%a0: f32[2], %a1: f32[2]) {
              %0: f32[2] = map mul %a0, %a1
              return %0
            }
          %1: f32[4] = dispatch scatter %i, %0 into %d ~[0:4]
            graph @scatter(%a0: i32[2,1], %a1: f32[2], %d0: f32[4] donated) {
              %0: f32[4] = scatter add %d0, %a0, %a1 index_batch_axes=() inserted_axes=(0) \
mode="fill" operand_batch_axes=() sorted=false start_axes=(0) unique=false window_axes=()
              return %0
            }
          return %1
        }""")
    assert said == ["+ it takes 4 buffers, more than the 3 that one dispatch may have"]


def test_dont_take_apart_a_scatter_itself() -> None:
    text, _ = limited(SCATTER, 3)
    again, said = limited(text, 2)
    assert again == text
    assert said == [
        "- map alone takes 3 operands, more than the limit of 2",
        "- scatter alone takes 3 operands, more than the limit of 2",
    ]


def test_dont_take_apart_what_writes_a_border() -> None:
    text = plain("""
        graph @f(%a: f32[4], %b: f32[4], %c: f32[4]) {
          %0: f32[6] = empty
          %1: f32[6] = dispatch map %a, %b, %c into %0 [1:5] [0:1] [5:6]
            graph @map(%a0: f32[4], %a1: f32[4], %a2: f32[4], %d0: f32[6] donated) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[4] = map mul %0, %a2
              %2: f32[6] = insert_slice %1 into %d0 at (1)
              return %2
            }
            graph @border(%a0: f32[4], %a1: f32[4], %a2: f32[4], %d0: f32[6] donated) {
              %0: f32[] = const 0.0
              %1: f32[1] = fill %0
              %2: f32[6] = insert_slice %1 into %d0 at (0)
              return %2
            }
            graph @border(%a0: f32[4], %a1: f32[4], %a2: f32[4], %d0: f32[6] donated) {
              %0: f32[] = const 0.0
              %1: f32[1] = fill %0
              %2: f32[6] = insert_slice %1 into %d0 at (5)
              return %2
            }
          return %1
        }""")
    assert limited(text, 3) == (text, ["- a border is written beside what it computes"])


@pytest.mark.parametrize("first", ["cumulative", "exp"])
def test_dont_keep_a_value_beside_what_computes_it_in_another_order(first: str) -> None:
    """The sum is stored before what is made of it, and what it is made of before it."""
    sums = "f32[4] = cumulative add {} axis=0 reverse=false"
    if first == "exp":
        both = part("f32[4] = map exp %a0", sums.format("%0"), "f32[4] = map mul %0, %a1",
                    "f32[4] = map mul %1, %a2", "%2, %3", a0="f32[4]", a1="f32[4]",
                    a2="f32[4]")  # fmt: skip
    else:
        both = part(sums.format("%a0"), "f32[4] = map exp %0", "f32[4] = map mul %1, %a1",
                    "f32[4] = map mul %1, %a2", "%2, %3", a0="f32[4]", a1="f32[4]",
                    a2="f32[4]")  # fmt: skip
    text, _ = limited(
        expanded("""
            graph @f(%a: f32[4], %c: f32[4], %d: f32[4]) {
              %0: f32[4], %1: f32[4] = dispatch cumulative %a, %c, %d : both
              return %0, %1
            }""", both=both), 4)  # fmt: skip
    assert (
        outline(text).splitlines()[1:-2]
        == {
            "exp": [
                "  %0: f32[4], %1: f32[4] = dispatch map %a, %c",
                "  %2: f32[4] = dispatch cumulative %d, %0",
            ],
            "cumulative": [
                "  %0: f32[4] = dispatch cumulative %a",
                "  %1: f32[4], %2: f32[4] = dispatch map %c, %0",
                "  %3: f32[4] = dispatch map %d, %1",
            ],
        }[first]
    )


def test_dont_keep_a_value_beside_those_of_another_shape() -> None:
    both = part("f32[4] = map exp %a0", "f32[2,4] = broadcast %0 axes=(1)",
                "f32[2,4] = map mul %1, %a1", "f32[2,4] = map mul %1, %a2", "%2, %3", a0="f32[4]",
                a1="f32[2,4]", a2="f32[2,4]")  # fmt: skip
    text, _ = limited(
        expanded("""
            graph @f(%a: f32[4], %c: f32[2,4], %d: f32[2,4]) {
              %0: f32[2,4], %1: f32[2,4] = dispatch map %a, %c, %d : both
              return %0, %1
            }""", both=both), 4)  # fmt: skip
    assert outline(text).splitlines()[1] == "  %0: f32[4] = dispatch map %a"


# ------------------------------------------------------------------ programs


def total(*args: Any) -> Any:
    return reduce(jnp.add, args)


def epilogues(a: Any, b: Any, c: Any) -> Any:
    y = a @ b
    return [jnp.sqrt(jnp.abs(y) + n) * c[n] for n in range(12)]


def neighbours(a: Any) -> Any:
    return [jnp.exp(a) * n + n for n in range(2, 22)]


def rows(a: Any) -> Any:
    return [jnp.exp(a - n).max(1) for n in range(20)]


def softmaxes(a: Any, scales: Any) -> Any:
    e = jnp.exp(a - a.max(1, keepdims=True))
    return [e * s / e.sum(1, keepdims=True) for s in scales]


def prologue(a: Any, parts: Any) -> Any:
    return a @ total(*parts)


def updated(d: Any, a: Any, b: Any) -> Any:
    old = d[0:4]
    return [d.at[0:4].set(old * 2 + a), old + b, old - b, old * b, old * a]


PROGRAMS: dict[str, tuple[Fn, tuple[Any, ...]]] = {
    "sum": (total, tuple(f32(4, 8, seed=n) for n in range(40))),
    "epilogues": (epilogues, (f32(8, 8), f32(8, 16), f32(12, 8, 16))),
    "neighbours": (neighbours, (f32(4, 8),)),
    "rows": (rows, (f32(4, 8),)),
    "softmaxes": (softmaxes, (f32(16, 8), f32(18))),
    "prologue": (prologue, (f32(4, 8), [f32(8, 16, seed=n) for n in range(20)])),
    "updated": (updated, (f32(8, 4), f32(4, 4), f32(4, 4, seed=1))),
    "starts": (
        lambda d, a, i, j: lax.dynamic_update_slice(d, jnp.exp(a) + a, (i + j, i * j)),
        (f32(8, 8), f32(2, 2), np.int32(3), np.int32(1)),
    ),
    "interp": (jnp.interp, (f32(7), np.arange(17, dtype=np.float32), f32(17))),
    "scatter": (
        lambda d, i, *parts: d.at[i].add(total(*parts)),
        (f32(8, 4), np.array([1, 5]), *(f32(2, 4, seed=n) for n in range(18))),
    ),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 16, 20])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bound_holds_and_values_stay(name: str, limit: int) -> None:
    fn, args = PROGRAMS[name]
    plan = check(fn, *args, options=Options(operand_limit=limit))  # verifies the bound
    assert max(touched(plan)) <= max(limit, 5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_updates_in_place(name: str) -> None:
    fn, args = PROGRAMS[name]
    donated = [True] * len(check_leaves(args))
    for limit in (2, 3, 5):
        check(fn, *args, donated=donated, options=Options(operand_limit=limit))


def check_leaves(args: Any) -> list[Any]:
    return list(itertools.chain(*(x if isinstance(x, list) else [x] for x in args)))


def test_a_sum_of_many_is_a_chain_of_full_dispatches() -> None:
    fn, args = PROGRAMS["sum"]
    plan = plan_of(fn, *args)
    assert touched(plan) == [16, 16, 13]
    assert reasons(plan, True) == [
        "it takes 41 buffers, more than the 16 that one dispatch may have"
    ]


def test_epilogues_are_placed_as_far_as_they_fit() -> None:
    fn, args = PROGRAMS["epilogues"]
    plan = plan_of(fn, *args, options=Options(operand_limit=8))
    product = next(d for d in plan.dispatches if d.kind == "contract")
    assert len(product.writes) == 5  # three operands; the product itself and four results
    assert [d.kind for d in plan.dispatches].count("contract") == 1
    assert reasons(plan, True) == [
        "it takes 15 buffers, more than the 8 that one dispatch may have"
    ]
    assert len(plan_of(fn, *args).dispatches) == 1  # 3 + 12 + 0


def test_a_transcendental_is_evaluated_once() -> None:
    made = regions_in(neighbours, f32(4, 8), options=Options(operand_limit=6))
    assert len(made) > 1
    exps = [region for region in made if any(op.attrs.get("fn") == "exp" for op in region.ops)]
    assert len(exps) == 1


def test_who_evaluates_an_op_is_said_of_the_pieces() -> None:
    def fn(a: Any, b: Any) -> Any:
        shared = b + 1
        return [jnp.sin(a * 2), *(shared * n for n in range(2, 40)), jnp.cos(b)]

    plan = plan_of(fn, f32(4), f32(4), options=Options(operand_limit=3))
    inside = {
        d.reason for d in plan.decisions if d.rewrite == "fuse-producers" and "inside" in d.reason
    }
    assert "evaluated inside @map.0" in inside
    assert any(reason.endswith(" others") for reason in inside)
    assert all(reason.count("@") <= 8 for reason in inside)


def test_what_one_op_needs_is_said() -> None:
    plan = plan_of(lambda p, x, y: jnp.where(p, x, y), *(f32(3) > 0, f32(3), f32(3)),
                   options=Options(operand_limit=3))  # fmt: skip
    assert touched(plan) == [4]
    assert reasons(plan) == ["map alone takes 4 operands, more than the limit of 3"]


def test_what_a_loop_needs_is_said() -> None:
    def fn(*args: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: tuple(x * 2 for x in c), args)

    plan = check(fn, *(f32(3, seed=n) for n in range(6)), options=Options(operand_limit=4))
    assert reasons(plan) == ["loop alone takes 6 operands, more than the limit of 4"]


def test_a_border_whose_value_is_read_counts() -> None:
    def fn(a: Any, b: Any, v: Any) -> Any:
        return lax.pad(a * b, v, [(1, 1, 0), (1, 1, 0)])

    args = (f32(4, 4), f32(4, 4), np.float32(2))
    assert len(check(fn, *args).dispatches) == 1
    plan = check(fn, *args, options=Options(operand_limit=3))
    (refused,) = [d for d in plan.decisions if d.rewrite == "fuse-pad"]
    assert refused.reason == "the producer has the 3 operands that one dispatch may have"


def test_the_verifier_refuses_more() -> None:
    fn, args = PROGRAMS["sum"]
    made, _ = checked_dispatches(prepared(fn, args, (), Options()), Options())
    verify_operands(made, 16)
    with pytest.raises(VerificationError, match="over the operand limit"):
        verify_operands(made, 15)


def test_the_verifier_looks_into_loops() -> None:
    def fn(x: Any, *parts: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: jnp.sin(total(c, *parts)), x)

    args = [f32(4, seed=n) for n in range(8)]
    made, _ = checked_dispatches(prepared(fn, args, (), Options()), Options())
    with pytest.raises(VerificationError, match="over the operand limit"):
        verify_operands(made, 5)
    plan = check(fn, *args, options=Options(operand_limit=5))
    assert reasons(plan, True)


def shared_parts(seed: int) -> Fn:
    """Choices between, and sums of, values that others read, too."""

    def fn(*values: Any) -> Any:
        draw, made = random.Random(seed), list(values)
        for _ in range(draw.randrange(8, 20)):
            a, b, c = (draw.choice(made[-8:]) for _ in range(3))
            made.append(draw.choice([jnp.where(a > b, b, c), a + b * c, jnp.maximum(a, c)]))
        return made[-1], draw.choice(made)

    return fn


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_what_is_kept_for_one_counts_for_others(limit: int) -> None:
    options = Options(operand_limit=limit)
    values = [f32(4, seed=n) for n in range(5)]
    for seed in range(60):
        checked_dispatches(prepared(shared_parts(seed), values, (), options), options)


@pytest.mark.fuzz
@given(
    program=programs(max_steps=12),
    limit=st.integers(1, 20),
    data=st.data(),
    disabled=st.sets(st.sampled_from(sorted(SWITCHES)), max_size=2),
)
def test_random_programs_within_any_limit(
    program: RandomProgram, limit: int, data: Any, disabled: set[str]
) -> None:
    count = len(program.args)
    donated = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    options = Options(operand_limit=limit, disable=tuple(disabled))
    plan = check(program.fn, *program.args, donated=donated, options=options)
    again = plan_of(program.fn, *program.args, donated=donated, options=options)
    assert again.as_text() == plan.as_text()


SAME_TEXT = """
from tests.dispatch.rewrites.test_limits import PROGRAMS
from tests.dispatch.rewrites.texts import plain, rewritten
from tests.schedule.planning import plan_of
from stagejit.options import Options
for fn, args in PROGRAMS.values():
    plan = plan_of(fn, *args, options=Options(operand_limit=4))
    print(plan.as_text(), *plan.decisions, sep="\\n")
"""


def test_other_processes_make_the_same_plans() -> None:
    """Strings hash differently there, so sets are walked in another order."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", SAME_TEXT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
