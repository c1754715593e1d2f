"""read-placed, alone: the cases of `tests/acceptance/` that it takes part in, and its guards."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.placed import read_where_placed
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

HERE = "its readers read it where it is placed"
TWICE = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (0)", "%0, %1",
             a0="f32[4]", d0="f32[8]")  # fmt: skip
SUM = part("f32[4] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[4]")
LAST = part("f32[8] = insert_slice %a0 into %d0 at (4)", "%0", a0="f32[4]", d0="f32[8]")
FIRST = part("f32[8] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[4]", d0="f32[8]")

BEFORE = """
graph @f(%x: f32[4], %d: f32[8] donated) {
  %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
  %2: f32[4] = dispatch cumulative %0 : SUM
  return %1, %2
}"""


def changed(before: str, **parts: str) -> tuple[str, list[str]]:
    known = {"TWICE": TWICE, "SUM": SUM, "LAST": LAST, "FIRST": FIRST}
    after, said = rewritten(expanded(before, **(known | parts)), read_where_placed)
    return outline(after), said


def declined(before: str, **parts: str) -> list[str]:
    """What it says of a graph that it leaves as it is."""
    after, said = changed(before, **parts)
    assert after == outline(expanded(before, **dict.fromkeys(_names(before), "")))
    return said


def _names(text: str) -> list[str]:
    return [name for line in text.splitlines() if " : " in line for name in line.split(" : ")[1:]]


def test_a_reader_reads_a_box_of_the_larger_buffer() -> None:
    text = expanded(BEFORE, TWICE=TWICE, SUM=SUM)
    assert rewritten(text, read_where_placed) == (plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [0:4]
            graph @p(%a0: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = map exp %a0
              %1: f32[8] = insert_slice %0 into %d0 at (0)
              return %1
            }
          %1: f32[4] = dispatch cumulative %0
            graph @p(%a0: f32[8]) {
              %0: f32[4] = extract_slice %a0 at (0)
              %1: f32[4] = cumulative add %0 axis=0 reverse=false
              return %1
            }
          return %0, %1
        }"""), [f"+ {HERE}"])  # fmt: skip


def test_a7_what_is_padded_and_read_is_stored_once() -> None:
    """The source of the pad has other uses."""
    padded = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (2)", "%0, %1",
                  a0="f32[4]", d0="f32[8]")  # fmt: skip
    after, said = changed(BEFORE.replace("0:4", "2:6"), TWICE=padded)
    assert after == plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [2:6]
          %1: f32[4] = dispatch cumulative %0
          return %0, %1
        }""")
    assert said == [f"+ {HERE}"]


def test_a12_what_is_placed_is_read_before_and_after_the_next_update() -> None:
    """Use, insert, use: who reads comes before nobody, as its box is not overwritten."""
    after, _ = changed("""
        graph @f(%x: f32[4], %y: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[8] = dispatch copy %y into %1 [4:8] : LAST
          %3: f32[4] = dispatch cumulative %0 : SUM
          return %2, %3
        }""")
    assert after == plain("""
        graph @f(%x: f32[4], %y: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [0:4]
          %1: f32[8] = dispatch copy %y into %0 [4:8]
          %2: f32[4] = dispatch cumulative %0
          return %1, %2
        }""")


def test_a_reader_comes_before_who_overwrites_the_box() -> None:
    after, _ = changed("""
        graph @f(%x: f32[4], %y: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[8] = dispatch copy %y into %1 [0:4] : FIRST
          %3: f32[4] = dispatch cumulative %0 : SUM
          return %2, %3
        }""")
    assert after == plain("""
        graph @f(%x: f32[4], %y: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [0:4]
          %1: f32[4] = dispatch cumulative %0
          %2: f32[8] = after %0, %1
          %3: f32[8] = dispatch copy %y into %2 [0:4]
          return %3, %1
        }""")


@pytest.mark.parametrize("element", ["bool", "i8", "i32", "bf16", "f32"])
@pytest.mark.parametrize("size", [1, 3])
def test_a15_small_elements_and_single_ones(element: str, size: int) -> None:
    small, large = f"{element}[{size}]", f"{element}[{size + 2}]"
    twice = part(f"{small} = reverse %a0 axes=(0)", f"{large} = insert_slice %0 into %d0 at (1)",
                 "%0, %1", a0=small, d0=large)  # fmt: skip
    again = part(f"{small} = reverse %a0 axes=(0)", "%0", a0=small)
    after, said = changed(f"""
        graph @f(%x: {small}, %d: {large} donated) {{
          %0: {small}, %1: {large} = dispatch copy %x into %d [1:{size + 1}] : twice
          %2: {small} = dispatch copy %0 : again
          return %1, %2
        }}""", twice=twice, again=again)  # fmt: skip
    assert said == [f"+ {HERE}"]
    assert f"%1: {small} = dispatch copy %0" in after


def test_a15_what_has_no_elements_is_read_anywhere() -> None:
    twice = part("f32[0] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (4)", "%0, %1",
                 a0="f32[0]", d0="f32[8]")  # fmt: skip
    neg = part("f32[0] = map neg %a0", "%0", a0="f32[0]")
    _, said = changed("""
        graph @f(%x: f32[0], %d: f32[8] donated) {
          %0: f32[0], %1: f32[8] = dispatch map %x into %d [4:4] : twice
          %2: f32[0] = dispatch map %0 : neg
          return %1, %2
        }""", twice=twice, neg=neg)  # fmt: skip
    assert said == [f"+ {HERE}"]


def test_c1_two_destinations_the_reader_reads_the_one_that_lives_longer() -> None:
    both = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (0)",
                "f32[8] = insert_slice %0 into %d1 at (4)", "%0, %1, %2", a0="f32[4]", d0="f32[8]",
                d1="f32[8]")  # fmt: skip
    after, _ = changed("""
        graph @f(%x: f32[4], %y: f32[4], %c: f32[8] donated, %d: f32[8] donated) {
          %0: f32[4], %1: f32[8], %2: f32[8] = dispatch map %x into %c [0:4], %d [4:8] : both
          %3: f32[4] = dispatch cumulative %0 : SUM
          %4: f32[8] = dispatch copy %y into %2 [0:4] : FIRST
          return %1, %4, %3
        }""", both=both)  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[4], %y: f32[4], %c: f32[8] donated, %d: f32[8] donated) {
          %0: f32[8], %1: f32[8] = dispatch map %x into %c [0:4], %d [4:8]
          %2: f32[4] = dispatch cumulative %1
          %3: f32[8] = dispatch copy %y into %1 [0:4]
          return %0, %3, %2
        }""")


