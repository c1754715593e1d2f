"""explain, picture, profile: what a compilation did, and what its calls take.

Input: arguments. Output: text, and files that need nothing but a browser.
Invariant: heavy imports wait until a command runs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagejit.bench.commands.arguments import Args
from stagejit.errors import OptionsError

if TYPE_CHECKING:
    from stagejit.inspect.explain import Explanation


def explain(
    program: Annotated[
        str,
        typer.Argument(help="package.module:function, FILE.py:function, or FILE.py[:program]."),
    ] = "",
    args: Args = None,
    kernels: Annotated[
        bool, typer.Option(help="Also what was chosen for each kernel, with modelled times.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="What is alike is not collapsed, but listed.")
    ] = False,
    why: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Only why two ops are in one dispatch, or are not: dispatches, lines or ops, "
            "such as '@map.2 @map.3', '7 9', 'net.py:7 %5'.",
        ),
    ] = None,
    disable: Annotated[
        list[str] | None, typer.Option(help="A rewrite to do without, and to compare to.")
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option(help="A rewrite to tell the worth of; `all` for each.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="With --disable or --what-if: measured times, too.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write it as data.")] = None,
    target: Annotated[str, typer.Option(help="native, cuda or cuda-emulated.")] = "native",
    glossary: Annotated[
        bool, typer.Option("--glossary", help="What all names mean, and nothing else.")
    ] = False,
) -> None:
    """Print what the compiler made of each line of a function, and why."""
    if glossary:
        from stagejit.inspect.explain.glossary import whole_glossary

        typer.echo(whole_glossary())
        return
    from stagejit.bench.users import explanations, user_functions

    if not program:
        raise OptionsError("explain needs a program", next_step="write FILE.py:FUNCTION")
    asked: list[str] | bool = True if what_if == ["all"] else what_if or []
    calls = user_functions.calls_of(program, args)
    explanations.require_one(calls, program, html or json_file)
    for call in calls:
        if len(calls) > 1:
            typer.echo(f"== {call.name}")
        made = explanations.explained(call, target, disable or [], asked, measure)
        text = made.as_text(kernels=kernels, collapse=not everything)
        typer.echo(text if why is None else made.why(*why))
        if html is not None:
            written(html, made.as_html())
        if json_file is not None:
            written(json_file, as_json(made))


def as_json(explanation: Explanation) -> str:
    """The data of an explanation as a file has it."""
    return json.dumps(explanation.as_json(), indent=1) + "\n"


def written(file: Path, text: str) -> None:
    """Write a file, and say so. Raises OptionsError where that cannot be."""
    from stagejit.inspect.files import write

    with writing(file):
        write(file, text)
    typer.echo(f"{file}: {len(text):,} characters", err=True)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Inside, a file is written. Raises OptionsError where that cannot be."""
    try:
        yield
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error)) from None


def require_folder(file: Path) -> None:
    """Raises OptionsError, before anything is measured, for a file that has no folder."""
    if not file.parent.is_dir():
        raise _unwritable(file, "there is no such folder")


def _unwritable(file: Path, why: str) -> OptionsError:
    return OptionsError(f"cannot write {str(file)!r}: {why}", next_step="name a file that can be")


def picture(
    program: Annotated[
        str, typer.Argument(help="package.module:function, or FILE.py:function or :program.")
    ],
    file: Annotated[Path, typer.Option("--output", "-o", help="FILE.html or FILE.svg.")],
    args: Args = None,
    what: Annotated[
        str, typer.Option(help="graph, rewrites, dispatches, memory or timeline.")
    ] = "dispatches",
    target: Annotated[str, typer.Option(help="native, cuda or cuda-emulated.")] = "native",
) -> None:
    """Draw a stage of a function's compilation into a file that needs nothing but a browser."""
    from stagejit.bench.users import user_functions

    require_folder(file)
    drawn = user_functions.call_of(program, args).lower(target).picture(what)
    with writing(file):
        made = drawn.save(file)
    typer.echo(f"{made}: {made.stat().st_size:,} bytes")


def profile(
    program: Annotated[
        str, typer.Argument(help="package.module:function, or FILE.py:function or :program.")
    ],
    args: Args = None,
    calls: Annotated[int, typer.Option(min=1, help="How many are measured.")] = 20,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="FILE.html, FILE.txt, or FILE.json for Perfetto."),
    ] = None,
) -> None:
    """Measure each dispatch of a function's calls: time, rates, floors, threads."""
    from stagejit.bench.users import profiling, user_functions
    from stagejit.inspect.profiles.session import require_ending

    if file:
        require_ending(file)
        require_folder(file)
    made = profiling.profile_of(user_functions.call_of(program, args), calls)
    typer.echo(str(made), nl=False)
    if file:
        with writing(file):
            made.save(file)
