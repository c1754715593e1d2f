"""gpu, overhead: kernels on a GPU, modelled or measured, and what a call costs the host.

Input: arguments. Output: the text of tables.
Invariant: heavy imports wait until a command runs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagejit.bench.commands.arguments import JsonFile, Names, UserFile, new_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagejit.bench.programs import Workload


def gpu(
    names: Names = None,
    device: Annotated[
        str, typer.Option(help="A100, H100, H200, B200 or an architecture.")
    ] = "H200",
    file: UserFile = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure on the GPU of this machine instead.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Show what kernels take of a GPU, and the model's times beside the floor. Needs no GPU.

    With --run: times on the GPU of this machine, beside jax.jit on it, cuBLAS and a copy.
    """
    from stagejit.bench import programs
    from stagejit.bench.gpus import modelled
    from stagejit.bench.workloads import catalogue
    from stagejit.codegen.cuda.device import device_named

    chosen = programs.select(names or [], programs.load_file(file) if file else catalogue.WORKLOADS)
    if run:
        _run_on_gpu(chosen, json_file)
        return
    known = device_named(device)
    rows = [row for workload in chosen for row in modelled.rows_of(workload, known)]
    new_console().print(modelled.table_of(rows, known))
    if any(row.taken.spills for row in rows):
        raise typer.Exit(1)


def _run_on_gpu(chosen: Sequence[Workload], json_file: Path | None) -> None:
    from stagejit.bench.gpus import measured, overhead, tables
    from stagejit.runtime.cuda.drivers import driver_of

    driver = driver_of("cuda")
    if json_file:
        json_file.touch()
    console, reached = new_console(), measured.peaks(driver)
    console.print(tables.headline(reached), highlight=False)
    rows = [measured.measure(workload, driver, reached) for workload in chosen]
    console.print(tables.table_of(rows))
    for row in rows:
        if not row.right:
            told = row.failure or f"off by {row.error:.1e}, more than {row.tolerance:.0e}"
            console.print(f"{row.name}: {told}", style="red", markup=False, highlight=False)
    console.print(overhead.table_of(overhead.measure(driver)))
    if json_file:
        json_file.write_text(json.dumps(tables.as_json(rows, reached), indent=1) + "\n")
    if not all(row.right for row in rows):
        raise typer.Exit(1)


def overhead(
    against: Annotated[
        float, typer.Option(help="Most accepted microseconds of a call; else exit status 1.")
    ] = math.inf,
    profiles: Annotated[bool, typer.Option(help="Also calls without and with a profile.")] = True,
) -> None:
    """Measure what a call costs the host: around a driver that does nothing, on the GPU, and with
    a profile."""
    from stagejit.bench.gpus import overhead as measured
    from stagejit.bench.gpus.idle_driver import IdleDriver
    from stagejit.errors import NoDriverError
    from stagejit.runtime.cuda.drivers import driver_of

    rows = measured.measure(IdleDriver())
    try:
        rows += measured.measure(driver_of("cuda"))
    except NoDriverError as error:
        typer.echo(f"of a GPU nothing is measured: {error}", err=True)
    console = new_console()
    console.print(measured.table_of(rows))
    if profiles:
        from stagejit.bench.users import profiling

        console.print(profiling.table_of([profiling.measure(name) for name in profiling.PROGRAMS]))
    if any(1e6 * row.seconds > against for row in rows):
        raise typer.Exit(1)
