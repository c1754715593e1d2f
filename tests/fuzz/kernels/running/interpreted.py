"""Kernels run by the interpreter of the loop-nest IR.

Input: jobs. Output: for each an image after the run, as machine code would leave it. Invariant: the
target need not be one that can run here; scratch is not part of what is compared.
"""

from __future__ import annotations

import itertools

import numpy as np

from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.kernel import KernelArg
from stagejit.codegen.target import Target
from tests.fuzz.kernels.check import Job
from tests.fuzz.kernels.running.scene import Array, workspaces_in

# Of memory, so that a kernel takes well under a second.
MOST_NBYTES = 1 << 14


def is_small(job: Job) -> bool:
    """Whether it is interpreted in no time."""
    return job.frame.image.size <= MOST_NBYTES


def interpreted(job: Job, target: Target, unwritten: int) -> Array:
    """The image after all chunks of all launches. unwritten: the byte that scratch is full of at
    first."""
    frame, kernel = job.frame, job.kernel
    memory = np.empty(frame.image.size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    image = memory[start : start + frame.image.size]
    image[:] = frame.image
    arrays = [_array(image, at, arg) for at, arg in zip(frame.buffers, kernel.args, strict=False)]
    arrays += workspaces_in(image, frame.workspaces, kernel)
    for params, (lo, hi) in itertools.product(kernel.passes, frame.chunks):
        interpret(
            kernel.function, arrays, params, lo, hi,
            has_fma=target.has_fma, unwritten=unwritten,
        )  # fmt: skip
    return image


def _array(image: Array, place: int, arg: KernelArg) -> Array:
    """What a kernel may touch of an argument."""
    dtype = arg.value.type.dtype.numpy
    part = image[place : place + (arg.value.type.size - arg.offset) * dtype.itemsize]
    return part.view(dtype)


def difference(job: Job, first: Array, second: Array) -> str:
    """What differs between two runs, where any NaN is any other; empty where nothing does."""
    kernel = job.kernel
    for place, arg, buffer in zip(
        job.frame.buffers, kernel.args, kernel.function.buffers, strict=False
    ):
        dtype = DTYPES[buffer.elem.elem]
        a, b = (_array(image, place, arg).copy().view(dtype) for image in (first, second))
        same = _bits(a) == _bits(b)
        if buffer.elem.is_float:
            with np.errstate(invalid="ignore"):
                same |= np.isnan(a) & np.isnan(b)
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            return f"element {at} of {buffer}, {(~same).sum()} in all: {a[at]} and {b[at]}"
    return ""


def _bits(a: Array) -> Array:
    bits: Array = a.view(f"u{a.itemsize}")
    return bits