def test_c2_each_prefix_is_read_in_the_one_buffer() -> None:
    """x, then what is computed from x beside it: both readers read the latest that they need."""
    grow = part("f32[4] = cumulative add %a0 axis=0 reverse=false",
                "f32[8] = insert_slice %0 into %d0 at (4)", "%0, %1", a0="f32[4]",
                d0="f32[8]")  # fmt: skip
    after, said = changed("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[4], %3: f32[8] = dispatch cumulative %0 into %1 [4:8] : grow
          %4: f32[4] = dispatch cumulative %2 : SUM
          return %3, %4
        }""", grow=grow)  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [0:4]
          %1: f32[8] = dispatch cumulative %0 into %0 [4:8]
          %2: f32[4] = dispatch cumulative %1
          return %1, %2
        }""")
    assert said == [f"+ {HERE}"] * 2


def test_c5_a_batch_is_read_as_a_strided_box() -> None:
    twice = part("f32[2,16] = map exp %a0", "f32[2,32] = insert_slice %0 into %d0 at (0, 16)",
                 "%0, %1", a0="f32[2,16]", d0="f32[2,32]")  # fmt: skip
    sums = part("f32[2,16] = cumulative add %a0 axis=1 reverse=false", "%0", a0="f32[2,16]")
    text = expanded("""
        graph @f(%x: f32[2,16], %d: f32[2,32] donated) {
          %0: f32[2,16], %1: f32[2,32] = dispatch map %x into %d [0:2, 16:32] : twice
          %2: f32[2,16] = dispatch cumulative %0 : sums
          return %1, %2
        }""", twice=twice, sums=sums)  # fmt: skip
    after, _ = rewritten(text, read_where_placed)
    assert "%0: f32[2,16] = extract_slice %a0 at (0, 16)" in after


def test_c7_dont_choose_between_two_places_in_one_buffer() -> None:
    """Reading the first of them is right as long as the second is another box; it says so."""
    both = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (0)",
                "f32[8] = insert_slice %0 into %1 at (4)", "%0, %2", a0="f32[4]",
                d0="f32[8]")  # fmt: skip
    after, _ = changed(BEFORE.replace("[0:4]", "[0:4] [4:8]"), TWICE=both)
    assert after == plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [0:4] [4:8]
          %1: f32[4] = dispatch cumulative %0
          return %0, %1
        }""")
    over = both.replace("at (4)", "at (2)")
    reason = "- it is overwritten before its last reader has run"
    assert reason in declined(BEFORE.replace("[0:4]", "[0:4] [2:6]"), TWICE=over)


def test_c8_dont_read_what_is_overwritten_in_between() -> None:
    """The reader needs what overwrites the box."""
    add = part("f32[4] = extract_slice %a1 at (0)", "f32[4] = map add %a0, %0", "%1", a0="f32[4]",
               a1="f32[8]")  # fmt: skip
    assert declined("""
        graph @f(%x: f32[4], %y: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[8] = dispatch copy %y into %1 [0:4] : FIRST
          %3: f32[4] = dispatch map %0, %2 : add
          return %2, %3
        }""", add=add) == ["- it is overwritten before its last reader has run"]  # fmt: skip


def test_c9_results_that_are_placed_nowhere_stay() -> None:
    more = part("f32[4] = map exp %a0", "f32[4] = map neg %a0",
                "f32[8] = insert_slice %0 into %d0 at (0)", "%1, %0, %2", a0="f32[4]",
                d0="f32[8]")  # fmt: skip
    after, _ = changed("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[4], %2: f32[8] = dispatch map %x into %d [0:4] : more
          %3: f32[4] = dispatch cumulative %1 : SUM
          %4: f32[4] = dispatch cumulative %0 : SUM
          return %2, %3, %4
        }""", more=more)  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4]
          %2: f32[4] = dispatch cumulative %1
          %3: f32[4] = dispatch cumulative %0
          return %1, %2, %3
        }""")


def test_c12_dont_read_a_cast_of_it() -> None:
    cast = part("f32[4] = map exp %a0", "bf16[4] = convert %0",
                "bf16[8] = insert_slice %1 into %d0 at (0)", "%0, %2", a0="f32[4]",
                d0="bf16[8]")  # fmt: skip
    assert declined(BEFORE.replace("f32[8]", "bf16[8]"), TWICE=cast) == []


def test_dont_take_away_what_is_returned() -> None:
    assert declined(BEFORE.replace("return %1, %2", "return %1, %2, %0")) == []


def test_dont_take_away_what_is_updated_or_passed_on() -> None:
    put = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[2]", d0="f32[4]")
    assert declined("""
        graph @f(%x: f32[4], %y: f32[2], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[4] = dispatch copy %y into %0 [0:2] : put
          return %1, %2
        }""", put=put) == []  # fmt: skip
    assert (
        declined("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[4] = optimization_barrier %0
          %3: f32[4] = dispatch cumulative %2 : SUM
          return %1, %3
        }""")
        == []
    )


