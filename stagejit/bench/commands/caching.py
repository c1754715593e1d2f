"""cache: the folder of compiled kernels.

Input: arguments. Output: text; exit status 1 where something in the folder was damaged. Invariant:
nothing outside of the folder is touched.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stagejit.errors import OptionsError


class Action(StrEnum):
    """What to do with the cache."""

    show = "show"
    clear = "clear"
    verify = "verify"


def cache(
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.show,
    folder: Annotated[
        Path | None,
        typer.Option(help="By default $STAGEJIT_CACHE_DIR, or that in your cache folder."),
    ] = None,
) -> None:
    """Show, clear or verify the cache of compiled kernels."""
    from stagejit.runtime.objects import upkeep

    where = upkeep.folder_of(folder)
    if where is None:
        typer.echo("the cache is switched off: STAGEJIT_CACHE_DIR is empty")
        return
    try:
        found = upkeep.look_at(where)
        if action is Action.show or not found.exists:
            typer.echo(str(found))
        elif action is Action.clear:
            typer.echo(f"{where}: {upkeep.clear(where)} removed")
        else:
            _verify(where)
    except OSError as error:
        raise OptionsError(
            f"cannot use {str(where)!r}: {error.strerror or error}",
            next_step="name a folder that is yours alone with --folder",
        ) from None


def _verify(where: Path) -> None:
    from stagejit.runtime.objects import upkeep

    found = upkeep.verify(where)
    typer.echo(f"{where}: {found}")
    if found.damaged:
        raise typer.Exit(1)
