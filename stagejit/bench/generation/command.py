"""What `python -m stagejit generate` does: text, then a table of tokens a second.

Input: what the command line says. Output: text on the console. Invariant: every token comes out of
a native loop: nothing of it is left to XLA, and a call copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from stagejit.base.numbers import nbytes_text
from stagejit.bench.generation import corpus, measuring
from stagejit.bench.generation.in_torch import load_torch
from stagejit.bench.generation.model import GPT2, SMALL, Config, Parameters, parameters
from stagejit.bench.generation.sampling import State, empty_state
from stagejit.bench.generation.trained import trained
from stagejit.bench.generation.training import Schedule
from stagejit.bench.programs import CommandError

SIZES = {"small": SMALL, "gpt2": GPT2}
MAX_ERROR = 1e-4  # of max|logits - those of jax.jit| / max|those of jax.jit|, where weights are f32
CHUNK = 32  # tokens of one call


@dataclass(frozen=True)
class Request:
    """What the command line says. size: one of `SIZES`, weights: one of `measuring.FORMS`."""

    prompt: str = "Return the "
    tokens: int = 400
    temperature: float = 0.6
    seed: int = 0
    weights: str = "f32"
    size: str = "small"
    against: tuple[str, ...] = measuring.OPPONENTS[:1]
    seconds: float = 2.0

    def __post_init__(self) -> None:
        for what, name, known in (
            ("form of weights", self.weights, measuring.FORMS),
            ("size", self.size, tuple(SIZES)),
            *(("opponent", name, measuring.OPPONENTS) for name in self.against),
        ):
            if name not in known:
                raise CommandError(
                    f"{name!r} is no {what}", next_step=f"give one of {', '.join(known)}"
                )
        if not self.prompt or not self.prompt.isascii():
            raise CommandError("the prompt is empty, or not ASCII", next_step="give some letters")


def run(request: Request, console: Console, progress: Console) -> bool:
    """Prints text and table. True where our logits are those of `jax.jit`, and nothing was left to
    XLA. Raises CommandError, before all else, where PyTorch is asked for and is not there."""
    if request.seconds and any(name.startswith("torch") for name in request.against):
        load_torch()
    config = SIZES[request.size]
    if request.size == "small":
        params = trained(config, Schedule(), progress)
        tokens = print_text(config, params, request, console)
    else:  # has learned nothing
        params = parameters(config, jax.random.key(request.seed))
        tokens = jnp.asarray(corpus.tokens_of(request.prompt))
    error = measuring.logits_error(config, params, tokens, request.weights)
    count = CHUNK if request.size == "small" else CHUNK // 4
    plan = plan_of(config, params, count, request.weights)
    if request.seconds:
        speeds = measuring.measure(
            config, params, count, request.weights, request.against, request.seconds
        )
        console.print(table_of(speeds, config, count))
    console.print(
        f"stagejit's loop of {count} tokens: {len(plan.delegated)} equations left to XLA, "
        f"{len(plan.copies)} copies, {len(plan.packs)} weights that it may pack; "
        f"logits are off by {error:.1e} from jax.jit's",
        highlight=False,
        soft_wrap=True,
    )
    return not plan.delegated and (request.weights != "f32" or error < MAX_ERROR)


def print_text(config: Config, params: Parameters, request: Request, console: Console) -> Array:
    """The prompt and what comes after it, as it is drawn; all their tokens."""
    state, key = started(config, params, request)
    generate = measuring.bound(config, params, CHUNK, request.weights)
    parts = [corpus.tokens_of(request.prompt)]
    console.print(request.prompt, end="", style="bold", highlight=False, markup=False)
    while (left := request.tokens + len(parts[0]) - sum(map(len, parts))) > 0:
        state, new = generate(state, key, jnp.float32(request.temperature))
        parts.append(np.asarray(new, np.uint8)[:left])
        text = corpus.characters_of(parts[-1])
        console.print(text, end="", highlight=False, markup=False, soft_wrap=True)
    console.print("\n")
    return jnp.asarray(np.concatenate(parts))


def started(config: Config, params: Parameters, request: Request) -> tuple[State, Array]:
    """After the prompt, and the key of all that is drawn."""
    reader = measuring.bound_reader(config, params, request.weights)
    state = reader(empty_state(config), jnp.asarray(corpus.tokens_of(request.prompt)))
    return state, jax.random.key(request.seed)


def plan_of(config: Config, params: Parameters, count: int, weights: str) -> Any:
    bound = measuring.bound(config, params, count, weights)
    return bound.plan(empty_state(config), jax.random.key(0), jnp.float32(1.0))


def table_of(speeds: Sequence[measuring.Speed], config: Config, count: int) -> Table:
    table = Table(
        title=f"{config.parameter_count / 1e6:.1f} M parameters, one sequence, calls of {count} "
        "tokens: median of interleaved calls",
        title_justify="left",
    )
    columns = "tokens/s", "spread", "µs a token", "weights read a token", "GB/s", "stagejit is"
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    first = speeds[0].timing.median
    for speed in speeds:
        seconds = speed.timing.median
        table.add_row(
            speed.name,
            f"{1 / seconds:,.0f}",
            f"{100 * speed.timing.spread:.0f} %",
            f"{1e6 * seconds:,.0f}",
            nbytes_text(speed.nbytes),
            f"{speed.nbytes / seconds / 1e9:.1f}",
            "" if speed is speeds[0] else f"{seconds / first:.2f} times as fast",
        )
    return table
