"""fold-constants: what is folded, and what would grow."""

from __future__ import annotations

import pytest

from stagejit.rewrites import constants
from stagejit.rewrites.driving.driver import Rule
from tests.rewrites.text_in_out import reasons, rewritten, unchanged


def test_small_constants_are_folded_through_what_makes_them() -> None:
    text = """graph @f() {
      %0: i32[3] = iota axis=0
      %1: i32[] = const 10
      %2: i32[3] = fill %1
      %3: i32[3] = map mul %0, %2
      %4: i32[3] = reverse %3 axes=(0)
      return %4
    }"""
    assert rewritten(constants.constant_operands, text) == (
        "%0: i32[3] = const [20, 10, 0]\nreturn %0"
    )


def test_a_reduction_of_a_large_constant_is_folded() -> None:
    text = """graph @f() {
      %0: f32[300] = const splat(2.0)
      %1: f32[] = reduce add %0 axes=(0)
      return %1
    }"""
    assert rewritten(constants.constant_operands, text) == "%0: f32[] = const 600.0\nreturn %0"


def test_dont_fold_what_reads_an_argument() -> None:
    text = """graph @f(%x: f32[]) {
      %0: f32[] = const 1.0
      %1: f32[] = map add %x, %0
      return %1
    }"""
    assert unchanged(constants.constant_operands, text)


@pytest.mark.parametrize(
    "source",
    [("%0: f32[] = const 1.0", "%1: f32[900] = fill %0"), ("%1: f32[900] = iota axis=0",)],
)
def test_dont_fold_what_is_cheaper_to_make_than_to_read(source: tuple[str, ...]) -> None:
    text = "\n".join(["graph @f() {", *source, "%2: f32[900] = map exp %1", "return %2", "}"])
    assert unchanged(constants.constant_operands, text)


def boxes(type: str, size: int) -> str:
    return f"""graph @f() {{
      %0: {type}[4] = const [1, 2, 3, 4]
      %1: {type}[{size}] = extract_slice %0 at (0)
      %2: {type}[{size}] = extract_slice %0 at ({4 - size})
      return %1, %2
    }}"""


def test_dont_fold_boxes_of_one_constant() -> None:
    told = "others read the constant, too: its boxes are read where it is"
    assert reasons(constants.constant_box, boxes("f32", 2)) == [told, told]


@pytest.mark.parametrize(("type", "size"), [("f32", 1), ("i32", 2)])
def test_numbers_and_indices_are_folded(type: str, size: int) -> None:
    assert "extract_slice" not in rewritten(constants.constant_box, boxes(type, size))


def test_dont_fold_what_grows() -> None:
    text = """graph @f() {
      %0: f32[20,1] = const splat(1.0)
      %1: f32[20,20] = contract %0, %0 batch=((), ()) contracting=((1), (1))
      return %1
    }"""
    assert reasons(constants.constant_operands, text) == [
        "the result of 1600 bytes is larger than the constants it is made of"
    ]


def test_dont_evaluate_megabytes() -> None:
    text = """graph @f() {
      %0: f32[300000] = const splat(1.0)
      %1: f32[300000] = map exp %0
      return %1
    }"""
    assert reasons(constants.constant_operands, text) == [
        "more than 1048576 bytes are not evaluated at compile time"
    ]


def test_dont_touch_a_constant_of_an_opaque_type() -> None:
    text = """graph @f() {
      %0: key<fry>[] = const opaque
      %1: key<fry>[1] = reshape %0
      return %1
    }"""
    assert unchanged(constants.constant_operands, text)


@pytest.mark.parametrize(("start", "offset"), [("1", 1), ("-3", 0), ("99", 6)])
def test_a_constant_start_becomes_a_clamped_offset(start: str, offset: int) -> None:
    text = f"""graph @f(%x: f32[8,8], %u: f32[2,4], %i: i32[]) {{
      %0: i32[] = const {start}
      %1: f32[2,4] = extract_slice %x at (%0, %i)
      %2: f32[8,8] = insert_slice %u into %x at (%i, %0)
      return %1, %2
    }}"""
    assert rewritten(constants.constant_start, text) == (
        f"%0: f32[2,4] = extract_slice %x at ({offset}, %i)\n"
        f"%1: f32[8,8] = insert_slice %u into %x at (%i, {min(offset, 4)})\n"
        "return %0, %1"
    )


def test_dont_fix_a_computed_start() -> None:
    text = """graph @f(%x: f32[8], %i: i32[]) {
      %0: f32[2] = extract_slice %x at (%i)
      return %0
    }"""
    assert unchanged(constants.constant_start, text)


@pytest.mark.parametrize("rule", constants.RULES, ids=lambda rule: rule.function.__name__)
def test_every_rule_says_before_and_after(rule: Rule) -> None:
    assert " --> " in rule.before_after.replace("  ", " ")
