"""fuse-insert, alone: a buffer that is assembled is placed in another one, or why not."""

from __future__ import annotations

import pytest

from tests.dispatch.rewrites.inserts.texts import DEPENDS, IN_PLACE, PLACED, changed, declined
from tests.dispatch.rewrites.texts import part, plain

ASSEMBLED = """
    graph @f(%x: f32[2], %d: f32[8] donated) {
      %0: f32[4] = empty
      %1: f32[4] = dispatch map %x into %0 [0:2] : low
      %2: f32[4] = dispatch cumulative %x into %1 [2:4] : mid
      %3: f32[8] = dispatch copy %2 into %d [1:5] : place
      return %3
    }"""
WRITERS = {
    "low": part("f32[2] = map exp %a0", "f32[4] = insert_slice %0 into %d0 at (0)", "%1",
                a0="f32[2]", d0="f32[4]"),
    "mid": part("f32[2] = cumulative add %a0 axis=0 reverse=false",
                "f32[4] = insert_slice %0 into %d0 at (2)", "%1", a0="f32[2]", d0="f32[4]"),
    "place": part("f32[8] = insert_slice %a0 into %d0 at (1)", "%0", a0="f32[4]", d0="f32[8]"),
}  # fmt: skip


def test_boxes_of_a_buffer_are_boxes_of_the_one_that_it_is_placed_in() -> None:
    after, said = changed(ASSEMBLED, **WRITERS)
    assert after == plain("""
        graph @f(%x: f32[2], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [1:3]
          %1: f32[8] = dispatch cumulative %x into %0 [3:5]
          return %1
        }""")
    assert said == ["+ the producers write into the destination"]


def test_what_a_buffer_held_before_is_placed_first() -> None:
    before = ASSEMBLED.replace("%0: f32[4] = empty", "%0: f32[4] = dispatch cumulative %y : ALL4")
    after, said = changed(before.replace("(%x", "(%y: f32[4], %x"), **WRITERS)
    assert after == plain("""
        graph @f(%y: f32[4], %x: f32[2], %d: f32[8] donated) {
          %0: f32[8] = dispatch cumulative %y into %d [1:5]
          %1: f32[8] = dispatch map %x into %0 [1:3]
          %2: f32[8] = dispatch cumulative %x into %1 [3:5]
          return %2
        }""")
    assert said == [PLACED]


@pytest.mark.parametrize(
    "use", ["reader", "barrier", "state", "order", "argument", "border", "update"]
)
def test_dont_place_a_buffer_that_somebody_else_uses(use: str) -> None:
    before, writers = ASSEMBLED, dict(WRITERS)
    if use == "reader":
        before = before.replace("  return %3", "  %4: f32[4] = dispatch cumulative %2 : ALL4\n"
                                "      return %3, %4")  # fmt: skip
    elif use == "barrier":
        before = before.replace("  return %3", "  %4: f32[4] = optimization_barrier %2\n"
                                "      return %3, %4")  # fmt: skip
    elif use in ("state", "order"):  # who reads an earlier version comes before the next update
        first = {"state": "f32[4] = dispatch cumulative %1 : ALL4",
                 "order": "f32[2] = dispatch map %x : EXP"}  # fmt: skip
        lines = before.splitlines()
        lines[4:] = [f"      %2: {first[use]}",
                     "      %3: f32[4] = after %1, %2",
                     "      %4: f32[4] = dispatch cumulative %x into %3 [2:4] : mid",
                     "      %5: f32[8] = dispatch copy %4 into %d [1:5] : place",
                     "      return %5, %2", "    }"]  # fmt: skip
        before = "\n".join(lines)
    elif use == "update":
        before = before.replace("  return %3", "  %4: f32[4] = after %2, %3\n"
                                "      %5: f32[4] = dispatch map %x into %4 [0:2] : low\n"
                                "      return %3, %5")  # fmt: skip
    elif use == "argument":
        before = "\n".join(line for line in before.splitlines() if "empty" not in line)
        for old, new in ((1, 0), (2, 1), (3, 2)):
            before = before.replace(f"%{old}", f"%{new}")
        before = before.replace("into %0 [0:2]", "into %c [0:2]").replace(
            "(%x", "(%c: f32[4] donated, %x")  # fmt: skip
    else:
        writers["low"] += "\n" + part(
            "f32[] = const 1.0", "f32[2] = fill %0", "f32[4] = insert_slice %1 into %d0 at (2)",
            "%2", a0="f32[2]", d0="f32[4]")  # fmt: skip
        before = before.replace("[0:2] : low", "[0:2] [2:4] : low")
    assert declined(before, **writers) == [IN_PLACE]


