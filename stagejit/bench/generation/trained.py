"""The trained model: from the user's cache folder, or trained now, under a bar that shows how far.

Input: a configuration and how it is trained. Output: parameters. Invariant: trained once on one
machine, as long as neither the text nor the program changes; what is interrupted goes on from where
it was kept last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stagejit.bench.generation import corpus
from stagejit.bench.generation.model import Config, Parameters
from stagejit.bench.generation.storing import key_of, key_of_state, store, stored, stored_state
from stagejit.bench.generation.training import Schedule, train
from stagejit.runtime.objects.object_cache import ObjectCache, cache_in

PARTS = 15  # of a training, after each of which it is kept, and told of where nobody sees a bar


def trained(
    config: Config, schedule: Schedule, console: Console, files: Sequence[Path] | None = None
) -> Parameters:
    """files: of Python, whose docstrings are the text; the standard library by default."""
    files = corpus.modules() if files is None else files
    cache = cache_in(None)
    key = key_of(config, schedule, corpus.digest_of(files))
    found = stored(cache, key, config)
    if found is not None:
        return found
    text = corpus.tokens_of(corpus.text_of(files))
    begun = stored_state(cache, key, config, schedule)
    done, part = int(begun.step) if begun else 0, -(-schedule.steps // PARTS)
    _say(config, schedule, len(text), done, cache, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("compiling", total=schedule.steps, completed=done)
        for at, (loss, state) in enumerate(train(config, schedule, text, begun), done + 1):
            progress.update(task, advance=1, description=f"training, loss {loss:.2f}")
            found = state.params
            if at % part == 0 and at < schedule.steps:
                store(cache, key_of_state(key), state)
                if not console.is_terminal:
                    console.print(f"{at} of {schedule.steps} steps, loss {loss:.2f}")
    assert found is not None
    store(cache, key, found)
    if cache is not None:
        cache.discard(key_of_state(key))
    return found


def _say(
    config: Config, schedule: Schedule, length: int, done: int, cache: ObjectCache | None,
    console: Console,
) -> None:  # fmt: skip
    where = f"kept in {cache.folder}" if cache else "not kept: there is no cache folder"
    console.print(
        f"Training {config.parameter_count:,} parameters on {length:,} characters of docstrings, "
        f"{schedule.steps} steps{f', {done} of which are done' if done else ''}: some minutes, "
        f"once; {where}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
