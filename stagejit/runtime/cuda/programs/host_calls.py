"""What a CUDA program leaves to the host: routines of libraries, functions of Python, equations.

Input: a step, its operands as NumPy arrays of physical types. Output: its results, likewise.
Invariant: JAX runs what it runs on the CPU, as it would outside of our programs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from stagejit.base.enabling import suspended
from stagejit.compat import evaluate_equation, named_axis
from stagejit.crossing import from_user, to_user
from stagejit.errors import InternalError, UnsupportedOpError
from stagejit.graph import python_functions
from stagejit.runtime.cuda.driver import Array
from stagejit.runtime.cuda.programs.program import Call
from stagejit.types import dtype_named


def call(step: Call, operands: Sequence[Array]) -> list[Array]:
    """The results of a routine of jaxlib, or of a function of Python."""
    if step.target == python_functions.TARGET:
        ((_, _, number),) = step.attributes
        function = python_functions.function_of(int(number))
        if function is None:
            raise InternalError(f"no function has the number {number}", step="cuda")
        return list(function(operands))
    with _on_cpu(array.dtype for array in operands):
        struct: Any = jax.ShapeDtypeStruct
        types = [struct(array.dims, dtype_named(array.dtype).numpy) for array in step.results]
        attributes = {
            name: dtype_named(dtype).numpy.type(value) for name, dtype, value in step.attributes
        }
        routine = jax.ffi.ffi_call(step.target, types)
        return [np.asarray(x) for x in routine(*operands, **attributes)]


def require_runs_here(equation: Any) -> None:
    """Raises UnsupportedOpError for what JAX can run as a part of a larger program alone."""
    if any(named_axis(effect) is not None for effect in equation.effects):
        raise UnsupportedOpError(
            f"`{equation.primitive}` needs the devices of the program around it",
            next_step="leave it to a function that is compiled for the CPU",
        )


def evaluate(equation: Any, operands: Sequence[Array | None]) -> list[Array]:
    """The results of an equation. operands: None for those that are literals."""
    given = [
        atom.val if array is None else to_user(array, atom.aval)
        for atom, array in zip(equation.invars, operands, strict=True)
    ]
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    with _on_cpu(getattr(aval, "dtype", np.float32) for aval in avals):
        results = suspended(lambda: evaluate_equation(equation, given))
        return [
            from_user(x, variable.aval)
            for x, variable in zip(results, equation.outvars, strict=True)
        ]


def literals(equation: Any) -> list[bool]:
    """Which operands are literals."""
    return [isinstance(atom, Literal) for atom in equation.invars]


@contextlib.contextmanager
def _on_cpu(dtypes: Iterable[Any]) -> Any:
    wide = any(getattr(dtype, "itemsize", 4) == 8 for dtype in dtypes)
    x64 = jax.enable_x64(True) if wide else contextlib.nullcontext()
    with jax.default_device(jax.local_devices(backend="cpu")[0]), x64:
        yield
