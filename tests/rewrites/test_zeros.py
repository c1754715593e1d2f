"""skip-zeros: contractions say which operand a mask made zero, and which they do not."""

from __future__ import annotations

import pytest

from stagejit.rewrites import zeros
from tests.rewrites.text_in_out import reasons, rewritten

STEP = zeros.STEP


def text(*middle: str, last: str = "%4", contract: str = "contract {}, %v") -> str:
    """A product of what `middle` makes of %2, numbers where a mask of positions holds, and %3."""
    made = contract.format(last)
    lines = "\n".join(middle)
    return f"""graph @f(%x: f32[8,8], %m: bool[8,8], %v: f32[8,4], %s: f32[8]) {{
      %0: i32[8,8] = iota axis=0
      %1: i32[8,8] = iota axis=1
      %2: bool[8,8] = map ge %0, %1
      {lines}
      %9: f32[8,4] = {made} batch=((), ()) contracting=((1), (0))
      return %9
    }}"""


ZERO = ("%c: f32[] = const 0.0", "%z: f32[8,8] = fill %c")
LOW = ("%c: f32[] = const -inf", "%z: f32[8,8] = fill %c")


def marked(source: str) -> str | None:
    line = rewritten(STEP, source).splitlines()[-2]
    return line.rpartition(" zeros=")[2] if "zeros=" in line else None


def test_what_a_mask_of_positions_makes_zero() -> None:
    assert marked(text(*ZERO, "%4: f32[8,8] = map select %2, %x, %z")) == "0"


def test_a_mask_that_was_given() -> None:
    assert marked(text(*ZERO, "%4: f32[8,8] = map select %m, %z, %x")) == "0"


def test_the_softmax_of_what_a_mask_makes_low() -> None:
    source = text(
        *LOW,
        "%5: f32[8,8] = map select %2, %x, %z",
        "%6: f32[8,8] = broadcast %s axes=(0)",
        "%7: f32[8,8] = map sub %5, %6",
        "%8: f32[8,8] = map exp %7",
        "%4: f32[8,8] = map div %8, %6",
    )
    assert marked(source) == "0"


def test_through_views_and_functions_that_keep_zeros() -> None:
    source = text(
        *ZERO,
        "%5: f32[8,8] = map select %2, %x, %z",
        "%6: f32[8,8] = transpose %5 permutation=(1, 0)",
        "%7: f32[8,8] = map neg %6",
        "%4: f32[8,8] = map mul %x, %7",
    )
    assert marked(source) == "0"


def test_on_the_right() -> None:
    source = text(*ZERO, "%4: f32[8,8] = map select %2, %x, %z").replace("f32[8,4]", "f32[8,8]")
    source = source.replace("contract %4, %v", "contract %v, %4")
    assert marked(source) == "1"


def test_dont_look_for_zeros_behind_a_mask_of_floats() -> None:
    source = text(*ZERO, "%5: bool[8,8] = map gt %x, %z", "%4: f32[8,8] = map select %5, %x, %z")
    assert reasons(STEP, source) == ["the mask compares floats, so its zeros may lie anywhere"]


@pytest.mark.parametrize(
    "middle",
    [
        ("%4: f32[8,8] = map exp %x",),  # no mask
        (*LOW, "%4: f32[8,8] = map select %2, %x, %z"),  # low, but no exp of it
        (*ZERO, "%5: f32[8,8] = map select %2, %x, %z", "%4: f32[8,8] = map exp %5"),
        (*ZERO, "%5: f32[8,8] = map select %2, %x, %z", "%4: f32[8,8] = map add %5, %x"),
        (*ZERO, "%5: f32[8,8] = map select %2, %x, %z", "%4: f32[8,8] = map div %x, %5"),
        (*LOW, "%5: f32[8,8] = map select %2, %x, %z", "%6: f32[8,8] = map sub %x, %5",
         "%4: f32[8,8] = map exp %6"),
    ],
)  # fmt: skip
def test_dont_mark_what_no_mask_makes_zero(middle: tuple[str, ...]) -> None:
    assert marked(text(*middle)) is None


def test_dont_mark_integers_and_what_is_marked() -> None:
    whole = text(*ZERO, "%4: f32[8,8] = map select %2, %x, %z")
    assert marked(whole.replace("f32", "i32").replace("0.0", "0")) is None
    known = whole.replace("contracting=((1), (0))", "contracting=((1), (0)) zeros=1")
    assert marked(known) == "1"
