"""Loading: content names, one registration, calls from many threads, no growth."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit.errors import InternalError
from stagejit.runtime.cpu.loader import call_count, load_program, loaded_programs, trim_arenas
from stagejit.runtime.hosting.program import HostProgram, Launch
from stagejit.runtime.hosting.program_steps import BufferRef

REPOSITORY = Path(__file__).resolve().parents[3]


def resident_nbytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def least_growth_nbytes(work: Callable[[], None]) -> int:
    """Growth of the resident memory over `work`, the least of up to 15 runs.

    A leak grows in each run. malloc's arenas of new threads grow over some runs, then stop; those
    of a jax.jit function do so too.
    """
    least = sys.maxsize
    for _ in range(15):
        before = resident_nbytes()
        work()
        least = min(least, resident_nbytes() - before)
        if least < 1 << 19:
            break
    return least


def test_the_same_program_is_loaded_once(toy: Any) -> None:
    jax.block_until_ready(stagejit.jit(lambda x: x + 3)(np.ones(5, np.float32)))
    count = len(loaded_programs())
    jax.block_until_ready(stagejit.jit(lambda y: y + 3)(np.ones(5, np.float32)))
    assert len(loaded_programs()) == count


def test_a_kernel_without_text_is_an_internal_error() -> None:
    program = HostProgram("p", (Launch("no_such_kernel", (BufferRef("arg"),)),), (4,), ())
    with pytest.raises(InternalError, match="no code for no_such_kernel"):
        load_program(program, {})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_threads(toy: Any) -> None:
    toy.grain = 1000
    f = stagejit.jit(lambda x: x * x + 1)
    x = np.linspace(0, 1, 40_000, dtype=np.float32)
    expected = x * x + 1
    np.testing.assert_allclose(f(x), expected, rtol=1e-6)
    wrong: list[int] = []

    def work() -> None:
        for i in range(100):
            some = jax.block_until_ready([f(x) for _ in range(10)])
            if not np.allclose(some[i % 10], expected, rtol=1e-6):
                wrong.append(i)

    def together() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together()
    calls = call_count()
    assert least_growth_nbytes(together) < 1 << 20
    assert not wrong
    assert (call_count() - calls) % (4 * 1000 * 2) == 0  # two programs a call


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_flat_over_ten_thousand_calls(toy: Any) -> None:
    f = stagejit.jit(lambda x: x * 2 + 1)
    x = jax.numpy.ones(4096, np.float32)

    def calls(count: int) -> None:
        for _ in range(count):
            y = f(x)
        jax.block_until_ready(y)

    calls(2000)
    assert least_growth_nbytes(lambda: calls(10_000)) < 1 << 20


def test_trim_gives_idle_arenas_back(toy: Any) -> None:
    trim_arenas()
    f = stagejit.jit(lambda x: x * 2 + 1)
    x = np.ones(8, np.float32)
    np.testing.assert_array_equal(f(x), x * 3)
    trim_arenas()
    np.testing.assert_array_equal(f(x), x * 3)


PROGRAM = textwrap.dedent("""
    import sys
    sys.path.insert(0, sys.argv[1])
    import jax, numpy as np
    jax.config.update("jax_compilation_cache_dir", sys.argv[2])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    import stagejit
    from toy_compiler import ToyCompiler
    from stagejit.runtime.lowering import embedding
    from stagejit.runtime.cpu.loader import call_count, loaded_programs
    embedding.install(ToyCompiler())
    f = stagejit.jit(lambda x: x * 2)
    assert np.array_equal(f(np.ones(8, np.float32)), np.full(8, 2.0))
    assert call_count() == 1
    hits = events.count("/jax/compilation_cache/cache_hits")
    print(hits, loaded_programs()[0].name)
""")


def test_persistent_compilation_cache(tmp_path: Path) -> None:
    """The second process takes XLA's executable from JAX's cache; the names in it still hold."""
    here = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, here, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs[0][1] == outputs[1][1]
    assert outputs[0][0] == "0"
    assert int(outputs[1][0]) >= 1
