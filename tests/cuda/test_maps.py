"""Maps, copies and fills on a GPU: right values under emulation, without spills, by few threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.cuda.device import DEVICES, device_named
from stagejit.codegen.generate import forget_kernels
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.errors import OptionsError
from tests.cuda.emulation.emulated import NAME, ORDERS
from tests.cuda.machine import GPU, compilation_of, launch, run
from tests.randomness import RNG

X = RNG.standard_normal((37, 53)).astype(np.float32)
Y = RNG.standard_normal(53).astype(np.float32)
WIDE = RNG.standard_normal((768, 4096)).astype(np.float32)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "chain": (lambda a, b: jnp.tanh(a * b + 1), (X, Y)),
    "transpose": (lambda a: a.T + 1, (X,)),
    "pad": (lambda a: jnp.pad(a, ((1, 2), (3, 4)), constant_values=2.0), (X,)),
    "pieces": (lambda a: jnp.concatenate([a, a * 2], 1)[::-1, ::2], (X,)),
    "mask": (lambda a: a > 0, (X,)),
    "halves": (lambda a: (a.astype(jnp.bfloat16) * 2).astype(jnp.float16), (X,)),
    "neighbours": (lambda a: jnp.sin(a) * 2, (WIDE,)),
    "gather": (lambda a: jnp.take(a, jnp.array([3, 1, 36]), axis=0), (X,)),
    "outer": (lambda a: a[None] - a[:, None], (Y,)),
    "both ways": (lambda a, b: a.T * b[:, :37] + a[:, ::-1].T, (X, RNG.standard_normal((53, 40)))),
    "heads": (lambda a: a.transpose(0, 2, 1, 3) * 2, (RNG.standard_normal((2, 33, 3, 40)),)),
    "mask both ways": (lambda a, b: (a.T > 0) & (b > 0), (X, X.T.copy())),
    "scalar": (lambda a: a + 1, (np.float32(3),)),
    "nothing": (lambda a: a + 1, (np.zeros((0, 3), np.float32),)),
    "wide integers": (lambda a: (a * 1000).astype(jnp.int32) // 7 % 5, (X,)),
    "windows": (lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (3, 3), (2, 2), "SAME"),
                (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    function, args = PROGRAMS[name]
    found = run(function, *args, resources=True)
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=3e-6, atol=1e-6
        )


def test_neighbours_move_in_accesses_of_16_bytes() -> None:
    (kernel,) = compilation_of(*_flat("neighbours")).run_until("codegen").kernels.values()
    assert "load<4, 4>(&in[" in kernel.text
    assert "store<4>(&out[" in kernel.text
    assert kernel.kernel.total == WIDE.size // (4 * 256)


def test_threads_follow_the_variable_that_moves_fewest_sectors() -> None:
    (kernel,) = compilation_of(*_flat("transpose")).run_until("codegen").kernels.values()
    assert kernel.kernel.choices[0].name == "neighbours"


def test_what_lies_the_other_way_goes_through_shared_memory() -> None:
    (kernel,) = compilation_of(*_flat("transpose")).run_until("codegen").kernels.values()
    assert "__shared__ float square" in kernel.text
    assert kernel.text.count("__syncthreads()") == 2
    choices = {choice.name: choice.reason for choice in kernel.kernel.choices}
    assert choices["squares"].startswith("1 reads in squares")


def test_dont_stage_what_lies_along() -> None:
    (kernel,) = compilation_of(*_flat("chain")).run_until("codegen").kernels.values()
    assert "__shared__" not in kernel.text


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_barrier_is_found(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the square is read, and before the next one is loaded."""
    function, args = lambda a: a.T + 1, (RNG.standard_normal((70, 65)).astype(np.float32),)
    build, calls = GridBuilder.barrier, []

    def barrier(b: GridBuilder) -> None:
        calls.append(b)
        if len(calls) != which + 1:
            build(b)

    monkeypatch.setattr(GridBuilder, "barrier", barrier)
    forget_kernels()
    made = compilation_of(function, *args).run_until("codegen")
    (kernel,) = made.kernels.values()
    monkeypatch.undo()
    forget_kernels()
    wrong = []
    for order in ORDERS:
        out = np.zeros((65, 70), np.float32)
        source = kernel.text.replace(kernel.symbol, NAME)
        words = [args[0].ctypes.data, out.ctypes.data, 0, kernel.kernel.total]
        launch(source, kernel.kernel.function.threads, words, 1, order)
        wrong.append(not np.array_equal(out, args[0].T + 1))
    assert any(wrong)


def _flat(name: str) -> tuple[Any, ...]:
    function, args = PROGRAMS[name]
    return function, *args


def test_devices_by_name_and_architecture() -> None:
    assert device_named("sm_90a") is DEVICES["H200"]
    with pytest.raises(OptionsError, match="unknown GPU 'sm_9'"):
        device_named("sm_9")


def test_rows_that_are_picked_move_in_accesses_of_16_bytes() -> None:
    """Wherever they start, rows of whole accesses start at one."""
    table, at = WIDE[:50, :512], np.arange(64, dtype=np.int32) % 53 - 2
    device = replace(GPU, cores=1)

    def program(x: Any, i: Any) -> Any:
        return jnp.take(x, i, axis=0, mode="clip") * 2

    kernels = compilation_of(program, table, at, device=device).run_until("codegen").kernels
    (found,) = run(program, table, at, device=device, resources=True)
    assert any("load<4, 4>(&in" in kernel.text for kernel in kernels.values())
    np.testing.assert_array_equal(found, table[np.clip(at, 0, 49)] * 2)
