"""`sort`: types, text, and meaning against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from stagejit.errors import VerificationError
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import infer
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.types import TensorType, f32, i32
from tests.expected.sorts import DTYPES, array, assert_same, order

TEXT = """\
graph @f(%x: f32[3,5], %y: i32[3,5]) {
  %0: f32[3,2], %1: i32[3,2] = sort %x, %y axis=1 count=2 descending=true keys=1 results=(0, 2)
  return %0, %1
}"""
X, Y = TensorType(f32, (3, 5)), TensorType(i32, (3, 5))
ATTRS = {"axis": 1, "keys": 1, "descending": False, "count": 5, "results": (0, 2)}


def test_text() -> None:
    graph = parse(TEXT)
    verify(graph)
    assert as_text(graph) == TEXT


def test_types() -> None:
    assert infer("sort", [X, Y], ATTRS) == (X, Y)
    assert infer("sort", [X, Y], {**ATTRS, "results": (1,), "count": 0}) == (
        TensorType(i32, (3, 0)),
    )


@pytest.mark.parametrize(
    ("operands", "changed", "what"),
    [
        ([X, TensorType(i32, (3,))], {}, "operands have one shape"),
        ([X, Y], {"axis": 2}, "axes"),
        ([X, Y], {"keys": 0}, "there are no 0 keys"),
        ([X, Y], {"keys": 3}, "there are no 3 keys"),
        ([X, Y], {"count": 6}, "6 of 5 are kept"),
        ([X, Y], {"descending": 1}, "descending is a bool"),
        ([X, Y], {"results": (0, 0)}, "results are different ones"),
        ([X, Y], {"results": ()}, "results are different ones"),
        ([X, Y], {"results": (3,)}, "there are no results (3,)"),
        ([TensorType(f32, (1 << 31,))], {"axis": 0, "count": 1}, "1 of 2147483648 are kept"),
    ],
)
def test_what_does_not_fit(operands: Any, changed: dict[str, Any], what: str) -> None:
    with pytest.raises(VerificationError, match=re.escape(what)):
        infer("sort", operands, {**ATTRS, **changed})


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_meaning(dtype: str, descending: bool) -> None:
    graph = parse(TEXT)
    x, y = array((3, 50), dtype, ties=True), array((3, 50), "int32", 1)
    graph = parse(f"""\
graph @f(%x: {graph_type(dtype)}[3,50], %y: i32[3,50]) {{
  %0: {graph_type(dtype)}[3,20], %1: i32[3,20], %2: i32[3,20] = sort %x, %y axis=1 keys=1 \
descending={str(descending).lower()} count=20 results=(0, 1, 2)
  return %0, %1, %2
}}""")
    by = order([x], 1, descending=descending)[:, :20]
    found = interpret(graph, [x, y])
    for ours, wanted in zip(found, (x, y, by.astype(np.int32)), strict=True):
        wanted = wanted if wanted.shape == by.shape else np.take_along_axis(wanted, by, 1)
        assert_same(np.asarray(ours, wanted.dtype), wanted)


def graph_type(name: str) -> str:
    known = {"bool": "bool", "bfloat16": "bf16"}
    short = name.replace("float", "f").replace("uint", "u").replace("int", "i")
    return known.get(name, short)
