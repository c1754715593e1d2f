"""What `import stagejit` loads: JAX and a thin layer; the compiler comes with the first compile.

The time itself is measured by benchmarks, not here: what is loaded decides it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stagejit

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("networkx", "llvmlite", "rich", "typer", "stagejit.pipeline", "stagejit.codegen")


def run_python(program: str) -> list[str]:
    """The words that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules of one process: with JAX alone, then after each thing that it does."""
    program = """
import sys
def say(what): print(what, *(n for n in sys.modules if n.startswith(("stagejit", *HEAVY))), ";")
import jax, jax.numpy as jnp
say("jax")
import stagejit
say("imported")
f = stagejit.jit(lambda x: jnp.sin(x) * 2 + 1)
say("decorated")
jax.block_until_ready(f(jnp.ones(8)))
f.lower(jnp.ones(8)).compile()(jnp.ones(8))
say("compiled")
f.explain(jnp.ones(8))
say("explained")
"""
    words = " ".join(run_python(f"HEAVY = {HEAVY}{program}"))
    parts = [part.split() for part in words.split(";") if part.strip()]
    return {what: set(names) for what, *names in parts}


def test_importing_does_not_load_the_compiler(loaded: dict[str, set[str]]) -> None:
    new = loaded["imported"] - loaded["jax"]
    assert not {name for name in HEAVY if name in new}
    assert 1 < sum(name.startswith("stagejit") for name in new) <= 35


def test_decorating_does_not_load_the_compiler_either(loaded: dict[str, set[str]]) -> None:
    assert "llvmlite" not in loaded["decorated"]
    assert "stagejit.pipeline" not in loaded["decorated"]


def test_compiling_for_the_cpu_loads_nothing_of_a_gpu(loaded: dict[str, set[str]]) -> None:
    assert {"stagejit.pipeline", "llvmlite"} <= loaded["compiled"]
    assert not {n for n in loaded["compiled"] if n.startswith("stagejit.runtime.cuda")}
    kernels = {n for n in loaded["compiled"] if n.startswith("stagejit.codegen.cuda.")}
    assert kernels == {"stagejit.codegen.cuda.device"}


SETTINGS = (
    "jax.enable_x64(True)",
    "jax.checking_leaks()",
    "jax.debug_nans(True)",
    "jax.transfer_guard('disallow')",
    "jax.default_matmul_precision('highest')",
    "jax.numpy_rank_promotion('raise')",
    "jax.numpy_dtype_promotion('strict')",
    "stagejit.Options(verify=True)",
)


def test_the_compiler_loads_under_any_setting_of_jax(some_of: Any) -> None:
    """Nothing that a module computes when it is loaded may depend on the setting at that time.
    Each child of the process that imported JAX loads the compiler."""
    settings = some_of(SETTINGS, 3)
    program = f"""
import os, sys, warnings
import jax, stagejit, numpy as np

def check(setting):
    f = stagejit.jit(lambda x, y: jax.nn.softmax(x @ y).sum())
    x, y, many = (jax.device_put(np.ones(s, np.float32)) for s in ((3, 3), (3, 3), (2, 3, 3)))
    assert "stagejit.pipeline" not in sys.modules
    with setting:
        first = jax.jit(jax.vmap(jax.grad(f), in_axes=(None, 0)))(x, many)
    assert first.shape == (2, 3, 3) and float(f(x, y)) == 3

def fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX has no threads yet
        return os.fork()

for number, setting in enumerate({settings}):
    child = fork()
    if not child:
        try:
            check(eval(setting))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(number)
"""
    wrong = [settings[int(number)] for number in run_python(program)]
    assert not wrong


def test_all_that_is_promised_is_there() -> None:
    for name in stagejit.__all__:
        assert getattr(stagejit, name).__name__ == name
        assert name in dir(stagejit)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        _ = stagejit.nothing_of_this_name  # type: ignore[attr-defined]


def test_compiling_does_not_load_networkx(loaded: dict[str, set[str]]) -> None:
    """See Note [networkx is loaded late]."""
    assert "networkx" not in loaded["compiled"]


def test_what_explains_is_loaded_by_who_asks(loaded: dict[str, set[str]]) -> None:
    assert not {n for n in loaded["compiled"] if n.startswith("stagejit.inspect.explain")}
    assert "stagejit.inspect.explain" in loaded["explained"]
