"""fuse-insert, alone: what is not placed by who computes it, a test for each reason."""

from __future__ import annotations

import pytest

from tests.dispatch.rewrites.inserts.texts import DEPENDS, IN_PLACE, PLACED, changed, declined
from tests.dispatch.rewrites.texts import part, plain

ARGUMENT = "- what is copied is the argument x, which nobody computes"
FULL = "- the producer has the {} operands that one dispatch may have"


# ------------------------------------------------------------ what is no copy


@pytest.mark.parametrize("into", ["two values", "two results", "a border", "a value", "nothing"])
def test_dont_take_over_what_is_more_than_a_copy(into: str) -> None:
    put = "f32[6] = insert_slice %a0 into %d0 at (0)"
    given = {"a0": "f32[2]", "d0": "f32[6]"}
    copying = {
        "two values": part(put, "f32[6] = insert_slice %a0 into %0 at (2)", "%1", **given),
        "two results": part(put, "f32[2] = map neg %a0", "%0, %1", **given),
        "a border": part(put, "%0", **given) + "\n" + part(
            "f32[] = const 1.0", "f32[2] = fill %0", "f32[6] = insert_slice %1 into %d0 at (2)",
            "%2", **given),
        "a value": part("f32[2] = map neg %a0", "f32[6] = insert_slice %0 into %d0 at (0)", "%1",
                        **given),
    }  # fmt: skip
    before = """
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[6] = dispatch copy %0 into %d [0:2] : copying
          return %1
        }"""
    lines = {
        "two values": ("[0:2]", "[0:2] [2:4]"),
        "two results": ("%1: f32[6] = dispatch copy", "%1: f32[6], %2: f32[2] = dispatch map"),
        "a border": ("[0:2]", "[0:2] [2:4]"),
        "a value": ("dispatch copy", "dispatch map"),
    }
    if into == "nothing":  # who only copies a value for somebody
        same = part("%a0", a0="f32[2]")
        before = before.replace("%1: f32[6] = dispatch copy %0 into %d [0:2]",
                                "%1: f32[2] = dispatch copy %0")  # fmt: skip
        assert declined(before, copying=same) == []
        return
    before = before.replace(*lines[into])
    if into == "two results":
        before = before.replace("return %1", "return %1, %2")
    assert declined(before, copying=copying[into]) == []


# ----------------------------------------------------------- who could make it


def test_dont_take_over_a_copy_of_an_update() -> None:
    """Who updated a buffer does not have all of it."""
    both = part("f32[6] = extract_slice %a0 at (0)", "f32[8] = insert_slice %0 into %d0 at (0)",
                "%1", a0="f32[6]", d0="f32[8]")  # fmt: skip
    assert declined("""
        graph @f(%x: f32[2], %d: f32[6] donated, %e: f32[8] donated) {
          %0: f32[6] = dispatch copy %x into %d [0:2] : AT0
          %1: f32[6] = dispatch cumulative %0 : ALL
          %2: f32[8] = dispatch copy %0 into %e [0:6] : place
          return %2, %1
        }""", place=part("f32[8] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[6]",
                         d0="f32[8]"), both=both) == [ARGUMENT, IN_PLACE]  # fmt: skip


def test_dont_exceed_the_operands_of_a_dispatch() -> None:
    """The copies that it cannot make, somebody else makes together."""
    before = """
        graph @f(%x: f32[2], %a: f32[6] donated, %b: f32[6] donated, %c: f32[6] donated) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[6] = dispatch copy %0 into %a [0:2] : AT0
          %2: f32[6] = dispatch copy %0 into %b [2:4] : AT2
          %3: f32[6] = dispatch copy %0 into %c [4:6] : AT4
          return %1, %2, %3
        }"""
    after, said = changed(before, 3)
    assert after == plain("""
        graph @f(%x: f32[2], %a: f32[6] donated, %b: f32[6] donated, %c: f32[6] donated) {
          %0: f32[2], %1: f32[6] = dispatch map %x into %a [0:2]
          %2: f32[6], %3: f32[6] = dispatch copy %0 into %b [2:4], %c [4:6]
          return %1, %2, %3
        }""")
    assert said == [PLACED, FULL.format(3), FULL.format(3)]
    assert len(changed(before, 4)[0].splitlines()) == 4


