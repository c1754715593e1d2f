"""Trained parameters in the cache folder: there once, whole, and for nothing else."""

from __future__ import annotations

import dataclasses
import functools
import io
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from stagejit.bench.generation import trained as module
from stagejit.bench.generation.model import parameters
from stagejit.bench.generation.storing import key_of, store, stored
from stagejit.bench.generation.trained import trained
from stagejit.bench.generation.training import Schedule, train
from stagejit.runtime.objects.object_cache import ObjectCache
from tests.bench.generation.test_model import TINY

QUIET = Console(quiet=True)
SCHEDULE = Schedule(steps=2, batch=2)


def assert_same(found: Any, wanted: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    params, cache = parameters(TINY, jax.random.key(3)), ObjectCache(tmp_path)
    key = key_of(TINY, SCHEDULE, "text")
    assert stored(cache, key, TINY) is None
    store(cache, key, params)
    assert_same(stored(cache, key, TINY), params)
    for other in (
        key_of(dataclasses.replace(TINY, heads=4), SCHEDULE, "text"),
        key_of(TINY, dataclasses.replace(SCHEDULE, seed=1), "text"),
        key_of(TINY, SCHEDULE, "another text"),
    ):
        assert stored(cache, other, TINY) is None
    assert stored(None, key, TINY) is None


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "module.py"
    file.write_text(f'"""{"All work and no play. " * 20}"""\n')
    return [file]


def test_trained_once_and_again_after_a_file_was_cut_short(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    monkeypatch.setattr(
        module, "train", lambda *a, _train=module.train: runs.append(1) or _train(*a)
    )
    first = trained(TINY, SCHEDULE, QUIET, files)
    assert_same(trained(TINY, SCHEDULE, QUIET, files), first)
    assert len(runs) == 1
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(first))
    (file,) = [f for f in (tmp_path / "cache").rglob("*") if nbytes < f.stat().st_size < 2 * nbytes]
    file.write_bytes(file.read_bytes()[:-100])
    assert_same(trained(TINY, SCHEDULE, QUIET, files), first)
    assert len(runs) == 2
    assert not [f for f in (tmp_path / "cache").rglob("*") if f.stat().st_size > 2 * nbytes]
    terminal = Console(force_terminal=True, file=io.StringIO(), width=100)
    files[0].write_text(files[0].read_text().replace("work", "rest"))
    trained(TINY, SCHEDULE, terminal, files)
    assert len(runs) == 3
    assert "training, loss" in terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "2/2" in terminal.file.getvalue()  # type: ignore[attr-defined]


class Interrupted(Exception):
    """As by Ctrl-C."""


@pytest.mark.parametrize("steps", [3, 17])
@pytest.mark.parametrize("after", [0, 1, 2, 16])
def test_an_interrupted_training_goes_on(
    steps: int, after: int, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = Schedule(steps=steps, batch=2)
    run = functools.partial(trained, TINY, schedule, files=files)
    taken: list[int] = []

    def counted(*given: Any, stop: int) -> Any:
        for loss, state in train(*given):
            if len(taken) == stop:
                raise Interrupted
            taken.append(int(state.step))
            yield loss, state

    monkeypatch.setattr(module, "train", functools.partial(counted, stop=after))
    told = Console(file=io.StringIO(), width=200)
    if after < steps:
        with pytest.raises(Interrupted):
            run(told)
    monkeypatch.setattr(module, "train", functools.partial(counted, stop=2 * steps))
    found = run(told)
    part = -(-steps // module.PARTS)
    kept = min(after // part * part, steps) if after < steps else 0
    assert taken == [*range(1, min(after, steps) + 1)][:after] * (after < steps) + [
        *range(kept + 1, steps + 1)
    ]
    text = told.file.getvalue()  # type: ignore[attr-defined]
    assert (f"{kept} of which are done" in text) == (kept > 0)
    assert f"{part} of {steps} steps, loss " in text
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(files[0].parent / "another"))
    monkeypatch.setattr(module, "train", train)
    assert_same(found, run(QUIET))
