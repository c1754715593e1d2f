"""fuse-insert, alone: the cases of `tests/acceptance/` that it takes part in."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.inserts import fuse_inserts
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

PLACED = "+ the producer writes into the destination"
EXP = part("f32[2] = map exp %a0", "%0", a0="f32[2]")
NEG = part("f32[2] = map neg %a0", "%0", a0="f32[2]")
SUM = part("f32[2] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[2]")


def put(small: str, large: str, at: str) -> str:
    """A part that only places what it reads."""
    return part(f"{large} = insert_slice %a0 into %d0 at ({at})", "%0", a0=small, d0=large)


def writes(small: str, large: str, at: str, fn: str = "map exp") -> str:
    """A part that places what it computes."""
    return part(f"{small} = {fn} %a0", f"{large} = insert_slice %0 into %d0 at ({at})", "%1",
                a0=small, d0=large)  # fmt: skip


AT = {f"AT{at}": put("f32[2]", "f32[6]", str(at)) for at in range(5)}


def changed(before: str, limit: int = 16, **parts: str) -> tuple[str, list[str]]:
    known = {"EXP": EXP, "NEG": NEG, "SUM": SUM, **AT}
    text = expanded(before, **(known | parts))
    after, said = rewritten(text, fuse_inserts, Options(operand_limit=limit))
    return outline(after), said


def test_a2_a_window_that_has_a_border_of_its_own_needs_no_padded_buffer() -> None:
    """The pad has become a part of the convolution, zero or not, before there were dispatches: the
    buffer that it reads is not written by anybody else, either."""
    text = plain("""
        graph @f(%x: f32[1,1,4,4], %w: f32[1,1,3,3]) {
          %0: f32[1,1,4,4] = dispatch map %x
            graph @map(%a0: f32[1,1,4,4]) {
              %0: f32[1,1,4,4] = map exp %a0
              return %0
            }
          %1: f32[1,1,4,4] = dispatch conv %0, %w
            graph @conv(%a0: f32[1,1,4,4], %a1: f32[1,1,3,3]) {
              %0: f32[1,1,4,4] = conv %a0, %a1 batch_groups=1 border=1.0 feature_groups=1 \
lhs_dilation=(1, 1) lhs_spec=(0, 1, 2, 3) out_spec=(0, 1, 2, 3) padding=((1, 1), (1, 1)) \
rhs_dilation=(1, 1) rhs_spec=(0, 1, 2, 3) strides=(1, 1)
              return %0
            }
          return %1
        }""")
    assert rewritten(text, fuse_inserts) == (text, [])


def test_a3_rows_of_three_producers_in_one_buffer() -> None:
    """Each of them writes its own range, and nobody copies."""
    text = expanded("""
        graph @f(%a: f32[4,3], %b: f32[2,3], %c: f32[1,3]) {
          %0: f32[4,3] = dispatch map %a : first
          %1: f32[2,3] = dispatch map %b : second
          %2: f32[1,3] = dispatch map %c : third
          %3: f32[7,3] = empty
          %4: f32[7,3] = dispatch copy %0 into %3 [0:4, 0:3] : put_first
          %5: f32[7,3] = dispatch copy %1 into %4 [4:6, 0:3] : put_second
          %6: f32[7,3] = dispatch copy %2 into %5 [6:7, 0:3] : put_third
          return %6
        }""", first=part("f32[4,3] = map neg %a0", "%0", a0="f32[4,3]"),
        second=part("f32[2,3] = map exp %a0", "%0", a0="f32[2,3]"),
        third=part("f32[1,3] = map sin %a0", "%0", a0="f32[1,3]"),
        put_first=put("f32[4,3]", "f32[7,3]", "0, 0"),
        put_second=put("f32[2,3]", "f32[7,3]", "4, 0"),
        put_third=put("f32[1,3]", "f32[7,3]", "6, 0"))  # fmt: skip
    after, said = rewritten(text, fuse_inserts)
    assert after == expanded("""
        graph @f(%a: f32[4,3], %b: f32[2,3], %c: f32[1,3]) {
          %0: f32[7,3] = empty
          %1: f32[7,3] = dispatch map %a into %0 [0:4, 0:3] : first
          %2: f32[7,3] = dispatch map %b into %1 [4:6, 0:3] : second
          %3: f32[7,3] = dispatch map %c into %2 [6:7, 0:3] : third
          return %3
        }""", first=writes("f32[4,3]", "f32[7,3]", "0, 0", "map neg"),
        second=writes("f32[2,3]", "f32[7,3]", "4, 0"),
        third=writes("f32[1,3]", "f32[7,3]", "6, 0", "map sin"))  # fmt: skip
    assert said == [PLACED] * 3


def test_a4_columns_of_producers_in_one_buffer() -> None:
    """Strided boxes, apart although their hulls overlap: no order between them but the chain."""
    text = expanded("""
        graph @f(%a: f32[4,2], %b: f32[4,1]) {
          %0: f32[4,2] = dispatch map %a : first
          %1: f32[4,1] = dispatch cumulative %b : second
          %2: f32[4,3] = empty
          %3: f32[4,3] = dispatch copy %0 into %2 [0:4, 0:2] : put_first
          %4: f32[4,3] = dispatch copy %1 into %3 [0:4, 2:3] : put_second
          return %4
        }""", first=part("f32[4,2] = map exp %a0", "%0", a0="f32[4,2]"),
        second=part("f32[4,1] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[4,1]"),
        put_first=put("f32[4,2]", "f32[4,3]", "0, 0"),
        put_second=put("f32[4,1]", "f32[4,3]", "0, 2"))  # fmt: skip
    after, said = rewritten(text, fuse_inserts)
    assert outline(after) == plain("""
        graph @f(%a: f32[4,2], %b: f32[4,1]) {
          %0: f32[4,3] = empty
          %1: f32[4,3] = dispatch map %a into %0 [0:4, 0:2]
          %2: f32[4,3] = dispatch cumulative %b into %1 [0:4, 2:3]
          return %2
        }""")
    assert said == [PLACED] * 2


def test_a4_a_column_of_what_others_are_computed_from_comes_first() -> None:
    """It moves in front of the update that would make its producer wait for itself."""
    after, said = changed("""
        graph @f(%x: f32[2]) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[2] = dispatch cumulative %0 : SUM
          %2: f32[6] = empty
          %3: f32[6] = dispatch copy %1 into %2 [0:2] : AT0
          %4: f32[6] = dispatch copy %0 into %3 [2:4] : AT2
          return %4
        }""")
    assert after == plain("""
        graph @f(%x: f32[2]) {
          %0: f32[6] = empty
          %1: f32[2], %2: f32[6] = dispatch map %x into %0 [2:4]
          %3: f32[6] = dispatch cumulative %1 into %2 [0:2]
          return %3
        }""")
    assert said == [PLACED] * 2


@pytest.mark.parametrize("size", ["n", "3"])
def test_a11_parts_of_equal_sizes_that_are_known_later(size: str) -> None:
    """The boxes are those of any size, put in its place."""
    part_of, whole = f"f32[4,{size},2]", f"f32[8,{size},2]"
    text = expanded(f"""
        graph @f(%a: {part_of}, %b: {part_of}) {{
          %0: {part_of} = dispatch map %a : first
          %1: {part_of} = dispatch map %b : second
          %2: {whole} = empty
          %3: {whole} = dispatch copy %0 into %2 [0:4, 0:{size}, 0:2] : low
          %4: {whole} = dispatch copy %1 into %3 [4:8, 0:{size}, 0:2] : high
          return %4
        }}""", first=part(f"{part_of} = map exp %a0", "%0", a0=part_of),
        second=part(f"{part_of} = map neg %a0", "%0", a0=part_of),
        low=put(part_of, whole, "0, 0, 0"), high=put(part_of, whole, "4, 0, 0"))  # fmt: skip
    after, said = rewritten(text, fuse_inserts)
    assert after == expanded(f"""
        graph @f(%a: {part_of}, %b: {part_of}) {{
          %0: {whole} = empty
          %1: {whole} = dispatch map %a into %0 [0:4, 0:{size}, 0:2] : first
          %2: {whole} = dispatch map %b into %1 [4:8, 0:{size}, 0:2] : second
          return %2
        }}""", first=writes(part_of, whole, "0, 0, 0"),
        second=writes(part_of, whole, "4, 0, 0", "map neg"))  # fmt: skip
    assert said == [PLACED] * 2


def test_c1_c3_a_result_is_stored_in_each_buffer_in_its_channels_and_nowhere_else() -> None:
    """Three destinations, three stores of one dispatch; nobody keeps the value itself."""
    small, sizes = "f32[1,2,3]", (6, 8, 10)
    large = [f"f32[1,{size},3]" for size in sizes]
    into = ", ".join(f"%{at}: {type} donated" for at, type in zip("def", large, strict=True))
    text = expanded(f"""
        graph @f(%x: {small}, {into}) {{
          %0: {small} = dispatch map %x : exp
          %1: {large[0]} = dispatch copy %0 into %d [0:1, 4:6, 0:3] : put0
          %2: {large[1]} = dispatch copy %0 into %e [0:1, 4:6, 0:3] : put1
          %3: {large[2]} = dispatch copy %0 into %f [0:1, 4:6, 0:3] : put2
          return %1, %2, %3
        }}""", exp=part(f"{small} = map exp %a0", "%0", a0=small),
        **{f"put{at}": put(small, type, "0, 4, 0") for at, type in enumerate(large)})  # fmt: skip
    after, said = rewritten(text, fuse_inserts)
    stores = (f"{type} = insert_slice %0 into %d{at} at (0, 4, 0)" for at, type in enumerate(large))
    assert after == expanded(f"""
        graph @f(%x: {small}, {into}) {{
          %0: {large[0]}, %1: {large[1]}, %2: {large[2]} = dispatch map %x into \
%d [0:1, 4:6, 0:3], %e [0:1, 4:6, 0:3], %f [0:1, 4:6, 0:3] : exp
          return %0, %1, %2
        }}""", exp=part(f"{small} = map exp %a0", *stores, "%1, %2, %3", a0=small,
                        **{f"d{at}": type for at, type in enumerate(large)}))  # fmt: skip
    assert said == [PLACED] * 3


def test_c2_what_is_computed_from_a_prefix_is_placed_behind_it() -> None:
    after, said = changed("""
        graph @f(%x: f32[2]) {
          %0: f32[6] = empty
          %1: f32[2] = dispatch map %x : EXP
          %2: f32[6] = dispatch copy %1 into %0 [0:2] : AT0
          %3: f32[2] = dispatch cumulative %1 : SUM
          %4: f32[6] = dispatch copy %3 into %2 [2:4] : AT2
          %5: f32[2] = dispatch cumulative %3 : SUM
          %6: f32[6] = dispatch copy %5 into %4 [4:6] : AT4
          return %6
        }""")
    assert after == plain("""
        graph @f(%x: f32[2]) {
          %0: f32[6] = empty
          %1: f32[2], %2: f32[6] = dispatch map %x into %0 [0:2]
          %3: f32[2], %4: f32[6] = dispatch cumulative %1 into %2 [2:4]
          %5: f32[6] = dispatch cumulative %3 into %4 [4:6]
          return %5
        }""")
    assert said == [PLACED] * 3


def test_c7_a_value_twice_in_one_buffer_is_two_stores_of_one_dispatch() -> None:
    before = """
        graph @f(%x: f32[2]) {
          %0: f32[2] = dispatch map %x : EXP
          %1: f32[6] = empty
          %2: f32[6] = dispatch copy %0 into %1 [0:2] : AT0
          %3: f32[6] = dispatch copy %0 into %2 [4:6] : AT4
          return %3
        }"""
    after, said = changed(before)
    assert after == plain("""
        graph @f(%x: f32[2]) {
          %0: f32[6] = empty
          %1: f32[6] = dispatch map %x into %0 [0:2] [4:6]
          return %1
        }""")
    assert said == [PLACED] * 2
    reason = "- the producer writes the same place of the destination before"
    after, said = changed(before.replace("[4:6] : AT4", "[1:3] : AT1"))
    assert said == [PLACED, reason]
    assert "dispatch copy %1 into %2 [1:3]" in after


def test_c9_some_results_are_placed_and_some_are_not() -> None:
    """Nor does one that nobody reads keep the others from being placed."""
    three = part("f32[2] = map exp %a0", "f32[2] = map neg %a0", "f32[2] = map sin %a0",
                 "%0, %1, %2", a0="f32[2]")  # fmt: skip
    after, _ = changed("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2], %1: f32[2], %2: f32[2] = dispatch map %x : three
          %3: f32[6] = dispatch copy %1 into %d [0:2] : AT0
          %4: f32[2] = dispatch cumulative %0 : SUM
          return %3, %4
        }""", three=three)  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[2], %d: f32[6] donated) {
          %0: f32[2], %1: f32[2], %2: f32[6] = dispatch map %x into %d [0:2]
          %3: f32[2] = dispatch cumulative %0
          return %2, %3
        }""")
