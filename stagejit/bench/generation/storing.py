"""Trained parameters, and how far a training is, kept in the user's cache folder, and never
anywhere else.

Input: a configuration, how it is trained, the text's digest. Output: parameters, or the state of a
training, or None. Invariant: what is read is what was stored under the same three: the object cache
writes a file at once, seals it, and takes one that was cut short for none.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.generation.model import Config, Parameters, parameters
from stagejit.bench.generation.training import Schedule, State, initial
from stagejit.runtime.objects.object_cache import ObjectCache, digest

_VERSION = "generation 1"  # of the model and its training


def key_of(config: Config, schedule: Schedule, text: str) -> str:
    return digest(_VERSION, repr(config), repr(schedule), text)


def key_of_state(key: str) -> str:
    """Of the training of parameters with that key, before it is done."""
    return digest(key, "unfinished")


def stored(cache: ObjectCache | None, key: str, config: Config) -> Parameters | None:
    shapes = jax.eval_shape(lambda: parameters(config, jax.random.key(0)))
    found: Parameters | None = _read(cache, key, shapes)
    return found


def stored_state(
    cache: ObjectCache | None, key: str, config: Config, schedule: Schedule
) -> State | None:
    shapes = jax.eval_shape(lambda: initial(config, schedule))
    found: State | None = _read(cache, key_of_state(key), shapes)
    return found


def store(cache: ObjectCache | None, key: str, values: Any) -> None:
    """values: a pytree of arrays of 4 bytes an element."""
    if cache is not None:
        cache.put(key, b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(values)))


def _read(cache: ObjectCache | None, key: str, shapes: Any) -> Any:
    leaves, tree = jax.tree.flatten(shapes)
    sizes = [4 * math.prod(leaf.shape) for leaf in leaves]
    data = cache.get(key) if cache is not None else None
    if data is None or len(data) != sum(sizes):
        return None
    parts = np.split(np.frombuffer(data, np.uint8), np.cumsum(sizes)[:-1])
    arrays = [
        jnp.array(part.view(leaf.dtype).reshape(leaf.shape))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, arrays)
