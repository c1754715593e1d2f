"""What several commands take, and where they print.

Input: none. Output: annotations for typer, and a console. Invariant: one option has one meaning in
all commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_PIPE_WIDTH = 140  # columns of a table that no terminal limits

Names = Annotated[list[str] | None, typer.Argument(help="Workloads; a prefix is enough.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything measured here.")]
Against = Annotated[str, typer.Option(help="Contenders, separated by commas: jax, eager, unbound.")]
UserFile = Annotated[
    Path | None,
    typer.Option("--file", help='A Python file with BENCH = {"name": (function, args)}.'),
]
Seconds = Annotated[float, typer.Option(min=0.0, help="Time for each contender on each workload.")]

Args = Annotated[
    str | None,
    typer.Option(
        "--args",
        help='Arguments of the function: "f32[8,16], params, scale=0.5"; names of its module.',
    ),
]


def new_console() -> Console:
    """For tables; where no terminal limits their width, they are as wide as they need."""
    made = Console()
    return made if made.is_terminal else Console(width=_PIPE_WIDTH)
