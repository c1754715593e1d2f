"""Python's cycle collector rests while we compile, and is as the user left it afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import pipeline
from stagejit.base.threads.collector import collector_paused
from stagejit.dispatch.groups.group import Group, Grouping
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op, Value
from stagejit.options import Options
from stagejit.schedule.schedule import Schedule


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_no_collection_while_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, collections = False, 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += inside and phase == "start"

    run_until = pipeline.Compilation.run_until

    def watched(self: pipeline.Compilation, name: str, *began: Any) -> pipeline.Compilation:
        nonlocal inside
        inside = True
        try:
            return run_until(self, name, *began)
        finally:
            inside = False

    monkeypatch.setattr(pipeline.Compilation, "run_until", watched)
    x = np.ones(7, np.float32)

    def f(x: jnp.ndarray) -> jnp.ndarray:
        for k in range(200):
            x = jnp.sin(x * k)
        return x

    gc.callbacks.append(count)
    try:
        stagejit.jit(f).lower(x)
    finally:
        gc.callbacks.remove(count)
    assert not collections
    assert gc.isenabled()


X = np.linspace(0.5, 1, 64, dtype=np.float32).reshape(8, 8)


FIRST = textwrap.dedent("""
    import gc, sys
    import jax.numpy as jnp, numpy as np, stagejit

    x = np.ones(7, np.float32)
    imported, inside = "stagejit.pipeline" in sys.modules, []

    def look(phase, info):
        frame, files = sys._getframe(), set()
        while frame is not None:
            files.add(frame.f_code.co_filename)
            frame = frame.f_back
        inside.append({stagejit.api.__file__, "<frozen importlib._bootstrap>"} <= files)

    gc.callbacks.append(look)
    stagejit.jit(lambda x: jnp.sin(x) * 2)(x).block_until_ready()
    gc.collect()
    assert not imported and "stagejit.pipeline" in sys.modules
    assert inside and not any(inside)
""")


def test_no_collection_while_the_compiler_is_imported() -> None:
    subprocess.run([sys.executable, "-c", FIRST], check=True, timeout=300)


def long_chain(x: Any) -> Any:
    """Is cut, so that steps share parts."""
    for _ in range(300):
        x = jnp.sin(x / 16) * 1.5
    return x


def updates(x: Any) -> Any:
    at = x[0, 0].astype(jnp.int32)
    x = lax.dynamic_update_slice(x, x[:2] * 3, (at, 0))
    return x.at[jnp.array([1, 1, 2])].add(x[:3]), x.at[1:3].set(x[2:4] * 2)


def many_operands(x: Any) -> Any:
    """More than a dispatch reads, and orders to choose from."""
    pieces = [x @ (x + k) for k in range(20)]
    return sum(pieces[1:], pieces[0]), jnp.concatenate(pieces)


def nested(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        def inner(i: Any, c: Any) -> Any:
            return lax.cond(c.sum() > i, lambda d: d * 2, lambda d: d - row, c)

        return lax.fori_loop(0, 3, inner, carry), carry.sum()

    return lax.scan(step, x, x)


PROGRAMS: list[Callable[[Any], Any]] = [
    lambda x: jnp.tanh(x @ x / 16) + jax.nn.softmax(x, -1),
    lambda x: lax.fori_loop(0, 5, lambda i, c: jnp.sin(c @ x) / 4 + i, x),
    lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, x),
    lambda x: lax.switch(x[0, 0].astype(jnp.int32), [lambda y: y + 1, lambda y: y @ y], x),
    lambda x: jnp.sort(x, 0) + jnp.argmax(jnp.tile(x, (40, 40)), 1)[:8],
    lambda x: jax.random.normal(jax.random.key(3), (8, 8)) + x,
    lambda x: lax.conv_general_dilated(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"),
    long_chain,
    updates,
    many_operands,
    nested,
]
OPTIONS = [Options(cache_dir=""), Options(cache_dir="", operand_limit=4, borders="always")]


@pytest.mark.some(2)
@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_what_a_compile_made_needs_no_collection(
    f: Callable[[Any], Any], options: Options, donated: tuple[int, ...]
) -> None:
    """Graphs of networkx refer to themselves, by views that they keep; those are empty."""
    traced = stagejit.jit(f, options=options, donate_argnums=donated).trace(X)
    gc.collect()
    gc.disable()
    known = set(map(id, gc.get_objects()))
    compiled = traced.lower().compile()
    left = [x for x in gc.get_objects() if id(x) not in known and isinstance(x, MADE)]
    assert [x for x in left if not isinstance(x, nx.Graph) or len(x)] == []
    del compiled


MADE = (Graph, Op, Value, Grouping, Group, Region, Schedule, pipeline.Compilation, nx.Graph)


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_is_paused_once() -> None:
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_the_user_has_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


@contextmanager
def another_thread_inside() -> Iterator[None]:
    started, ended = threading.Event(), threading.Event()

    def inside() -> None:
        with collector_paused():
            started.set()
            ended.wait(60)

    thread = threading.Thread(target=inside)
    thread.start()
    assert started.wait(60)
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def test_the_first_of_two_threads_ends_the_pause() -> None:
    with ExitStack() as stack:
        with collector_paused():
            stack.enter_context(another_thread_inside())
        assert gc.isenabled()
    assert gc.isenabled()


FORKS = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


def collects_in_child() -> bool:
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    return not os.waitpid(child, 0)[1]


@FORKS
def test_it_is_on_in_a_child_without_the_thread_that_paused_it() -> None:
    with another_thread_inside():
        assert not gc.isenabled()
        assert collects_in_child()


@FORKS
def test_the_pause_goes_on_in_a_child_of_its_own_thread() -> None:
    with collector_paused():
        assert not collects_in_child()
    assert gc.isenabled()
