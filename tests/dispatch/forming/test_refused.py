"""What does not become one dispatch: each refusal has its reason."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from tests.dispatch.forming.fusing import Fn, f32, off
from tests.schedule.planning import check

REFUSED: dict[str, tuple[Fn, tuple[Any, ...], str, str]] = {
    "computed places": (
        lambda a, b, i: (a @ b)[i] * 2,
        (f32(8, 9), f32(9, 7), np.array([1, 5], np.int32)),
        "fuse-epilogues",
        "gather reads elements of contract at computed places",
    ),
    "a part": (
        lambda a, b: (a @ b)[2:4] * 2,
        (f32(8, 9), f32(9, 7)),
        "fuse-epilogues",
        "extract_slice takes a part of the results of contract",
    ),
    "an offset": (
        lambda x, y: lax.dynamic_slice(y, (jnp.argmax(x),), (3,)) * 2,
        (f32(8), f32(9)),
        "fuse-epilogues",
        "the offset of extract_slice depends on reduce",
    ),
    "out of the space": (
        lambda a, b, c: jnp.tanh((a @ b)[None] + c),
        (f32(8, 9), f32(9, 7), f32(5, 8, 7)),
        "fuse-epilogues",
        "broadcast gives it another shape than the loops over contract",
    ),
    "different elements": (
        lambda a, b: (lambda y: y + y.T)(a @ b),
        (f32(8, 9), f32(9, 8)),
        "fuse-epilogues",
        "one result of it needs two different elements of contract",
    ),
    "other rows": (
        lambda x, y: x.sum(1)[None, None] + y,
        (f32(8, 9), f32(3, 4, 8)),
        "fuse-epilogues",
        "its shape is neither that of the rows nor of the results of reduce",
    ),
    "repetition": (
        lambda x: jnp.broadcast_to(x.sum(1)[:, None], (8, 5)),
        (f32(8, 9),),
        "fuse-epilogues",
        "it uses elements of a row more than once",
    ),
    "permutation": (
        lambda x: x.sum(2).T * 2,
        (f32(8, 7, 9),),
        "fuse-epilogues",
        "it needs another order of the elements of reduce",
    ),
    "a map of another shape": (
        lambda x: (lambda y: (y, y.reshape(3, 200) + 1))(jnp.tanh(x)),
        (f32(600),),
        "fuse-producers",
        "its shape is not that of what the dispatch computes",
    ),
    "a later dispatch": (
        lambda a, b, c: (lambda y: y + (y @ c)[:, :1])(a @ b),
        (f32(8, 8), f32(8, 8), f32(8, 8)),
        "fuse-epilogues",
        "another of its operands is made from contract in a dispatch between the two",
    ),
    "few rows": (
        lambda x: x / jnp.sum(x),
        (f32(300, 300),),
        "fuse-rows",
        "1 rows of 90000 elements: too few for all cores, if one dispatch goes over them twice",
    ),
    "long rows": (
        lambda x: x / jnp.sum(x, 1, keepdims=True),
        (f32(8, 70000),),
        "fuse-rows",
        "a row takes 280000 bytes, over 262144: a second pass would read it from memory, not from "
        "a cache",
    ),
    "a gather as an operand": (
        lambda x, i, w: x[i] @ w,
        (f32(50, 4), np.array([1, 7], np.int32), f32(4, 3)),
        "fuse-producers",
        "a gather is done once",
    ),
    "a transcendental as an operand": (
        lambda a, b: jnp.tanh(a) @ b,
        (f32(8, 9), f32(9, 7)),
        "fuse-producers",
        "tanh is evaluated once for each element",
    ),
    "many flops as an operand": (
        lambda a, b: (a / 3 * (a + 1) / (a * a + 2)) @ b,
        (f32(8, 9), f32(9, 7)),
        "fuse-producers",
        "flops an element, more than once where contract packs",
    ),
    "a transcendental twice": (
        lambda a, b: a + jnp.exp(b),
        (f32(900, 8), f32(8)),
        "fuse-producers",
        "exp would be evaluated 900 times an element",
    ),
    "dear to repeat": (
        lambda a, b: a + (b * 3 + 1) * b,
        (f32(9000, 64), f32(64)),
        "fuse-producers",
        "cheaper stored than evaluated 9e+03 times an element",
    ),
    "epilogues disabled": (
        lambda a, b: a @ b + 1,
        (f32(8, 9), f32(9, 7)),
        "fuse-epilogues",
        "fuse-epilogues is disabled",
    ),
    "rows disabled": (
        lambda x: (x.sum(1), x.max(1)),
        (f32(8, 9),),
        "fuse-rows",
        "fuse-rows is disabled",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dont_fuse(name: str) -> None:
    fn, args, switch, reason = REFUSED[name]
    options = off(reason.split()[0]) if reason.endswith("disabled") else Options()
    plan = check(fn, *args, options=options)
    declined = [d for d in plan.decisions if not d.applied and d.rewrite == switch]
    assert any(reason in decision.reason for decision in declined), "\n".join(map(str, declined))
