"""From XLA's CPU to a function of Python that does the work of a whole program elsewhere.

Input: a function of NumPy arrays, its types. Output: a host program that calls it, and a function
that is a call of this. Invariant: the program keeps the function, see Note [Who keeps a callback]
in `graph/python_functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagejit.graph.python_functions import ATTRIBUTE, TARGET, numbered
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.hosting.program_steps import BufferRef, Call, ForeignArray, Space
from stagejit.runtime.lowering.staged import NativeCall, Staged
from stagejit.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


def bridge_program(
    name: str,
    function: Callable[[Sequence[Array]], list[Array]],
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
) -> HostProgram:
    """The host program whose only step is a call of `function`."""

    def arrays(space: Space, types: Sequence[TensorType]) -> tuple[ForeignArray, ...]:
        return tuple(
            ForeignArray(BufferRef(space, at), type.dtype.name, type.shape, type.nbytes)
            for at, type in enumerate(types)
        )

    call = Call(
        TARGET,
        arrays("arg", inputs),
        arrays("result", outputs),
        ((ATTRIBUTE, "i64", numbered(function, plain=True)),),
    )
    taken, given = (tuple(type.nbytes for type in types) for types in (inputs, outputs))
    return HostProgram(name, (call,), taken, given)


def bridged(program: LoadedProgram, arguments: int, outputs: Sequence[TensorType]) -> Staged:
    """A function that is one call of such a program."""
    numbers = tuple(range(arguments + len(outputs)))
    call = NativeCall(program, numbers[:arguments], numbers[arguments:], tuple(outputs))
    return Staged((call,), numbers[arguments:])
