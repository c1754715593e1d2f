"""Elements behind the first 2**31 of an axis: their numbers have more than 31 bits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.index.affine import Affine, Var
from stagejit.trace.translate import graph_of
from tests.codegen.regions import aligned, region_of

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
SIZE, KNOWN = 2**31 + 100, 200  # elements, and those at the end that are not zero


def overlay(at: int, size: int) -> Graph:
    """x at a place of zeros, plus 1."""
    return parse(
        f"graph @f(%x: u8[{SIZE}]) {{\n"
        "  %0: u8[] = const 0\n"
        f"  %1: u8[{size}] = fill %0\n"
        f"  %2: u8[{size}] = overlay %x into %1 at ({at})\n"
        "  %3: u8[] = const 1\n"
        f"  %4: u8[{size}] = fill %3\n"
        f"  %5: u8[{size}] = map add %2, %4\n"
        "  return %5\n}\n"
    )


def last_elements(compile_kernel: Any, graph: Graph, target: Target) -> tuple[Any, Any]:
    """Of x, and of what a kernel's last item makes of it."""
    region = region_of(graph)
    made = kernel_of(region, target)
    x = aligned((SIZE,), np.uint8)  # of which the system gives what is touched
    x[-KNOWN:] = np.arange(1, KNOWN + 1)
    found = aligned((region.stores[0].value.type.size,), np.uint8)
    memory = [found if arg.written else x for arg in made.args]
    call = compile_kernel(made.function, target)
    for params in made.passes:
        call(memory, params, made.total - 1, made.total)
    return x[-KNOWN:], found[-100:]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("behind", [0, 1, 10, 77])
@pytest.mark.parametrize("at", [0, 1, 10])
def test_overlaid_elements(compile_kernel: Any, at: int, behind: int, target: str) -> None:
    graph = overlay(at, at + SIZE + behind)
    x, found = last_elements(compile_kernel, graph, TARGETS[target]())
    np.testing.assert_array_equal(found, np.pad(x, (0, behind))[-100:] + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_of_elements(compile_kernel: Any, target: str) -> None:
    with jax.enable_x64(True):
        graph = graph_of(
            lambda x: x + (lax.iota(np.int64, SIZE) > SIZE - 50).astype(np.uint8),
            jax.ShapeDtypeStruct((SIZE,), np.uint8),
        )
    x, found = last_elements(compile_kernel, graph, TARGETS[target]())
    np.testing.assert_array_equal(found, x[-100:] + (np.arange(100) > 50))


def test_what_does_not_fit_is_not_cut() -> None:
    var = Var(2**32)
    at = Elements(Builder(), {})
    with (
        at.at({var: at.b.param()}, vector=var, lanes=8),
        pytest.raises(InternalError, match="more than 32 bits"),
    ):
        at.lane_index(Affine(((var, 1),)), narrow=True)
