"""limit-operands, alone: which dispatches are taken apart, which not, and why."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.limits import limit_operands
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten


def limited(text: str, limit: int) -> tuple[str, list[str]]:
    """The graph of dispatches after this rewrite alone, and what it says of it."""
    return rewritten(text, limit_operands, Options(operand_limit=limit))


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
