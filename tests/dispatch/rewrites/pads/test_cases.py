"""fuse-pad, alone: the cases of `tests/acceptance/` that it takes part in."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.pads import fuse_pads
from tests.dispatch.rewrites.pads.texts import BEFORE, FILL, PUT, READ, changed, declined, fill, put
from tests.dispatch.rewrites.texts import expanded, part, plain, rewritten

FUSED = "+ the border is written where the interior is placed"


def test_a1_the_border_is_written_with_the_interior() -> None:
    text = expanded(BEFORE, FILL=FILL, PUT=PUT)
    assert rewritten(text, fuse_pads) == (plain("""
        graph @f(%x: f32[4]) {
          %0: f32[8] = empty
          %1: f32[8] = dispatch map %x into %0 [2:6] [0:2] [6:8]
            graph @p(%a0: f32[4], %d0: f32[8] donated) {
              %0: f32[4] = map exp %a0
              %1: f32[8] = insert_slice %0 into %d0 at (2)
              return %1
            }
            graph @border(%a0: f32[4], %d0: f32[8] donated) {
              %0: f32[] = const 1.0
              %1: f32[2] = fill %0
              %2: f32[8] = insert_slice %1 into %d0 at (0)
              return %2
            }
            graph @border(%a0: f32[4], %d0: f32[8] donated) {
              %0: f32[] = const 1.0
              %1: f32[2] = fill %0
              %2: f32[8] = insert_slice %1 into %d0 at (6)
              return %2
            }
          return %1
        }"""), [FUSED])  # fmt: skip


def test_a5_the_border_of_channels_of_a_buffer_is_four_boxes_of_them() -> None:
    """Of what lies around these channels, nothing is written."""
    after, _ = changed("""
        graph @f(%x: f32[2,2,3], %d: f32[6,4,5] donated) {
          %0: f32[6,4,5] = dispatch fill into %d [2:4, 0:4, 0:5] : filled
          %1: f32[6,4,5] = dispatch map %x into %0 [2:4, 1:3, 1:4] : placed
          return %1
        }""", filled=fill("f32[6,4,5]", "2,4,5", "2, 0, 0"),
        placed=put("f32[2,2,3]", "f32[6,4,5]", "2, 1, 1"))  # fmt: skip
    assert after.splitlines()[1:-1] == [
        "  %0: f32[6,4,5] = dispatch map %x into %d [2:4, 1:3, 1:4] [2:4, 0:1, 0:5]"
        " [2:4, 3:4, 0:5] [2:4, 1:3, 0:1] [2:4, 1:3, 4:5]",
        "  return %0",
    ]


def test_a6_interior_padding_is_a_strided_border() -> None:
    spread = PUT.replace("at (2)", "at (0) strides (2)")
    after, _ = changed(BEFORE.replace("2:6", "0:7:2"), PUT=spread)
    assert "dispatch map %x into %0 [0:7:2] [7:8] [1:6:2]" in after


def test_a6_dont_write_a_border_of_many_pieces() -> None:
    before = """
        graph @f(%x: f32[5,5]) {
          %0: f32[37,37] = dispatch fill : filled
          %1: f32[37,37] = dispatch map %x into %0 [0:37:9, 0:37:9] : placed
          return %1
        }"""
    placed = put("f32[5,5]", "f32[37,37]", "0, 0").replace("(0, 0)", "(0, 0) strides (9, 9)")
    filled = part("f32[] = const 1.0", "f32[37,37] = fill %0", "%1")
    assert declined(before, filled=filled, placed=placed) == [
        "- the border has more than 12 pieces"
    ]


def test_a7_a_pad_with_two_consumers_is_written_once() -> None:
    after, said = changed(
        BEFORE.replace(
            "  return %1",
            """\
  %2: f32[8] = dispatch cumulative %1 : SUM
  %3: f32[8] = dispatch cumulative %1 : SUM
  return %2, %3""",
        )
    )
    assert after == plain("""
        graph @f(%x: f32[4]) {
          %0: f32[8] = empty
          %1: f32[8] = dispatch map %x into %0 [2:6] [0:2] [6:8]
          %2: f32[8] = dispatch cumulative %1
          %3: f32[8] = dispatch cumulative %1
          return %2, %3
        }""")
    assert said == [FUSED]


def test_a7_a_source_with_other_uses_is_stored_plain_and_padded() -> None:
    twice = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (2)", "%0, %1",
                 a0="f32[4]", d0="f32[8]")  # fmt: skip
    before = BEFORE.replace("%1: f32[8] = dispatch map", "%1: f32[4], %2: f32[8] = dispatch map")
    after, _ = changed(before.replace("return %1", "return %1, %2"), PUT=twice)
    assert "%1: f32[4], %2: f32[8] = dispatch map %x into %0 [2:6] [0:2] [6:8]" in after


def test_a8_pads_of_pads_are_rings_each_of_its_value() -> None:
    text = expanded("""
        graph @f(%x: f32[4]) {
          %0: f32[8] = dispatch fill : FILL
          %1: f32[8] = dispatch fill into %0 [1:7] : inner
          %2: f32[8] = dispatch map %x into %1 [2:6] : PUT
          return %2
        }""", FILL=FILL, PUT=PUT, inner=fill("f32[8]", "6", "1", "2.0"))  # fmt: skip
    after, said = rewritten(text, fuse_pads)
    assert "dispatch map %x into %0 [2:6] [1:2] [6:7] [0:1] [7:8]" in after
    assert after.count("const 1.0") == after.count("const 2.0") == 2
    assert said == [FUSED] * 2


def test_a9_a_part_of_a_donated_argument_is_filled_by_who_places_there() -> None:
    after, _ = changed("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:6] : filled
          %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
          return %1
        }""", filled=fill("f32[8]", "6", "0"))  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[4], %d: f32[8] donated) {
          %0: f32[8] = dispatch map %x into %d [2:6] [0:2]
          return %0
        }""")


DYNAMIC = """
graph @f(%x: f32[4], %i: i32[], %d: f32[8] donated) {
  %0: f32[8] = dispatch fill into %d [0:8] : filled
  %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
  return %1
}"""


def test_a10_dont_move_a_border_whose_place_is_known_at_run_time_only() -> None:
    moved = "f32[8] = insert_slice %{} into %d0 at (%{})"
    placed = part("f32[4] = map exp %a0", moved.format(0, "a1"), "%1", a0="f32[4]", a1="i32[]",
                  d0="f32[8]")  # fmt: skip
    before = DYNAMIC.replace("map %x into %0 [2:6]", "map %x, %i into %0 ~[0:8]")
    assert declined(before, PUT=placed, filled=fill("f32[8]", "8", "0")) == [
        "- where the interior lies is known at run time only"
    ]
    filled = part("f32[] = const 1.0", "f32[6] = fill %0", moved.format(1, "a0"), "%2",
                  a0="i32[]", d0="f32[8]")  # fmt: skip
    before = DYNAMIC.replace("fill into %d [0:8]", "fill %i into %d ~[0:8]")
    assert declined(before, filled=filled) == ["- where the pad lies is known at run time only"]


def test_a13_dont_give_a_border_to_a_loop() -> None:
    body = plain("""
        graph @body(%c: f32[8] donated) {
          %0: f32[8] = dispatch map %c into %c [0:8]
            graph @map(%a0: f32[8], %d0: f32[8] donated) {
              %0: f32[8] = map neg %a0
              %1: f32[8] = insert_slice %0 into %d0 at (0)
              return %1
            }
          return %0
        }""")
    assert declined("""
        graph @f() {
          %0: f32[8] = dispatch fill : FILL
          %1: f32[8] = loop %0 carries=1 reverse=false trip=3 xs=0 : body
          return %1
        }""", body=body) == []  # fmt: skip
    before = """
        graph @f(%d: f32[8] donated) {
          %0: f32[8] = dispatch fill into %d [0:4] : filled
          %1: f32[8] = loop %0 carries=1 reverse=false trip=3 xs=0 : body
          return %1
        }"""
    assert declined(before, body=body, filled=fill("f32[8]", "4", "0")) == [READ]


@pytest.mark.parametrize("element", ["bool", "i8", "i32", "bf16", "f32"])
def test_a15_elements_of_any_size(element: str) -> None:
    value = {"bool": "true", "i8": "3", "i32": "3"}.get(element, "1.0")
    placed = part(f"{element}[1] = reverse %a0 axes=(0)",
                  f"{element}[3] = insert_slice %0 into %d0 at (1)", "%1", a0=f"{element}[1]",
                  d0=f"{element}[3]")  # fmt: skip
    after, said = changed(f"""
        graph @f(%x: {element}[1]) {{
          %0: {element}[3] = dispatch fill : filled
          %1: {element}[3] = dispatch copy %x into %0 [1:2] : placed
          return %1
        }}""", placed=placed, filled=part(f"{element}[] = const {value}",
        f"{element}[3] = fill %0", "%1"))  # fmt: skip
    assert "dispatch copy %x into %0 [1:2] [0:1] [2:3]" in after
    assert said == [FUSED]


def test_a15_what_has_no_elements_leaves_all_of_the_border() -> None:
    placed = put("f32[0]", "f32[8]", "2")
    after, _ = changed(BEFORE.replace("f32[4]", "f32[0]").replace("2:6", "2:2"), PUT=placed)
    assert "dispatch map %x into %0 [2:2] [0:8]" in after


def test_c11_dont_exceed_the_operands_of_a_dispatch() -> None:
    before = """
        graph @f(%x: f32[4], %v: f32[]) {
          %0: f32[8] = dispatch fill %v : filled
          %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
          return %1
        }"""
    filled = part("f32[8] = fill %a0", "%0", a0="f32[]")
    reason = "- the producer has the 2 operands that one dispatch may have"
    assert declined(before, 2, filled=filled) == [reason]
    after, _ = changed(before, 3, filled=filled)
    assert "dispatch map %x, %v into %0 [2:6] [0:2] [6:8]" in after
    assert changed(BEFORE, 1)[1] == [FUSED]  # it needs no operand more


def test_c4_several_writers_share_a_border_which_the_first_one_writes() -> None:
    after, _ = changed("""
        graph @f(%x: f32[2]) {
          %0: f32[8] = dispatch fill : FILL
          %1: f32[8] = dispatch map %x into %0 [2:4] : first
          %2: f32[8] = dispatch map %x into %1 [4:6] : second
          return %2
        }""", first=put("f32[2]", "f32[8]", "2"), second=put("f32[2]", "f32[8]", "4"))  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[2]) {
          %0: f32[8] = empty
          %1: f32[8] = dispatch map %x into %0 [2:4] [0:2] [6:8]
          %2: f32[8] = dispatch map %x into %1 [4:6]
          return %2
        }""")
