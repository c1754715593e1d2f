"""What is not in the grammar is a ParseError with the line; what cannot be, a VerificationError."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.errors import ParseError, VerificationError
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text


def body(*lines: str) -> str:
    return "\n".join(["graph @f(%x: f32[4], %i: i32[]) {", *lines, "}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0: f32[4] = map exp %y", "%y is not defined yet"),
        ("%0: f32[4] = ", "expected a name, found end"),
        ("%0: f32[4 = map exp %x", "expected ','"),
        ("%0: f32[4] = map exp %x # note", "cannot read '# note'"),
        ("%0: f32[4] = map exp %x )", "did not expect ')'"),
        ("%0: f32[4], %0: f32[4] = map exp %x", "map has one result, not 2"),
        ("%x: f32[4] = map exp %x", "a name is given twice"),
        ("%0: f32[5] = map exp %x", "the type should be f32[4]"),
        ("%0: f32[2] = extract_slice %x at (1.5)", "1.5 is no integer"),
        ("%0: f32[2] = const [1.0]", "4 bytes do not fill f32[2]"),
        ("%0: i32[] = const 1.5", "1.5 is no i32"),
        ("%0: key<fry>[] = const 1", "key<fry> has no literal"),
        ("%0: f32[4] = reverse %x axes=(maybe)", "maybe is no value"),
        ("return %0", "%0 is not defined yet"),
    ],
)
def test_errors_name_the_line(line: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(body("", f"  {line}"))
    assert message in str(caught.value)
    assert str(caught.value).startswith("line 3: ")


@pytest.mark.parametrize("text", ["", "graph @f() {", "hello\nworld"])
def test_a_graph_has_a_header_and_a_return(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0: f32[4] = teleport %x", "unknown op kind 'teleport'"),
        ("%0: f32[4] = mapp abs %x", "unknown op kind 'mapp': did you mean 'map'?"),
        ("%0: f32[4] = map frobnicate %x", "unknown function 'frobnicate'"),
        ("%0: f32[4] = map add %x", "add takes 2 operands, not 1"),
        ("%0: f32[4] = map not %x", "not is not defined for f32"),
        ("%0: f32[4] = map integer_pow %x", "integer_pow needs y"),
        ("%0: f32[3] = extract_slice %x at (2)", "leaves dimension 0"),
        ("%0: f32[4] = reverse %x axes=(1)", "not ascending axes"),
        ("%0: f32[4,1] = transpose %x permutation=(1, 0)", "is no permutation"),
        ("%0: f32[4,4] = broadcast %x axes=(0, 1)", "do not name each dimension once"),
        ("%0: f32[5] = broadcast %x axes=(0)", "does not fit"),
        ("%0: f32[5] = reshape %x", "another number of elements"),
        ("%0: f32[4] = fill %x", "is not a scalar"),
        ("%0: f32[] = reduce and %x axes=(0)", "and is not defined for f32"),
        ("%0: f32[4] = cumulative add %x axis=0", "needs the attribute 'reverse'"),
        ("%0: f64[4] = bitcast %x", "element sizes differ"),
        ("%0: i32[4] = iota axis=1", "no axis 1"),
        ("%0: f32[4] = insert_slice %i into %x at (0)", "differ in element type"),
        ("%0: f32[] = contract %x, %x contracting=((0), ()) batch=((), ())", "contract of"),
    ],
)
def test_impossible_ops_are_refused(line: str, message: str) -> None:
    with pytest.raises(VerificationError) as caught:
        parse(body("", line))
    assert str(caught.value).startswith("line 3: ")
    assert message in str(caught.value)


WINDOW = (
    "batch_groups=1 border={} feature_groups=1 lhs_dilation=(1) lhs_spec=(0, 1, 2) "
    "out_spec=(0, 1, 2) padding=((1, 1)) rhs_dilation=(1) rhs_spec=(0, 1, 2) strides=(1)"
)


def window(dtype: str, border: str) -> str:
    shape = f"{dtype}[1,1,4]"
    return (
        f"graph @f(%x: {shape}, %w: {dtype}[1,1,3]) {{\n"
        f"  %0: {shape} = conv %x, %w {WINDOW.format(border)}\n  return %0\n}}"
    )


@pytest.mark.parametrize(
    ("dtype", "border"),
    [("f32", "2.0"), ("f32", "-inf"), ("bf16", "nan"), ("f64", "0.1"), ("f32", "1e-45"),
     ("i8", "-128"), ("u64", "18446744073709551615")],
)  # fmt: skip
def test_a_border_comes_back(dtype: str, border: str) -> None:
    if border == "1e-45":
        border = repr(float(np.float32(border)))
    assert as_text(parse(window(dtype, border))) == window(dtype, border)


@pytest.mark.parametrize(
    ("dtype", "border", "message"),
    [
        ("f32", "0.0", "a border of zeros is left out"),
        ("f32", "-0.0", "a border of zeros is left out"),
        ("f32", "0.1", "border 0.1 is no f32"),
        ("f32", "1e+300", "border 1e+300 is no f32"),
        ("f32", "2", "border 2 is no f32"),
        ("f32", "true", "border True is no f32"),
        ("i8", "2.0", "border 2.0 is no i8"),
        ("i8", "128", "border 128 is no i8"),
        ("u32", "-1", "border -1 is no u32"),
    ],
)
def test_a_border_is_an_element_of_the_operand(dtype: str, border: str, message: str) -> None:
    with pytest.raises(VerificationError) as caught:
        parse(window(dtype, border))
    assert message in str(caught.value)


def test_a_delegate_comes_back_without_its_equation() -> None:
    graph = parse(body('%0: f32[4] = delegate %x effects=() reason="sort: \\"why\\""', "return %0"))
    (op,) = list(graph)
    assert op.attrs == {"equation": None, "reason": 'sort: "why"', "effects": ()}
