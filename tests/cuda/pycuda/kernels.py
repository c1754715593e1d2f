"""What tests of `PyCudaDriver` launch."""

from __future__ import annotations

import struct

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
