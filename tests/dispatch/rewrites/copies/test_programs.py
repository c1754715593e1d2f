"""elide-copy: who overwrites what others read, too, and when that takes a copy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.dispatch.rewrites.copies import elide_copies
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten
from tests.schedule.planning import check

BEFORE = """graph @f(%x: f32[4] donated, %y: f32[2]) {
  %0: f32[4] = dispatch copy %x
    graph @copy(%a0: f32[4]) {
      return %a0
    }
  %1: f32[4] = dispatch copy %y into %0 [0:2]
    graph @copy(%a0: f32[2], %d0: f32[4] donated) {
      %0: f32[4] = insert_slice %a0 into %d0 at (0)
      return %0
    }
  %2: f32[4] = dispatch map %x
    graph @map(%a0: f32[4]) {
      %0: f32[4] = map exp %a0
      return %0
    }
  return %1, %2
}"""
AFTER = """graph @f(%x: f32[4] donated, %y: f32[2]) {
  %0: f32[4] = dispatch map %x
    graph @map(%a0: f32[4]) {
      %0: f32[4] = map exp %a0
      return %0
    }
  %1: f32[4] = after %x, %0
  %2: f32[4] = dispatch copy %y into %1 [0:2]
    graph @copy(%a0: f32[2], %d0: f32[4] donated) {
      %0: f32[4] = insert_slice %a0 into %d0 at (0)
      return %0
    }
  return %2, %0
}"""


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_who_reads_comes_before_who_overwrites() -> None:
    after, said = rewritten(BEFORE, elide_copies)
    assert after == AFTER
    assert said == ["+ what it copied is overwritten when everybody has read it"]


def test_dont_overwrite_an_argument_that_is_not_donated() -> None:
    before = BEFORE.replace("%x: f32[4] donated", "%x: f32[4]")
    reason = "- it is an argument that is not donated"
    assert rewritten(before, elide_copies) == (before, [reason])


def test_dont_overwrite_a_donated_argument_without_the_switch() -> None:
    off = Options(disable=("reuse-arguments",))
    reason = "- reuse-arguments is disabled"
    assert rewritten(BEFORE, elide_copies, off) == (BEFORE, [reason])


def test_dont_overwrite_an_argument_that_is_donated_for_another_result() -> None:
    before = BEFORE.replace("return %1, %2", "return %2, %1")
    reason = "- it lies in an argument that is not donated for what is made of the copy"
    assert rewritten(before, elide_copies) == (before, [reason])


def test_dont_overwrite_what_is_read_of_the_result() -> None:
    before = BEFORE.replace("dispatch map %x", "dispatch map %x, %1").replace(
        "@map(%a0: f32[4])", "@map(%a0: f32[4], %a1: f32[4])").replace(
        "map exp %a0", "map add %a0, %a1")  # fmt: skip
    assert rewritten(before, elide_copies) == (before, ["- it is read after it is overwritten"])


def test_a_donated_argument_that_others_read_whole_is_not_copied() -> None:
    plan = check(lambda x, y: (x.at[0:2].set(y), jnp.exp(x)), f32(4, 3), f32(2, 3),
                 donated=[True, False])  # fmt: skip
    assert [d.name for d in plan.dispatches] == ["exp.0", "copy.1"]
    assert [str(write) for write in plan.dispatches[1].writes] == ["arg0[0:2, 0:3]"]


def test_a_carry_that_an_update_is_computed_from_is_not_copied() -> None:
    """What must be copied is the row: it is made of elements that it overwrites."""

    def f(c: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, c: c.at[i].set(jnp.exp(c).sum(0)), c)

    plan = check(f, f32(4, 3), donated=[True])
    assert "copy" not in plan.as_text().split("body", 1)[1]


FIRST = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[2]", d0="f32[4]")
LAST = part("f32[4] = insert_slice %a0 into %d0 at (2)", "%0", a0="f32[2]", d0="f32[4]")
COPY = part("%a0", a0="f32[4]")
EXP = part("f32[4] = map exp %a0", "%0", a0="f32[4]")
END = part("f32[2] = extract_slice %a0 at (2)", "%0", a0="f32[4]")


def test_who_reads_an_earlier_version_comes_first_too() -> None:
    """Nobody overwrote what %0 reads, so far."""
    before = expanded(
        """
        graph @f(%x: f32[4] donated, %y: f32[2]) {
          %0: f32[2] = dispatch copy %x : END
          %1: f32[4] = dispatch copy %y into %x [0:2] : FIRST
          %2: f32[4] = dispatch copy %1 : COPY
          %3: f32[4] = dispatch copy %y into %2 [2:4] : LAST
          %4: f32[4] = dispatch map %1 : EXP
          return %3, %0, %4
        }""", END=END, FIRST=FIRST, LAST=LAST, COPY=COPY, EXP=EXP)  # fmt: skip
    after, _ = rewritten(before, elide_copies)
    assert "%3: f32[4] = after %1, %0, %2" in outline(after)


def test_who_copies_and_computes_is_waited_for_as_before() -> None:
    """%2 waits for a reader of %z, which gives one result less."""
    both = part("f32[4] = map exp %a1", "%a0, %0", a0="f32[4]", a1="f32[4]")
    before = expanded(
        """
        graph @f(%x: f32[4] donated, %z: f32[4] donated, %y: f32[2]) {
          %0: f32[4], %1: f32[4] = dispatch map %x, %z : both
          %2: f32[4] = after %z, %0
          %3: f32[4] = dispatch copy %y into %2 [0:2] : FIRST
          %4: f32[4] = dispatch copy %y into %0 [0:2] : FIRST
          return %4, %3, %1
        }""", both=both, FIRST=FIRST)  # fmt: skip
    after, _ = rewritten(before, elide_copies)
    assert outline(after) == plain("""
        graph @f(%x: f32[4] donated, %z: f32[4] donated, %y: f32[2]) {
          %0: f32[4] = dispatch map %x, %z
          %1: f32[4] = after %z, %0
          %2: f32[4] = dispatch copy %y into %1 [0:2]
          %3: f32[4] = after %x, %0
          %4: f32[4] = dispatch copy %y into %3 [0:2]
          return %4, %2, %0
        }""")


def test_a_loop_that_changes_a_row_waits_for_readers_of_others() -> None:
    """A loop may write all that it carries, as everybody sees it from outside."""

    def f(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: c.at[3].set(c[3] * 2), x), lax.cumsum(x[:2] * 2, 1)

    check(f, f32(4, 3), donated=[True])
