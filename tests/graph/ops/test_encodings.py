"""`set_encoding`, `unset_encoding`: types, text, meaning."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.errors import ParseError, VerificationError
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify

TEXT = """graph @f(%x: f32[4,6], %w: f32[6,8]) {
  %0: f32[6,8]{rhs:kn:f32:f32:f32:n} = set_encoding %w
  %1: f32[4,8] = contract %x, %0 batch=((), ()) contracting=((1), (0))
  %2: f32[4,8]{result:mn:f32:f32:f32:n} = set_encoding %1
  %3: f32[4,8] = unset_encoding %2
  return %3
}
"""


def test_the_text_is_read_back() -> None:
    graph = parse(TEXT)
    verify(graph)
    assert as_text(graph) == TEXT.rstrip()


def test_they_are_their_operands() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 8)))
    (y,) = interpret(parse(TEXT), [x, w])
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("%0: f32[6,8]{rhs:kn:", "%0: f32[6,8]{rhs:bkn:", "no encoding of that shape"),
        ("{rhs:kn:", "{rhs:mn:", "no encoding"),
        ("unset_encoding %2", "unset_encoding %1", "is not encoded"),
        ("= set_encoding %1", "= set_encoding %0", "encoded already"),
        ("%3: f32[4,8] =", "%3: f32[4,8]{result:mn:f32:f32:f32:n} =", "the type should be"),
    ],
)
def test_what_does_not_fit(before: str, after: str, error: str) -> None:
    assert before in TEXT
    with pytest.raises((ParseError, VerificationError), match=error):
        verify(parse(TEXT.replace(before, after)))
