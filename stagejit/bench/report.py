"""Rows as tables for people and as JSON for programs.

Input: rows. Output: rich tables, or a JSON-ready dictionary. Invariant: both say the same; JSON is
in SI units (seconds, bytes), tables in the unit that a column names.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import llvmlite
from rich.table import Table

from stagejit.bench.harness import Row
from stagejit.runtime.peaks import Peaks


def program_table(title: str, columns: Sequence[str]) -> Table:
    """An empty table with the programs' names, and numbers beside them."""
    table = Table("program", title=title)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def speed_table(rows: Sequence[Row], opponents: Sequence[str]) -> Table:
    """Times and rates: one row a workload."""
    table = Table(title="Speed: median of interleaved calls", title_justify="left")
    table.add_column("workload", no_wrap=True)
    for name in ("stagejit", *opponents):
        table.add_column(f"{name}\nms", justify="right")
        table.add_column("spread\n%", justify="right")
    for name in opponents:
        table.add_column(f"ratio\nto {name}", justify="right", style="bold")
    reads = any(row.reading is not None for row in rows)
    for header in (
        "GFLOP/s",
        "GB/s",
        "% of\nfloor",
        *(["% of\nreading"] if reads else []),
        "error",
    ):
        table.add_column(header, justify="right")
    for row in rows:
        if row.failure:
            table.add_row(row.name, *["-"] * (len(table.columns) - 2), "failed", style="red")
        else:
            table.add_row(row.name, *_speed_cells(row, reads), style="" if row.right else "red")
    return table


def _speed_cells(row: Row, reads: bool) -> list[str]:
    cells = []
    for entry in row.entries:
        cells += [_milliseconds(entry.timing.median), f"{100 * entry.timing.spread:.0f}"]
    cells += [f"{row.ratio(entry):.2f}" for entry in row.entries[1:]]
    cells.append(f"{row.gflops:.1f}" if row.cost.flops else "")
    cells.append(f"{row.gbytes:.1f}")
    cells.append(f"{row.percent_of_floor:.0f}" if row.floor else "")
    if reads:
        percent = row.percent_of_reading
        cells.append("" if percent is None else f"{percent:.0f}")
    return [*cells, f"{row.ours.error:.0e}"]


def plan_table(rows: Sequence[Row], opponents: Sequence[str]) -> Table:
    """What compilation costs and yields: one row a workload."""
    table = Table(title="Compilation and plan", title_justify="left")
    table.add_column("workload", no_wrap=True)
    for header in ("cold\nms", "warm\nms", "jax\nms"):
        table.add_column(f"compile {header}", justify="right")
    for name in ("stagejit", *(name for name in opponents if name == "jax")):
        table.add_column(f"peak temporary\nKiB {name}", justify="right")
    table.add_column("dispatches", justify="right")
    table.add_column("delegated", justify="right")
    for row in rows:
        if not row.failure:
            times = row.compile_times
            cells = [_milliseconds(value) for value in (times.cold, times.warm, times.jax)]
            sizes = [entry.footprint for entry in row.entries if entry.name in ("stagejit", "jax")]
            cells += [_kibibytes(size.peak_nbytes) for size in sizes]
            plan = row.ours.footprint
            table.add_row(row.name, *cells, _count(plan.dispatches), _count(plan.delegated))
    return table


def as_json(rows: Sequence[Row], peaks: Peaks) -> dict[str, Any]:
    """Everything measured, with the versions and the machine it was measured on."""
    return {
        "environment": {
            "python": sys.version.split()[0],
            "jax": jax.__version__,
            "llvmlite": llvmlite.__version__,
            "machine": platform.machine(),
            "system": platform.system(),
        },
        "peaks": asdict(peaks),
        "rows": [_row_json(row) for row in rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    found = asdict(row) | {"right": row.right}
    if not row.failure:
        found["ratios"] = {entry.name: row.ratio(entry) for entry in row.entries[1:]}
        found["percent_of_reading"] = row.percent_of_reading
    return found


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.4f}" if seconds < 1e-3 else f"{seconds * 1e3:.2f}"


def _kibibytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1024:,.1f}"


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)