def test_dont_place_a_buffer_whose_writers_read_what_is_there() -> None:
    reading = part("f32[2] = extract_slice %a1 at (3)", "f32[2] = map add %0, %a0",
                   "f32[4] = insert_slice %1 into %d0 at (0)", "%2", a0="f32[2]", a1="f32[8]",
                   d0="f32[4]")  # fmt: skip
    before = ASSEMBLED.replace("map %x into", "map %x, %d into").replace(
        "copy %2 into %d", "copy %2 into %3"
    )
    before = before.replace("%3: f32[8] = d", "%4: f32[8] = d").replace("return %3", "return %4")
    before = before.replace("      %4:", "      %3: f32[8] = after %d, %1\n      %4:")
    assert declined(before, **(WRITERS | {"low": reading})) == [DEPENDS]


def test_dont_place_a_buffer_in_what_is_made_of_it() -> None:
    """The destination needs a writer of the buffer."""
    before = """
        graph @f(%x: f32[2], %d: f32[8] donated) {
          %0: f32[4] = empty
          %1: f32[2], %2: f32[4] = dispatch map %x into %0 [0:2] : low
          %3: f32[8] = dispatch cumulative %1 into %d [0:2] : other
          %4: f32[8] = dispatch copy %2 into %3 [1:5] : place
          return %4
        }"""
    low = part("f32[2] = map exp %a0", "f32[4] = insert_slice %0 into %d0 at (0)", "%0, %1",
               a0="f32[2]", d0="f32[4]")  # fmt: skip
    other = part("f32[2] = cumulative add %a0 axis=0 reverse=false",
                 "f32[8] = insert_slice %0 into %d0 at (0)", "%1", a0="f32[2]",
                 d0="f32[8]")  # fmt: skip
    assert declined(before, low=low, other=other, place=WRITERS["place"]) == [DEPENDS]


def test_dont_place_a_buffer_in_what_its_writer_updates() -> None:
    before = """
        graph @f(%x: f32[2], %d: f32[8] donated) {
          %0: f32[4] = empty
          %1: f32[4], %2: f32[8] = dispatch map %x into %0 [0:2], %d [6:8] : low
          %3: f32[8] = dispatch copy %1 into %2 [1:5] : place
          return %3
        }"""
    low = part("f32[2] = map exp %a0", "f32[4] = insert_slice %0 into %d0 at (0)",
               "f32[8] = insert_slice %0 into %d1 at (6)", "%1, %2", a0="f32[2]", d0="f32[4]",
               d1="f32[8]")  # fmt: skip
    assert declined(before, low=low, place=WRITERS["place"]) == [DEPENDS]


def test_dont_place_a_buffer_that_becomes_another_one() -> None:
    """Its copy is a whole buffer, which somebody updates."""
    before = """
        graph @f(%x: f32[2]) {
          %0: f32[4] = empty
          %1: f32[4] = dispatch map %x into %0 [0:2] : low
          %2: f32[4] = dispatch cumulative %x into %1 [2:4] : mid
          %3: f32[4] = dispatch copy %2 : same
          %4: f32[4] = dispatch cumulative %x into %3 [2:4] : mid
          return %4
        }"""
    assert declined(before, **WRITERS, same=part("%a0", a0="f32[4]")) == []
