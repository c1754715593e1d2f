"""elide-copy, alone: the cases of `tests/acceptance/` that it takes part in, and its guards."""

from __future__ import annotations

import pytest

from stagejit.dispatch.rewrites.copies import elide_copies
from tests.dispatch.rewrites.copies.texts import COPY, changed, declined
from tests.dispatch.rewrites.texts import expanded, part, plain, rewritten

ELIDED = "+ what it copied is overwritten when everybody has read it"


def test_a9_of_two_destinations_the_one_that_is_not_donated_is_copied() -> None:
    after, said = changed("""
        graph @f(%x: f32[4], %y: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x : COPY
          %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST
          %2: f32[4] = dispatch copy %y : COPY
          %3: f32[4] = dispatch copy %v into %2 [0:2] : FIRST
          %4: f32[4] = dispatch map %y : EXP
          return %3, %1, %4
        }""")
    assert after == plain("""
        graph @f(%x: f32[4], %y: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x
          %1: f32[4] = dispatch copy %v into %0 [0:2]
          %2: f32[4] = dispatch map %y
          %3: f32[4] = after %y, %2
          %4: f32[4] = dispatch copy %v into %3 [0:2]
          return %4, %1, %2
        }""")
    assert set(said) == {ELIDED, "- it is an argument that is not donated"}


def test_a12_states_that_are_read_between_updates_are_one_buffer() -> None:
    after, said = changed("""
        graph @f(%d: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %d : COPY
          %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST
          %2: f32[4] = dispatch copy %1 : COPY
          %3: f32[4] = dispatch copy %v into %2 [2:4] : LAST
          %4: f32[4] = dispatch map %d : EXP
          %5: f32[4] = dispatch map %1 : EXP
          return %3, %4, %5
        }""")
    assert after == plain("""
        graph @f(%d: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch map %d
          %1: f32[4] = after %d, %0
          %2: f32[4] = dispatch copy %v into %1 [0:2]
          %3: f32[4] = dispatch map %2
          %4: f32[4] = after %2, %3
          %5: f32[4] = dispatch copy %v into %4 [2:4]
          return %5, %0, %3
        }""")
    assert said == [ELIDED] * 2


def test_a13_c10_what_an_iteration_carries_is_updated_in_place() -> None:
    """The body of a loop: its result has to lie where it found what it carries."""
    total = part("f32[2] = extract_slice %a0 at (1)", "f32[2] = map exp %0", "%1", a0="f32[4]")
    before = """
        graph @body(%c: f32[4] donated) {
          %0: f32[2] = dispatch map %c : total
          %1: f32[4] = dispatch copy %c : COPY
          %2: f32[4] = dispatch copy %0 into %1 [0:2] : FIRST
          return %2
        }"""
    after, _ = changed(before, {0: 0}, total=total)
    assert after == plain("""
        graph @body(%c: f32[4] donated) {
          %0: f32[2] = dispatch map %c
          %1: f32[4] = dispatch copy %0 into %c [0:2]
          return %1
        }""")
    reason = "- it lies in an argument that is not donated for what is made of the copy"
    assert declined(before, {}, total=total) == [reason]


def test_a14_a_buffer_is_not_updated_in_place_with_a_part_of_itself_elsewhere() -> None:
    """The program of openxla/xla#49176: elements are read that the same kernel overwrites."""
    move = part("i32[3] = extract_slice %a0 at (0)", "i32[4] = insert_slice %0 into %d0 at (1)",
                "%1", a0="i32[4]", d0="i32[4]")  # fmt: skip
    copy = COPY.replace("f32", "i32")
    before = """
        graph @f(%x: i32[4] donated) {
          %0: i32[4] = dispatch copy %x : copy
          %1: i32[4] = dispatch copy %x into %0 [1:4] : move
          return %1
        }"""
    reason = "- the dispatch reads other elements of the operand than it writes"
    assert declined(before, copy=copy, move=move) == [reason]
    same = move.replace("%a0 at (0)", "%a0 at (1)")
    assert changed(before, copy=copy, move=same)[1] == [ELIDED]


@pytest.mark.parametrize("type", ["bool[1]", "i8[1,1]", "bf16[1]", "i32[0]"])
def test_a15_small_elements_single_ones_and_none(type: str) -> None:
    zeros = ", ".join("0" for _ in type.split(","))
    put = part(f"{type} = insert_slice %a0 into %d0 at ({zeros})", "%0", a0=type, d0=type)
    box = ", ".join("0:" + type.split("[")[1][0] for _ in type.split(","))
    _, said = changed(f"""
        graph @f(%x: {type} donated, %v: {type}) {{
          %0: {type} = dispatch copy %x : copy
          %1: {type} = dispatch copy %v into %0 [{box}] : put
          %2: {type} = dispatch copy %x : copy
          return %1, %2
        }}""", copy=part("%a0", a0=type), put=put)  # fmt: skip
    assert said == [ELIDED]


