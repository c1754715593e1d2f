"""fuse-pad, alone: its guards, and what barriers and waiting mean for a border."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.pads import fuse_pads
from stagejit.options import Options
from tests.dispatch.rewrites.pads.texts import BEFORE, FILL, PUT, READ, changed, declined, fill, put
from tests.dispatch.rewrites.texts import expanded, part, rewritten


def test_dont_delay_a_fill_that_is_read_or_passed_on() -> None:
    before = BEFORE.replace("  return %1", "  %2: f32[8] = dispatch cumulative %0 : SUM\n"
                            "  %3: f32[8] = after %0, %2\n"
                            "  %4: f32[8] = dispatch map %x into %3 [2:6] : PUT\n"
                            "  return %4, %2")  # fmt: skip
    lines = before.splitlines()
    del lines[3]  # %1
    before = "\n".join(lines)
    for old, new in ((2, 1), (3, 2), (4, 3)):
        before = before.replace(f"%{old}", f"%{new}")
    assert declined(before) == [READ]
    before = """
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:4] : filled
          %1: f32[8] = optimization_barrier %0
          %2: f32[8] = dispatch map %x into %1 [2:6] : PUT
          return %2
        }"""
    filled = fill("f32[8]", "4", "0")
    assert declined(before, filled=filled) == ["- no dispatch places anything in it"]
    assert declined("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:4] : filled
          %1: f32[8] = optimization_barrier %0
          %2: f32[8] = dispatch cumulative %1 : SUM
          %3: f32[8] = after %0, %2
          %4: f32[8] = dispatch map %x into %3 [2:6] : PUT
          return %4, %2
        }""", filled=filled) == [READ]  # fmt: skip


def test_dont_move_what_is_no_fill() -> None:
    more = part("f32[] = const 1.0", "f32[8] = fill %0", "f32[8] = map exp %1", "%2")
    assert declined(BEFORE.replace("dispatch fill", "dispatch map"), FILL=more) == []
    two = part("f32[] = const 1.0", "f32[8] = fill %0", "f32[8] = fill %0", "%1, %2")
    before = """
        graph @f(%x: f32[4]) {
          %0: f32[8], %1: f32[8] = dispatch fill : two
          %2: f32[8] = dispatch map %x into %0 [2:6] : PUT
          return %2, %1
        }"""
    assert declined(before, two=two) == []
    total = part("f32[] = reduce add %a0 axes=(0)", "f32[8] = fill %0", "%1", a0="f32[4]")
    assert declined(BEFORE.replace("dispatch fill", "dispatch reduce %x"), FILL=total) == []


def test_dont_move_what_fills_more_than_one_box() -> None:
    before = """
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:3] [5:8] : two
          %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
          return %1
        }"""
    two = part("f32[] = const 1.0", "f32[3] = fill %0", "f32[8] = insert_slice %1 into %d0 at (0)",
               "f32[8] = insert_slice %1 into %2 at (5)", "%3", d0="f32[8]")  # fmt: skip
    assert declined(before, two=two) == []
    inner, border = fill("f32[8]", "6", "2"), fill("f32[8]", "2", "0").replace("@p", "@border")
    before = before.replace("[0:3] [5:8] : two", "[2:8] [0:2] : two")
    assert declined(before, two=f"{inner}\n{border}") == []


def test_dont_fill_with_what_is_overwritten_before() -> None:
    filled = part("f32[8] = fill %a0", "%0", a0="f32[]")
    reason = "- what it is filled with is overwritten before anything is placed"
    change = part("f32[] = const 3.0", "f32[] = insert_slice %0 into %d0 at ()", "%1", d0="f32[]")
    placed = part("f32[4] = fill %a1", "f32[4] = map add %a0, %0",
                  "f32[8] = insert_slice %1 into %d0 at (2)", "%2", a0="f32[4]", a1="f32[]",
                  d0="f32[8]")  # fmt: skip
    assert declined("""
        graph @f(%x: f32[4], %v: f32[] donated) {
          %0: f32[8] = dispatch fill %v : filled
          %1: f32[] = after %v, %0
          %2: f32[] = dispatch fill into %1 [] : change
          %3: f32[8] = dispatch map %x, %2 into %0 [2:6] : placed
          return %3, %2
        }""", filled=filled, change=change, placed=placed) == [reason]  # fmt: skip


def test_dont_delay_a_fill_that_its_overwriter_comes_after() -> None:
    before = """
        graph @f(%x: f32[4] donated, %v: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:8] : filled
          %1: f32[4] = after %x, %0
          %2: f32[4] = dispatch copy %v into %1 [0:4] : copied
          %3: f32[8] = dispatch map %2 into %0 [2:6] : PUT
          return %3, %2
        }"""
    copied = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[4]", d0="f32[4]")
    assert declined(before, copied=copied, filled=fill("f32[8]", "8", "0")) == [
        "- what it is filled with is overwritten before anything is placed"
    ]


