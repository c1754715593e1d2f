"""Programs of ours that are run for their results, outside of any program of the user's.

Input: a `Staged` function, arrays. Output: arrays. Invariant: `stagejit.enable()` changes nothing
of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from stagejit.base.enabling import apart, suspended
from stagejit.compat import remembered_weakly
from stagejit.runtime.lowering.emission import emit
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Staged
from stagejit.runtime.objects.object_cache import digest
from stagejit.types import TensorType

staged_p = Primitive("stagejit_staged")
staged_p.multiple_results = True
staged_p.def_abstract_eval(  # type: ignore[no-untyped-call]
    lambda *_, program: [jax.core.ShapedArray(t.shape, t.dtype.numpy) for t in program.types]
)
mlir.register_lowering(staged_p, lambda ctx, *args, program: emit(ctx, program.staged, args))


@remembered_weakly
class Evaluated:
    """A staged function that can be called. name: of its code, equal in every process; its own
    where XLA computes some of it, whose programs have no such names."""

    def __init__(self, staged: Staged, types: Sequence[TensorType]) -> None:
        """types: of its results."""
        self.staged, self.types = staged, tuple(types)
        self.name = _name(staged)

        def run(*arrays: Any) -> Any:
            return staged_p.bind(*arrays, program=self)  # type: ignore[no-untyped-call]

        self._run: Any = jax.jit(run)

    def __call__(self, *arrays: Any) -> list[Any]:
        """Arrays of JAX's, when they are ready."""
        with apart():
            results: list[Any] = suspended(lambda: self._run(*arrays))
        return [result.block_until_ready() for result in results]


def _name(staged: Staged) -> str:
    parts = [repr(staged.outputs)]
    for item in staged.items:
        if isinstance(item, DelegatedEquation):
            return secrets.token_hex()
        if isinstance(item, NativeCall):
            parts.append(repr((item.program.name, item.operands, item.results, item.result_types)))
        else:
            parts.append(repr(item))
    for constant in map(np.asarray, staged.constants):
        parts += [repr((constant.dtype, constant.shape)), constant.tobytes().hex()]
    return digest(*parts)
