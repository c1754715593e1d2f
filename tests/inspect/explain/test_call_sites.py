"""Where a line of a helper is called from several lines, dispatches say from which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit.inspect.explain import Explanation

NET = """
import jax, jax.numpy as jnp

def dense(x, w):
    return jax.nn.relu(x @ w)

@jax.jit
def jitted(x, w):
    return jnp.tanh(x @ w)

def block(x, w):
    y = dense(x, w)
    return dense(y + 1, w)

def once(x, w):
    return dense(dense(x, w), w)

def in_a_loop(x, w):
    for _ in range(4):
        x = dense(x, w)
    return x

def blocks(x, w):
    x = block(x, w)
    return block(x * 2, w)

def nested(x, w):
    x = jitted(x, w)
    return jitted(x, w)

def loops(x, w):
    return jax.lax.fori_loop(0, 9, lambda _, c: dense(dense(c, w) - 1,
        w), x)
"""


@pytest.fixture(name="explained")
def _explained(tmp_path: Path) -> Any:
    path = tmp_path / "net.py"
    path.write_text(NET)
    names: dict[str, Any] = {}
    exec(compile(NET, str(path), "exec"), names)
    given = [jax.ShapeDtypeStruct((64, 64), np.float32)] * 2

    def explained(name: str) -> Explanation:
        made: Explanation = stagejit.jit(names[name]).explain(*given)
        return made

    return explained


def calls(explanation: Explanation) -> list[tuple[str, ...]]:
    return [each.calls for each in explanation.dispatches if each.kind == "contract"]


@pytest.mark.parametrize(("name", "expected"), [
    ("block", [("net.py:12",), ("net.py:13",)]),
    ("once", [(), ()]),
    ("in_a_loop", [(), (), (), ()]),
    ("blocks", [("net.py:12 from net.py:24",), ("net.py:13 from net.py:24",),
                ("net.py:12 from net.py:25",), ("net.py:13 from net.py:25",)]),
    ("nested", [("net.py:28",), ("net.py:29",)]),
])  # fmt: skip
def test_calls_of_a_helper_are_told_apart(
    explained: Any, name: str, expected: list[tuple[str, ...]]
) -> None:
    assert calls(explained(name)) == expected


def test_what_is_alike_stays_one_line(explained: Any) -> None:
    (line,) = (each for each in str(explained("nested")).splitlines() if "> @contract" in each)
    assert ", from net.py:28 and from net.py:29  x 2: @contract.0, @contract.1" in line
    assert "from net.py" not in str(explained("in_a_loop"))


def test_the_page_and_the_data_say_it_too(explained: Any) -> None:
    explanation = explained("block")
    assert ", from net.py:12" in explanation.as_html()
    lines = explanation.as_json()["lines"]
    assert [each["calls"] for line in lines for each in line["dispatches"]] == [
        ["net.py:12"],
        ["net.py:13"],
    ]
