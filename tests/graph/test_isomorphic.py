"""Structure decides; names, order and locations do not."""

from __future__ import annotations

import pytest

from stagejit.graph.isomorphic import difference, isomorphic
from stagejit.graph.text.parser import parse

BASE = """graph @f(%x: f32[4], %y: f32[4]) {
  %0: f32[4] = map exp %x
  %1: f32[4] = map sin %y
  %2: f32[4] = map add %0, %1
  return %2
}"""


def test_names_order_and_locations_do_not_matter() -> None:
    other = """graph @g(%a: f32[4], %b: f32[4]) {
      %s: f32[4] = map sin %b  // model.py:3
      %e: f32[4] = map exp %a
      %r: f32[4] = map add %e, %s
      return %r
    }"""
    assert isomorphic(parse(BASE), parse(other))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("map exp", "map cos", "fn is exp and cos"),
        ("add %0, %1", "add %1, %0", "fn is"),
        ("map sin %y", "map sin %x", "and input"),
        ("%y: f32[4]", "%y: f32[4] donated", "inputs differ"),
        ("return %2", "return %2, %2", "operands differ"),
        ("add %0, %1", "add %0, %0", "fn is sin and exp"),
        ("%2: f32[4] = map add %0, %1", "%2: f32[4] = reverse %1 axes=(0)", "kinds"),
        ("return %2", "%3: f32[4] = map neg %2\n  return %3", "3 ops and 4 ops"),
    ],
)
def test_every_difference_is_told(old: str, new: str, message: str) -> None:
    told = difference(parse(BASE), parse(BASE.replace(old, new)))
    assert told is not None
    assert message in told


def test_bits_of_constants_matter() -> None:
    text = "graph @f() {{\n  %0: f32[] = const {}\n  return %0\n}}"
    assert isomorphic(parse(text.format("nan")), parse(text.format("nan")))
    assert not isomorphic(parse(text.format("0.0")), parse(text.format("-0.0")))


def test_sharing_matters() -> None:
    shared = BASE.replace("map sin %y", "map exp %x")
    once = shared.replace("add %0, %1", "add %0, %0")
    told = difference(parse(shared), parse(once))
    assert told is not None
    assert "shared differently" in told
