"""What tests of `PyCudaDriver` launch."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from stagejit.runtime.cuda.driver import Driver, Source, Stream
from tests.cuda.driver.kernels import AXPY, DYNAMIC_SUM, WRITES_OUTSIDE

AXPY_SOURCE = Source("axpy", AXPY, (64,))
WRITES_OUTSIDE_SOURCE = Source("writes_outside", WRITES_OUTSIDE, (32,))
N = 100


def sum_source(shared_nbytes: int) -> Source:
    """Of the ones in shared memory that the launch adds."""
    text = DYNAMIC_SUM.replace("int given", "long long given")
    return Source("dynamic_sum", text, (256,), shared_nbytes)


def axpy(driver: Driver, y: int, x: int, a: int, stream: Stream, n: int = N) -> None:
    """y += a x."""
    function = driver.load([AXPY_SOURCE])["axpy"]
    grid = (-(-n // 64), 1, 1)
    driver.launch(function, grid, (64, 1, 1), 0, stream, struct.pack("4Q", y, x, n, a))


def launch_on(
    driver: Driver,
    source: Source,
    arrays: Sequence[np.ndarray],
    numbers: Sequence[int],
    blocks: Sequence[int],
) -> None:
    """Launches a kernel on copies of arrays of the host, and copies them back."""
    threads, grid = (*source.threads, 1, 1)[:3], (*blocks, 1, 1)[:3]
    with driver.current():
        function = driver.load([source])[source.name]
        places = [driver.allocate(array.nbytes) for array in arrays]
        for place, array in zip(places, arrays, strict=True):
            driver.copy_in(place, np.ascontiguousarray(array), driver.main)
        words = struct.pack(f"{len(places)}Q{len(numbers)}q", *places, *numbers)
        driver.launch(function, grid, threads, source.shared_nbytes, driver.main, words)
        for place, array in zip(places, arrays, strict=True):
            driver.copy_out(array, place, driver.main)
            driver.free(place)
