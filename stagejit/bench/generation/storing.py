"""Trained parameters, kept in the user's cache folder, and never anywhere else.

Input: a configuration, how it is trained, the text's digest. Output: parameters, or None.
Invariant: what is read is what was stored under the same three: the object cache writes a file at
once, seals it, and takes one that was cut short for none.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.generation.model import Config, Parameters, parameters
from stagejit.bench.generation.training import Schedule
from stagejit.runtime.objects.object_cache import ObjectCache, digest

_VERSION = "generation 1"  # of the model and its training


def key_of(config: Config, schedule: Schedule, text: str) -> str:
    return digest(_VERSION, repr(config), repr(schedule), text)


def stored(cache: ObjectCache | None, key: str, config: Config) -> Parameters | None:
    shapes = jax.eval_shape(lambda: parameters(config, jax.random.key(0)))
    leaves, tree = jax.tree.flatten(shapes)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    data = cache.get(key) if cache is not None else None
    if data is None or len(data) != 4 * sum(sizes):
        return None
    parts = np.split(np.frombuffer(data, np.float32), np.cumsum(sizes)[:-1])
    arrays = [jnp.array(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
    found: Parameters = jax.tree.unflatten(tree, arrays)
    return found


def store(cache: ObjectCache | None, key: str, params: Parameters) -> None:
    if cache is not None:
        leaves = jax.tree.leaves(params)
        cache.put(key, b"".join(np.asarray(leaf, np.float32).tobytes() for leaf in leaves))
