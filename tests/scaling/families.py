"""Families of programs that grow with a number, and how much work a step has with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import stagejit
from stagejit.pipeline import Compilation
from stagejit.runtime.lowering.staged import Request
from tests.expected.calls import calls_of

Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]  # f, arguments, donated
SHORT, LONG = 24, 96

# Work for each equation may grow like the logarithm of their number, and by a little more where
# work is bounded by something else than the program (a kernel that is shared, a limit).
MOST_GROWTH = 1.3


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layers(n: int) -> Program:
    def f(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight) + x
        return x

    return f, (array(16, 16), *(array(16, 16) for _ in range(n))), ()


def states_that_are_read(n: int) -> Program:
    def f(d: Any, x: Any) -> Any:
        read = []
        for i in range(n):
            before, d = d, d.at[i].set(x)
            read.append(lax.cumsum(before, 1)[0])
        return d, read

    return f, (array(512, 4), array(4)), (0,)


def requested(program: Program, *, verify: bool) -> Request:
    f, args, donated = program
    options = stagejit.Options(cache_dir="", verify=verify)
    jitted = stagejit.jit(f, donate_argnums=donated, options=options)
    return jitted.trace(*args).compilation.request


def calls_to_compile(program: Program) -> int:
    """Calls of Python and C functions from the trace to the host program, verifiers included."""
    return calls_to_run(Compilation(requested(program, verify=True)), "host")


def calls_to_run(compilation: Compilation, last: str) -> int:
    return calls_of(lambda: compilation.run_until(last))


def calls_after(first: str, program: Program, last: str) -> int:
    """The same for what comes after the step `first` of a program."""
    return calls_to_run(Compilation(requested(program, verify=False)).run_until(first), last)
