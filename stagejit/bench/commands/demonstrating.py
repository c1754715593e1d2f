"""demo, generate: programs that do something to be looked at.

Input: arguments. Output: text, tables and files.
Invariant: heavy imports wait until a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stagejit.bench import timing
from stagejit.bench.commands.arguments import Seconds, new_console


def demo(
    photo: Annotated[Path | None, typer.Option(help="A photograph of yours.")] = None,
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH cut from its middle.")] = "256x256",
    seconds: Seconds = 2.0,
) -> None:
    """Run ESRGAN's residual dense block on a photograph, beside jax.jit."""
    timing.keep_pages()
    from stagejit.bench import demo as demonstration

    extent = demonstration.parse_size(size)
    if not demonstration.run(photo, extent, seconds, new_console()):
        raise typer.Exit(1)


def generate(
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "Return the ",
    tokens: Annotated[int, typer.Option(min=1, help="Characters to generate.")] = 400,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest character each time.")
    ] = 0.6,
    seed: int = 0,
    weights: Annotated[str, typer.Option(help="How they are read: f32, bf16, int8, int4.")] = "f32",
    size: Annotated[
        str, typer.Option(help="small, which is trained on first use; gpt2, random, no text.")
    ] = "small",
    against: Annotated[
        str, typer.Option(help="Separated by commas: jax, torch, torch.compile; empty for none.")
    ] = "jax",
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Time for each contender; 0 measures nothing.")
    ] = 2.0,
) -> None:
    """Generate text with a small GPT, in one native loop, beside jax.jit and PyTorch.

    The first use trains it, on docstrings of Python's standard library, in some minutes.
    """
    timing.keep_pages()
    from stagejit.bench.generation import command

    others = tuple(name.strip() for name in against.split(",") if name.strip())
    request = command.Request(prompt, tokens, temperature, seed, weights, size, others, seconds)
    if not command.run(request, new_console(), Console(stderr=True)):
        raise typer.Exit(1)
