"""Forks and interrupts in the middle of compiling, and compiling on several threads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.runtime.gate import Gate
from stagejit.runtime.lowering.embedding import stage
from stagejit.runtime.objects import engine as engine_module
from stagejit.runtime.objects.engine import Engine, engine

REPOSITORY = Path(__file__).resolve().parents[2]

# What of a fork is ours to promise: a child that is forked while threads are inside our compiler
# can compile, and can run what was compiled before. The threads compile jaxprs that were traced
# before: while threads trace, jaxlib holds locks that a fork does not wait for (that of
# InitializePjitFunction, entries of a WeakrefLRUCache that are being made), on which a child can
# wait for ever, with jax.jit, too. Nor can XLA compile in a child of a process that has used it, as
# its threads stay behind.
FORKS = textwrap.dedent("""
    import itertools, os, signal, sys, threading, warnings
    warnings.simplefilter("ignore")
    import jax, jax.numpy as jnp, numpy as np, stagejit
    from stagejit.pipeline import compile_request
    from stagejit.runtime.cpu import loader
    from stagejit.runtime.objects.engine import engine
    from stagejit.runtime.hosting.program import HostProgram, Launch
    from stagejit.runtime.hosting.program_steps import BufferRef

    how, count = sys.argv[1], int(sys.argv[2])
    x = np.linspace(0, 1, 48, dtype=np.float32)
    known = stagejit.jit(lambda x: x * 2 + 1)
    known(x).block_until_ready()

    def request(k, f):
        return stagejit.jit(lambda x: f(x, k)).trace(x).compilation.request

    def program(x, k):
        return jnp.sin(x * k) + jax.nn.softmax(jnp.cos(x[k:]) * k).sum() * x

    turns = itertools.cycle([request(k, program) for k in range(1, 13)])
    for_children = [request(k, lambda x, k: jnp.exp(x[k:] / 3) * x[k]) for k in range(count)]
    go, stop = threading.Event(), threading.Event()

    def compile_on():
        while not stop.is_set():
            go.wait()
            with taking_turns:
                mine = next(turns)
            compile_request(mine)

    def in_child(number):
        signal.alarm(100)  # a deadlock ends by this signal
        kernel = f"fork_{number}"
        text = f"define void @{kernel}(ptr %b, ptr %p, i64 %l, i64 %h, ptr %s) {{ ret void }}"
        launch = Launch(kernel, (BufferRef("arg"), BufferRef("result")), (1,))
        program = HostProgram(kernel, (launch,), (8,), (8,))
        assert loader.load_program(program, {kernel: text}).call_count == 0
        before = engine().compiled_count
        compile_request(for_children[number])
        assert engine().compiled_count > before
        lowered = stagejit.jit(lambda x: jnp.tanh(x * number) - jnp.exp(x)).lower(x)
        assert "sj_k" in lowered.as_text("llvm")
        assert np.allclose(known(x), x * 2 + 1)

    def forked(number):
        if how == "fork":
            pid = os.fork()
            if pid:
                return lambda: os.waitpid(pid, 0)[1]
            code = 1
            try:
                in_child(number)
                code = 0
            finally:
                os._exit(code)
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(target=in_child, args=(number,))
        process.start()
        return lambda: process.join() or process.exitcode

    taking_turns = threading.Lock()
    threads = [threading.Thread(target=compile_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(count):
        before = engine().compiled_count
        go.set()
        while engine().compiled_count < before + 1 + number:  # in the middle of it, at many places
            stop.wait(0.001)
        wait = forked(number)
        go.clear()  # the child has the machine for itself
        codes.append(wait())
    stop.set()
    go.set()
    for thread in threads:
        thread.join()
    print(codes)
""")


def run(program: str, *arguments: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "STAGEJIT_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout or done.stderr[-3000:]


@pytest.mark.parametrize(("how", "count"), [("fork", 6), ("multiprocessing", 2)])
def test_a_child_forked_while_threads_compile_can_compile(how: str, count: int) -> None:
    assert run(FORKS, how, str(count)) == f"{[0] * count}\n"


# The hook runs after ours, which were registered later.
DROPS = textwrap.dedent("""
    import gc, os, signal, warnings
    warnings.simplefilter("ignore")
    import numpy as np, stagejit

    held = []
    os.register_at_fork(before=lambda: [held.clear(), gc.collect()])
    x = np.ones(3, np.float32)
    held.append(stagejit.jit(lambda x: x * 3 + 1))
    held[0](x).block_until_ready()
    signal.alarm(60)  # a deadlock ends by this signal
    pid = os.fork()
    if not pid:
        os._exit(0 if stagejit.jit(lambda x: x * 5).lower(x).plan.dispatches else 1)
    print(os.waitpid(pid, 0)[1])
""")


def test_an_executable_may_go_while_a_fork_is_prepared() -> None:
    assert run(DROPS) == "0\n"


LOCKS = textwrap.dedent("""
    import os, threading, warnings
    warnings.simplefilter("ignore")
    from stagejit.base.threads import locks

    held, taken = [locks.new_lock(), locks.new_rlock()], threading.Event()
    threading.Thread(target=lambda: [[lock.acquire() for lock in held], taken.set()]).start()
    taken.wait()
    pid = os.fork()
    if not pid:
        os._exit(0 if all(lock.acquire(timeout=5) for lock in held) else 1)
    print(os.waitpid(pid, 0)[1], [lock.acquire(blocking=False) for lock in held])
""")


def test_a_child_finds_locks_free_that_a_thread_holds() -> None:
    assert run(LOCKS) == "0 [False, False]\n"


def test_all_locks_are_such_locks() -> None:
    """Also those of Python: a cached_property of 3.11 has one for all objects of its class. What
    `threading` has in Python is left taken by interrupts, see `other_threads.py`."""
    package = REPOSITORY / "stagejit"
    makes_locks = re.compile(
        r"\bthreading\.(R?Lock|Condition|Event|Barrier|Thread|\w*Semaphore)\("
        r"|import.*\b(cached_property|ThreadPoolExecutor|queue)\b"
    )
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if makes_locks.search(path.read_text())
    }
    # Pools live for one call; forks wait for the lock that Python has for all pools.
    pools = {
        "runtime/cuda/code/cubins.py",
        "runtime/cuda/emulation/compiling.py",
        "runtime/peaks.py",
    }
    compiler = {name for name in found - pools if not name.startswith("bench/")}
    assert compiler == {
        "base/threads/locks.py",
        "base/threads/importing.py",
    }  # a fork waits for imports


def test_hooks_of_the_forking_thread_and_work_inside_pass_a_closed_gate() -> None:
    gate, inner_done, close = Gate(), threading.Event(), threading.Event()

    def work() -> None:
        with gate():
            close.set()
            while gate._making.acquire(blocking=False):  # the gate is not being closed yet
                gate._making.release()
                time.sleep(0.001)
            with gate():  # who is inside can go on, or would never come out
                inner_done.set()

    thread = threading.Thread(target=work)
    thread.start()
    close.wait()
    gate._close()
    assert inner_done.is_set()
    with gate():
        pass
    gate._open()
    thread.join()
    assert not gate()._is_owned()
    assert not gate._making._is_owned()


def test_a_fork_waits_for_the_work_inside_the_gate() -> None:
    order: list[str] = []
    gate, inside, ended = Gate(), threading.Event(), threading.Event()

    def work() -> None:
        with gate():
            inside.set()
            time.sleep(0.3)
            order.append("worked")

    def enter() -> None:
        with gate():
            order.append("after")

    known = threading.Thread(target=lambda: [gate(), ended.wait(), enter()])
    threads = [threading.Thread(target=work), known]
    for thread in threads:
        thread.start()
    inside.wait()
    gate._close()
    order.append("forked")
    threads.append(threading.Thread(target=enter))
    threads[-1].start()
    ended.set()
    time.sleep(0.1)
    assert order == ["worked", "forked"]
    gate._open()
    for thread in threads:
        thread.join()
    assert order == ["worked", "forked", "after", "after"]


HELD = textwrap.dedent("""
    import os, threading, time, warnings
    warnings.simplefilter("ignore")
    from stagejit.base.threads.locks import new_rlock
    from stagejit.runtime.gate import hold_across_forks

    lock, order, taken = new_rlock(), [], threading.Event()
    hold_across_forks(lock)

    def work():
        with lock:
            taken.set()
            time.sleep(0.3)
            order.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    taken.wait()
    pid = os.fork()
    order.append("forked")
    if not pid:
        os._exit(0 if order == ["worked", "forked"] and lock.acquire(timeout=5) else 1)
    thread.join()
    other = threading.Thread(target=lambda: order.append(lock.acquire(timeout=5)))
    other.start()
    other.join()
    print(os.waitpid(pid, 0)[1], order)
""")


def test_a_fork_waits_for_who_has_the_lock() -> None:
    assert run(HELD) == "0 ['worked', 'forked', True]\n"


def text_of(name: str, value: int) -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


def test_equal_modules_are_made_once_and_different_ones_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, together, compiled = Engine(), threading.Barrier(2), []
    real = engine_module._compile

    def compile_slowly(ir: str) -> bytes:
        compiled.append(ir)
        together.wait(60)  # only two that are compiled at once come through
        return real(ir)

    monkeypatch.setattr(engine_module, "_compile", compile_slowly)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(
                made.modules, {f"fork_beside_{k % 2}": text_of(f"fork_beside_{k % 2}", k % 2)}
            )
            for k in range(4)
        ]
        modules = [job.result(100) for job in jobs]
    assert len(compiled) == made.compiled_count == 2
    assert modules[0] == modules[2]
    assert modules[1] == modules[3]


def test_a_failure_in_one_thread_is_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a module that another thread fails to make, makes it itself."""
    made, started, fails = Engine(), threading.Event(), [True]
    real = engine_module._compile

    def compile_once_badly(ir: str) -> bytes:
        if fails.pop() if fails else False:
            started.set()
            time.sleep(0.2)
            raise KeyboardInterrupt
        return real(ir)

    monkeypatch.setattr(engine_module, "_compile", compile_once_badly)
    texts = {"fork_badly": text_of("fork_badly", 3)}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made.modules, texts)
        started.wait()
        second = pool.submit(made.modules, texts)
        assert isinstance(first.exception(60), KeyboardInterrupt)
        assert "fork_badly" in second.result(60)
    assert not made._pending


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_nothing_half_made() -> None:
    """Ctrl-C at many moments of our compiling; the next call is right.

    Not while JAX traces: that leaves entries in caches of jaxlib's, which then raise RecursionError
    for ever, with jax.jit, too. Some interrupts come while the garbage collector runs JAX's
    callback or ours, and are lost there.
    """
    x = np.linspace(0, 1, 20, dtype=np.float32)
    interrupted = 0

    def on_alarm(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for k in range(15):
            f = stagejit.jit(lambda x, k=k: jnp.sin(x) * (k + 0.31) + jnp.cumsum(x))
            request = f.trace(x).compilation.request
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.003 * (k + 1))
                stage(request)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            wide = x.astype(np.float64)
            wanted = np.sin(wide) * (k + 0.31) + np.cumsum(wide)
            np.testing.assert_allclose(f(x), wanted, rtol=1e-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert not any(claim.locked() for claim in engine()._pending.values())
