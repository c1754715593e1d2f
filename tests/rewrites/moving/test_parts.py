"""map-parts: functions of what is put together, each guard."""

from __future__ import annotations

import pytest

from stagejit.rewrites.moving import parts
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

TOGETHER = """
  %m: f32[4,16] = map exp %x
  %e: f32[8,16] = empty
  %p: f32[8,16] = insert_slice %m into %e at (0, 0)
  %n: f32[4,16] = map neg %y
  %q: f32[8,16] = insert_slice %n into %p at (4, 0)"""


def program(rest: str, together: str = TOGETHER, arguments: str = "%x: f32[4,16]") -> str:
    return f"graph @f({arguments}, %y: f32[4,16], %z: f32[8,16]) {{{together}\n{rest}\n}}"


def test_each_part_is_mapped_with_its_box_of_the_rest() -> None:
    text = program("%r: f32[8,16] = map mul %q, %z\nreturn %r")
    assert rewritten(parts.map_of_parts, text) == "\n".join([
        "%0: f32[4,16] = map exp %x",
        "%1: f32[4,16] = map neg %y",
        "%2: f32[8,16] = empty",
        "%3: f32[4,16] = extract_slice %z at (0, 0)",
        "%4: f32[4,16] = map mul %0, %3",
        "%5: f32[8,16] = insert_slice %4 into %2 at (0, 0)",
        "%6: f32[4,16] = extract_slice %z at (4, 0)",
        "%7: f32[4,16] = map mul %1, %6",
        "%8: f32[8,16] = insert_slice %7 into %5 at (4, 0)",
        "return %8",
    ])  # fmt: skip


def test_of_what_is_repeated_there_are_fewer_repetitions() -> None:
    rest = "%b: f32[8,16] = broadcast %v axes=(0)\n%r: f32[8,16] = map mul %q, %b\nreturn %r"
    text = program(rest, arguments="%x: f32[4,16], %v: f32[8]")
    found = rewritten(parts.map_of_parts, text)
    assert "f32[4] = extract_slice %v at (4)" in found
    assert "f32[4,16] = broadcast" in found


def test_a_shape_around_it_moves_out() -> None:
    rest = "%s: f32[128] = reshape %q\n%r: f32[128] = map sqrt %s\nreturn %r"
    found = rewritten(parts.map_of_parts, program(rest))
    assert found.count("f32[4,16] = map sqrt") == 2
    assert "f32[128] = reshape" in found


PAD = """
  %e: f32[8,16] = fill %s
  %q: f32[8,16] = insert_slice %x into %e at (2, 0)"""


def test_a_pad_is_mapped_with_the_value_of_its_border() -> None:
    rest = "%c: f32[8,16] = fill %t\n%r: f32[8,16] = map mul %q, %c\nreturn %r"
    text = program(rest, PAD, "%x: f32[4,16], %s: f32[], %t: f32[]")
    assert rewritten(parts.map_of_parts, text) == "\n".join([
        "%0: f32[] = map mul %s, %t",
        "%1: f32[8,16] = fill %0",
        "%2: f32[4,16] = fill %t",
        "%3: f32[4,16] = map mul %x, %2",
        "%4: f32[8,16] = insert_slice %3 into %1 at (2, 0)",
        "return %4",
    ])  # fmt: skip


def test_pads_at_the_same_place_are_one() -> None:
    second = PAD.replace("%e", "%g").replace("%q", "%h").replace("%x", "%y").replace("%s", "%t")
    text = program("%r: f32[8,16] = map add %q, %h\nreturn %r", PAD + second,
                   "%x: f32[4,16], %s: f32[], %t: f32[]")  # fmt: skip
    found = rewritten(parts.map_of_parts, text)
    assert "f32[] = map add %s, %t" in found
    assert "f32[4,16] = map add" in found


