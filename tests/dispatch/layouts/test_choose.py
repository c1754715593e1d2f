"""Layouts of graphs of dispatches: text in, text out; a reason for each hint that is dropped."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.base.decisions import Decision
from stagejit.dispatch.layouts.choose import lay_out
from stagejit.dispatch.layouts.cost import Grain
from stagejit.dispatch.layouts.relay import bound_memory, relay
from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.index.layout import Layout
from stagejit.options import Options

# Exponentials of a transposed argument; then their square, transposed back.
TURNED = """graph @f(%x: f32[4,6]) {
  %0: f32[6,4] = dispatch map %x
    graph @map(%a0: f32[4,6]) {
      %0: f32[6,4] = transpose %a0 permutation=(1, 0)
      %1: f32[6,4] = map exp %0
      return %1
    }
  %1: f32[4,6] = dispatch map %0
    graph @map(%a0: f32[6,4]) {
      %0: f32[6,4] = map square %a0
      %1: f32[4,6] = transpose %0 permutation=(1, 0)
      return %1
    }
  return %1
}"""
LAID_OUT = """graph @f(%x: f32[4,6]) {
  %0: f32[6,4]{1,0} = empty
  %1: f32[6,4]{1,0} = dispatch map %x into %0 [0:6, 0:4]
    graph @map(%a0: f32[4,6], %into0: f32[6,4]{1,0} donated) {
      %0: f32[6,4] = transpose %a0 permutation=(1, 0)
      %1: f32[6,4] = map exp %0
      %2: f32[6,4]{1,0} = insert_slice %1 into %into0 at (0, 0)
      return %2
    }
  %2: f32[4,6] = dispatch map %1
    graph @map(%a0: f32[6,4]{1,0}) {
      %0: f32[6,4] = map square %a0
      %1: f32[4,6] = transpose %0 permutation=(1, 0)
      return %1
    }
  return %2
}"""


def laid_out(text: str, *disable: str) -> tuple[Graph, list[Decision]]:
    """The graph with its layouts, which means what it meant."""
    graph = parse(text)
    inputs = [np.random.default_rng(n).standard_normal(v.shape) for n, v in enumerate(graph.inputs)]
    before = interpret(graph, inputs)
    log, _ = lay_out(graph, Options(disable=disable))
    verify(graph)
    verify_ties(graph, regions_of(graph))
    for a, b in zip(before, interpret(graph, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return graph, log.decisions


def test_memory_between_two_transposes_lies_as_the_argument() -> None:
    graph, decisions = laid_out(TURNED)
    assert as_text(graph) == LAID_OUT
    assert as_text(parse(LAID_OUT)) == LAID_OUT
    reason = "lies in {1,0}: 0 bytes go against the grain, 192 bytes in row-major"
    assert [(d.rewrite, d.applied, d.reason) for d in decisions] == [
        ("infer-layouts", True, reason)
    ]


def test_switched_off_nothing_changes() -> None:
    graph, decisions = laid_out(TURNED, "infer-layouts")
    assert as_text(graph) == TURNED
    assert not decisions


def test_layouts_of_layouts_stay() -> None:
    graph, decisions = laid_out(LAID_OUT)
    assert as_text(graph) == LAID_OUT
    assert not decisions


def refused(text: str) -> list[str]:
    graph, decisions = laid_out(text)
    assert "]{" not in as_text(graph)
    return [d.reason for d in decisions if not d.applied]


FIRST = TURNED[: TURNED.index("  %1: f32[4,6]")]


def test_dont_lay_out_what_the_caller_gets() -> None:
    assert refused(FIRST + "  return %0\n}\n") == [
        "the caller takes it row-major: its store transposes"
    ]


def test_dont_lay_out_what_is_looked_at_in_another_shape() -> None:
    text = (
        FIRST
        + """  %1: f32[24] = alias %0
  %2: f32[24] = dispatch map %1
    graph @map(%a0: f32[24]) {
      %0: f32[24] = map square %a0
      return %0
    }
  return %2
}
"""
    )
    assert refused(text) == ["others than dispatches look at it, who take it for row-major"]


def test_dont_lay_out_where_both_sides_cost_the_same() -> None:
    """Who reads it takes rows: one of the two goes against the grain in any case."""
    text = (
        FIRST
        + """  %1: f32[6,4] = dispatch map %0
    graph @map(%a0: f32[6,4]) {
      %0: f32[6,4] = map square %a0
      return %0
    }
  return %1
}
"""
    )
    assert refused(text)[0] == (
        "{1,0} does not pay: 96 bytes go against the grain, 96 bytes in row-major"
    )


def test_dont_take_sides_between_two_orders() -> None:
    text = """graph @f(%x: f32[4,6], %y: f32[6,4]) {
  %0: f32[6,4] = dispatch map %x, %y
    graph @map(%a0: f32[4,6], %a1: f32[6,4]) {
      %0: f32[6,4] = transpose %a0 permutation=(1, 0)
      %1: f32[6,4] = map add %0, %a1
      return %1
    }
  %1: f32[4,6] = dispatch map %0
    graph @map(%a0: f32[6,4]) {
      %0: f32[4,6] = transpose %a0 permutation=(1, 0)
      %1: f32[4,6] = map exp %0
      return %1
    }
  return %1
}
"""
    assert refused(text)[-1] == "ambiguous: operands of map lie in different orders"


def test_dont_follow_a_view_across_axes() -> None:
    text = """graph @f(%x: f32[4,6]) {
  %0: f32[24] = dispatch copy %x
    graph @copy(%a0: f32[4,6]) {
      %0: f32[6,4] = transpose %a0 permutation=(1, 0)
      %1: f32[24] = reshape %0
      return %1
    }
  %1: f32[24] = dispatch map %0
    graph @map(%a0: f32[24]) {
      %0: f32[24] = map exp %a0
      return %0
    }
  return %1
}
"""
    assert refused(text) == ["a view cuts across the axes of what it is made of"]


PARTS = """graph @f(%x: f32[2,3,8,8]) {
  %0: f32[2,3,8,8] = empty
  %1: f32[2,3,8,8] = dispatch map %x into %0 [0:2, 0:3, 0:8, 0:8]
    graph @map(%a0: f32[2,3,8,8], %d0: f32[2,3,8,8] donated) {
      %0: f32[2,3,8,8] = map exp %a0
      %1: f32[2,3,8,8] = insert_slice %0 into %d0 at (0, 0, 0, 0)
      return %1
    }
  %2: f32[2,3,4,4] = dispatch map %1
    graph @map(%a0: f32[2,3,8,8]) {
      %0: f32[2,3,4,4] = window max %a0 WINDOW
      return %0
    }
  return %2
}
"""
WINDOW = "sizes=(1, 1, 2, 2) strides=(1, 1, 2, 2) padding=((0, 0), (0, 0), (0, 0), (0, 0))"
WINDOW += " dilation=(1, 1, 1, 1)"


def test_dont_lay_out_what_is_written_in_parts() -> None:
    reasons = refused(PARTS.replace("WINDOW", WINDOW))
    assert reasons[0] == "it is written in parts, each of which lies in one piece as it is"


# ------------------------------------------------------------------ what lies against the grain


def dispatch_of(graph: Graph) -> tuple[Grain, list[Value]]:
    (op,) = [op for op in graph.ops() if op.definition.is_dispatch]
    return Grain(op, 0), [*op.operands, *op.results]


def nbytes(line: str, inputs: str, layouts: dict[int, Layout]) -> float:
    """Of a dispatch of one op; layouts: of its operands, then of its results."""
    shape = line.split(" = ")[0]
    kind = line.split(" = ")[1].split()[0]
    kind = kind if kind in ("conv", "contract", "reduce") else "map"
    names = inputs.split(", ")
    own = ", ".join(name.replace("%", "%a") for name in names)
    line = line.replace("%x", "%ax").replace("%w", "%aw")
    if kind == "map" and "transpose" in line:
        kind = "copy"
    reads = ", ".join(name.split(":")[0] for name in names)
    text = f"""graph @f({inputs}) {{
  %0: {shape} = dispatch {kind} {reads}
    graph @{kind}({own}) {{
      %0: {line}
      return %0
    }}
  return %0
}}
"""
    grain, values = dispatch_of(parse(text))
    return grain.nbytes({values[at]: layout for at, layout in layouts.items()})


def test_what_is_transposed_goes_against_the_grain_once() -> None:
    line, inputs = "f32[6,4] = transpose %x permutation=(1, 0)", "%x: f32[4,6]"
    turned = Layout((1, 0))
    assert nbytes(line, inputs, {}) == 96
    assert nbytes(line, inputs, {0: turned}) == 0
    assert nbytes(line, inputs, {1: turned}) == 0
    assert nbytes(line, inputs, {0: turned, 1: turned}) == 96


def test_steps_of_windows_go_against_the_grain() -> None:
    """Each of four taps reads every second pixel."""
    line, inputs = f"f32[1,32,4,4] = window max %x {WINDOW}", "%x: f32[1,32,8,8]"
    last = Layout((0, 2, 3, 1))
    assert nbytes(line, inputs, {}) == 0.5 * 4 * 2048
    assert nbytes(line, inputs, {0: last, 1: last}) == 0
    assert nbytes(line, inputs, {0: last}) == 2048  # the results


CONV = ("lhs_spec=(0, 1, 2, 3) rhs_spec=(0, 1, 2, 3) out_spec=(0, 1, 2, 3) strides=({0}, {0})"
        " padding=((1, 1), (1, 1)) lhs_dilation=(1, 1) rhs_dilation=(1, 1) feature_groups={1}"
        " batch_groups=1")  # fmt: skip


@pytest.mark.parametrize(
    ("size", "stride", "groups", "gains"),
    [(28, 1, 1, True), (7, 1, 1, False), (28, 2, 1, False), (28, 2, 64, True)],
    ids=["images", "weights", "steps", "own features"],
)
def test_channels_or_pixels(size: int, stride: int, groups: int, gains: bool) -> None:
    """See Note [What goes against the grain]."""
    out = (size - 1) // stride + 1
    line = f"f32[1,64,{out},{out}] = conv %x, %w {CONV.format(stride, groups)}"
    inputs = f"%x: f32[1,64,{size},{size}], %w: f32[64,{64 // groups},3,3]"
    last = Layout((0, 2, 3, 1))
    by_pixels, by_channels = nbytes(line, inputs, {}), nbytes(line, inputs, {0: last, 2: last})
    assert (by_channels < by_pixels) == gains


def test_sums_go_along_rows() -> None:
    line, inputs = "f32[16] = reduce add %x axes=(1)", "%x: f32[16,32]"
    assert nbytes(line, inputs, {}) == 0
    assert nbytes(line, inputs, {0: Layout((1, 0))}) == 0.25 * 2048


def test_who_counts_on_rows_wants_none_to_be_moved() -> None:
    text = """graph @f(%x: f32[4,6]) {
  %0: f32[4,6] = dispatch cumulative %x
    graph @cumulative(%a0: f32[4,6]) {
      %0: f32[4,6] = cumulative add %a0 axis=0 reverse=false
      return %0
    }
  return %0
}
"""
    grain, (x, _) = dispatch_of(parse(text))
    assert grain.nbytes({}) == 0
    assert grain.nbytes({x: Layout((1, 0))}) == 96


# ------------------------------------------------------------------ relaying


def test_dispatches_that_share_their_parts_go_on_to_do_so() -> None:
    graph = parse(TURNED)
    first = graph.ops()[0]
    again = graph.add("dispatch", first.operands, [v.type for v in first.results], first.loc,
                      **first.attrs)  # fmt: skip
    graph.set_outputs([*graph.outputs, again.result])
    assert again.result in bound_memory(graph)
    relay(graph, {value.result: Layout((1, 0), (2, 1)) for value in (first,)})
    made = next(op for op in graph.ops() if op.definition.is_dispatch)
    assert str(made.result.type) == "f32[6,4]{1,0;2,1}"
    assert graph.is_used(made)


def test_rows_that_are_read_again_lie_as_what_they_are_made_of() -> None:
    """Columns that are normalized, then multiplied by each other: vectors of columns go with the
    grain of the argument, and of memory in its order."""
    text = """graph @cov(%x: f32[400,100]) {
  %0: f32[100,400] = dispatch reduce %x
    graph @reduce(%a0: f32[400,100]) {
      %0: f32[100,400] = transpose %a0 permutation=(1, 0)
      %1: f32[100] = reduce add %0 axes=(1)
      %2: f32[100,400] = broadcast %1 axes=(0)
      %3: f32[100,400] = map sub %0, %2
      return %3
    }
  %1: f32[100,100] = dispatch contract %0
    graph @contract(%a0: f32[100,400]) {
      %0: f32[400,100] = transpose %a0 permutation=(1, 0)
      %1: f32[100,100] = contract %a0, %0 batch=((), ()) contracting=((1), (0))
      return %1
    }
  return %1
}"""
    graph = parse(text)
    log, _ = lay_out(graph, Options())
    verify(graph)
    assert [(d.rewrite, d.applied) for d in log.decisions] == [("infer-layouts", True)]
    assert "%0: f32[100,400]{1,0} = empty" in as_text(graph)