def test_c6_both_destinations_of_a_dispatch_are_donated() -> None:
    both = part("f32[4] = insert_slice %a0 into %d0 at (0)",
                "f32[4] = insert_slice %a0 into %d1 at (2)", "%0, %1", a0="f32[2]", d0="f32[4]",
                d1="f32[4]")  # fmt: skip
    after, _ = changed("""
        graph @f(%x: f32[4] donated, %y: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x : COPY
          %1: f32[4] = dispatch copy %y : COPY
          %2: f32[4], %3: f32[4] = dispatch copy %v into %0 [0:2], %1 [2:4] : both
          %4: f32[4] = dispatch map %y : EXP
          return %2, %3, %4
        }""", both=both)  # fmt: skip
    assert after == plain("""
        graph @f(%x: f32[4] donated, %y: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch map %y
          %1: f32[4] = after %y, %0
          %2: f32[4], %3: f32[4] = dispatch copy %v into %x [0:2], %1 [2:4]
          return %2, %3, %0
        }""")


def test_c8_one_of_two_updates_takes_the_buffer() -> None:
    """Only the first: the other one starts from a copy, made before."""
    after, said = changed("""
        graph @f(%x: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x : COPY
          %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST
          %2: f32[4] = dispatch copy %x : COPY
          %3: f32[4] = dispatch copy %v into %2 [2:4] : LAST
          return %1, %3
        }""")
    assert after == plain("""
        graph @f(%x: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x
          %1: f32[4] = after %x, %0
          %2: f32[4] = dispatch copy %v into %1 [0:2]
          %3: f32[4] = dispatch copy %v into %0 [2:4]
          return %2, %3
        }""")
    assert said == [ELIDED, "- another update overwrites what is copied"]


def test_dont_overwrite_what_is_returned() -> None:
    assert declined("""
        graph @f(%v: f32[2], %y: f32[4]) {
          %0: f32[4] = dispatch map %y : EXP
          %1: f32[4] = dispatch copy %0 : COPY
          %2: f32[4] = dispatch copy %v into %1 [0:2] : FIRST
          return %2, %0
        }""") == ["- it is returned as it is"]


def test_dont_overwrite_constants() -> None:
    assert declined("""
        graph @f(%v: f32[2]) {
          %0: f32[4] = const [1.0, 2.0, 3.0, 4.0]
          %1: f32[4] = dispatch copy %0 : COPY
          %2: f32[4] = dispatch copy %v into %1 [0:2] : FIRST
          return %2
        }""") == ["- it is a constant"]


@pytest.mark.parametrize("passed", ["before", "beside", "behind", "earlier"])
def test_dont_overwrite_what_a_barrier_passes_on(passed: str) -> None:
    lines = [
        "graph @f(%x: f32[4] donated, %v: f32[2]) {",
        "  %0: f32[4] = optimization_barrier %x",
        "  %1: f32[4] = dispatch copy %0 : COPY",
        "  %2: f32[4] = dispatch copy %v into %1 [0:2] : FIRST",
        "  %3: f32[4] = dispatch map %0 : EXP",
        "  return %2, %3",
        "}",
    ]
    if passed == "beside":
        lines[1:3] = ["  %0: f32[4] = optimization_barrier %x",
                      "  %1: f32[4] = dispatch copy %x : COPY"]  # fmt: skip
    elif passed == "behind":
        lines[1:5] = ["  %0: f32[4] = dispatch copy %x : COPY",
                      "  %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST",
                      "  %2: f32[4] = optimization_barrier %1",
                      "  %3: f32[4] = dispatch map %x : EXP"]  # fmt: skip
    elif passed == "earlier":
        lines[1:6] = ["  %0: f32[4] = optimization_barrier %x",
                      "  %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST",
                      "  %2: f32[4] = dispatch copy %1 : COPY",
                      "  %3: f32[4] = dispatch copy %v into %2 [2:4] : LAST",
                      "  %4: f32[4] = dispatch map %1 : EXP",
                      "  return %3, %4"]  # fmt: skip
    assert declined("\n".join(lines)) == ["- a barrier passes it on"]


