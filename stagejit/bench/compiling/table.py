"""Compile times beside jax.jit, in one process.

Input: programs, how many variants of each. Output: a frozen `Row` a program, a table with their
geometric mean. Invariant: every compile is cold: the function is new, its constants are of no
other one, and neither side keeps objects on disk; the first variant of a program warms up what both
keep for the life of a process (traces of jax.numpy's functions), and does not count. Who comes
first is drawn anew each time.

CPU seconds are those of all threads of the process; both sides use several.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from rich.table import Table

import stagejit
from stagejit.bench.compiling.program import Program, equation_count
from stagejit.bench.report import program_table
from stagejit.bench.timing import geometric_mean


@dataclass(frozen=True)
class Times:
    """Seconds of one compile: CPU time and wall time."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Row:
    """One item of ours and theirs a variant."""

    name: str
    equations: int
    ours: tuple[Times, ...]
    theirs: tuple[Times, ...]

    @property
    def cpu_ratio(self) -> float:
        """How many times as long we take as jax.jit, in CPU time; below 1 we are faster."""
        return self._ratio(lambda times: times.cpu)

    @property
    def wall_ratio(self) -> float:
        """The same of wall time."""
        return self._ratio(lambda times: times.wall)

    def _ratio(self, of: Callable[[Times], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(self.ours, self.theirs, strict=True))


def measure(program: Program, variants: int) -> Row:
    """Compiles `variants` variants on each side, after one that does not count."""
    ours: list[Times] = []
    theirs: list[Times] = []
    equations = 0
    order = random.Random(variants)
    for variant in range(variants + 1):
        function, args = program.make(variant)
        equations = equation_count(jax.make_jaxpr(function)(*args).jaxpr)
        sides: list[tuple[list[Times], Callable[..., Any]]] = [(ours, _staged), (theirs, jax.jit)]
        order.shuffle(sides)
        for times, jit in sides:
            times.append(_compile(jit, function, args))
    return Row(program.name, equations, tuple(ours[1:]), tuple(theirs[1:]))


def _staged(function: Callable[..., Any]) -> Any:
    return stagejit.jit(function, options=stagejit.Options(cache_dir=""))


def _compile(jit: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...]) -> Times:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    jit(lambda *args: function(*args)).lower(*args).compile()
    return Times(time.process_time() - cpu, time.perf_counter() - wall)


def table_of(rows: Sequence[Row]) -> Table:
    """Rows, and their geometric mean."""
    columns = (
        "equations",
        "CPU s",
        "jax CPU s",
        "wall s",
        "jax wall s",
        "CPU ratio",
        "wall ratio",
    )
    table = program_table("cold compile, stagejit.jit against jax.jit (medians)", columns)
    for row in rows:
        table.add_row(
            row.name,
            str(row.equations),
            f"{statistics.median(t.cpu for t in row.ours):.2f}",
            f"{statistics.median(t.cpu for t in row.theirs):.2f}",
            f"{statistics.median(t.wall for t in row.ours):.2f}",
            f"{statistics.median(t.wall for t in row.theirs):.2f}",
            f"{row.cpu_ratio:.2f}",
            f"{row.wall_ratio:.2f}",
        )
    if rows:
        worst = max(rows, key=lambda row: row.wall_ratio)
        table.caption = (
            f"geometric mean {geometric_mean([row.cpu_ratio for row in rows]):.2f} of CPU time,"
            f" {geometric_mean([row.wall_ratio for row in rows]):.2f} of wall time;"
            f" most {worst.wall_ratio:.2f} ({worst.name})"
        )
    return table
