"""The verifier of parts rejects what is said wrongly of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.errors import ParseError, VerificationError
from stagejit.options import Options
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.verifier.plans import verify_plan
from tests.acceptance.running import f32, plan_of
from tests.schedule.planning import check

OPTIONS = Options(verify=True, split={"contract": 3})
TEXT = plan_of(jnp.dot, f32(4, 10), f32(10, 5), options=OPTIONS).as_text()


def test_the_text() -> None:
    lines = [line.strip() for line in TEXT.splitlines() if line.strip().startswith("parts")]
    assert lines == [
        "parts k0 in 0:2  reads a[0:4, 4*k0:4*k0+4], b[4*k0:4*k0+4, 0:5]  "
        "writes t0[k0:k0+1, 0:4, 0:5]",
        "parts 2  reads a[0:4, 8:10], b[8:10, 0:5]  writes t0[2:3, 0:4, 0:5]",
    ]
    verify_plan(parse_plan(TEXT))


@pytest.mark.parametrize(
    ("text", "wrong", "message"),
    [
        ("writes t0[2:3", "writes t0[1:2", "part 1 of @contract.0 writes"),
        ("parts 2  reads a[0:4, 8:10]", "parts 2  reads t0[0:1, 0:4, 0:5]", "which it does not"),
        ("parts 2  ", "parts 3  ", "has no part 2"),
        ("parts k0 in 0:2  ", "parts k0 in 1:2  ", "has no part 0"),
        ("4*k0+4, 0:5]", "4*k0+11, 0:5]", "which it does not"),
    ],
)
def test_what_is_wrong(text: str, wrong: str, message: str) -> None:
    assert text in TEXT
    with pytest.raises(VerificationError, match=message):
        verify_plan(parse_plan(TEXT.replace(text, wrong)))


def test_parts_of_nothing() -> None:
    with pytest.raises(ParseError):
        parse_plan("plan @f {\n  parts 0  reads a[0:1]\n}")


TALL = f32(53, 4)


def weights(x: Any) -> Any:
    image = x.reshape(1, 4, 53, 1)
    forward = lambda w: lax.conv_general_dilated(image, w, (1, 1), "SAME")  # noqa: E731
    return jax.linear_transpose(forward, jnp.zeros((4, 4, 3, 1)))(image)[0]


@pytest.mark.parametrize(
    "fn",
    [lambda x: x.max(0), lambda x: (x > 1).any(0), lambda x: (x > -9).all(0),
     lambda x: jnp.argmin(x, 0), lambda x: x.astype(jnp.int8).max(0), lambda x: x.T @ x,
     lambda x: x.astype(jnp.float16).sum(0), weights],
)  # fmt: skip
def test_texts_and_an_executor_that_settles_what_is_named(fn: Any) -> None:
    """What is missing of the last part has a text that parses back, whatever its type is."""
    options = Options(split={"reduce": 5, "contract": 5, "conv": 4})
    plan = check(fn, TALL, options=options, orders=2)
    assert len(plan.dispatches[0].parts) == 2


def test_what_a_loop_computes_before_it_is_split_once() -> None:
    """A sum in the body is split there; its halves leave the loop and are not looked at again."""

    def f(x: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, c: c.at[i].set(x.sum() * i), jnp.zeros(5))

    x = f32(257)
    options = Options(verify=True, split={"reduce": 5})
    plan = plan_of(f, x, options=options)
    reduces = [d for d in plan.all_dispatches() if d.kind == "reduce"]
    assert [len(d.parts) for d in reduces] == [2, 0]
    assert np.prod([b.shape for b in plan.buffers if b.name == "t0"]) == 5


AT_OFFSETS: list[Any] = [
    lambda x, at: lax.dynamic_slice_in_dim(x, at, 40).sum(0),
    lambda x, at: jnp.dot(lax.dynamic_index_in_dim(x, at, 0, False), x[0]),
    lambda x, at: lax.dynamic_slice(x, (at, 1), (50, 2)).max(),
    lambda x, at: x.at[at].set(1.0).sum(0),
    lambda x, at: lax.dynamic_update_index_in_dim(x, x.sum(0), at, 0),
]  # fmt: skip


@pytest.mark.parametrize("fn", AT_OFFSETS)
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_at_an_offset_of_the_host(fn: Any, parts: int) -> None:
    options = Options(verify=True, split={"reduce": parts, "contract": parts})
    at = jax.ShapeDtypeStruct((), np.int32)
    looped = lambda x: lax.fori_loop(0, 5, lambda i, y: y + fn(x, i).sum(), 0.0)  # noqa: E731
    assert "parts" in plan_of(looped, TALL, options=options).as_text()
    plan = plan_of(fn, TALL, at, options=options)
    fixed = plan.at(at=3)
    for dispatch, known in zip(plan.dispatches, fixed.dispatches, strict=True):
        for number in range(sum(some.count for some in dispatch.parts)):
            assert plan.part(dispatch, number).writes
            for access in fixed.part(known, number).reads:
                start, stop = access.hull
                assert 0 <= start < stop
    verify_plan(parse_plan(fixed.as_text()))