def test_dont_exceed_the_operands_of_who_writes_a_buffer_that_is_placed() -> None:
    before = """
        graph @f(%x: f32[2], %i: i32[], %d: f32[9] donated) {
          %0: f32[6] = empty
          %1: f32[6] = dispatch map %x into %0 [0:2] : low
          %2: f32[6] = dispatch map %x into %1 [2:6] : high
          %3: f32[9] = dispatch copy %2, %i into %d ~[0:9] : place
          return %3
        }"""
    place = part("f32[9] = insert_slice %a0 into %d0 at (%a1)", "%0", a0="f32[6]", a1="i32[]",
                 d0="f32[9]")  # fmt: skip
    low = part("f32[2] = map exp %a0", "f32[6] = insert_slice %0 into %d0 at (0)", "%1",
               a0="f32[2]", d0="f32[6]")  # fmt: skip
    high = part(
        "f32[2,2] = broadcast %a0 axes=(0)",
        "f32[4] = reshape %0",
        "f32[6] = insert_slice %1 into %d0 at (2)",
        "%2",
        a0="f32[2]",
        d0="f32[6]",
    ).replace("broadcast %a0 axes=(0)", "broadcast %a0 axes=(0)")
    before = before.replace("dispatch map %x into %1", "dispatch copy %x into %1")
    reason = "- a producer has the 2 operands that one dispatch may have"
    assert declined(before, 2, low=low, high=high, place=place) == [reason]
    after, _ = changed(before, 3, low=low, high=high, place=place)
    assert after == plain("""
        graph @f(%x: f32[2], %i: i32[], %d: f32[9] donated) {
          %0: f32[9] = dispatch map %x, %i into %d ~[0:9]
          %1: f32[9] = dispatch copy %x, %i into %0 ~[0:9]
          return %1
        }""")


# ----------------------------------------------------- what it would overwrite


def test_dont_overwrite_what_the_producer_reads_elsewhere() -> None:
    before = """
        graph @f(%d: f32[6] donated) {
          %0: f32[2] = dispatch map %d : END
          %1: f32[6] = after %d, %0
          %2: f32[6] = dispatch copy %0 into %1 [3:5] : AT3
          return %2
        }"""
    reason = "- the dispatch reads other elements of the operand than it writes"
    assert declined(before) == [reason]
    after, said = changed(before.replace("[3:5] : AT3", "[4:6] : AT4"))
    assert after == plain("""
        graph @f(%d: f32[6] donated) {
          %0: f32[6] = dispatch map %d into %d [4:6]
          return %0
        }""")
    assert said == [PLACED]


def test_dont_overwrite_what_says_where_another_copy_goes() -> None:
    """One dispatch would read an offset where it writes."""
    after, said = changed("""
        graph @f(%x: i32[1], %a: i32[2] donated, %i: i32[] donated) {
          %0: i32[1], %1: i32[] = dispatch map %x : both
          %2: i32[2] = dispatch copy %0, %i into %a ~[0:2] : at
          %3: i32[] = after %i, %2
          %4: i32[] = dispatch copy %1 into %3 [] : put
          return %2, %4
        }""", both=part("i32[1] = map neg %a0", "i32[] = reshape %0", "%0, %1", a0="i32[1]"),
        at=part("i32[2] = insert_slice %a0 into %d0 at (%a1)", "%0", a0="i32[1]", a1="i32[]",
                d0="i32[2]"),
        put=part("i32[] = insert_slice %a0 into %d0 at ()", "%0", a0="i32[]",
                 d0="i32[]"))  # fmt: skip
    assert said == [PLACED, "- another copy reads what this one overwrites"]
    assert "%3: i32[] = dispatch copy %0 into %2 []" in after


