"""`call` ops: text, verification, interpretation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.errors import VerificationError
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of

TEXT = """graph @f(%x: f32[2,3,3]) {
  %0: f32[2,3,3], %1: i32[2] = call %x attributes=(("uplo", "u8", 85)) column_major=((true), (true, false)) target="lapack_spotrf_ffi"
  return %0, %1
}"""  # noqa: E501


def test_the_text_parses_back() -> None:
    graph = parse(TEXT)
    verify(graph)
    assert as_text(graph) == TEXT


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("((true), (", "((true, true), (", "column_major names 2 of 1 arrays"),
        ("(true, false))", "(true, true))", "two dimensions at least"),
        ('(("uplo", "u8", 85))', '(("b", "u8", 1), ("a", "u8", 1))', "not in order"),
    ],
)
def test_wrong_attributes(old: str, new: str, fault: str) -> None:
    with pytest.raises(VerificationError, match=fault):
        verify(parse(TEXT.replace(old, new)))


@pytest.mark.parametrize("precision", ["declared", "f64"])
def test_the_interpreter_works_in_float64(precision: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 5)).astype(np.float32)
    x = (x @ x.swapaxes(-1, -2) + np.eye(5)).astype(np.float32)
    b = rng.standard_normal((4, 5, 2)).astype(np.float32)
    solved, factor = interpret(
        graph_of(lambda x, b: (jnp.linalg.solve(x, b), jnp.linalg.cholesky(x)), x, b), [x, b],
        precision=precision,
    )  # fmt: skip
    wide = x.astype(np.float64)
    rtol = 1e-6 if precision == "declared" else 1e-11
    np.testing.assert_allclose(solved, np.linalg.solve(wide, b), rtol=100 * rtol, atol=rtol)
    np.testing.assert_allclose(factor, np.linalg.cholesky(wide), rtol=rtol, atol=rtol)