def test_dont_have_a_loop_overwrite_what_it_reads() -> None:
    assert declined(
        """
        graph @f(%x: f32[4] donated) {
          %0: f32[4] = dispatch copy %x : COPY
          %1: f32[4] = loop %0, %x carries=1 reverse=false trip=2 xs=0 : body
          return %1
        }""",
        body=plain("""
        graph @body(%c: f32[4] donated, %k: f32[4]) {
          %0: f32[4] = dispatch map %c, %k into %c [0:4]
            graph @map(%a0: f32[4], %a1: f32[4], %d0: f32[4] donated) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[4] = insert_slice %0 into %d0 at (0)
              return %1
            }
          return %0
        }"""),
    ) == ["- the loop reads what it overwrites"]


def test_dont_elide_what_is_no_copy_or_is_not_updated() -> None:
    turn = part("f32[4] = reverse %a0 axes=(0)", "%0", a0="f32[4]")
    before = """
        graph @f(%x: f32[4] donated, %v: f32[2]) {
          %0: f32[4] = dispatch copy %x : turn
          %1: f32[4] = dispatch copy %v into %0 [0:2] : FIRST
          return %1
        }"""
    assert declined(before, turn=turn) == []
    assert (
        declined("""
        graph @f(%x: f32[4]) {
          %0: f32[4] = dispatch copy %x : COPY
          return %0
        }""")
        == []
    )
    before = before.replace("copy %x", "copy into %x")
    assert declined(before, turn=part("%d0", d0="f32[4]")) == []


def test_who_reads_is_not_forgotten_when_a_copy_stays() -> None:
    """The loop needs its copy; the update after it waits for all three who read %0."""
    body = plain("""
        graph @body(%c: f32[4] donated, %k: f32[4]) {
          %0: f32[4] = dispatch map %c, %k into %c [0:4]
            graph @map(%a0: f32[4], %a1: f32[4], %d0: f32[4] donated) {
              %0: f32[4] = map add %a0, %a1
              %1: f32[4] = insert_slice %0 into %d0 at (0)
              return %1
            }
          return %0
        }""")
    after, said = changed("""
        graph @f(%x: f32[4], %v: f32[2]) {
          %0: f32[4] = dispatch map %x : EXP
          %1: f32[4] = dispatch copy %0 : COPY
          %2: f32[4] = loop %1, %0 carries=1 reverse=false trip=2 xs=0 : body
          %3: f32[4] = dispatch copy %0 : COPY
          %4: f32[4] = dispatch copy %v into %3 [0:2] : FIRST
          %5: f32[4] = dispatch map %0 : EXP
          return %4, %2, %5
        }""", body=body)  # fmt: skip
    assert "%4: f32[4] = after %0, %2, %3" in after
    assert said == ["- the loop reads what it overwrites", ELIDED]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            "%0: f32[n,n], %1: i32[] = call %x column_major=((true), (true, false))"
            ' attributes=(("uplo", "u8", 85)) target="lapack_spotrf_ffi"',
            "it is the result of a library call",
        ),
        (
            '%0: f32[n,n], %1: i32[] = delegate %x effects=() reason="none"',
            "it is the result of a delegated equation",
        ),
    ],
)
def test_dont_overwrite_what_others_made(made: str, reason: str) -> None:
    """Sizes are symbols, so that nobody evaluates it."""
    put = part("f32[n,n] = insert_slice %a0 into %d0 at (0, 0)", "%0", a0="f32[1,n]",
               d0="f32[n,n]")  # fmt: skip
    before = f"""
        graph @f(%x: f32[n,n], %v: f32[1,n]) {{
          {made}
          %2: f32[n,n] = dispatch copy %0 : COPY
          %3: f32[n,n] = dispatch copy %v into %2 [0:1, 0:n] : put
          return %3, %1
        }}"""
    text = expanded(before, COPY=part("%a0", a0="f32[n,n]"), put=put)
    assert rewritten(text, elide_copies)[1] == [f"- {reason}"]


def test_nobody_waits_for_a_copy_that_is_gone() -> None:
    """%2, which overwrites nothing, waited for nobody who reads %0."""
    none = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[0]", d0="f32[4]")
    after, _ = changed("""
        graph @f(%x: f32[4], %v: f32[2], %z: f32[0]) {
          %0: f32[4] = dispatch map %x : EXP
          %1: f32[4] = dispatch copy %0 : COPY
          %2: f32[4] = dispatch copy %z into %1 [0:0] : none
          %3: f32[4] = dispatch copy %2 : COPY
          %4: f32[4] = dispatch copy %v into %3 [2:4] : LAST
          %5: f32[4] = dispatch map %2 : EXP
          return %4, %5
        }""", none=none)  # fmt: skip
    assert "%3: f32[4] = after %1, %2" in after
