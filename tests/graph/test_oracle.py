"""JAX's own test cases of every primitive in the op set, run by the interpreter.

`-m slow` runs all of them; by default a few of each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import pytest

from stagejit.crossing import from_user, to_user
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of
from tests.oracle import oracle_harness

SAMPLE = oracle_harness.sample(4)


def interpreted(fn: Any, args: Sequence[Any]) -> list[Any]:
    graph = graph_of(fn, *args)
    verify(graph)
    text = as_text(graph)
    assert as_text(parse(text)) == text
    closed = jax.make_jaxpr(fn)(*args)
    inputs = map(from_user, jax.tree.leaves(args), closed.in_avals)
    return list(map(to_user, interpret(graph, list(inputs)), closed.out_avals))


@pytest.mark.some(4)
@pytest.mark.parametrize("harness", SAMPLE, ids=lambda h: h.fullname[:80])
def test_sampled_harness(harness: Any) -> None:
    oracle_harness.check(harness, interpreted)


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted(oracle_harness.GROUPS))
def test_every_harness(group: str) -> None:
    for harness in oracle_harness.cases(frozenset({group})):
        try:
            oracle_harness.check(harness, interpreted)
        except AssertionError as fault:
            raise AssertionError(harness.fullname) from fault


def test_native_groups_are_not_delegated() -> None:
    """Only what the table of gaps names is left to XLA."""
    gaps = ("bool to bool",)
    for harness in SAMPLE:
        with jax.enable_x64(True):
            graph = graph_of(harness.dyn_fun, *oracle_harness.arguments(harness))
        for op in graph:
            if op.kind == "delegate":
                assert any(gap in op.attrs["reason"] for gap in gaps), op.attrs["reason"]
