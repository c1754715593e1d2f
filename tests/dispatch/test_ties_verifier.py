"""A graph of dispatches in which somebody overwrites what another one counts on is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from tests.schedule.planning import checked_dispatches, prepared


def checked(text: str) -> None:
    graph = parse(text)
    verify_ties(graph, regions_of(graph))


def refused(text: str, why: str) -> None:
    graph = parse(text)
    with pytest.raises(VerificationError, match=why):
        verify_ties(graph, regions_of(graph))


COPY = """    graph @copy(%a0: f32[2], %d0: f32[4] donated) {
      %0: f32[4] = insert_slice %a0 into %d0 at (AT)
      return %0
    }
"""
SUM = """    graph @reduce(%a0: f32[4]) {
      %0: f32[] = reduce add %a0 axes=(0)
      return %0
    }
"""
LOW, HIGH = COPY.replace("AT", "0"), COPY.replace("AT", "2")
HEAD = "graph @f(%x: f32[2], %d: f32[4] donated, %e: f32[4]) {\n"
READ_FIRST = (
    HEAD
    + "  %0: f32[] = dispatch reduce %d\n" + SUM
    + "  %1: f32[4] = after %d, %0\n"
    + "  %2: f32[4] = dispatch copy %x into %1 [0:2]\n" + LOW
    + "  return %0, %2\n}"
)  # fmt: skip


def test_a_reader_comes_before_the_update() -> None:
    checked(READ_FIRST)


def test_a_reader_that_nothing_puts_first() -> None:
    text = READ_FIRST.replace("  %1: f32[4] = after %d, %0\n", "").replace("into %1", "into %d")
    refused(text, "reduce.0 reads .* which copy.1 overwrites, and nothing puts it first")


def test_a_reader_behind_the_update() -> None:
    update = "  %0: f32[4] = dispatch copy %x into %d [0:2]\n" + LOW
    late = "  %1: f32[4] = after %d, %0\n  %2: f32[] = dispatch reduce READ\n" + SUM
    text = HEAD + update + late + "  return %2, %0\n}"
    checked(text.replace("READ", "%0"))
    refused(text.replace("READ", "%1"), "reduce.1 reads .* which copy.0 overwrites")


def test_what_is_not_overwritten_may_be_read_at_any_time() -> None:
    part = """    graph @copy(%a0: f32[4]) {
      %0: f32[2] = extract_slice %a0 at (AT)
      return %0
    }
