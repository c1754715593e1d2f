"""A few random lives of bound functions; `python -m tests.fuzz --only bound` tries more."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import jax
import numpy as np
import pytest

from tests.fuzz.bound import between
from tests.fuzz.bound.lives import Life, trouble
from tests.fuzz.bound.models import LAYERS, Model
from tests.sampling import budget

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("seed", range(4))
def test_lives_of_bound_functions(seed: int) -> None:
    for at in range(budget(1, of=6)):
        assert trouble(100 * seed + at) == []


@pytest.mark.parametrize("seed", range(8))
def test_updates_between_the_programs_of_a_gradient(seed: int) -> None:
    for at in range(budget(1, of=6)):
        assert between.trouble(100 * seed + at) == []


@pytest.mark.parametrize("form", [None, "int8"])
def test_memory_stays_what_it_is(form: str | None) -> None:
    """However often weights are updated, and functions bound anew."""
    model = Model(("dense", "overlapping", "called"), (512, 512, 512, 512))
    x = np.ones((3, 512), np.float32)

    def turn() -> None:
        life = Life(model, form, 0)
        for _ in range(6):
            life.bound(x).block_until_ready()
            life.update()
            del life.versions[:-1]
        del life
        gc.collect()

    turn()
    before = _resident_nbytes()
    for _ in range(6):
        turn()
    weights = sum(a.nbytes for a in jax.tree.leaves(model.parameters(0)))
    assert _resident_nbytes() - before < 8 * weights  # of 36 sets of them


def _resident_nbytes() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_other_parameters_give_other_values() -> None:
    rng = Random(0)
    for name in LAYERS:
        model = Model((name,), (33, 33))
        x = np.asarray(np.random.default_rng(rng.randrange(9)).normal(size=(5, 33)))
        one, other = (model.in_float64(model.parameters(seed), x) for seed in (1, 2))
        assert np.linalg.norm(one - other) > 0.8 * np.linalg.norm(one)
