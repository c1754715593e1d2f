"""Encodings of a graph of dispatches become layouts: text in, text out."""

from __future__ import annotations

from textwrap import dedent

from stagejit.dispatch.encodings import Resolver, resolve_encodings, untiled
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.types import TensorType

TEXT = dedent("""\
    graph @f(%x: f32[4,6], %w: f32[6,8]) {
      %0: f32[6,8]{rhs:kn:f32:f32:f32:n} = dispatch copy %w
        graph @copy(%a0: f32[6,8]) {
          %0: f32[6,8]{rhs:kn:f32:f32:f32:n} = set_encoding %a0
          return %0
        }
      %1: f32[4,8] = dispatch contract %x, %0
        graph @contract(%a0: f32[4,6], %a1: f32[6,8]{rhs:kn:f32:f32:f32:n}) {
          %0: f32[4,8] = contract %a0, %a1 batch=((), ()) contracting=((1), (0))
          return %0
        }
      return %1
    }""")


def panels(encoding: Encoding, type: TensorType) -> Layout:
    return Layout((1, 0), (1, 4))


def resolved(text: str, resolver: Resolver) -> tuple[list[str], list[str]]:
    graph = parse(text)
    verify(graph)
    found = resolve_encodings(graph, resolver)
    verify(found.graph)
    lines = [line.strip() for line in as_text(found.graph).splitlines()]
    return [line for line in lines if " = " in line], [d.reason for d in found.decisions]


def test_nothing_is_left_where_there_are_no_tiles() -> None:
    lines, reasons = resolved(TEXT, untiled)
    assert lines == [
        "%0: f32[4,8] = dispatch contract %x, %w",
        "%0: f32[4,8] = contract %a0, %a1 batch=((), ()) contracting=((1), (0))",
    ]
    assert reasons == ["no tiles for {rhs:kn:f32:f32:f32:n}"]


def test_an_argument_is_packed_by_a_dispatch() -> None:
    lines, reasons = resolved(TEXT, panels)
    assert lines[:2] == [
        "%0: f32[6,8]{1,0;1,4} = empty",
        "%1: f32[6,8]{1,0;1,4} = dispatch copy %w into %0 [0:6, 0:8]",
    ]
    assert reasons == ["{rhs:kn:f32:f32:f32:n} is {1,0;1,4}"]


def test_a_constant_is_one_that_is_packed() -> None:
    text = TEXT.replace(", %w: f32[6,8])", ")").replace("copy %w", "copy %9")
    text = text.replace("{\n", "{\n  %9: f32[6,8] = const splat(1.0)\n", 1)
    lines, _ = resolved(text, panels)
    assert lines[0].startswith("%0: f32[6,8]{1,0;1,4} = const")
    assert lines[1] == "%1: f32[4,8] = dispatch contract %x, %0"


def test_a_bound_input_lies_as_it_is_read() -> None:
    graph = parse(TEXT.replace("%w: f32[6,8])", "%w: f32[6,8] bound)"))
    found = resolve_encodings(graph, panels)
    assert found.bound == {0: Layout((1, 0), (1, 4))}
    assert str(found.graph.inputs[1].type) == "f32[6,8]{1,0;1,4}"
    assert len(found.graph) == 1


def test_panels_of_all_columns_are_the_array() -> None:
    lines, reasons = resolved(TEXT, lambda encoding, type: Layout((), (1, 8)))
    assert lines[0] == "%0: f32[4,8] = dispatch contract %x, %w"
    assert reasons == ["{;1,8} is how it lies"]


def test_without_encodings_it_is_the_same_graph() -> None:
    graph = resolve_encodings(parse(TEXT), untiled).graph
    assert resolve_encodings(graph, panels).graph is graph
