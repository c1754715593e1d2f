"""simplify-branches and update-branches: what a branch keeps, and what it says it updates."""

from __future__ import annotations

from stagejit.rewrites.branches import SIMPLIFY, UPDATE, simplify_branches, update_branches
from stagejit.rewrites.driving.driver import GraphStep
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

SIMPLER, UPDATES = GraphStep(SIMPLIFY, simplify_branches), GraphStep(UPDATE, update_branches)


def test_fewer_results_and_operands() -> None:
    assert rewritten(SIMPLER, """\
        graph @f(%p: bool[], %x: f32[3], %y: f32[3], %z: f32[3]) {
          %0: f32[3], %1: f32[3], %2: f32[3], %3: f32[3] = branch %p, %x, %y, %y, %z carried=()
            graph @case0(%a: f32[3], %b: f32[3], %c: f32[3], %d: f32[3]) {
              %0: f32[3] = map exp %d
              return %a, %b, %b, %0
            }
            graph @case1(%a: f32[3], %b: f32[3], %c: f32[3], %d: f32[3]) {
              %0: f32[3] = map add %b, %c
              return %a, %0, %0, %d
            }
          return %0, %1, %2
        }""") == "\n".join([
            "%0: f32[3] = branch %p, %y carried=()",
            "graph @case0(%b: f32[3]) {",
            "return %b",
            "}",
            "graph @case1(%b: f32[3]) {",
            "%0: f32[3] = map add %b, %b",
            "return %0",
            "}",
            "return %x, %0, %0",
        ])  # fmt: skip


def test_a_branch_without_a_choice_goes() -> None:
    assert rewritten(SIMPLER, """\
        graph @f(%p: bool[], %x: f32[3]) {
          %0: f32[3] = branch %p, %x carried=()
            graph @case0(%a: f32[3]) {
              return %a
            }
            graph @case1(%a: f32[3]) {
              return %a
            }
          return %0
        }""") == "return %x"  # fmt: skip


CASES = """
            graph @case0(%a: f32[3]) {
              return %a
            }
            graph @case1(%a: f32[3]) {
              %0: f32[3] = map exp %a
              return %0
            }
          return %3
        }"""


def test_the_branch_clamps_its_index_itself() -> None:
    text = (
        """\
        graph @f(%i: i32[], %x: f32[3]) {
          %0: i32[] = const 0
          %1: i32[] = const LAST
          %2: i32[] = map clamp %0, %i, %1
          %3: f32[3] = branch %2, %x carried=()"""
        + CASES
    )
    assert rewritten(SIMPLER, text.replace("LAST", "1")).startswith("%0: f32[3] = branch %i, %x")
    assert unchanged(SIMPLER, text.replace("LAST", "2"))
    assert unchanged(SIMPLER, text.replace("const 0", "const 1").replace("LAST", "1"))


def test_an_index_may_be_a_bool() -> None:
    text = (
        """\
        graph @f(%p: TYPE[], %x: f32[3]) {
          %2: i32[] = convert %p
          %3: f32[3] = branch %2, %x carried=()"""
        + CASES
    )
    assert rewritten(SIMPLER, text.replace("TYPE", "bool")).startswith("%0: f32[3] = branch %p, %x")
    assert unchanged(SIMPLER, text.replace("TYPE", "i64"))


UPDATE_OR_NOT = """\
        graph @f(%p: bool[], %x: f32[8]DONATED, %v: f32[2]) {
          %0: f32[8] = branch %p, %x, %v carried=()
            graph @case0(%a: f32[8], %b: f32[2]) {
              FIRST
            }
            graph @case1(%a: f32[8], %b: f32[2]) {
              %0: f32[8] = insert_slice %b into %a at (2)
              %1: f32[8] = insert_slice %b into %0 at (4)
              return %1
            }
          return %0
        }"""


def update(first: str, *, donated: bool = False) -> str:
    text = UPDATE_OR_NOT.replace("FIRST", first)
    return text.replace("DONATED", " donated" if donated else "")


def test_a_result_that_is_an_update_in_every_branch() -> None:
    assert rewritten(UPDATES, update("return %a")) == "\n".join([
        "%0: f32[8] = branch %p, %x, %v carried=((0, 0))",
        "graph @case0(%a: f32[8] donated, %b: f32[2]) {",
        "return %a",
        "}",
        "graph @case1(%a: f32[8] donated, %b: f32[2]) {",
        "%0: f32[8] = insert_slice %b into %a at (2)",
        "%1: f32[8] = insert_slice %b into %0 at (4)",
        "return %1",
        "}",
        "return %0",
    ])  # fmt: skip


def test_a_branch_that_computes_it_anew_wants_an_operand_that_is_not_needed_any_more() -> None:
    anew = "%0: f32[8] = map exp %a\n              return %0"
    assert "carried=((0, 0))" in rewritten(UPDATES, update(anew, donated=True))
    expected = ["a branch computes all of it, and the operand would be copied for it in vain"]
    assert reasons(UPDATES, update(anew)) == expected
    read = update(anew, donated=True).replace("return %0\n        }", "return %0, %x\n        }")
    assert reasons(UPDATES, read) == expected


def test_dont_update_what_no_branch_updates() -> None:
    text = update("%0: f32[8] = map exp %a\n              return %0", donated=True)
    text = text.replace("insert_slice %b into %a at (2)", "map neg %a").replace(
        "insert_slice %b into %0 at (4)", "map sin %0"
    )
    assert unchanged(UPDATES, text)
    assert reasons(UPDATES, text) == []


def test_dont_update_two_operands_in_one_result() -> None:
    assert unchanged(UPDATES, """\
        graph @f(%p: bool[], %x: f32[8] donated, %y: f32[8] donated) {
          %0: f32[8] = branch %p, %x, %y carried=()
            graph @case0(%a: f32[8], %b: f32[8]) {
              return %a
            }
            graph @case1(%a: f32[8], %b: f32[8]) {
              return %b
            }
          return %0
        }""")  # fmt: skip


def test_one_operand_is_updated_by_one_result() -> None:
    text = rewritten(UPDATES, """\
        graph @f(%p: bool[], %x: f32[8] donated, %v: f32[2]) {
          %0: f32[8], %1: f32[8] = branch %p, %x, %v carried=()
            graph @case0(%a: f32[8], %b: f32[2]) {
              %0: f32[8] = insert_slice %b into %a at (2)
              return %0, %a
            }
            graph @case1(%a: f32[8], %b: f32[2]) {
              %0: f32[8] = insert_slice %b into %a at (4)
              return %a, %0
            }
          return %0, %1
        }""")  # fmt: skip
    assert "carried=((0, 0))" in text