def test_dont_fill_with_what_a_barrier_passes_on() -> None:
    assert declined("""
        graph @f(%x: f32[4], %y: f32[]) {
          %0: f32[] = dispatch map %y : exp
          %1: f32[8] = dispatch fill %0 : filled
          %2: f32[] = optimization_barrier %0
          %3: f32[8] = dispatch map %x into %1 [2:6] : PUT
          return %3, %2
        }""", exp=part("f32[] = map exp %a0", "%0", a0="f32[]"),
        filled=part("f32[8] = fill %a0", "%0", a0="f32[]")) == [
        "- what it is filled with is overwritten before anything is placed"]  # fmt: skip


def test_what_is_placed_behind_a_barrier_is_in_the_border() -> None:
    after, _ = changed("""
        graph @f(%x: f32[4], %y: f32[2], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:8] : filled
          %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
          %2: f32[8] = optimization_barrier %1
          %3: f32[8] = dispatch cumulative %2 : SUM
          %4: f32[8] = after %1, %3
          %5: f32[8] = dispatch map %y into %4 [6:8] : last
          return %5, %3
        }""", filled=fill("f32[8]", "8", "0"), last=put("f32[2]", "f32[8]", "6"))  # fmt: skip
    assert "dispatch map %x into %d [2:6] [0:2] [6:8]" in after


@pytest.mark.parametrize("disable", [(), ("host-offsets",)])
def test_what_is_placed_somewhere_is_in_the_border(disable: tuple[str, ...]) -> None:
    somewhere = part("f32[2] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (%a1)", "%1",
                     a0="f32[2]", a1="i32[]", d0="f32[8]")  # fmt: skip
    before = expanded("""
        graph @f(%x: f32[4], %y: f32[2], %i: i32[]) {
          %0: f32[8] = dispatch fill : FILL
          %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
          %2: f32[8] = dispatch map %y, %i into %1 ~[0:8] : somewhere
          return %2
        }""", FILL=FILL, PUT=PUT, somewhere=somewhere)  # fmt: skip
    after, _ = rewritten(before, fuse_pads, Options(disable=disable))
    assert "dispatch map %x into %0 [2:6] [0:2] [6:8]" in after


def test_dont_compare_places_of_any_size() -> None:
    """Of how much of the box of %x that of %y overwrites, nothing is known."""
    assert declined("""
        graph @f(%x: f32[n], %y: f32[4]) {
          %0: f32[n+8] = dispatch fill : filled
          %1: f32[n+8] = dispatch map %x into %0 [2:n+2] : first
          %2: f32[n+8] = dispatch map %y into %1 [0:4] : second
          return %2
        }""", filled=part("f32[] = const 1.0", "f32[n+8] = fill %0", "%1"),
        first=put("f32[n]", "f32[n+8]", "2"), second=put("f32[4]", "f32[n+8]", "0")
        ) == ["- whether n+1 > 3 depends on the sizes"]  # fmt: skip


def test_dont_fill_with_what_who_places_waits_for_a_change_of() -> None:
    """%4 comes after the fill because it waits for %2, which reads elsewhere in the buffer."""
    reason = "- what it is filled with is overwritten before anything is placed"
    assert declined(
        """
        graph @f(%z: f32[] donated, %v: f32[], %x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill %z into %d [0:6] : filled
          %1: f32[2] = dispatch copy %0 : read
          %2: f32[] = after %z, %1
          %3: f32[] = dispatch copy %v into %2 [] : change
          %4: f32[8] = dispatch map %x, %3 into %0 [2:6] : placed
          return %4, %3, %1
        }""",
        filled=part("f32[6] = fill %a0", "f32[8] = insert_slice %0 into %d0 at (0)", "%1",
                    a0="f32[]", d0="f32[8]"),
        read=part("f32[2] = extract_slice %a0 at (6)", "%0", a0="f32[8]"),
        change=part("f32[] = insert_slice %a0 into %d0 at ()", "%0", a0="f32[]", d0="f32[]"),
        placed=part("f32[4] = fill %a1", "f32[4] = map add %a0, %0",
                    "f32[8] = insert_slice %1 into %d0 at (2)", "%2", a0="f32[4]", a1="f32[]",
                    d0="f32[8]"),
    ) == [reason]  # fmt: skip


def test_who_waits_for_a_fill_waits_for_the_border() -> None:
    """%3 may overwrite %z when %0 has read it, which the fill waits for."""
    after, _ = changed(
        """
        graph @f(%z: f32[] donated, %v: f32[], %x: f32[4], %d: f32[8] donated) {
          %0: f32[] = dispatch map %z : exp
          %1: f32[8] = dispatch fill %0 into %d [0:8] : filled
          %2: f32[] = after %z, %1
          %3: f32[] = dispatch copy %v into %2 [] : change
          %4: f32[8] = dispatch map %x into %1 [2:6] : PUT
          return %4, %3
        }""",
        exp=part("f32[] = map exp %a0", "%0", a0="f32[]"),
        filled=part("f32[8] = fill %a0", "f32[8] = insert_slice %0 into %d0 at (0)", "%1",
                    a0="f32[]", d0="f32[8]"),
        change=part("f32[] = insert_slice %a0 into %d0 at ()", "%0", a0="f32[]", d0="f32[]"),
    )  # fmt: skip
    assert "%2: f32[] = after %z, %1" in after
