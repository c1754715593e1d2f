"""What was measured on a GPU, for people and for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from stagejit.bench.gpus.measured import Peaks, Row


def headline(reached: Peaks) -> str:
    """What the device reached."""
    told = f"{reached.device}: a copy moves {reached.bytes_a_second / 1e9:.0f} GB/s"
    for dtype, flops in reached.flops.items():
        told += f"; {reached.products}'s {dtype} products {flops / 1e12:.1f} TFLOP/s"
    return told if reached.flops else told + "; there is no cuBLAS to compare products with"


def table_of(rows: Sequence[Row]) -> Table:
    """times: of a call among many."""
    table = Table(title="measured on this GPU", title_justify="left")
    table.add_column("program", no_wrap=True)
    for name in (
        "us", "theirs\nus", "whose", "times\nas fast", "TFLOP/s", "GB/s", "% of the\nfloor",
        "error",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        if row.failure:
            table.add_row(row.name, "-", "-", "-", "-", "-", "-", "-", "failed")
            continue
        theirs = row.theirs
        table.add_row(
            row.name, f"{1e6 * row.seconds:.3g}",
            "-" if theirs is None else f"{1e6 * theirs:.3g}", row.against or "-",
            "-" if theirs is None else f"{theirs / row.seconds:.2f}",
            f"{row.cost.flops / row.seconds / 1e12:.3g}",
            f"{row.cost.nbytes / row.seconds / 1e9:.3g}",
            f"{row.percent_of_floor:.0f}", f"{row.error:.0e}",
        )  # fmt: skip
    return table


def as_json(rows: Sequence[Row], reached: Peaks) -> dict[str, Any]:
    """Everything."""
    return {"peaks": asdict(reached), "rows": [asdict(row) for row in rows]}
