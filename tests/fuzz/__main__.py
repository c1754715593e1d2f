"""The net: random kernels, programs and bound functions, run to find wrong values: `python -m
tests.fuzz`, from the root of the repository. Exit status 1: something was found."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer
from rich.console import Console

from stagejit.options import TARGETS
from tests.fuzz import session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def fuzz(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long.")] = 10.0,
    seed: Annotated[
        int | None, typer.Option(help="Repeats a run; by default a new one, which is printed.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="kernels, programs, order or bound; by default all.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes for programs.")] = 1,
    target: Annotated[
        str, typer.Option(help='Of programs; "cuda-emulated" runs them as on a GPU.')
    ] = "native",
    count: Annotated[int | None, typer.Option(min=1, help="Programs at most.")] = None,
) -> None:
    """Run random kernels, programs and bound functions, and compare them with what they mean."""
    unknown = [name for name in only or () if name not in session.PARTS]
    if unknown:
        raise typer.BadParameter(
            f"there is no part {unknown[0]!r}; one of {', '.join(session.PARTS)}"
        )
    chosen = tuple(part for part in session.PARTS if part in (only or session.PARTS))
    first = secrets.randbelow(1 << 30) if seed is None else seed
    if target not in TARGETS:
        raise typer.BadParameter(f"there is no target {target!r}; one of {', '.join(TARGETS)}")
    if not session.run(first, minutes, chosen, Console(), jobs=jobs, target=target, count=count):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
