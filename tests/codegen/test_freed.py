"""What generators made goes when nobody holds it, without Python's search for cycles."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.generate import KernelCache
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Block, Op, Value
from stagejit.codegen.target import Target
from stagejit.codegen.templates import Templates
from stagejit.runtime.objects.code_memory import code_memory
from stagejit.runtime.objects.engine import Engine
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

SHAPES = ((24, 40), (40, 24))


def _many_sines(x: Any, _: Any) -> Any:
    for _ in range(40):
        x = jnp.sin(x) + x
    return x


def _generated_twice(x: Any, _: Any) -> Any:
    """Only its code tells that it should consist of calls: it is written for several rows."""
    for _ in range(20):
        x = jnp.tan(x) + x
    return x.sum(1)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda x, y: jnp.tanh(x) + y.T,
    "calls": _many_sines,
    "generated twice": _generated_twice,
    "rows": lambda x, _: jax.nn.softmax(x),
    "rows across vectors": lambda x, _: x - x.max(0),
    "contraction": lambda x, y: jnp.tanh(x @ y),
    "convolution": lambda x, y: lax.conv(x[None, None], y[None, None, :3, :3], (2, 2), "SAME"),
    "running sums": lambda x, _: lax.cumsum(x, axis=1) * 2,
    "scatter": lambda x, y: x.at[y[0].astype(int)].add(1.0),
}


def alive() -> Counter[type]:
    kinds = (Op, Value, Block, Builder, Elements)
    return Counter(type(made) for made in gc.get_objects() if isinstance(made, kinds))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_generators_leave_no_cycles(name: str, verify: bool) -> None:
    region = region_of(graph_of(PROGRAMS[name], *(np.ones(s, np.float32) for s in SHAPES)))
    cache = KernelCache(Target.host(), verify=verify)
    cache._templates = Templates(kept=0)
    gc.collect()
    gc.disable()
    try:
        before = alive()
        made = cache.generate(region)
        assert alive()[Op] > before[Op]
        assert made.kernel.function.as_text()
        del made
        assert alive() == before
    finally:
        gc.enable()


def test_modules_that_were_linked_together_leave_no_cycles() -> None:
    texts = {
        f"test_freed_{k}": f"define i64 @test_freed_{k}() {{\n  ret i64 {k}\n}}\n" for k in range(3)
    }
    engine = Engine()
    gc.disable()
    try:
        modules = engine.modules(texts)
        assert all(engine.module(name) for name in texts)
        del modules
        assert not any(engine.module(name) for name in texts)
    finally:
        gc.enable()


def test_modules_go_one_by_one() -> None:
    """Else programs that share one kernel keep all others of each, which nobody can find."""
    texts = {
        f"test_freed_alone_{k}": f"define i64 @test_freed_alone_{k}() {{\n  ret i64 {k}\n}}\n"
        for k in range(3)
    }
    engine = Engine()
    modules = engine.modules(texts)
    together = code_memory().used_nbytes
    last = modules.pop("test_freed_alone_2")
    del modules
    assert code_memory().used_nbytes < together
    assert engine.module("test_freed_alone_2") is last
    assert engine.module("test_freed_alone_0") is None
