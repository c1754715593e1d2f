"""The library programs, timed through `stagejit.jit` beside `jax.jit`.

Input: programs, a time budget. Output: one frozen `Row` a program, a table with their geometric
mean. Invariant: both run the same function on the same arguments in one process, interleaved; a row
says how far the results are apart, and which loops XLA ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

import stagejit
from stagejit.bench.ecosystem.program import LibraryProgram
from stagejit.bench.report import program_table
from stagejit.bench.timing import Timing, geometric_mean, interleave
from stagejit.runtime.cpu.loader import call_count

_LOOPS = ("scan", "while")


@dataclass(frozen=True)
class Row:
    """error: largest difference from jax.jit's result, relative to the largest element of that
    array. calls: of our programs in one run. loops: those that XLA ran, with the reason."""

    name: str
    ours: Timing
    jax: Timing
    error: float
    calls: int
    loops: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times as long jax.jit takes; above 1 we are faster."""
        return self.jax.median / self.ours.median

    @property
    def best_ratio(self) -> float:
        """The same of the best times, which a busy machine disturbs less."""
        return self.jax.best / self.ours.best


def measure(program: LibraryProgram, seconds: float) -> Row:
    """Times a program for about `seconds` a side."""
    function, args = program.make()
    args = jax.device_put(args)
    staged = stagejit.jit(lambda *args: function(*args))
    plain = jax.jit(lambda *args: function(*args))

    wait: Any = jax.block_until_ready

    def ours() -> Any:
        return wait(staged(*args))

    def theirs() -> Any:
        return wait(plain(*args))

    error = _error(ours(), theirs())
    before = call_count()
    ours()
    calls = call_count() - before
    first, second = interleave([ours, theirs], 2 * seconds)
    delegated = staged.plan(*args).delegated
    loops = tuple(dict.fromkeys(d.reason for d in delegated if d.equation in _LOOPS))
    return Row(program.name, first, second, error, calls, loops)


def _error(results: Any, expected: Any) -> float:
    worst = 0.0
    for x, y in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if x.size:
            worst = max(worst, float(np.max(np.abs(x - y)) / max(np.max(np.abs(y)), 1e-30)))
    return worst


def table_of(rows: Iterable[Row]) -> Table:
    """Rows, and their geometric mean."""
    rows = list(rows)
    columns = (
        "stagejit us",
        "jax us",
        "ratio",
        "of best",
        "spread",
        "error",
        "calls",
        "loops left",
    )
    table = program_table("programs of libraries, stagejit.jit against jax.jit", columns)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.ours.median * 1e6:.1f}",
            f"{row.jax.median * 1e6:.1f}",
            f"{row.ratio:.2f}",
            f"{row.best_ratio:.2f}",
            f"{100 * max(row.ours.spread, row.jax.spread):.0f} %",
            f"{row.error:.0e}",
            str(row.calls),
            str(len(row.loops)),
        )
    if rows:
        least = min(rows, key=lambda row: row.ratio)
        table.caption = (
            f"geometric mean {geometric_mean([row.ratio for row in rows]):.2f}"
            f" ({geometric_mean([row.best_ratio for row in rows]):.2f} of best times),"
            f" least {least.ratio:.2f} ({least.name})"
        )
    return table
