"""Dispatches in the graph: text, meaning, what is refused, and that the text cannot lie."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.errors import ParseError, StagejitError, VerificationError
from stagejit.graph.ir import Graph, Value
from stagejit.graph.isomorphic import isomorphic
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.graph.ops.control import destination_of, memory_of
from stagejit.graph.ops.dispatches import add_dispatch, evaluated, kind_of, name_of, parts_of
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.types import TensorType, f32

TWO_BOXES = """graph @f(%x: f32[2,3]) {
  %0: f32[4,3] = empty
  %1: f32[4,3] = dispatch copy %x into %0 [0:2, 0:3] [2:4, 0:3]
    graph @copy(%a0: f32[2,3], %d0: f32[4,3] donated) {
      %0: f32[4,3] = insert_slice %a0 into %d0 at (0, 0)
      %1: f32[4,3] = insert_slice %a0 into %0 at (2, 0)
      return %1
    }
  return %1
}"""
BORDER = """graph @f(%x: f32[4]) {
  %0: f32[6] = empty
  %1: f32[6], %2: f32[4] = dispatch map %x into %0 [1:5] [0:6:5]
    graph @map(%a0: f32[4], %d0: f32[6] donated) {
      %0: f32[4] = map exp %a0
      %1: f32[6] = insert_slice %0 into %d0 at (1)
      return %1, %0
    }
    graph @border(%a0: f32[4], %d0: f32[6] donated) {
      %0: f32[] = const 7.0
      %1: f32[2] = fill %0
      %2: f32[6] = insert_slice %1 into %d0 at (0) strides (5)
      return %2
    }
  return %1, %2
}"""
NESTED = """graph @f(%x: f32[2], %at: i32[], %whole: f32[9] donated) {
  %0: f32[9] = dispatch copy %x, %at into %whole ~[0:9]
    graph @copy(%a0: f32[2], %a1: i32[], %d0: f32[9] donated) {
      %0: f32[4] = extract_slice %d0 at (%a1)
      %1: f32[4] = insert_slice %a0 into %0 at (1)
      %2: f32[9] = insert_slice %1 into %d0 at (%a1)
      return %2
    }
  return %0
}"""
SCATTER = """graph @f(%x: f32[4,3] donated, %at: i32[2,1], %rows: f32[2,3]) {
  %0: f32[3] = dispatch reduce %x
    graph @reduce(%a0: f32[4,3]) {
      %0: f32[3] = reduce add %a0 axes=(0)
      return %0
    }
  %1: f32[4,3] = after %x, %0
  %2: f32[4,3] = dispatch scatter %at, %rows into %1 ~[0:4, 0:3]
    graph @scatter(%a0: i32[2,1], %a1: f32[2,3], %d0: f32[4,3] donated) {
      %0: f32[4,3] = scatter set %d0, %a0, %a1 index_batch_axes=() inserted_axes=(0) \
mode="fill" operand_batch_axes=() sorted=false start_axes=(0) unique=false window_axes=(1)
      return %0
    }
  return %0, %2
}"""
ALIAS = """graph @f(%x: f32[2,3]) {
  %0: f32[6] = alias %x
  %1: f32[6] = dispatch copy %0
    graph @copy(%a0: f32[6]) {
      return %a0
    }
  %2: f32[3,2] = alias %1
  return %2
}"""
TEXTS = {
    "two boxes": TWO_BOXES,
    "border": BORDER,
    "nested": NESTED,
    "scatter": SCATTER,
    "alias": ALIAS,
}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_text_parses_back(text: str) -> None:
    graph = parse(text)
    verify(graph)
    assert as_text(graph) == text
    assert isomorphic(graph, parse(as_text(graph)))


def test_a_buffer_holds_all_boxes() -> None:
    (made,) = interpret(parse(TWO_BOXES), [X])
    np.testing.assert_array_equal(made, np.concatenate([X, X]))


def test_a_border_lies_around_what_the_first_part_writes() -> None:
    x = np.arange(4, dtype=np.float32)
    padded, plain = interpret(parse(BORDER), [x])
    np.testing.assert_array_equal(plain, np.exp(x.astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(padded, np.pad(plain, 1, constant_values=7))


@pytest.mark.parametrize("at", [-4, 0, 3, 5, 9])
def test_a_box_in_a_box_is_clamped_by_the_outer_one(at: int) -> None:
    whole = np.arange(9, dtype=np.float32)
    (made,) = interpret(parse(NESTED), [np.float32([50, 60]), np.int32(at), whole])
    first = min(max(at, 0), 5) + 1
    whole[first : first + 2] = 50, 60
    np.testing.assert_array_equal(made, whole)


def test_a_scatter_updates_its_destination_after_the_reader() -> None:
    graph = parse(SCATTER)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    total, made = interpret(graph, [x, np.int32([[3], [9]]), -X])
    np.testing.assert_array_equal(total, x.sum(0))
    x[3] = -X[0]
    np.testing.assert_array_equal(made, x)
    reader, _, scatter = graph.ops()
    assert memory_of(scatter.result) is graph.inputs[0]
    assert destination_of(reader.result) is None


def test_names_and_kinds_come_from_the_parts() -> None:
    (op,) = [op for op in parse(BORDER) if op.kind == "dispatch"]
    first, border = parts_of(op)
    kinds = [kind_of(evaluated(part)) for part in (first, border)]
    assert kinds == ["map", "fill"]
    names = [
        name_of(kind, evaluated(part)) for kind, part in zip(kinds, (first, border), strict=True)
    ]
    assert names == ["exp", "fill"]


LIES = {
    "another kind": (TWO_BOXES, "dispatch copy", "dispatch map"),
    "another box": (TWO_BOXES, "[2:4, 0:3]", "[1:4, 0:3]"),
    "a box less": (TWO_BOXES, " [2:4, 0:3]", ""),
    "no destination": (TWO_BOXES, "%x into %0 [0:2, 0:3] [2:4, 0:3]", "%x, %0"),
    "an inexact box as exact": (NESTED, "~[0:9]", "[0:9]"),
    "a border less": (BORDER, " [0:6:5]", ""),
}


@pytest.mark.parametrize(("text", "old", "new"), LIES.values(), ids=LIES.keys())
def test_a_line_that_its_parts_belie_is_refused(text: str, old: str, new: str) -> None:
    assert old in text
    with pytest.raises(ParseError, match="the line should be"):
        parse(text.replace(old, new, 1))


FAULTS = {
    "a destination is not updated": (ALIAS, "copy %0\n    graph @copy(%a0: f32[6])",
        "copy %0 into %0\n    graph @copy(%a0: f32[6], %d0: f32[6] donated)"),
    "parts take different inputs": (BORDER, "@border(%a0: f32[4],", "@border(%a0: f32[6],"),
    "a border updates no destination": (BORDER, "      return %2\n", "      return %1\n"),
    "two results update one operand": (BORDER, "return %1, %0\n    }\n    graph @border",
                                       "return %1, %1\n    }\n    graph @border"),
    "a border gives one update": (BORDER, "      return %2\n", "      return %2, %2\n"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "case"), FAULTS.items(), ids=FAULTS.keys())
def test_what_is_no_dispatch_is_refused(fault: str, case: tuple[str, str, str]) -> None:
    text, old, new = case
    assert old in text
    with pytest.raises(VerificationError, match=re.escape(fault)):
        parse(text.replace(old, new, 1))


def test_a_dispatch_has_a_part() -> None:
    with pytest.raises(ParseError, match="a dispatch has a part"):
        parse("graph @f(%x: f32[2]) {\n  %0: f32[2] = dispatch copy %x\n  return %0\n}")


@pytest.mark.parametrize("cut", range(8, 60, 7))
def test_a_text_that_ends_early_is_refused(cut: int) -> None:
    line = TWO_BOXES.splitlines()[2]
    with pytest.raises(StagejitError):
        parse(TWO_BOXES.replace(line, line[:cut]))


@st.composite
def graphs(draw: Any) -> Graph:
    """Dispatches that write boxes of each other's buffers, some of them after others."""
    graph = Graph()
    row = TensorType(f32, (4,))
    values: list[Value] = [graph.add_input("x", row)]
    whole = graph.add("empty", (), TensorType(f32, (3, 8)), shape=(3, 8), dtype=f32).result
    for _ in range(draw(st.integers(1, 6))):
        reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        part = Graph(draw(st.sampled_from(["copy", "map", "made"])))
        own = [part.add_input(f"a{at}", row) for at in range(len(reads))]
        fn = draw(st.sampled_from([None, "exp", "add"]))
        made = own[0]
        if fn is not None:
            given = (made, own[-1])[: 2 if fn == "add" else 1]
            made = part.add("map", given, row, fn=fn, dtype=f32).result
        outputs = [made]
        operands = list(reads)
        if draw(st.booleans()):
            current = part.add_input("d0", whole.type, donated=True)
            if values[1:] and draw(st.booleans()):
                whole = build(graph, "after", [whole, draw(st.sampled_from(values[1:]))])
            operands.append(whole)
            for _ in range(draw(st.integers(1, 2))):
                shaped = part.add("reshape", (made,), TensorType(f32, (1, 4)), shape=(1, 4))
                offsets = draw(st.integers(0, 2)), draw(st.integers(0, 4))
                current = part.add(
                    "insert_slice",
                    (shaped.result, current),
                    whole.type,
                    offsets=offsets,
                    strides=(1, 1),
                ).result
            outputs = draw(st.sampled_from([[current], [made, current]]))
        part.set_outputs(outputs)
        for result in add_dispatch(graph, operands, [part]).results:
            if result.type == row:
                values.append(result)
            else:
                whole = result
    graph.set_outputs([whole, values[-1]])
    return graph


@given(graph=graphs())
def test_any_graph_of_dispatches_parses_back(graph: Graph) -> None:
    verify(graph)
    text = as_text(graph)
    again = parse(text)
    assert as_text(again) == text
    assert isomorphic(graph, again)
    x = np.float32([1, 2, 3, 4])
    for a, b in zip(interpret(graph, [x]), interpret(again, [x]), strict=True):
        np.testing.assert_array_equal(a, b)
