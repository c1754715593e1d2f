"""Whatever tiling a contraction gets, its values are right: every candidate, not the cheapest.

Shapes, strides and views decide which tiling wins, so that one that is wrong may wait for years.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from stagejit.codegen.choices import Ranked
from stagejit.codegen.cpu.contract import plan
from stagejit.codegen.cpu.contract.tiles.search import Problem
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.kernel import Choice
from tests.codegen.cpu.contract.test_contract import TARGETS, array
from tests.codegen.cpu.contract.tiling.plans import every_tiling
from tests.codegen.regions import Runner

MOST = 40  # tilings of one program, far more than there are


@pytest.fixture(params=("host", "sse2", "tiny"))
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def _conv(x: Array, w: Array, *strides: int) -> Array:
    return lax.conv_general_dilated(x, w, strides, "VALID")


def _smaller_and_deeper(x: Array, w: Array) -> Array:
    """The pixels of every 2x2 square of the result become channels."""
    n, c, h, width = (y := _conv(x, w, 1, 1)).shape
    parts = y.reshape(n, c, h // 2, 2, width // 2, 2).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, 4 * c, h // 2, width // 2)


def _every(step: int, x: Array, w: Array) -> Array:
    """Every eighth pixel of a result side by side, of a convolution with a stride."""
    y = _conv(x, w, step)
    return jnp.transpose(y.reshape(y.shape[1], -1, 8), (2, 0, 1))


def _halves(x: Array, q: Array) -> Array:
    """Of panels of bytes, each half a number."""
    shifts = jnp.arange(2, dtype=jnp.uint8)[:, None] * np.uint8(4)
    half = (q[:, :, None, :] >> shifts) & np.uint8(15)
    return jnp.einsum("mk,pkhn->mphn", x, half.astype(jnp.float32) - 8)


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "smaller and deeper": (_smaller_and_deeper, array(1, 2, 6, 36), array(3, 2, 3, 3)),
    "every eighth": (lambda x, w: _every(1, x, w), array(1, 2, 162), array(3, 2, 3)),
    "every eighth of a stride": (lambda x, w: _every(2, x, w), array(1, 2, 321), array(3, 2, 3)),
    "dilated": (
        lambda x, w: jnp.transpose(
            lax.conv_general_dilated(
                x, w, (3,), ((4, 4),), lhs_dilation=(2,), rhs_dilation=(3,)
            ).reshape(3, -1, 4), (2, 0, 1),
        ),
        array(1, 2, 143), array(3, 2, 3),
    ),
    "uneven panels": (lambda a, b: a @ b, array(7, 19), array(19, 150)),
    "uneven panels of squares": (lambda a, b: a @ b.T, array(7, 37), array(150, 37)),
    "panels of what is made": (lambda a, b: a @ jnp.exp(b), array(7, 19), array(19, 144)),
    "halves of bytes": (_halves, array(3, 19), 37 * array(5, 19, 16, dtype=np.uint8)),
    "partial vectors of halves": (_halves, array(1, 40), 37 * array(2, 40, 37, dtype=np.uint8)),
    "what is made of bytes": (
        lambda a, q: a @ (jnp.maximum(q, 1).astype(jnp.float32) * 3),
        array(2, 19), array(19, 150, dtype=np.int8),
    ),
    "rows side by side": (lambda a, b: a.T @ b, array(20, 1024), array(20, 33)),
    "uneven rows side by side": (
        lambda a, b: jnp.einsum("kmc,kn->cmn", a, b), array(20, 31, 32), array(20, 33),
    ),
    "few columns": (lambda a, b: a @ b, array(9, 75), array(75, 5)),
    "few columns of bytes": (
        lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.int32),
        90 * array(9, 75, dtype=np.int8), 90 * array(75, 3, dtype=np.int8),
    ),
    "few columns and rows": (
        lambda a, b: jnp.einsum("cmk,kn->ncm", a, b), array(2, 3, 67), array(67, 4),
    ),
    "few features": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        array(1, 5, 6, 67), array(3, 2, 67, 3),
    ),
    "few groups of features": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1,), ((1, 2),), dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        ),
        array(2, 7, 66), array(3, 33, 4),
    ),
    "batched": (lambda x, w: jnp.einsum("bij,bkj->kbi", x, w), array(3, 19, 7), array(3, 33, 7)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_is_right(
    runner: Runner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, *args = PROGRAMS[name]
    found: list[Tiling] = []

    def candidate(number: int) -> Any:
        def chosen(problem: Problem) -> Ranked[Tiling]:
            found[:] = every_tiling(problem)
            return Ranked(found[number % len(found)], Choice("tile", "any"))

        return chosen

    for number in itertools.count():
        monkeypatch.setattr(plan, "choose", candidate(number))
        runner.check(fn, *args)
        if number + 1 >= len(found):
            break
        assert number < MOST
    assert len(found) > 1
