"""Several threads compile at the same time; a process that forks meanwhile goes on in the child."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import stagejit
from stagejit.options import Options
from stagejit.runtime.lowering import embedding
from stagejit.runtime.lowering.staged import Request, Staged
from tests.runtime.toy_compiler import ToyCompiler

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SECONDS = 60  # more than any wait here takes


class Gate(ToyCompiler):
    """A compiler whose compilations wait for each other, or for the test."""

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.barrier = threading.Barrier(together)
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Staged:
        self.entered.set()
        self.barrier.wait(SECONDS)
        assert self.opened.wait(SECONDS)
        return super().__call__(request)


@pytest.fixture
def install() -> Iterator[Any]:
    before = embedding._installed
    yield embedding.install
    jax.clear_caches()
    assert before is not None
    embedding.install(before)


def test_different_programs_are_compiled_at_the_same_time(install: Any) -> None:
    gate = Gate(together=3)
    gate.opened.set()
    install(gate)
    functions = [stagejit.jit(lambda x, k=k: x * k + 1) for k in (2.0, 3.0, 4.0)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda f: np.asarray(f(X)), functions))
    for k, y in zip((2, 3, 4), results, strict=True):
        np.testing.assert_array_equal(y, X * k + 1)


def test_one_program_is_compiled_once(install: Any) -> None:
    toy = ToyCompiler()
    install(toy)
    closed = jax.make_jaxpr(lambda x: x * 2 + 1)(X)
    request = Request("f", closed, Options(), (False,))
    together = threading.Barrier(4)

    def work(_: int) -> Staged | None:
        together.wait(SECONDS)
        return embedding.stage(request)

    with ThreadPoolExecutor(4) as pool:
        staged = list(pool.map(work, range(4)))
    assert len(toy.requests) == 1
    assert all(s is staged[0] for s in staged)


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_during_a_compile(install: Any) -> None:
    """The child of a process in which another thread compiles can compile, that program too."""
    gate = Gate()
    install(gate)
    closed = jax.make_jaxpr(lambda x: x * 2 + 1)(X)
    request = Request("f", closed, Options(), (False,))
    thread = threading.Thread(target=embedding.stage, args=(request,))
    thread.start()
    assert gate.entered.wait(SECONDS)
    child = os.fork()
    if child == 0:  # no pytest, no XLA in here
        code = 1
        try:
            embedding._installed = lambda request: Staged((), ())
            code = 0 if embedding.stage(request) == Staged((), ()) else 2
        finally:
            os._exit(code)
    gate.opened.set()
    thread.join(SECONDS)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(gate.requests) == 1


def test_what_is_evaluated_while_compiling_is_not_compiled_by_us(install: Any) -> None:
    """Constants are folded by JAX, outside of any jit, where everything may be staged."""
    toy, inside = ToyCompiler(), []

    def compiler(request: Request) -> Staged:
        inside.append(request.name)
        jax.block_until_ready(jax.lax.fori_loop(0, 3, lambda i, c: c * 2 + 1, jnp.ones(3)))
        return toy(request)

    install(compiler)
    with stagejit.enabled():
        jax.jit(lambda x: x * 2 + 1)(X)
    assert len(inside) == 1


def test_a_step_waits_for_jax_and_jax_for_another_compilation() -> None:
    """Two programs have somebody's operation, whose implementation calls g. JAX lowers one of them
    and traces g, in which a function of ours is compiled; our compiler has the other and needs g.
    """
    inside, asked, users = threading.Event(), threading.Event(), []
    ours = stagejit.jit(lambda x: x * 3 + 1)

    @jax.jit
    def g(x: Any) -> Any:
        inside.set()
        assert asked.wait(SECONDS)
        time.sleep(0.2)  # until the other thread waits for this trace
        with jax.ensure_compile_time_eval():
            factor = ours(np.float32(2))
        return x * factor

    def implementation(x: Any) -> Any:
        users.append(threading.current_thread())
        if users[0] is not users[-1]:
            asked.set()
        return g(x)

    doubled = Primitive("concurrency_doubled")
    doubled.def_abstract_eval(lambda x: x)
    mlir.register_lowering(doubled, mlir.lower_fun(implementation, multiple_results=False))
    closed = jax.make_jaxpr(lambda x: doubled.bind(x) + 1)(X)
    request = Request("f", closed, Options(), (False,))
    done: list[Any] = []

    def lower() -> None:
        done.append(jax.jit(lambda x: doubled.bind(x) + 2).lower(X))

    def compile_it() -> None:
        done.append(embedding.stage(request))

    threads = [threading.Thread(target=work, daemon=True) for work in (lower, compile_it)]
    threads[0].start()
    assert inside.wait(SECONDS)
    threads[1].start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(done) == 2