def test_dont_place_a_value_where_it_was_placed_before() -> None:
    reason = "- the producer writes the same place of the destination before"
    _, said = changed("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[6] = dispatch copy %0 into %d [0:2] : AT0
          %2: f32[6] = dispatch copy %0 into %1 [3:5] : AT3
          %3: f32[6] = dispatch copy %0 into %2 [1:3] : AT1
          return %3
        }""")
    assert said == [PLACED, PLACED, reason]


# ------------------------------------------------------------ what has to wait


def test_dont_wait_for_oneself() -> None:
    """Who reads the buffer needs the value."""
    add = part("f32[2] = extract_slice %a0 at (0)", "f32[2] = map add %0, %a1", "%1", a0="f32[6]",
               a1="f32[2]")  # fmt: skip
    assert declined("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[2] = dispatch map %d, %0 : add
          %2: f32[6] = after %d, %1
          %3: f32[6] = dispatch copy %0 into %2 [0:2] : AT0
          return %3, %1
        }""", add=add) == [DEPENDS]  # fmt: skip


def test_dont_write_where_the_value_says() -> None:
    at = part("i32[6] = insert_slice %a0 into %d0 at (%a1)", "%0", a0="i32[1]", a1="i32[]",
              d0="i32[6]")  # fmt: skip
    both = part("i32[1] = map neg %a0", "i32[] = reshape %0", "%0, %1", a0="i32[1]")
    assert declined("""
        graph @f(%x: i32[1], %d: i32[6] donated) {
          %0: i32[1], %1: i32[] = dispatch map %x : both
          %2: i32[6] = dispatch copy %0, %1 into %d ~[0:6] : at
          return %2
        }""", both=both, at=at) == [DEPENDS]  # fmt: skip


LATE = """
    graph @f(%x: f32[2], %d: f32[6] donated) {
      %0: f32[2] = dispatch map %x : EXP
      %1: f32[2] = dispatch cumulative %0 : SUM
      %2: f32[6] = dispatch copy %1 into %d [0:2] : AT0
      %3: f32[6] = dispatch copy %0 into %2 [2:4] : AT2
      return %3
    }"""


