"""What a prompt shows of what a function leads to: its text, or a line that says what it is."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import stagejit

X = jnp.ones((4, 8))


@stagejit.jit
def layer(x: jax.Array) -> jax.Array:
    return jnp.concatenate((x @ x.T, x), axis=1)


def _profile() -> stagejit.Profile:
    with stagejit.profile() as profile:
        layer(X)
    return profile


TEXTS: dict[str, Callable[[], object]] = {
    "plan": lambda: layer.plan(X),
    "explanation": lambda: layer.explain(X),
    "profile": _profile,
    "why": lambda: layer.explain(X).why("contract", "insert_slice"),
}
LINES: dict[str, tuple[Callable[[], object], str]] = {
    "traced": (lambda: layer.trace(X), "<Traced layer: .plan, "),
    "lowered": (lambda: layer.lower(X), "<Lowered layer: .plan, "),
    "compiled": (lambda: layer.lower(X).compile(), "<Compiled layer: .plan, "),
    "graph": (lambda: layer.lower(X).graph, "<graph @layer: 1 input, "),
    "picture": (lambda: layer.lower(X).picture("memory"), "<picture of layer: memory; "),
    "profile": (stagejit.profile, "<a profile whose block has not ended>"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_the_text_is_shown(what: str) -> None:
    shown = TEXTS[what]()
    assert repr(shown) == str(shown)
    assert "\n" in repr(shown)


@pytest.mark.parametrize("what", LINES)
def test_a_line_is_shown_of_what_has_several_texts(what: str) -> None:
    make, begin = LINES[what]
    shown = repr(make())
    assert shown.startswith(begin)
    assert " at 0x" not in shown
    assert "\n" not in shown


def test_a_graph_prints_its_text() -> None:
    lowered = layer.lower(X)
    assert str(lowered.graph) == lowered.as_text("graph")


def test_nothing_is_compiled_to_show_a_line() -> None:
    traced = layer.trace(X)
    repr(traced)
    assert traced._planned is None