def test_dont_read_what_a_barrier_passes_on() -> None:
    assert declined("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[8] = optimization_barrier %1
          %3: f32[4] = dispatch cumulative %0 : SUM
          return %2, %3
        }""") == ["- it is overwritten before its last reader has run"]


def test_dont_read_another_shape_of_it() -> None:
    rows = part("f32[2] = cumulative add %0 axis=0 reverse=false", "%1", a0="f32[2,2]")
    rows = rows.replace("  %0:", "  %0: f32[4] = reshape %a0\n  %1:").replace(
        "f32[2] =", "f32[4] ="
    )
    assert declined("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[2,2] = alias %0
          %3: f32[4] = dispatch cumulative %2 : rows
          return %1, %3
        }""", rows=rows) == ["- a reader wants it in memory of its own"]  # fmt: skip


INDEXED = (
    'index_batch_axes=() inserted_axes=(0) mode="fill" operand_batch_axes=() sorted=false'
    " start_axes=(0) unique=false window_axes=()"
)


def test_dont_take_away_what_is_an_update_itself() -> None:
    both = part(f"f32[4] = scatter add %d0, %a0, %a1 {INDEXED}",
                "f32[8] = insert_slice %0 into %d1 at (0)", "%0, %1", a0="i32[2,1]", a1="f32[2]",
                d0="f32[4]", d1="f32[8]")  # fmt: skip
    assert declined("""
        graph @f(%i: i32[2,1], %x: f32[2], %c: f32[4] donated, %d: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch scatter %i, %x into %c ~[0:4], %d [0:4] : both
          %2: f32[4] = dispatch cumulative %0 : SUM
          return %1, %2
        }""", both=both) == []  # fmt: skip


def test_dont_give_a_scatter_a_box() -> None:
    add = part(f"f32[8] = scatter add %d0, %a0, %a1 {INDEXED}", "%0", a0="i32[4,1]", a1="f32[4]",
               d0="f32[8]")  # fmt: skip
    assert declined("""
        graph @f(%x: f32[4], %i: i32[4,1], %d: f32[8] donated, %e: f32[8] donated) {
          %0: f32[4], %1: f32[8] = dispatch map %x into %d [0:4] : TWICE
          %2: f32[8] = dispatch scatter %i, %0 into %e ~[0:8] : add
          return %1, %2
        }""", add=add) == ["- a reader wants it in memory of its own"]  # fmt: skip


def test_dont_look_into_loops() -> None:
    assert declined("""
        graph @f(%c: f32[4] donated, %d: f32[4] donated) {
          %0: f32[4], %1: f32[4] = loop %c, %d carries=2 reverse=false trip=2 xs=0 : body
          return %0, %1
        }""", body=plain("""
        graph @body(%c: f32[4] donated, %d: f32[4] donated) {
          return %c, %d
        }""")) == []  # fmt: skip


@pytest.mark.parametrize("disable", [(), ("host-offsets",)])
def test_dont_read_at_a_place_that_is_known_at_run_time_only(disable: tuple[str, ...]) -> None:
    moved = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (%a1)", "%0, %1",
                 a0="f32[4]", a1="i32[]", d0="f32[8]")  # fmt: skip
    before = BEFORE.replace("%d:", "%i: i32[], %d:").replace("%x into %d [0:4]",
                                                             "%x, %i into %d ~[0:8]")  # fmt: skip
    text = expanded(before, TWICE=moved, SUM=SUM)
    said = ["- where it is placed is known at run time only"]
    assert rewritten(text, read_where_placed, Options(disable=disable)) == (text, said)
