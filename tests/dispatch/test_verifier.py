"""What there is no kernel for is no dispatch."""

from __future__ import annotations

import pytest

from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.verifier import verify_kinds
from stagejit.errors import VerificationError
from stagejit.graph.text.parser import parse

TEXT = """graph @f(%x: f32[4,3], %y: f32[2]) {
  RESULTS = dispatch KIND %x, %y
    graph @p(%a0: f32[4,3], %a1: f32[2]) {
      FIRST
      SECOND
      return %0, %1
    }
  return %0, %1
}"""
EXP = "%0: f32[4,3] = map exp %a0"
ROWS = "%0: f32[4] = reduce add %a0 axes=(1)"


def verify(kind: str, first: str, second: str) -> None:
    results = ", ".join(line.split(" =")[0] for line in (first, second))
    text = TEXT.replace("RESULTS", results).replace("KIND", kind)
    verify_kinds(regions_of(parse(text.replace("FIRST", first).replace("SECOND", second))))


def test_results_in_one_space() -> None:
    verify("map", EXP, "%1: f32[4,3] = map sin %a0")
    verify("reduce", ROWS, "%1: f32[4] = map exp %0")
    verify("reduce", ROWS, "%1: f32[4] = reduce max %a0 axes=(1)")


@pytest.mark.parametrize(
    ("kind", "first", "second", "why"),
    [
        ("map", EXP, "%1: f32[2] = map exp %a1", "stores values of different shapes"),
        ("reduce", ROWS, "%1: f32[3] = reduce add %a0 axes=(0)", "reduces different rows"),
        ("reduce", ROWS, "%1: f32[2] = map exp %a1", "neither in its row space nor"),
        ("reduce", ROWS, "%1: f32[4] = cumulative add %0 axis=0 reverse=false", "other anchors"),
        (
            "cumulative",
            "%0: f32[4,3] = cumulative add %a0 axis=0 reverse=false",
            "%1: f32[4] = reduce add %0 axes=(1)",
            "does not have its one anchor",
        ),
    ],
)
def test_what_is_refused(kind: str, first: str, second: str, why: str) -> None:
    with pytest.raises(VerificationError, match=why):
        verify(kind, first, second)