def test_around_a_large_pad_the_border_is_mapped_in_boxes() -> None:
    pad = PAD.replace("8,16", "300,256").replace("(2, 0)", "(298, 0)").replace("298", "1")
    rest = "%r: f32[300,256] = map mul %q, %w\nreturn %r"
    text = program(rest, pad, "%x: f32[298,256], %w: f32[300,256], %s: f32[]")
    found = rewritten(parts.map_of_parts, text)
    assert [found.count(f"f32[{rows},256] = map mul") for rows in (298, 1)] == [1, 2]
    assert found.count("= fill %s") == 2
    assert "f32[300,256] = empty" in found


def test_a_box_of_what_is_put_together_is_put_together_of_boxes() -> None:
    together = """
  %e: f32[9,16] = empty
  %a: f32[1,16] = fill %s
  %p: f32[9,16] = insert_slice %a into %e at (0, 0)
  %q: f32[9,16] = insert_slice %z into %p at (1, 0)"""
    text = program("%r: f32[8,16] = extract_slice %q at (0, 0)\nreturn %r", together, "%s: f32[]")
    assert rewritten(parts.box_of_parts, text) == "\n".join([
        "%0: f32[8,16] = empty",
        "%1: f32[1,16] = fill %s",
        "%2: f32[8,16] = insert_slice %1 into %0 at (0, 0)",
        "%3: f32[7,16] = extract_slice %z at (0, 0)",
        "%4: f32[8,16] = insert_slice %3 into %2 at (1, 0)",
        "return %4",
    ])  # fmt: skip


# ------------------------------------------------------------------------------------ guards


@pytest.mark.parametrize(
    "other", ["%o: f32[8,16] = map abs %z", "%o: f32[8,16] = insert_slice %y into %g at (3, 0)"]
)
def test_dont_map_borders_of_small_pads(other: str) -> None:
    """Each is a kernel; the second operand is a pad, too, but at another place."""
    rest = f"%g: f32[8,16] = fill %s\n{other}\n%r: f32[8,16] = map mul %q, %o\nreturn %r"
    text = program(rest, PAD, "%x: f32[4,16], %s: f32[]")
    assert "what else it reads is not the same all around the pad" in reasons(
        parts.map_of_parts, text
    )


def test_dont_map_borders_that_are_many() -> None:
    around = "\n".join(
        f"%p{n + 1}: f32[300,256] = insert_slice %x{n} into %p{n} at ({60 * n + 1}, 1)"
        for n in range(5)
    )
    names = ", ".join(f"%x{n}: f32[4,16]" for n in range(5))
    rest = f"%p0: f32[300,256] = fill %s\n{around}\n%r: f32[300,256] = map mul %p5, %w\nreturn %r"
    assert reasons(
        parts.map_of_parts, program(rest, "", f"{names}, %s: f32[], %w: f32[300,256]")
    ) == ["what else it reads is not the same all around the pad"]


BOX = "%r: f32[6,16] = extract_slice %q at (1, 0)\nreturn %r"


@pytest.mark.parametrize(("together", "rest", "reason"), [
    (TOGETHER, BOX, "whoever computes a part stores it there, and all of it"),
    (PAD.replace("at (2, 0)", "at (1, 0) strides (2, 1)"), BOX, "boxes with strides are not cut"),
    (PAD, BOX.replace("at (1, 0)", "at (0, 0) strides (3, 1)").replace("6,16", "3,16"),
     "boxes with strides are not cut"),
])  # fmt: skip
def test_dont_cut(together: str, rest: str, reason: str) -> None:
    text = program(rest, together, "%x: f32[4,16], %s: f32[]")
    assert reasons(parts.box_of_parts, text) == [reason]


@pytest.mark.parametrize(("together", "rest"), [
    (PAD, f"%k: f32[8,16] = map abs %q\n{BOX}, %k"),  # it is stored in any case
    (PAD, BOX.replace("6,16", "2,16").replace("(1, 0)", "(2, 0)")),  # of one part
    (PAD, BOX.replace("6,16", "2,16").replace("(1, 0)", "(0, 0)")),  # of none
    (PAD, BOX.replace("(1, 0)", "(%i, 0)")),
    (PAD.replace("(2, 0)", "(%i, 0)"), BOX),
])  # fmt: skip
def test_dont_cut_what_is_no_box_of_several(together: str, rest: str) -> None:
    text = program(rest, together, "%x: f32[4,16], %s: f32[], %i: i32[]")
    assert unchanged(parts.box_of_parts, text)


