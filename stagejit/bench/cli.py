"""The command line: `python -m stagejit demo | generate | bench | gpu | overhead | compiling |
growth | ecosystem | explain | picture | profile | cache`.

Input: arguments. Output: text on stdout, progress on stderr. Invariant: exit status 0 means that
every result was right and no ratio of `--against` was missed; 1 that one was; 2 that the request
could not be carried out, with the next step.

The heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console

import stagejit
from stagejit.bench.commands import caching, compiling, demonstrating, gpus, programs, showing
from stagejit.errors import StagejitError

app = typer.Typer(
    name="stagejit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS = (
    demonstrating.demo,
    demonstrating.generate,
    programs.bench,
    gpus.gpu,
    gpus.overhead,
    compiling.compiling,
    compiling.growth,
    programs.ecosystem,
    showing.explain,
    showing.picture,
    showing.profile,
    caching.cache,
)
for _command in COMMANDS:
    app.command()(_command)


def _version(wanted: bool) -> None:
    if wanted:
        import jax

        typer.echo(f"stagejit {stagejit.__version__}, jax {jax.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show it, and JAX's."),
    ] = False,
) -> None:
    """A compiler for JAX programs that shows every decision it takes."""


def main() -> None:
    """Runs the command line; errors of ours are printed without a traceback, and of those of a
    user's program only what lies in it, and behind it."""
    try:
        app()
    except StagejitError as error:
        Console(stderr=True).print(
            f"{type(error).__name__}: {error}", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(2)
    except Exception as error:
        theirs = _since_their_code(error.__traceback__)
        if theirs is None:
            raise
        traceback.print_exception(type(error), error, theirs)
        sys.exit(2)


def _since_their_code(trace: TracebackType | None) -> TracebackType | None:
    """From the first line on that is neither ours nor a library's; None where all are."""
    ours = (str(Path(stagejit.__file__).parent), *sysconfig.get_paths().values(), "<")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    return trace
