"""Programs of ours that are run for their results, outside of any program of the user's.

Input: a `Staged` function, arrays. Output: arrays. Invariant: `stagejit.enable()` changes nothing
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from stagejit.base.enabling import apart, suspended
from stagejit.compat import remembered_weakly
from stagejit.runtime.lowering.emission import emit
from stagejit.runtime.lowering.staged import Staged
from stagejit.types import TensorType

staged_p = Primitive("stagejit_staged")
staged_p.multiple_results = True
staged_p.def_abstract_eval(  # type: ignore[no-untyped-call]
    lambda *_, program: [jax.core.ShapedArray(t.shape, t.dtype.numpy) for t in program.types]
)
mlir.register_lowering(staged_p, lambda ctx, *args, program: emit(ctx, program.staged, args))


class Evaluation(Protocol):
    """Makes a value of weights. name: see `Evaluated`."""

    @property
    def name(self) -> str: ...

    def __call__(self, *arrays: Any) -> list[Any]: ...


@remembered_weakly
class Evaluated:
    """A staged function that can be called. name: of what it does, equal in every process."""

    def __init__(self, staged: Staged, types: Sequence[TensorType], name: str) -> None:
        """types: of its results."""
        self.staged, self.types, self.name = staged, tuple(types), name

        def run(*arrays: Any) -> Any:
            return staged_p.bind(*arrays, program=self)  # type: ignore[no-untyped-call]

        self._run: Any = jax.jit(run)

    def __call__(self, *arrays: Any) -> list[Any]:
        """Arrays of JAX's, when they are ready."""
        with apart():
            results: list[Any] = suspended(lambda: self._run(*arrays))
        return [result.block_until_ready() for result in results]
