"""PyCUDA's arrays, as results of programs, made with as little as a call can bear.

Input: addresses, shapes and dtypes. Output: GPUArrays. Invariant: an array's memory goes back where
it came from when nobody holds the array, or a part of it, any more; an array that was donated says
so to whoever touches it.

Note [Copies of a template]: making a GPUArray works out strides and a grid, each time anew. One is
made for each shape and dtype, and nobody uses it; others have what it has, and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_LEGACY = 1  # the default stream: with it `main` is in order
_MOST_TEMPLATES = 1024


class GpuArrays:
    """Makes them for one driver. cuda: PyCUDA's module."""

    def __init__(self, cuda: Any) -> None:
        from pycuda import gpuarray

        class Piece(cuda.PointerHolderBase):  # type: ignore[misc]
            """Memory of the pool, or of an owner who is held."""

            def __init__(self, address: int, owner: object) -> None:
                super().__init__()
                self.address, self.owner = address, owner

            def get_pointer(self) -> int:
                return self.address

        class Pooled(Piece):
            """Goes back. `back` is called with the context or without it."""

            def __init__(self, address: int, back: Callable[[int], object]) -> None:
                super().__init__(address, None)
                self.back = back

            def __del__(self) -> None:
                self.back(self.address)

        class Deleted(Piece):
            def get_pointer(self) -> int:
                raise RuntimeError("Array has been deleted: it was donated to a function.")

        class Result(gpuarray.GPUArray):  # type: ignore[misc]
            """Who uses other streams than the default one waits for that."""

            @property
            def __cuda_array_interface__(self) -> dict[str, Any]:
                return {**super().__cuda_array_interface__, "stream": _LEGACY}

        self._piece, self._pooled, self._result = Piece, Pooled, Result
        self._array, self._deleted = gpuarray.GPUArray, Deleted(0, None)
        self._templates: dict[tuple[tuple[int, ...], np.dtype[Any]], dict[str, Any]] = {}

    def made(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: object,
        back: Callable[[int], object],
    ) -> Any:
        """back: takes the address of memory that has no owner."""
        known = self._templates.get((shape, dtype))
        if known is None:
            known = self._templates[shape, dtype] = dict(
                vars(self._result(shape, dtype, gpudata=self._piece(0, None)))
            )
            if len(self._templates) > _MOST_TEMPLATES:
                del self._templates[next(iter(self._templates))]
        array = self._result.__new__(self._result)
        array.__dict__.update(known)
        array.gpudata = (
            self._pooled(address, back) if owner is None else self._piece(address, owner)
        )
        return array

    def delete(self, array: object) -> None:
        """Who touches it gets an error from now on."""
        if isinstance(array, self._array):
            array.gpudata = self._deleted
