"""elide-copy, alone: arguments that are returned as they are."""

from __future__ import annotations

import pytest

from tests.dispatch.rewrites.copies.texts import COPY, changed, declined
from tests.dispatch.rewrites.texts import part, plain

THERE = "+ it is returned in the donated argument that it is"
SAME = part("f32[4] = reshape %a0", "%0", a0="f32[4]")


@pytest.mark.parametrize("same", [COPY, SAME])
def test_a_donated_argument_is_returned_where_it_is(same: str) -> None:
    after, said = changed(
        """
        graph @f(%x: f32[4] donated) {
          %0: f32[4] = dispatch map %x : EXP
          %1: f32[4] = dispatch copy %x : SAME
          return %1, %0
        }""",
        SAME=same,
    )
    assert after == plain("""
        graph @f(%x: f32[4] donated) {
          %0: f32[4] = dispatch map %x
          return %x, %0
        }""")
    assert said == [THERE]


def test_a_donated_argument_is_returned_where_it_is_beside_others() -> None:
    both = part("f32[4] = map exp %a0", "%0, %a0", a0="f32[4]")
    after, said = changed(
        """
        graph @f(%x: f32[4] donated) {
          %0: f32[4], %1: f32[4] = dispatch map %x : BOTH
          return %1, %0
        }""",
        BOTH=both,
    )
    assert after == plain("""
        graph @f(%x: f32[4] donated) {
          %0: f32[4] = dispatch map %x
          return %x, %0
        }""")
    assert said == [THERE]


@pytest.mark.parametrize(
    ("given", "returned"),
    [("", "%1, %0"), (" donated", "%0, %1")],  # the other result is to lie in it
)
def test_dont_return_an_argument_where_another_result_or_nothing_may_lie(
    given: str, returned: str
) -> None:
    said = declined(f"""
        graph @f(%x: f32[4]{given}) {{
          %0: f32[4] = dispatch map %x : EXP
          %1: f32[4] = dispatch copy %x : COPY
          return {returned}
        }}""")
    assert said == []


def test_dont_return_an_argument_that_is_overwritten() -> None:
    said = declined("""
        graph @f(%x: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x : COPY
          %1: f32[4] = after %x, %0
          %2: f32[4] = dispatch copy %v into %1 [0:2] : FIRST
          %3: f32[4] = dispatch map %2 : EXP
          return %0, %3
        }""")
    assert said == []


def test_dont_return_an_argument_that_a_barrier_passes_on() -> None:
    said = declined("""
        graph @f(%x: f32[4] donated) {
          %0: f32[4] = optimization_barrier %x
          %1: f32[4] = dispatch copy %x : COPY
          %2: f32[4] = dispatch map %0 : EXP
          return %1, %2
        }""")
    assert said == []