"""
    update = "  %0: f32[4] = dispatch copy %x into %d [0:2]\n" + LOW
    text = HEAD + update + "  %1: f32[2] = dispatch copy %d\n" + part + "  return %0, %1\n}"
    checked(text.replace("AT", "2"))
    refused(text.replace("AT", "1"), "nothing puts it first")


TWICE = (
    HEAD
    + "  %0: f32[4] = dispatch copy %x into %d [0:2]\n" + LOW
    + "  %1: f32[4] = dispatch copy %x into BASE [2:4]\n" + HIGH
    + "  return %0, %1\n}"
)  # fmt: skip


@pytest.mark.parametrize("between", ["", "alias", "optimization_barrier"])
def test_a_version_is_updated_once(between: str) -> None:
    text = TWICE.replace("%0, %1\n}", "%1\n}")
    checked(text.replace("BASE", "%0"))
    line = f"  %2: f32[4] = {between} %d\n" if between else ""
    text = text.replace("  %1: ", line + "  %1: ").replace("BASE", "%2" if between else "%d")
    refused(text, "are updates of one value")


def test_results_have_memory_of_their_own() -> None:
    refused(TWICE.replace("BASE", "%0"), "whose memory is returned twice")
    refused(HEAD + "  return %e\n}", "returns .* which lies in")


@pytest.mark.parametrize(
    ("base", "why"),
    [("%e", "an argument that is not donated"), ("%c", "overwrites const")],
)
def test_what_the_caller_counts_on_is_not_overwritten(base: str, why: str) -> None:
    constant = "  %c: f32[4] = const [1.0, 2.0, 3.0, 4.0]\n" if base == "%c" else ""
    update = f"  %0: f32[4] = dispatch copy %x into {base} [0:2]\n" + LOW
    refused(HEAD + constant + update + "  return %0\n}", why)


SHIFTED = """graph @f(%d: f32[8] donated) {
  %0: f32[8] = dispatch map %d into %d [2:4]
    graph @map(%a0: f32[8], %d0: f32[8] donated) {
      %0: f32[2] = extract_slice %a0 at (2)
      %1: f32[2] = map exp %0
      %2: f32[8] = insert_slice %1 into %d0 at (2)
      return %2
    }
  return %0
}"""


@pytest.mark.parametrize(("first", "legal"), [(2, True), (4, True), (0, True), (1, False)])
def test_a_map_may_overwrite_what_it_reads_at_the_same_place(first: int, legal: bool) -> None:
    text = SHIFTED.replace("extract_slice %a0 at (2)", f"extract_slice %a0 at ({first})")
    if legal:
        checked(text)
    else:
        refused(text, "reads other elements of the operand than it writes")


def test_a_reduction_may_not_overwrite_a_part_of_what_it_reads() -> None:
    text = SHIFTED.replace("%0: f32[2] = extract_slice %a0 at (2)", "%0: f32[] = reduce add %a0"
                           " axes=(0)").replace("map exp %0", "fill %0")  # fmt: skip
    refused(text.replace("dispatch map", "dispatch reduce"), "which it reads")


BORDER = """graph @f(%x: f32[4], %d: f32[6] donated) {
  %0: f32[6] = dispatch map %x, %d into %d [1:5] [0:1]
    graph @map(%a0: f32[4], %a1: f32[6], %d0: f32[6] donated) {
      %0: f32[4] = extract_slice %a1 at (AT)
      %1: f32[4] = map add %a0, %0
      %2: f32[6] = insert_slice %1 into %d0 at (1)
      return %2
    }
    graph @border(%a0: f32[4], %a1: f32[6], %d0: f32[6] donated) {
      %0: f32[] = const 7.0
      %1: f32[1] = fill %0
      %2: f32[6] = insert_slice %1 into %d0 at (0)
      return %2
    }
  return %0
}"""


def test_no_part_reads_what_another_one_writes() -> None:
    checked(BORDER.replace("AT", "1"))
    refused(BORDER.replace("AT", "0"), "which it reads")


def test_only_dispatches_compute() -> None:
    refused("graph @f(%x: f32[2]) {\n  %0: f32[2] = map exp %x\n  return %0\n}", "is no dispatch")


X, Y = np.ones((8, 4), np.float32), np.ones((2, 4), np.float32)


def branched(d: Any, y: Any) -> Any:
    total = jnp.exp(d[3:4].T) @ d[5:6]
    return total, lax.cond(y[0, 0] > 0, lambda d: d.at[3:6].set(0.0), lambda d: d, d)


def chained(d: Any, y: Any) -> Any:
    first = jnp.zeros((8, 4)).at[2:].set(jnp.exp(d[2:]))
    total = jnp.cumsum(first, 0)
    return first.at[:3].set(d[:3] @ jnp.ones((4, 4))), total


@pytest.mark.parametrize("fn", [branched, chained])
def test_without_any_order_a_plan_is_refused(fn: Any) -> None:
    """Each `after` of these programs counts."""
    graph = prepared(fn, (X, Y), (True, False))
    made, _ = checked_dispatches(graph, Options())
    count = sum(len(op.operands) - 1 for op in made.ops() if op.kind == "after")
    for number in range(count):
        dispatches, _ = checked_dispatches(graph, Options())
        _without_order(dispatches, number)
        with pytest.raises(VerificationError, match="nothing puts it first"):
            verify_ties(dispatches, regions_of(dispatches))
    assert count


def _without_order(graph: Graph, number: int) -> None:
    """Drops one of the operands that an `after` waits for."""
    for op in [op for op in graph.ops() if op.kind == "after"]:
        waits = list(op.operands[1:])
        if number < len(waits):
            del waits[number]
            made = graph.add("after", [op.operands[0], *waits], op.result.type)
            graph.replace_uses(op.result, made.result)
            graph.erase(op)
            return
        number -= len(waits)
