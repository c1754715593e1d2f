"""Random attentions: any order of axes, any mask, any of a few types and sizes.

Input: a seed. Output: a program and its arguments. Invariant: equal seeds give equal programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

_SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 40, 64, 65)
_DTYPES = (np.float32, np.float32, ml_dtypes.bfloat16, np.float16)
_MASKS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "none": lambda x, row, key, m: x,
    "causal": lambda x, row, key, m: jnp.where(key <= row, x, -jnp.inf),
    "low": lambda x, row, key, m: jnp.where(key > row + 1, jnp.asarray(-3e4, x.dtype), x),
    "window": lambda x, row, key, m: jnp.where((key <= row) & (row - key < 4), x, -jnp.inf),
    "bias": lambda x, row, key, m: x + m,
    "capped": lambda x, row, key, m: jnp.where(key <= row + 2, jnp.tanh(x) * 3 + m, -1e4),
    "mask": lambda x, row, key, m: jnp.where(m, x, -jnp.inf),
    "where": lambda x, row, key, m: x,
    "dropout": lambda x, row, key, m: x,
    "divided": lambda x, row, key, m: x,
}
_OF_BOOLS, _OF_NUMBERS = ("mask", "where", "dropout"), ("bias", "capped", "divided")


@dataclass(frozen=True)
class Axes:
    """The letters of each operand's axes: rows t, keys s, depth d, features e, heads g that share
    keys, batches a and b."""

    q: str
    k: str
    v: str
    scores: str
    result: str
    mask: str
    sizes: dict[str, int]

    def shape(self, letters: str) -> list[int]:
        return [self.sizes[letter] for letter in letters]

    def spread(self, mask: Any) -> Any:
        """A mask beside scores."""
        return mask.reshape([self.sizes[x] if x in self.mask else 1 for x in self.scores])


def _axes(rng: np.random.Generator) -> Axes:
    rank = int(rng.integers(0, 3))
    batch = "ab"[:rank]
    sizes = {letter: int(rng.integers(1, 4)) for letter in batch}
    sizes |= {letter: int(rng.choice(_SIZES)) for letter in "tde"}
    sizes["s"] = int(rng.choice(_SIZES[1:]))  # a softmax of one key is 1
    heads = ""
    if rank and rng.random() < 0.4:
        heads, sizes["g"] = "g", int(rng.integers(2, 4))

    def shuffled(letters: str) -> str:
        return "".join(rng.permutation(list(letters)))

    scores = shuffled(batch + heads + "ts") if rng.random() < 0.5 else batch + heads + "ts"
    mask = "".join(letter for letter in scores if letter in "ts" or rng.random() < 0.5)
    return Axes(
        shuffled(batch + heads + "td"), shuffled(batch + "sd"), shuffled(batch + "se"), scores,
        shuffled(batch + heads + "te"), mask, sizes,
    )  # fmt: skip


def attention(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A program of q, k, v and, where it reads one, a mask or a bias."""
    rng = np.random.default_rng(seed)
    dtype, kind, axes = _DTYPES[rng.integers(len(_DTYPES))], str(rng.choice([*_MASKS])), _axes(rng)
    args = [rng.standard_normal(axes.shape(x)).astype(dtype) for x in (axes.q, axes.k, axes.v)]
    shape = axes.shape(axes.mask)
    if kind in _OF_BOOLS:
        args.append(rng.random(shape) > 0.3)
    elif kind in _OF_NUMBERS:
        numbers = rng.standard_normal(shape)
        args.append((np.abs(numbers) + 0.5 if kind == "divided" else numbers).astype(dtype))

    def function(q: Any, k: Any, v: Any, *given: Any) -> Any:
        x = jnp.einsum(f"{axes.q},{axes.k}->{axes.scores}", q, k) * 0.3
        row, key = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axes.scores.index(letter))
                    for letter in "ts")  # fmt: skip
        mask, along = axes.spread(given[0]) if given else None, axes.scores.index("s")
        x = _MASKS[kind](x, row, key, mask)
        where = jnp.broadcast_to(mask, x.shape) if kind == "where" else None
        p = jax.nn.softmax(x, along, where=where)
        if kind == "dropout":
            p = jnp.where(mask, p / 0.7, 0)
        if kind == "divided":
            p = p / mask
        return jnp.einsum(f"{axes.scores},{axes.v}->{axes.result}", p.astype(v.dtype), v)

    return function, tuple(args)
