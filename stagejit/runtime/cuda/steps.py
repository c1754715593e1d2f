"""What the compiler's steps do for a GPU, in one place to import once a GPU is asked for.

Input: what earlier steps made. Output: programs, texts, results. Invariant: a compilation for the
CPU loads nothing of this.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.uses import texts_of
from stagejit.runtime.cuda.code.nvrtc import compile_ptx
from stagejit.runtime.cuda.driver import Array
from stagejit.runtime.cuda.drivers import device_of, driver_of
from stagejit.runtime.cuda.programs.executor import Executable
from stagejit.runtime.cuda.programs.hosting import cuda_program, executable
from stagejit.runtime.cuda.programs.ordering import verify_order
from stagejit.runtime.cuda.programs.program import CudaProgram, as_text
from stagejit.runtime.cuda.programs.program import verify as _verify
from stagejit.runtime.cuda.xla_calls import StreamProgram
from stagejit.runtime.lowering.staged import NativeCall, Staged
from stagejit.schedule.plans.plan import Plan

__all__ = [
    "as_text", "compile_ptx", "cuda_program", "device_of", "executable", "load", "on_its_stream",
    "run", "texts_of", "verify",
]  # fmt: skip


def verify(program: CudaProgram, plan: Plan) -> None:
    """Raises InternalError or VerificationError."""
    _verify(program)
    verify_order(program, plan)


def load(made: Executable, target: str) -> None:
    """Onto the device. Raises NoDriverError."""
    made.on(driver_of(target))


def run(made: Executable, target: str, arrays: Sequence[Array]) -> list[Array]:
    """A call with arrays of the host."""
    return made.on(driver_of(target)).on_host(arrays)


def on_its_stream(made: Executable, target: str) -> Staged:
    """One call of XLA's on the GPU, whose last result is scratch memory."""
    program = StreamProgram(made, target)
    arguments, types = program.layout.given, (*made.outputs, program.layout.scratch)
    numbers = tuple(range(arguments + len(types)))
    call = NativeCall(program, numbers[:arguments], numbers[arguments:], types)
    return Staged((call,), numbers[arguments:-1])
