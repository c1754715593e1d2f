"""Forks and interrupts in the middle of compiling, and compiling on several threads."""

from __future__ import annotations

import os
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
from stagejit.runtime import engine as engine_module
from stagejit.runtime.engine import Engine, engine
from stagejit.runtime.gate import Gate

REPOSITORY = Path(__file__).resolve().parents[2]

# XLA itself cannot compile in a child of a process that has used it (its threads stay behind), nor
# can jax.jit; our compiler can, and what was compiled before the fork runs.
FORKS = textwrap.dedent("""
    import os, signal, sys, threading, warnings
    warnings.simplefilter("ignore")
    import jax, jax.numpy as jnp, numpy as np, stagejit
    from stagejit.runtime import loader
    from stagejit.runtime.program import BufferRef, HostProgram, Launch

    x = np.linspace(0, 1, 48, dtype=np.float32)
    known = stagejit.jit(lambda x: x * 2 + 1)
    known(x)
    stop = threading.Event()

    def compile_on():
        k = 0
        while not stop.is_set():
            k += 1
            f = stagejit.jit(lambda x: jnp.sin(x * k) + jax.nn.softmax(jnp.cos(x) * k) * x)
            f.lower(x)

    def in_child(number):
        kernel = f"fork_{number}"
        text = f"define void @{kernel}(ptr %b, ptr %p, i64 %l, i64 %h, ptr %s) {{ ret void }}"
        launch = Launch(kernel, (BufferRef("arg"), BufferRef("result")), (1,))
        program = HostProgram(kernel, (launch,), (8,), (8,))
        assert loader.load_program(program, {kernel: text}).call_count == 0
        lowered = stagejit.jit(lambda x: jnp.tanh(x * number) - jnp.exp(x)).lower(x)
        assert "sj_k" in lowered.as_text("llvm")
        assert np.allclose(known(x), x * 2 + 1)

    threads = [threading.Thread(target=compile_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = []
    if sys.argv[1] == "fork":
        for number in range(4):
            pid = os.fork()
            if pid == 0:
                signal.alarm(100)  # a deadlock ends by this signal
                code = 1
                try:
                    in_child(number)
                    code = 0
                finally:
                    os._exit(code)
            codes.append(os.waitpid(pid, 0)[1])
    else:
        import multiprocessing
        context = multiprocessing.get_context("fork")
        for number in range(2):
            process = context.Process(target=in_child, args=(number,))
            process.start()
            process.join(100)
            codes.append(process.exitcode)
            process.kill()
    stop.set()
    for thread in threads:
        thread.join()
    print(codes)
""")


@pytest.mark.parametrize(("how", "count"), [("fork", 4), ("multiprocessing", 2)])
def test_a_child_forked_while_threads_compile_can_compile(how: str, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "STAGEJIT_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout == f"{[0] * count}\n", done.stderr[-3000:]


def test_a_fork_waits_for_the_work_inside_the_gate() -> None:
    order: list[str] = []
    gate, inside = Gate(threading.RLock()), threading.Event()

    def work() -> None:
        with gate:
            inside.set()
            time.sleep(0.3)
            order.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    gate._close()
    order.append("forked")
    other = threading.Thread(target=lambda: [gate.__enter__(), order.append("after")])
    other.start()
    time.sleep(0.1)
    assert order == ["worked", "forked"]
    gate._open()
    other.join()
    thread.join()
    assert order == ["worked", "forked", "after"]


def text_of(name: str, value: int) -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


def test_equal_modules_are_made_once_and_different_ones_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, together, compiled = Engine(), threading.Barrier(2), []
    real = engine_module._compile

    def compile_slowly(ir: str, level: int) -> bytes:
        compiled.append(ir)
        together.wait(60)  # only two that are compiled at once come through
        return real(ir, level)

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

    def compile_once_badly(ir: str, level: int) -> bytes:
        if fails.pop() if fails else False:
            started.set()
            time.sleep(0.2)
            raise KeyboardInterrupt
        return real(ir, level)

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
    """Ctrl-C at many moments of a first call; the next call is right.

    Some come while the garbage collector runs JAX's callback or ours, and are lost there.
    """
    x = np.linspace(0, 1, 20, dtype=np.float32)
    interrupted = 0

    def on_alarm(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for k in range(15):
            f = stagejit.jit(lambda x, k=k: jnp.sin(x) * (k + 0.31) + jnp.cumsum(x))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.004 * (k + 1))
                f(x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            wide = x.astype(np.float64)
            wanted = np.sin(wide) * (k + 0.31) + np.cumsum(wide)
            np.testing.assert_allclose(f(x), wanted, rtol=1e-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert not engine()._pending
