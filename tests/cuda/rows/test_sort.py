"""Sorts on a GPU, bit for bit against the interpreter: on one whose blocks sort whole rows, and on
one whose blocks are so small that rows have several tiles and passes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jax import lax

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.graph.meaning.interpreter import interpret
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.sorting.test_sorts import (  # noqa: F401  collected here once more
    check,
    test_rows_of_one_number,
    test_the_largest_of_rows_in_order,
    test_the_least_of_rows_of_the_last_key,
)
from tests.codegen.regions import region_of
from tests.cuda.emulation.emulated import NAME, ORDERS, launched
from tests.cuda.machine import GPU
from tests.cuda.regions import CudaRunner
from tests.expected.sorts import DTYPES, Array, array, bits

SMALL = replace(GPU, threads_a_block=32, static_shared_nbytes=1024)
DEVICES = {"H200": GPU, "one warp": SMALL}


@pytest.fixture(name="runner", params=DEVICES)
def _runner(request: pytest.FixtureRequest) -> CudaRunner:
    return CudaRunner(DEVICES[request.param])


@pytest.fixture(name="host")
def _host() -> CudaRunner:
    return CudaRunner(SMALL)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(runner: CudaRunner, dtype: str) -> None:
    """By themselves, and with what lies beside them; the rows have ties, too."""
    shape = (3, 30) if runner.target is GPU else (2, 337)
    x = np.concatenate([array(shape, dtype), array((1, shape[1]), dtype, ties=True)])
    check(runner, lambda x: lax.sort(x, dimension=1), x)
    check(runner, lambda x: lax.sort((x, x[:, ::-1]), dimension=1, num_keys=1), x)


@pytest.mark.parametrize("keys", [("int8", "float32"), ("float64", "int64"), ("bfloat16",) * 5])
def test_several_keys(host: CudaRunner, keys: tuple[str, ...]) -> None:
    operands = [array((2, 90), key, at, ties=True) for at, key in enumerate(keys)]
    count = len(operands)

    def program(*x: Any) -> Any:
        return lax.sort((*x, x[0][:, ::-1]), dimension=1, num_keys=count)

    check(host, program, *operands)


@pytest.mark.parametrize("extent", [2, 7, 64, 211, 353, 1024])
def test_extents(host: CudaRunner, extent: int) -> None:
    """Of whole tiles or not, of one or many."""
    check(host, lambda x: lax.sort(x, dimension=1), array((3, extent), "float32"))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 13, 37), 0), ((5, 13, 37), 1), ((3, 1, 16), 2), ((2, 170, 3), 1), ((1, 2, 1), 1),
     ((130, 9), 0)],
    ids=str,
)  # fmt: skip
def test_axes(runner: CudaRunner, shape: tuple[int, ...], axis: int) -> None:
    check(runner, lambda x: lax.sort(x, dimension=axis), array(shape, "float32"))


@pytest.mark.parametrize("k", [1, 2, 40, 100, 299])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_largest(runner: CudaRunner, dtype: str, k: int) -> None:
    """Runs are as short as what is kept of them."""
    x = np.concatenate([array((3, 300), dtype), array((1, 300), dtype, ties=True)])
    check(runner, lambda x: lax.top_k(x, k), x)


@pytest.mark.parametrize(
    ("shape", "device"), [((9, 300), "H200"), ((5, 100), "one warp"), ((2, 353), "one warp")]
)
def test_no_barrier_can_be_left_out(shape: tuple[int, int], device: str) -> None:
    """Without any one of them, some order of the threads gives another result."""
    x = array(shape, "float32")
    graph = graph_of(lambda x: lax.sort(x, dimension=1), x)
    kernel = kernel_of(region_of(graph), DEVICES[device])
    source = cuda_source(kernel.function, NAME)
    (wanted,) = (bits(np.asarray(y)) for y in interpret(graph, [x]))
    first, *others = source.split(_BARRIER)
    assert kernel.total > 1
    assert len(others) >= 3
    for at in range(len(others) + 1):
        barriers = ["" if number == at else _BARRIER for number in range(len(others))]
        parts = itertools.chain.from_iterable(zip(barriers, others, strict=True))
        found = sorted_by("".join((first, *parts)), kernel, x)
        right = all(y is not None and np.array_equal(bits(y), wanted) for y in found)
        assert right == (at == len(others)), f"without barrier {at}"


_BARRIER = "__syncthreads();"


def sorted_by(source: str, kernel: Kernel, x: Array) -> list[Array | None]:
    """What one block makes of an array, with its threads in each order; None for a fault."""
    found: list[Array | None] = []
    for order in ORDERS:
        y, workspace = np.zeros_like(x), np.zeros(kernel.workspace_nbytes + 8, np.uint8)
        arrays = [x, y, *([workspace] if kernel.workspace_nbytes else [])]
        pointers = [array.ctypes.data for array in arrays]
        threads, end = kernel.function.threads, [0, kernel.total]
        faults = [
            launched(source, threads, [*pointers, *passed, *end], [1], order)
            for passed in kernel.passes
        ]
        found.append(None if any(faults) else y)
    return found
