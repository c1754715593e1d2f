"""Products of operands that are widened where they are read: in tiles, or while they are packed."""

from __future__ import annotations

from random import Random
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import stagejit

KINDS = (np.int8, np.uint8, np.int16, np.uint16, np.float16, ml_dtypes.bfloat16)
FORMS = (
    "mk,kn->mn",
    "mk,nk->mn",
    "km,kn->mn",
    "bmk,bkn->bmn",
    "mk,bkn->mbn",
    "nk,mk->nm",
    "k,kn->n",
)
SIZES = (1, 2, 5, 8, 16, 31, 64, 100, 257)


def case(seed: int) -> tuple[str, list[np.ndarray[Any, Any]], int, dict[str, int]]:
    random = Random(seed)
    form = random.choice(FORMS)
    sizes = {axis: random.choice(SIZES[:5] if axis in "bm" else SIZES) for axis in "bmkn"}
    sides = form.split("->")[0].split(",")
    values = np.random.default_rng(seed)
    arrays = [values.integers(0, 9, [sizes[a] for a in side]).astype(np.float32) for side in sides]
    split = {"contract": random.choice((2, 3))} if random.random() < 0.3 and sizes["k"] > 3 else {}
    return form, arrays, random.randrange(2), split


@pytest.mark.parametrize("seed", range(40))
def test_widened_operands(seed: int) -> None:
    form, arrays, which, split = case(seed)
    kind = KINDS[seed % len(KINDS)]
    arrays[which] = arrays[which].astype(kind)

    def product(x: Any, y: Any) -> Any:
        return jnp.einsum(form, x.astype(jnp.float32), y.astype(jnp.float32))

    options = stagejit.Options(verify=True, split=split)
    found = stagejit.jit(product, options=options)(*arrays)
    wide = [array.astype(np.float64) for array in arrays]
    np.testing.assert_array_equal(found, np.einsum(form, *wide))  # exact: of small integers


def test_a_vector_reads_a_matrix_of_bytes_as_it_lies() -> None:
    x, q = jnp.ones((1, 512)), jnp.ones((512, 1024), jnp.int8)
    f = stagejit.jit(lambda x, q: x @ q.astype(jnp.float32))
    (line,) = [
        line for line in f.explain(x, q).as_text(kernels=True).splitlines() if " tile:" in line
    ]
    assert "nothing packed" in line.split(";")[0]
