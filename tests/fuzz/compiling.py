"""How long random programs take to compile, beside jax.jit: `python -m tests.fuzz.compiling`.

One more row of the table of `python -m stagejit compiling`, whose other programs are a user's.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from stagejit.bench.compiling import table
from stagejit.bench.compiling.program import Made, Program
from tests.fuzz.programs.generate import random_program

# Without x64, which is a setting of the process; some hundred equations each.
SEEDS = (0, 12, 13, 19, 22, 23)


def _made(variant: int) -> Made:
    """A variant is another seed."""
    defined = random_program(SEEDS[variant % len(SEEDS)], steps=90).defined
    return defined["f"], defined["args"]()


RANDOM_PROGRAMS = Program("random programs", _made)


def main(
    variants: Annotated[int, typer.Option(min=1, help="Compiles on each side.")] = 5,
) -> None:
    """Measure how long random programs take to compile, beside jax.jit."""
    Console(width=140).print(table.table_of([table.measure(RANDOM_PROGRAMS, variants)]))


if __name__ == "__main__":
    typer.run(main)
