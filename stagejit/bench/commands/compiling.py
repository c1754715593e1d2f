"""compiling, growth: how long compilation takes.

Input: arguments. Output: the text of tables; exit status 1 where a bound was
missed.
Invariant: heavy imports wait until a command runs.
"""

from __future__ import annotations

import math
from typing import Annotated

import typer

from stagejit.bench.commands.arguments import new_console
from stagejit.errors import OptionsError


def compiling(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    variants: Annotated[int, typer.Option(min=1, help="Compiles of each program.")] = 5,
    against: Annotated[
        float, typer.Option(help="Most accepted ratio of CPU time; exit status 1 above it.")
    ] = math.inf,
) -> None:
    """Measure how long programs of some 300 equations take to compile, beside jax.jit."""
    from stagejit.bench.compiling import table
    from stagejit.bench.compiling.programs import PROGRAMS

    chosen = [p for p in PROGRAMS if not names or any(n in p.name for n in names)]
    rows = [table.measure(program, variants) for program in chosen]
    new_console().print(table.table_of(rows))
    if any(row.cpu_ratio > against for row in rows):
        raise typer.Exit(1)


def growth(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    sizes: Annotated[
        str, typer.Option(help="Equations of programs whose steps are timed.")
    ] = "1000,2000,4000,8000",
    jax_sizes: Annotated[
        str, typer.Option(help="Equations of programs that are compared with jax.jit.")
    ] = "1000,3000",
    repeats: Annotated[int, typer.Option(min=1, help="Compiles of each length.")] = 3,
    against: Annotated[
        float,
        typer.Option(help="Most accepted growth of a step at the last two sizes; else status 1."),
    ] = math.inf,
    against_jax: Annotated[
        float, typer.Option(help="Most accepted ratio of CPU time to jax.jit's; else status 1.")
    ] = math.inf,
) -> None:
    """Measure how compile time grows up to programs of 8,000 equations, step by step."""
    from stagejit.bench.compiling import growth as growing
    from stagejit.bench.compiling import table
    from stagejit.bench.compiling.large import LARGE_PROGRAMS

    lengths, compared = _numbers(sizes), _numbers(jax_sizes)
    if len(lengths) == 1:
        raise OptionsError("growth takes two sizes", next_step="for example --sizes 4000,8000")
    chosen = [p for p in LARGE_PROGRAMS if not names or any(n in p.name for n in names)]
    console = new_console()
    grown = [growing.measure(program, lengths, repeats) for program in chosen if lengths]
    if grown:
        console.print(growing.table_of(grown))
    rows = [table.measure(p.of(length), repeats) for p in chosen if p.in_xla for length in compared]
    if rows:
        console.print(table.table_of(rows))
    if any(g.worst > against for g in grown) or any(r.cpu_ratio > against_jax for r in rows):
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise OptionsError(f"{text!r} are no sizes", next_step="for example --sizes 4000,8000")
    return sorted(set(map(int, parts)))
