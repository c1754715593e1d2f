"""The numbers that a random case is run with.

Input: the graph's inputs, a seed. Output: an array for each. Invariant: an input's numbers depend
on its name, its type and the seed only, so that a case is its text and a seed; all are small and
exact in every type, so that sums and products are exact where the type has the digits.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph

Array = np.ndarray[Any, np.dtype[Any]]

BOUND = 8  # magnitudes; of floats half of it
FRACTION = 3  # bits after the point


def inputs_of(graph: Graph, seed: int) -> list[Array]:
    """One array for each input."""
    made = []
    for name, value in zip(graph.input_names, graph.inputs, strict=True):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        dtype, shape = value.type.dtype, value.shape
        if dtype.kind == "bool":
            numbers: Array = rng.integers(0, 2, shape).astype(bool)
        elif dtype.kind == "uint":
            numbers = rng.integers(0, BOUND + 1, shape)
        elif name.startswith("i"):
            numbers = rng.integers(-3, BOUND + 1, shape)
        elif dtype.kind == "int":
            numbers = rng.integers(-BOUND, BOUND + 1, shape)
        else:
            most = (BOUND // 2) << FRACTION
            numbers = rng.integers(-most, most + 1, shape) / (1 << FRACTION)
        made.append(np.asarray(numbers).astype(dtype.numpy))
    return made
