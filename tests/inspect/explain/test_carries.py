"""What explanations, totals and the model say of carries and of turns, against what ran."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import stagejit
from stagejit.base.machine import CALL_SECONDS
from stagejit.schedule.bodies import ALTERNATE_FROM_NBYTES


def scanned(length: int) -> Any:
    return lambda x: lax.scan(lambda c, _: (jnp.tanh(c @ c), c.sum()), x, None, length=length)


def until(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, jnp.tanh(s[1] @ s[1])), (0, x))


def nested(x: Any) -> Any:
    def inner(c: Any, _: Any) -> Any:
        return lax.scan(lambda d, _: (jnp.tanh(d @ d), None), c, None, length=3)

    return lax.scan(inner, x, None, length=5)


def in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, c: until(c)[1] + 1, x)


def rolling(x: Any) -> Any:
    return lax.fori_loop(0, 7, lambda _, c: (c[1], c[2], c[0] + 1), (x, x * 2, x * 3))


def chosen(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda c: jnp.tanh(c @ c), lambda c: c.T + 1, x)


KNOWN = {
    **{f"{length} turns": scanned(length) for length in (1, 2, 5, 6, 50)},
    "nested": nested,
    "rolling": rolling,
}
UNKNOWN = {"until": until, "until in a loop": in_a_loop, "chosen": chosen}
SIZES = [4, 64]  # less than what buffers change places from, and more


def ran(f: Any, x: Any) -> stagejit.Profile:
    jax.block_until_ready(f(x))
    with stagejit.profile() as profile:
        jax.block_until_ready(f(x))
    return profile


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_copied_is_what_the_host_copies(name: str, size: int) -> None:
    """Each copy is seen on its own where a loop is not one function."""
    options = stagejit.Options(disable="compile-loops")
    f, x = stagejit.jit(KNOWN[name], options=options), jnp.ones((size, size))
    explanation, totals, profile = f.explain(x), f.plan(x).totals(), ran(f, x)
    copied = sum(row.count * row.nbytes // 2 for row in profile.dispatches if row.kind == "copy")
    assert explanation.copied_nbytes == totals.copied_nbytes == copied
    carried = [row for row in profile.dispatches if row.dispatch.endswith("/carries")]
    assert explanation.carried_nbytes == sum(row.count * row.nbytes // 2 for row in carried)
    assert explanation.as_json()["summary"]["carried_nbytes"] == explanation.carried_nbytes
    text = str(explanation)
    assert ("of carries copied" in text) == bool(carried)
    for each in explanation.dispatches:
        assert bool(each.carried) == bool(each.carried_nbytes)
        assert each.carried in text
        assert not each.carried or each.carried in explanation.as_html()
    counts = Counter({row.dispatch: row.count for row in profile.dispatches})
    for each in explanation.dispatches:
        if each.kind != "loop":
            assert counts[each.dispatch] == each.times


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UNKNOWN)
def test_of_what_only_the_call_knows_nothing_is_claimed(name: str, size: int) -> None:
    f, x = stagejit.jit(UNKNOWN[name]), jnp.ones((size, size))
    explanation, plan = f.explain(x), f.plan(x)
    inside = [each for each in explanation.dispatches if "/" in each.dispatch]
    of_conditions = [each for each in inside if "/condition/" in each.dispatch]
    assert bool(of_conditions) == (name != "chosen")
    for each in inside:
        known = name == "until in a loop" and each.dispatch.count("/") == 1
        assert (each.times is None) == (not known)
    times = {d.name: count for d, count in plan.launches() if not d.bodies}
    assert None in times.values()
    summary = explanation.as_json()["summary"]
    loops = name != "chosen"
    text = explanation.as_text(kernels=True)
    assert bool(summary["uncounted"]) == loops
    if loops:
        said = "one turn counted of 1 loop that a condition ends"
        assert summary["uncounted"] == [said]
        assert f" by the model ({said})" in text
        assert "at least " in text
        assert said in explanation.as_html()
        worth = f.explain(x, what_if=["fuse-epilogues"])
        assert f"model: at least, {said}" in str(worth)
        assert f"model: at least, {said}" in worth.as_html()
        assert worth.as_json()["what_if"][0]["uncounted"] == [said]
        json.dumps(worth.as_json())
    else:
        assert "at least" not in text.splitlines()[0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: jnp.sin(jnp.linalg.eig(jnp.cos(x))[0].real), "1 equation left to XLA"),
        (lambda x: jnp.sin(jnp.linalg.cholesky(jnp.cos(x))), "1 call of a library or of Python"),
    ],
    ids=["XLA", "library"],
)
def test_what_others_compute_is_said_not_to_be_counted(function: Any, said: str) -> None:
    explanation = stagejit.jit(function).explain(jnp.ones((4, 4)))
    assert f"{said} not counted" in explanation.as_text(kernels=True).splitlines()[0]
    assert "not counted" not in str(explanation).splitlines()[0]  # there is no time either


def test_the_reason_is_what_decided() -> None:
    small, large = jnp.ones((4, 4)), jnp.ones((64, 64))
    for x in (small, large):
        explanation = stagejit.jit(scanned(7)).explain(x)
        (loop,) = (each for each in explanation.dispatches if each.kind == "loop")
        few = f"less than the {ALTERNATE_FROM_NBYTES:,} bytes" in loop.carried
        assert few == (x.nbytes < ALTERNATE_FROM_NBYTES)
        assert loop.carried_nbytes == x.nbytes * (7 if few else 1)


def test_the_model_has_the_copies_of_carries() -> None:
    """As the floor has, and comparisons."""
    x = jnp.ones((16, 16))
    f = stagejit.jit(scanned(400))
    model = {each.dispatch: each.seconds for each in f.explain(x).dispatches}
    inside = sum(seconds for name, seconds in model.items() if name.startswith("loop.1/"))
    assert model["loop.1"] - 400 * inside > 0.99 * 400 * CALL_SECONDS
    made = f.lower(x).plan
    with_them = made.totals()
    (loop,) = (each for each in made.dispatches if each.kind == "loop")
    (body, *_) = loop.bodies
    without = replace(loop, bodies=(replace(body, carries=()),))
    rest = replace(
        made, dispatches=tuple(without if each is loop else each for each in made.dispatches)
    )
    assert with_them.copied_nbytes - rest.totals().copied_nbytes == 400 * x.nbytes
    assert with_them.floor_seconds > rest.totals().floor_seconds
    compared = made.compare(rest)
    assert "copied_nbytes" in {row.name for row in compared.differing}
