"""What a call of a captured program costs the host, whatever the GPU does meanwhile.

Input: a driver, numbers of launches. Output: seconds from call to call, for each. Invariant: nobody
waits for the device inside of what is timed; the least of many batches counts, as everything else
that a machine does only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.table import Table

import stagejit
from stagejit.runtime.cuda.driver import Driver
from stagejit.runtime.cuda.drivers import using

LENGTHS = (1, 8, 64, 512)
_ROWS, _COLUMNS = 64, 64
_WARM, _CALLS, _BATCHES = 6, 100, 40


@dataclass(frozen=True)
class Overhead:
    """launches: of the program. seconds: from call to call."""

    driver: str
    launches: int
    captured: bool
    seconds: float


def measure(
    driver: Driver, lengths: Sequence[int] = LENGTHS, batches: int = _BATCHES
) -> list[Overhead]:
    """A product after the other, of arrays that lie on the device."""
    with using(driver):
        return [_measured(driver, length, batches) for length in lengths]


def _measured(driver: Driver, length: int, batches: int) -> Overhead:
    def program(x: Any, w: Any) -> Any:
        for _ in range(length):
            x = jnp.tanh(x @ w)
        return x

    function = stagejit.jit(program, backend="cuda")
    x, w = _array(driver, _ROWS, _COLUMNS), _array(driver, _COLUMNS, _COLUMNS)
    for _ in range(_WARM):
        function(x, w)
    (executable,) = function.executables
    loaded = executable.on(driver)
    return Overhead(
        driver.name,
        sum(1 for _ in loaded.program.launches()),
        bool(loaded.graphs),
        _least(lambda: function(x, w), driver, batches),
    )


def _array(driver: Driver, rows: int, columns: int) -> Any:
    given = np.full((rows, columns), 1 / columns, np.float32)
    with driver.current():
        address = driver.allocate(given.nbytes)
        driver.copy_in(address, given, driver.main)
        return driver.array(address, given.shape, given.dtype)


def _least(call: Callable[[], object], driver: Driver, batches: int) -> float:
    least = float("inf")
    for _ in range(batches):
        with driver.current():
            driver.synchronize(driver.main)
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        least = min(least, (time.perf_counter() - start) / _CALLS)
    return least


def table_of(rows: Sequence[Overhead]) -> Table:
    """For people."""
    table = Table(title="what a call costs the host", title_justify="left")
    for name in ("driver", "launches", "as a graph", "us a call"):
        table.add_column(name, justify="left" if name == "driver" else "right")
    for row in rows:
        captured = "yes" if row.captured else "no"
        table.add_row(row.driver, str(row.launches), captured, f"{1e6 * row.seconds:.1f}")
    return table
