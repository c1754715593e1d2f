"""What `import stagejit` loads: JAX and a thin layer; the compiler comes with the first compile.

The time itself is measured by benchmarks, not here: what is loaded decides it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stagejit

REPOSITORY = Path(__file__).resolve().parent.parent
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


def test_importing_does_not_load_the_compiler() -> None:
    program = (
        "import jax, sys; before = set(sys.modules); import stagejit\n"
        f"print(*(name for name in {HEAVY} if name in sys.modules and name not in before))\n"
        "print(sum(name.startswith('stagejit') for name in sys.modules))"
    )
    *loaded, count = run_python(program)
    assert loaded == []
    assert int(count) <= 32


def test_decorating_does_not_load_the_compiler_either() -> None:
    program = (
        "import sys, stagejit; stagejit.jit(lambda x: x + 1); print('llvmlite' in sys.modules)"
    )
    assert run_python(program) == ["False"]


def test_compiling_for_the_cpu_loads_nothing_of_a_gpu() -> None:
    program = (
        "import sys, numpy, stagejit; stagejit.jit(lambda x: x * 2 + 1)(numpy.ones(8))\n"
        "print('stagejit.pipeline' in sys.modules)\n"
        "print(*(name for name in sys.modules if name.startswith('stagejit.runtime.cuda')))"
    )
    assert run_python(program) == ["True"]


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


def test_the_compiler_loads_under_any_setting_of_jax() -> None:
    """Nothing that a module computes when it is loaded may depend on the setting at that time.
    Each child of the process that imported JAX loads the compiler."""
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

for number, setting in enumerate({SETTINGS}):
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
    wrong = [SETTINGS[int(number)] for number in run_python(program)]
    assert not wrong


def test_all_that_is_promised_is_there() -> None:
    for name in stagejit.__all__:
        assert getattr(stagejit, name).__name__ == name
        assert name in dir(stagejit)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        _ = stagejit.nothing_of_this_name  # type: ignore[attr-defined]


def test_a_program_for_this_machine_loads_no_kernels_of_a_gpu() -> None:
    program = (
        "import sys, jax, jax.numpy as jnp, stagejit\n"
        "jax.block_until_ready(stagejit.jit(lambda x: jnp.sin(x) * 2)(jnp.ones(8)))\n"
        "print(*(name for name in sys.modules if name.startswith('stagejit.codegen.cuda.')))"
    )
    assert run_python(program) == ["stagejit.codegen.cuda.device"]


def test_what_explains_is_loaded_by_who_asks() -> None:
    program = (
        "import sys, numpy, stagejit; f = stagejit.jit(lambda x: x * 2 + 1); x = numpy.ones(8)\n"
        "f.lower(x).compile()(x)\n"
        "print(*(name for name in sys.modules if name.startswith('stagejit.inspect.explain')))\n"
        "f.explain(x)\n"
        "print('stagejit.inspect.explain' in sys.modules)"
    )
    assert run_python(program) == ["True"]