def test_dont_move_in_front_of_what_overwrites_the_same() -> None:
    before = LATE.replace("[2:4] : AT2", "[1:3] : AT1")
    after, said = changed(before)
    assert said == [PLACED, DEPENDS]
    assert after == plain("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2] = dispatch map %x
          %1: f32[6] = dispatch cumulative %0 into %d [0:2]
          %2: f32[6] = dispatch copy %0 into %1 [1:3]
          return %2
        }""")


def test_dont_move_in_front_of_who_is_read_between() -> None:
    """Somebody reads there what was before."""
    before = LATE.replace("  %3: f32[6] = dispatch copy %0 into %2 [2:4] : AT2\n      return %3",
        "  %3: f32[2] = dispatch map %2 : read\n      %4: f32[6] = after %2, %3\n"
        "      %5: f32[6] = dispatch copy %0 into %4 [2:4] : AT2\n      return %5, %3")  # fmt: skip
    read = part("f32[2] = extract_slice %a0 at (2)", "f32[2] = map exp %0", "%1", a0="f32[6]")
    _, said = changed(before, read=read)
    assert said == [PLACED, DEPENDS]


BETWEEN = """
    graph @f(%x: f32[2], %d: f32[6] donated) {
      %0: f32[2] = dispatch map %x : EXP
      %1: f32[2] = dispatch cumulative %0 : SUM
      %2: f32[6] = dispatch copy %1 into %d [0:2] : AT0
      %3: f32[2] = dispatch map %d, %2 : reader
      %4: f32[6] = after %2, %3
      %5: f32[6] = dispatch copy %1 into %4 [4:6] : AT4
      %6: f32[6] = dispatch copy %0 into %5 [2:4] : AT2
      return %6, %3
    }"""


@pytest.mark.parametrize("state", ["the older", "the newer"])
def test_dont_move_in_front_of_who_reads_a_state_later(state: str) -> None:
    """The reader needs what the other update wrote, and what this one overwrites."""
    before = BETWEEN.replace("copy %1 into %4", "copy %x into %4")
    reader = part("f32[2] = extract_slice %a0 at (2)", "f32[2] = extract_slice %a1 at (0)",
                  "f32[2] = map add %0, %1", "%2", a0="f32[6]", a1="f32[6]")  # fmt: skip
    if state == "the newer":
        before = before.replace("map %d, %2", "map %2")
        reader = part("f32[2] = extract_slice %a0 at (2)", "f32[2] = map exp %0", "%1", a0="f32[6]")
    assert changed(before, reader=reader)[1] == [PLACED, ARGUMENT, DEPENDS]


def test_dont_move_in_front_of_whom_it_waits_for() -> None:
    lines = BETWEEN.replace("map %d, %2 : reader", "map %2 : reader").splitlines()
    lines[7:9] = ["      %5: f32[6] = dispatch copy %0 into %4 [2:4] : AT2"]
    before = "\n".join(lines).replace("return %6", "return %5")
    reader = part("f32[2] = extract_slice %a0 at (0)", "f32[2] = map exp %0", "%1", a0="f32[6]")
    assert changed(before, reader=reader)[1] == [PLACED, DEPENDS]


def test_dont_move_in_front_of_a_loop() -> None:
    """It reads what the update would overwrite."""
    body = plain("""
        graph @body(%c: f32[6] donated) {
          %0: f32[6] = dispatch map %c into %c [0:2]
            graph @map(%a0: f32[6], %d0: f32[6] donated) {
              %0: f32[2] = extract_slice %a0 at (2)
              %1: f32[2] = map neg %0
              %2: f32[6] = insert_slice %1 into %d0 at (0)
              return %2
            }
          return %0
        }""")
    before = LATE.replace("  %3: f32[6] = dispatch copy %0 into %2 [2:4] : AT2\n      return %3",
        "  %3: f32[6] = loop %2 carries=1 reverse=false trip=2 xs=0 : body\n"
        "      %4: f32[6] = dispatch copy %0 into %3 [2:4] : AT2\n      return %4")  # fmt: skip
    assert changed(before, body=body)[1] == [PLACED, DEPENDS]


def test_dont_move_to_what_a_barrier_passes_on() -> None:
    """Who reads the buffer behind it is not looked for."""
    _, said = changed("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[6] = optimization_barrier %d
          %1: f32[6] = dispatch cumulative %0 : ALL
          %2: f32[2] = dispatch map %x : EXP
          %3: f32[2] = dispatch cumulative %2 : SUM
          %4: f32[6] = after %d, %1
          %5: f32[6] = dispatch copy %3 into %4 [0:2] : AT0
          %6: f32[6] = dispatch copy %2 into %5 [2:4] : AT2
          return %6, %1
        }""")
    assert said == [PLACED, DEPENDS]


@pytest.mark.parametrize("count", [64, 65])
def test_dont_move_in_front_of_very_many(count: int) -> None:
    lines = ["graph @f(%x: f32[2], %d: f32[200] donated) {",
             "  %0: f32[2] = dispatch map %x : EXP", "  %1: f32[2] = dispatch cumulative %0 : SUM",
             "  %2: f32[200] = dispatch copy %1 into %d [0:2] : P0"]  # fmt: skip
    places = {}
    for at in range(1, count + 1):
        source = "%1" if at < count else "%0"
        lines.append(f"  %{at + 2}: f32[200] = dispatch copy {source} into %{at + 1}"
                     f" [{2 * at}:{2 * at + 2}] : P{at}")  # fmt: skip
    for at in range(count + 1):
        places[f"P{at}"] = part(f"f32[200] = insert_slice %a0 into %d0 at ({2 * at})", "%0",
                                a0="f32[2]", d0="f32[200]")  # fmt: skip
    lines += [f"  return %{count + 2}", "}"]
    said = changed("\n".join(lines), 200, **places)[1]
    assert said[-1] == (PLACED if count == 64 else DEPENDS)