def test_dont_map_what_others_read() -> None:
    text = program("%r: f32[8,16] = map sqrt %q\nreturn %r, %q")
    assert reasons(parts.map_of_parts, text) == [
        "others read what is put together, so it is stored"
    ]


def test_dont_map_what_is_stored_for_others() -> None:
    text = program("%r: f32[8,16] = map sqrt %q\nreturn %r, %m, %n")
    assert reasons(parts.map_of_parts, text) == [
        "most of what is put together is stored for others, too"
    ]


def test_dont_make_many_functions() -> None:
    count = parts.MOST_PARTS + 1
    together = f"\n  %p0: f32[{count},16] = empty"
    for at in range(count):
        together += f"\n  %m{at}: f32[1,16] = map exp %x{at}"
        together += (
            f"\n  %p{at + 1}: f32[{count},16] = insert_slice %m{at} into %p{at} at ({at}, 0)"
        )
    arguments = ", ".join(f"%x{at}: f32[1,16]" for at in range(count))
    text = program(
        f"%r: f32[{count},16] = map sqrt %p{count}\nreturn %r", together, arguments=arguments
    )
    assert reasons(parts.map_of_parts, text) == ["it may be put together of more than 8 parts"]


PAIRS = """
  %m: f32[4,16] = map exp %x
  %e: f32[4,16,2] = empty
  %a: f32[4,16,1] = reshape %m
  %p: f32[4,16,2] = insert_slice %a into %e at (0, 0, 0)
  %n: f32[4,16] = map neg %y
  %c: f32[4,16,1] = reshape %n
  %q: f32[4,16,2] = insert_slice %c into %p at (0, 0, 1)"""


def test_dont_read_single_elements_of_others() -> None:
    arguments = "%x: f32[4,16], %w: f32[4,16,2]"
    text = program("%r: f32[4,16,2] = map mul %q, %w\nreturn %r", PAIRS, arguments=arguments)
    assert reasons(parts.map_of_parts, text) == [
        "what else it reads would be read element by element"
    ]


@pytest.mark.parametrize(
    "other",
    [
        "%o: f32[4,16,2] = fill %s",
        "%o: f32[4,16,2] = broadcast %z axes=(0, 1)",
        "%o: f32[4,16,2] = map abs %w\n%k: f32[4,16,1] = extract_slice %o at (0, 0, 0)"
        "\n%l: f32[4,16,1] = extract_slice %o at (0, 0, 1)",
    ],
)
def test_single_elements_of_what_lies_so(other: str) -> None:
    used = "%k, %l, " if "%k" in other else ""
    rest = f"{other}\n%r: f32[4,16,2] = map mul %q, %o\nreturn {used}%r"
    arguments = "%x: f32[4,16], %w: f32[4,16,2], %s: f32[]"
    text = program(rest, PAIRS, arguments).replace("%z: f32[8,16]", "%z: f32[4,16]")
    assert "f32[4,16,1] = map mul" in rewritten(parts.map_of_parts, text)


def test_dont_read_pairs_along_the_axis_that_is_cut() -> None:
    rest = "%o: f32[4,16,2] = broadcast %s axes=(2)\n%r: f32[4,16,2] = map mul %q, %o\nreturn %r"
    text = program(rest, PAIRS, "%x: f32[4,16], %s: f32[2]")
    assert reasons(parts.map_of_parts, text) == [
        "what else it reads would be read element by element"
    ]


@pytest.mark.parametrize(
    "together",
    [
        TOGETHER.replace("at (4, 0)", "at (%i, 0)"),
        TOGETHER.replace("at (4, 0)", "at (3, 0)"),  # they overlap
    ],
)
def test_dont_map_what_is_no_chain(together: str) -> None:
    rest = "%r: f32[8,16] = map sqrt %q\nreturn %r"
    arguments = "%x: f32[4,16], %i: i32[]"
    assert unchanged(parts.map_of_parts, program(rest, together, arguments))
