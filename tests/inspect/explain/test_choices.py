"""What `explain` says of each kernel: every choice of its generator, with what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.target import Target
from tests.inspect.pages import rows_of

X = np.ones((64, 96), np.float32)


def chosen(f: Callable[..., Any], *args: Any) -> dict[str, list[str]]:
    """The reasons, by the name of the choice."""
    found: dict[str, list[str]] = {}
    for choice in stagejit.jit(f).explain(*args).chosen:
        found.setdefault(choice.name, []).append(choice.reason)
    return found


PROGRAMS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "map": (lambda x: jnp.tanh(x) + x[:, ::-1], {"vector", "stream", "row"}),
    "rows": (lambda x: jax.nn.softmax(x.reshape(2, -1)), {"vector", "stream", "rows", "keep"}),
    "panels": (lambda x: (x * x).sum(0), {"vector", "stream", "rows", "panel"}),
    "runs": (lambda x: jnp.abs(x.reshape(-1, 1) - x.ravel()).sum(0), {"rows", "panel", "runs"}),
    "squares": (lambda x: x.T * 2, {"vector", "square"}),
    "sort": (lambda x: jnp.sort(jnp.tile(x, 99), 1), {"sort"}),
    "packed": (lambda x: jnp.tile(x, (4, 4)) @ jnp.tile(x, (6, 4)), {"tile", "pack"}),
    "contraction": (lambda x: jnp.tanh(x @ x.T), {"tile"}),
    "running sums": (lambda x: lax.cumsum(jnp.tile(x, 99), axis=1), {"vector", "stream", "runs"}),
    "scatter": (lambda x: x.at[jnp.arange(8) % 5].add(1.0), {"vector", "owners"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_kind_of_kernel_tells_its_choices(name: str) -> None:
    f, expected = PROGRAMS[name]
    found = chosen(f, X)
    assert expected | {"items", "threads"} <= found.keys()
    assert all(reason for reasons in found.values() for reason in reasons)


def test_what_was_not_chosen_is_named_with_its_cost() -> None:
    (reason,) = chosen(lambda x: x * 2 + x.sum(1, keepdims=True), X)["vector"]
    assert re.fullmatch(
        r"vectors along r of 96: \S+ memory operations an element; vectors along r of 64: \S+",
        reason,
    )
    tiles = chosen(lambda x: x @ x.T, X)["tile"]
    assert re.search(r": \S+ cycles of one core; .* packed: (at least )?\S+$", tiles[0])


def test_large_results_bypass_the_caches_and_small_ones_do_not() -> None:
    """Or lines are asked for ahead, where this machine wants that."""
    small, large = chosen(lambda x: x + 1, X), jax.ShapeDtypeStruct((1 << 28,), jnp.float32)
    many = chosen(lambda x: x + 1, large)
    if Target.host().lines_ahead:
        assert small["stream"][0].startswith("no lines are asked for ahead: 48 KiB of")
        assert many["stream"][0].startswith("lines of 1 reads and 1 stores are asked for ahead")
    else:
        assert small["stream"][0].startswith("stores go to the caches: 48 KiB of")
        assert many["stream"][0].startswith("1 of 1 stores bypass")


def test_threads_share_what_takes_long() -> None:
    assert chosen(lambda x: x + 1, X)["threads"][0].startswith("on one core")
    large = jax.ShapeDtypeStruct((1 << 22,), jnp.float32)
    assert re.match(r"in chunks of \d+ items on \d+ cores: ", chosen(jnp.tanh, large)["threads"][0])
    assert "being one chunk" in chosen(lambda x: x + 1, np.ones(3, np.float32))["threads"][0]


def test_they_stand_at_the_users_line() -> None:
    explanation = stagejit.jit(lambda x: jnp.tanh(x) * 2).explain(X)
    text = explanation.as_text(kernels=True)
    assert "\n  * " not in str(explanation)
    assert re.search(r"^  \* @map\.0 vector: vectors along ", text, re.MULTILINE)
    rows = [row[:3] for row in rows_of(explanation._repr_html_())]
    assert ["chosen", "vector", "@map.0"] in rows
    assert all(choice.loc for choice in explanation.chosen)


def test_kernels_of_bodies_tell_theirs() -> None:
    found = chosen(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c.sum()), x, None, 4), X)
    assert len(found["threads"]) >= 2


def test_the_text_of_loops_says_what_they_are() -> None:
    text = stagejit.jit(jax.nn.softmax).lower(X).as_text("loops")
    assert "// parallel r0 of 64\n//   a new row\n" in text
    assert "the last masked" not in text.split("kernel")[0]  # 96 is whole vectors everywhere


def test_the_text_of_loops_shows_those_of_products() -> None:
    text = stagejit.jit(lambda x: (x @ x.T) * 2).lower(X).as_text("loops").split("kernel")[0]
    for line in ("parallel ", "tile of ", "multiply and add", "add to the sums"):
        assert f"// {line}" in text or f"  {line}" in text, line
