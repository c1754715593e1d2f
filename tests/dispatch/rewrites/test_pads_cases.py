"""fuse-pad, alone: the cases of ACCEPTANCE.md that it takes part in, and its guards."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.pads import fuse_pads
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

FUSED = "+ the border is written where the interior is placed"
READ = "- its elements are read before anything is placed"
FILL = part("f32[] = const 1.0", "f32[8] = fill %0", "%1")
PUT = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (2)", "%1", a0="f32[4]",
           d0="f32[8]")  # fmt: skip
SUM = part("f32[8] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[8]")

BEFORE = """
graph @f(%x: f32[4]) {
  %0: f32[8] = dispatch fill : FILL
  %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
  return %1
}"""


def changed(before: str, limit: int = 16, **parts: str) -> tuple[str, list[str]]:
    known = {"FILL": FILL, "PUT": PUT, "SUM": SUM}
    text = expanded(before, **(known | parts))
    after, said = rewritten(text, fuse_pads, Options(operand_limit=limit))
    return outline(after), said


def declined(before: str, limit: int = 16, **parts: str) -> list[str]:
    """What it says of a graph that it leaves as it is."""
    after, said = changed(before, limit, **parts)
    assert after == plain("\n".join(line.split(" : ")[0] for line in plain(before).splitlines()))
    return said


def fill(shape: str, box: str, at: str, value: str = "1.0", **inputs: str) -> str:
    """A part that fills a box of a destination of `shape`."""
    element = shape.split("[")[0]
    return part(f"{element}[] = const {value}", f"{element}[{box}] = fill %0",
                f"{shape} = insert_slice %1 into %d0 at ({at})", "%2", d0=shape,
                **inputs)  # fmt: skip


def put(small: str, large: str, at: str) -> str:
    """A part that places what it computes."""
    return part(f"{small} = map exp %a0", f"{large} = insert_slice %0 into %d0 at ({at})", "%1",
                a0=small, d0=large)  # fmt: skip


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
