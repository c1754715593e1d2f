"""bench, ecosystem: programs side by side with jax.jit, and with others.

Input: arguments. Output: the text of tables; exit status 1 where a result was
wrong or a ratio was missed.
Invariant: heavy imports wait until a command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stagejit.bench import timing
from stagejit.bench.commands.arguments import (
    Against,
    JsonFile,
    Names,
    Seconds,
    UserFile,
    new_console,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagejit.bench.contenders import Contender
    from stagejit.bench.harness import Row
    from stagejit.bench.programs import Workload
    from stagejit.runtime.peaks import Peaks


def bench(
    names: Names = None,
    json_file: JsonFile = None,
    against: Against = "jax",
    file: UserFile = None,
    seconds: Seconds = 1.0,
    compile_times: Annotated[
        bool, typer.Option(help="Measure compile time, cold and warm, in fresh processes.")
    ] = True,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the workloads.")] = False,
) -> None:
    """Measure programs side by side with jax.jit."""
    timing.keep_pages()
    from stagejit.bench import contenders, programs
    from stagejit.bench.workloads import catalogue

    known = programs.load_file(file) if file else catalogue.WORKLOADS
    chosen = programs.select(names or [], known)
    if list_only:
        width = max(len(workload.name) for workload in chosen)
        for workload in chosen:
            typer.echo(f"{workload.name:{width}}  {workload.summary}".rstrip())
        return
    others = contenders.opponents(name.strip() for name in against.split(",") if name.strip())
    if json_file:
        json_file.touch()  # a folder that cannot be written must fail now, not after the run
    rows, peaks = _run(chosen, others, seconds, file, compile_times)
    _print(rows, peaks, [other.name for other in others])
    if json_file:
        from stagejit.bench.report import as_json

        json_file.write_text(json.dumps(as_json(rows, peaks), indent=1) + "\n")
    if not all(row.right for row in rows):
        raise typer.Exit(1)


def _run(
    chosen: Sequence[Workload],
    others: Sequence[Contender],
    seconds: float,
    file: Path | None,
    compile_times: bool,
) -> tuple[list[Row], Peaks]:
    from dataclasses import replace

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stagejit.bench import compile_time, harness
    from stagejit.bench.contenders import STAGEJIT
    from stagejit.runtime import peaks

    rows: list[Row] = []
    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn())
    stderr = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    ) as progress:
        task = progress.add_task("peaks of this machine", total=len(chosen))
        machine = peaks.measure()
        for workload in chosen:
            progress.update(task, description=workload.name)
            row = harness.measure(workload, [STAGEJIT, *others], seconds, machine)
            if compile_times and not row.failure:
                row = replace(row, compile_times=compile_time.measure(workload, file))
            rows.append(row)
            progress.advance(task)
    return rows, machine


def _print(rows: Sequence[Row], peaks: Peaks, opponents: Sequence[str]) -> None:
    from stagejit.bench.report import plan_table, speed_table

    console = new_console()
    console.print(
        f"{peaks.cores} cores, {peaks.vector_bits}-bit vectors; peak {peaks.gflops:.0f} GFLOP/s f32"
        f" ({peaks.gflops_one_core:.0f} on one core), {peaks.gbytes:.0f} GB/s"
        f" ({peaks.gbytes_one_core:.0f} on one core)",
        highlight=False,
    )
    console.print(speed_table(rows, opponents))
    console.print(plan_table(rows, opponents))
    for row in rows:
        if row.failure:
            console.print(f"{row.name}: {row.failure}", style="red", markup=False, highlight=False)
        for entry in row.entries:
            if entry.error > row.tolerance:
                console.print(
                    f"{row.name}: {entry.name} is off by {entry.error:.1e} from float64,"
                    f" more than {row.tolerance:.0e}",
                    style="red",
                    highlight=False,
                )


def ecosystem(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    seconds: Seconds = 1.0,
    against: Annotated[
        float, typer.Option(help="Least accepted ratio; exit status 1 below it.")
    ] = 0.0,
) -> None:
    """Measure programs of NumPyro, Diffrax, Flax and other libraries side by side with jax.jit."""
    timing.keep_pages()
    from stagejit.bench.ecosystem import catalogue, table

    rows = []
    for program in catalogue.programs().values():
        if names and not any(n.lower() in program.name.lower() for n in names):
            continue
        if absent := catalogue.missing(program):
            typer.echo(f"{program.name}: {', '.join(absent)} is not installed", err=True)
            continue
        rows.append(table.measure(program, seconds))
    console = new_console()
    console.print(table.table_of(rows))
    for row in rows:
        for reason in row.loops:
            console.print(f"{row.name}: {reason}", markup=False, highlight=False)
    if any(row.ratio < against for row in rows):
        raise typer.Exit(1)
