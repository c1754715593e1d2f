"""From XLA's CPU to a function of Python that does the work of a whole program elsewhere.

Input: a function of NumPy arrays, its types. Output: a function that is a call of a host program
whose only step calls it. Invariant: the program keeps the function, see Note [Who keeps a callback]
in `graph/python_functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagejit.graph.python_functions import ATTRIBUTE, TARGET, numbered
from stagejit.runtime.cpu.loader import load_program
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.hosting.program_steps import BufferRef, Call, ForeignArray, Space
from stagejit.runtime.lowering.staged import NativeCall, Staged
from stagejit.runtime.objects.object_cache import ObjectCache
from stagejit.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


def bridged(
    name: str,
    function: Callable[[Sequence[Array]], list[Array]],
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    cache: ObjectCache | None,
) -> Staged:
    """A function that is one call of such a program."""
    call = Call(
        TARGET,
        _arrays("arg", inputs),
        _arrays("result", outputs),
        ((ATTRIBUTE, "i64", numbered(function, plain=True)),),
    )
    taken, given = (tuple(type.nbytes for type in types) for types in (inputs, outputs))
    program = load_program(HostProgram(name, (call,), taken, given), {}, cache)
    numbers = tuple(range(len(inputs) + len(outputs)))
    arguments, results = numbers[: len(inputs)], numbers[len(inputs) :]
    return Staged((NativeCall(program, arguments, results, tuple(outputs)),), results)


def _arrays(space: Space, types: Sequence[TensorType]) -> tuple[ForeignArray, ...]:
    return tuple(
        ForeignArray(BufferRef(space, at), type.dtype.name, type.shape, type.nbytes)
        for at, type in enumerate(types)
    )
