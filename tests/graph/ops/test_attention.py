"""`attend`: its text, its faults, what it means."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from stagejit.errors import StagejitError
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from tests.randomness import RNG

TEXT = dedent("""\
    graph @f(%q: f32[2,3,8], %k: f32[2,5,8], %v: f32[2,5,4], %m: bool[3,5]) {
      %0: f32[2,3,4] = attend %q, %k, %v, %m batch=((0), (0)) contracting=((2), (2)) \
value_batch=((0), (0)) value_contracting=((2), (1))
        graph @scores(%x: f32[2,3,5], %a: bool[3,5]) {
          %0: f32[] = const 0.5
          %1: f32[2,3,5] = fill %0
          %2: f32[2,3,5] = map mul %x, %1
          %3: bool[2,3,5] = broadcast %a axes=(1, 2)
          return %2, %3
        }
        graph @weights(%x: f32[2,3,5], %a: bool[3,5]) {
          %0: f32[2,3,5] = map neg %x
          return %0
        }
      return %0
    }""")


def test_text_comes_back() -> None:
    assert as_text(parse(TEXT)) == TEXT


def test_flops_are_those_of_both_products() -> None:
    graph = parse(TEXT)
    (op,) = (op for op in graph.ops() if op.definition.applies)
    assert op.definition.flops(op) == 2 * 2 * 3 * 5 * (8 + 4)
    assert not op.definition.has_bodies


def test_what_it_means() -> None:
    shapes = ((2, 3, 8), (2, 5, 8), (2, 5, 4))
    q, k, v = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    mask = RNG.standard_normal((3, 5)) > 0
    mask[0], mask[1] = False, True
    (found,) = interpret(parse(TEXT), [q, k, v, mask])
    f = np.einsum("bqd,bkd->bqk", q.astype(float), k.astype(float)) / 2
    e = np.where(mask, np.exp(f), 0)
    total = e.sum(-1, keepdims=True)
    weights = -np.divide(e, total, where=total != 0, out=np.zeros_like(e))
    np.testing.assert_allclose(found, weights @ v, rtol=1e-6, atol=1e-6)
    assert (found[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("contracting=((2), (2))", "contracting=((2), (1))", "differ"),
        ("@weights(%x: f32[2,3,5], %a: bool[3,5])", "@weights(%x: f32[2,3,5])", "weights takes"),
        ("return %2, %3", "return %3", "scores are no bool"),
        ("return %2, %3", "return %2, %2", "present is a bool"),
        ("map neg %x", "map exp %x", "not linear"),
        ("map neg %x", "reverse %x axes=(1)", "mix axes"),
        ("map mul %x, %1", "cumulative add %x axis=1 reverse=false", "scores has a cumulative"),
        ("value_contracting=((2), (1))", "value_contracting=((1), (2))", "differ"),
        ("value_batch=((0), (0)) value_contracting=((2), (1))",
         "value_batch=((), ()) value_contracting=((2), (1))", "type should be"),
    ],
)  # fmt: skip
def test_faults(before: str, after: str, why: str) -> None:
    text: Any = TEXT
    assert before in text
    with pytest.raises(StagejitError, match=why):
        parse(text.replace(before, after, 1))
