"""An op kind that the package has never heard of, declared here, goes through every stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.dispatch.forming.formation import form
from stagejit.errors import InternalError, VerificationError
from stagejit.graph.definition import Attrs, DynamicStart, OpDef, Types, define, require
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build, infer
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.index.affine import Index
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, f32
from tests.codegen.regions import Runner
from tests.schedule.planning import check_graph


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require(0 <= attrs["by"] < x.shape[attrs["axis"]], f"there is no shift by {attrs['by']}")
    return x


def _interpret(evaluator: Any, op: Op, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.roll(x, op.attrs["by"], op.attrs["axis"])


def _pull(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    axis, extent = op.attrs["axis"], op.result.shape[op.attrs["axis"]]
    _, shifted = (index[axis] + (extent - op.attrs["by"])).divmod(extent, strict=strict)
    return (*index[:axis], shifted, *index[axis + 1 :])


define(OpDef(kind="circular_shift", infer=_infer, interpret=_interpret, pull=_pull))
define(OpDef(kind="enigma", infer=lambda operands, attrs: operands, interpret=_interpret))

X = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
TEXT = """\
graph @f(%x: f32[5,37]) {
  %0: f32[5,37] = map exp %x
  %1: f32[5,37] = circular_shift %0 axis=1 by=3
  %2: f32[5,37] = map mul %1, %x
  return %2
}"""
WANTED = np.roll(np.exp(X), 3, 1) * X


def test_types_text_and_meaning() -> None:
    graph = parse(TEXT)
    verify(graph)
    assert as_text(graph) == TEXT
    np.testing.assert_allclose(interpret(graph, [X])[0], WANTED, rtol=1e-6)
    with pytest.raises(VerificationError, match="there is no shift by 37"):
        infer("circular_shift", [TensorType(f32, (5, 37))], {"axis": 1, "by": 37})


def test_it_is_fused_and_says_what_it_reads() -> None:
    graph = parse(TEXT)
    rewrite_graph(graph, Options())
    (dispatch,) = check_graph(graph, [X]).dispatches
    assert dispatch.kind == "map"
    assert "circular_shift" in dispatch.ops
    assert [(access.offsets, access.sizes) for access in dispatch.reads] == [((0, 0), (5, 37))]


@pytest.mark.parametrize("shape", [(5, 37), (64,), (3, 4, 130)])
@pytest.mark.parametrize("by", [0, 1, 3])
def test_it_has_a_kernel(runner: Runner, shape: tuple[int, ...], by: int) -> None:
    def shifted(graph: Graph) -> None:
        (output,) = graph.outputs
        made = build(graph, "circular_shift", [output], axis=len(shape) - 1, by=by)
        other = build(graph, "circular_shift", [made], axis=0, by=1)
        graph.set_outputs([other])

    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    runner.check(lambda x: jnp.tanh(x) * 2, x, change=shifted)


@pytest.mark.parametrize("f", [lambda x: x @ x.T, lambda x: x - x.max(1, keepdims=True)])
def test_it_follows_a_product_or_a_reduction(f: Callable[..., Any]) -> None:
    """From memory: nobody said how to invert it."""
    graph = graph_of(f, X)
    (output,) = graph.outputs
    graph.set_outputs([build(graph, "circular_shift", [output], axis=1, by=2), output])
    kinds = [dispatch.kind for dispatch in check_graph(graph, [X]).dispatches]
    assert len(kinds) == 2


def test_a_kind_that_says_nothing_is_refused() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(f32, (4,)))
    graph.set_outputs([build(graph, "enigma", [x])])
    with pytest.raises(InternalError, match="no dispatch is made for enigma"):
        form(graph, Options())


def test_a_kind_is_defined_once() -> None:
    with pytest.raises(ValueError, match="there is an op kind 'circular_shift'"):
        define(OpDef(kind="circular_shift", infer=_infer, interpret=_interpret, pull=_pull))
    with pytest.raises(VerificationError, match="unknown op kind 'circular_shaft'"):
        Graph().add("circular_shaft", (), TensorType(f32, ()))
