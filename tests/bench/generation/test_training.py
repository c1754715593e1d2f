"""The text, and training on it: one native program for a step."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.bench.generation import corpus
from stagejit.bench.generation.training import Schedule, initial, train, train_step
from tests.bench.generation.test_model import TINY

TEXT = corpus.tokens_of("the quick brown fox jumps over the lazy dog. " * 8)
SCHEDULE = Schedule(steps=60, batch=4, rate=1e-2, warmup=10)


def test_the_loss_falls() -> None:
    losses = [loss for loss, _ in train(TINY, SCHEDULE, TEXT)]
    assert abs(losses[0] - np.log(128)) < 0.2
    assert losses[-1] < 0.5 * losses[0]
    again = [loss for loss, _ in itertools.islice(train(TINY, SCHEDULE, TEXT), 5)]
    assert again == losses[:5]


def test_a_step_is_native_and_that_of_jax() -> None:
    state, text = initial(TINY, SCHEDULE), jnp.asarray(TEXT)
    step = functools.partial(train_step, TINY, SCHEDULE)
    ours = stagejit.jit(step)
    assert not ours.plan(state, text).delegated
    (found, loss), (wanted, known) = ours(state, text), jax.jit(step)(state, text)
    np.testing.assert_allclose(loss, known, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
        (found.means, found.squares, found.step),
        (wanted.means, wanted.squares, wanted.step),
    )


def test_the_text_is_that_of_the_docstrings(tmp_path: Path) -> None:
    long = "A docstring that is long enough to say more than the name of its function does, é."
    (tmp_path / "b.py").write_text(f'"""{long}"""\ndef f():\n    """{long[::-1]}"""\n')
    (tmp_path / "a.py").write_text(f'class C:\n    """Short."""\n    x = """{long}"""\n')
    (tmp_path / "c.py").write_text("def broken(:\n")
    files = corpus.modules(tmp_path)
    assert [file.name for file in files] == ["a.py", "b.py", "c.py"]
    text = corpus.text_of(files)
    assert text == f"{long}\n\n{long[::-1]}\n\n"
    assert corpus.characters_of(corpus.tokens_of(text)) == text.replace("é", "?")
    before = corpus.digest_of(files)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert corpus.digest_of(files) != before


def test_the_standard_library_has_enough_to_learn_from() -> None:
    files = [file for file in corpus.modules() if file.name in ("argparse.py", "datetime.py")]
    assert len(corpus.text_of(files)) > 5000
