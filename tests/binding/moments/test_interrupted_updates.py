"""A signal may come at every moment of an update: it has changed all weights then, or none.

But not in the middle of JAX's own contexts, which it may leave open.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit

SIZE = 8
OURS = str(Path(stagejit.__file__).parent)
X = jnp.ones((2, SIZE), jnp.float32)
LONGER = jnp.ones((3, SIZE), jnp.float32)


def model(p: Any, x: Any) -> Any:
    return (x @ p["w"]) * p["v"]


def weights(number: int) -> Any:
    return {"w": jnp.full((SIZE, SIZE), number, jnp.float32), "v": jnp.full(SIZE, number / 16)}


class Interrupted(BaseException):
    """What a handler raises."""


def interrupted_update(bound: Any, params: Any, moment: int) -> bool:
    """With a handler that raises at this moment; whether there was one. See test_interrupts.py."""
    left = moment

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Interrupted

    gc.disable()  # whose callbacks would count, too
    try:
        sys.setprofile(profile)
        bound.update(params)
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return left <= 0


# What is raised in a callback of a weak reference Python tells, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("form", [None, "bf16"])
@pytest.mark.parametrize("first", range(4))
def test_programs_agree_after_an_interrupt(first: int, form: Any) -> None:
    kept = [weights(number) for number in range(17)]
    bound = stagejit.bind(model, kept[1], **({} if form is None else {"weights": form}))
    programs = (
        lambda: bound(X)[0, 0],
        lambda: bound(LONGER)[0, 0],
        jax.jit(lambda: bound(X)[0, 0]),
        lambda: gradient(X)[0, 0],
    )
    gradient = jax.jit(jax.grad(lambda x: bound(x).sum()))
    assert {float(program()) for program in programs} == {value_of(1)}

    known, seen = 1, 0
    for turn in itertools.count():
        number = turn % 15 + 2
        there_was_one = interrupted_update(bound, kept[number], 1 + first + 4 * turn)
        time.sleep(0.01)  # what goes on behind an interrupt comes to its end
        (found,) = {float(program()) for program in programs}
        assert found in (value_of(known), value_of(number))
        seen += found == value_of(number)
        known = number if found == value_of(number) else known
        if not there_was_one:
            break
    assert known == number
    assert seen < turn  # some came before anything had changed


def value_of(number: int) -> float:
    """What each program makes of weights."""
    return SIZE * number * number / 16
