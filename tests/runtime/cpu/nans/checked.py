"""Programs that are checked for NaNs, and the errors of their calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import stagejit

CHECKED = stagejit.Options(check_nans=True)
EACH = stagejit.Options(check_nans=True, disable=("fuse-producers", "fuse-epilogues", "fuse-rows"))


def error_of(function: Callable[..., Any], *args: Any, options: stagejit.Options = CHECKED) -> str:
    """What the call says; empty where it does not fail."""
    staged = stagejit.jit(function, options=options)
    try:
        jax.block_until_ready(staged(*args))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return str(error)
    return ""


def first_line(text: str) -> str:
    return text.split("\n")[0]


def line_of(text: str, source: str, file: str) -> bool:
    """Whether the error shows the line of a file with such a comment."""
    with open(file, encoding="utf-8") as lines:
        numbers = [at for at, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {source}")]
    (number,) = numbers
    name = os.path.basename(file)
    return f"{name}:{number} " in text or f"{name}:{number}\n" in text


def _minus_two(x: Any) -> Any:
    return np.where(x < 2, np.float32("nan"), x)


def called_back(x: Any) -> Any:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(_minus_two, shape, x)  # a callback


def summed(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.float32(np.nansum(v)), jnp.float32(0), x)


# What is NaN in a result, or on the way to one, without a dispatch that computes it; `x` is 1
# everywhere, or 7, where nothing is NaN.
PASSING_BY: dict[str, Callable[[Any], Any]] = {
    "the last callback": lambda x: (jnp.sin(x), called_back(x)),
    "nothing but a callback": called_back,
    "a callback for a callback": lambda x: summed(called_back(x)),
    "a callback, twice": lambda x: (called_back(x), called_back(x), x * 2),
    "a callback that is read, too": lambda x: (y := called_back(x), jnp.sin(y)),
    "of doubles": lambda x: called_back(x).astype(jnp.float16),
    "in a loop": lambda x: lax.scan(lambda c, t: (c, called_back(c) * 0 + t), x, x)[1],
}
