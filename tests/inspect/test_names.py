"""Functions with names of any kind: texts parse back and stay on their lines, pictures are XML."""

from __future__ import annotations

import json
import xml.dom.minidom
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.graph.text.quoting import quoted, unquoted
from stagejit.inspect.page import element
from stagejit.schedule.plans.parser import parse_plan

NAMES = [
    "",
    "a b",
    "a\nb",
    "\x00",
    "\x1b[31m",
    '"',
    'a"b',
    "\u2028",
    "\ufffe",
    "λ",
    "{",
    "a {",
    "\\",
]
VIEWS = ("graph", "rewrites", "dispatches", "memory", "timeline")


def called(name: str) -> Any:
    def f(x: Any) -> Any:
        return jnp.tanh(x @ x) + 1

    f.__name__ = f.__qualname__ = name
    return stagejit.jit(f)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_function(name: str) -> None:
    f, x = called(name), jnp.ones((4, 4))
    lowered = f.lower(x)
    text = lowered.plan.as_text()
    assert parse_plan(text).as_text() == text
    assert parse_plan(text).name == lowered.plan.name
    for view in VIEWS:
        xml.dom.minidom.parseString(lowered.picture(view).svg)
    explanation = f.explain(x)
    first, second, *_ = str(explanation).splitlines()
    assert first.startswith(f"{quoted(explanation.name)}: ")
    assert not second or second.startswith((" ", "-", "0", "1"))
    json.dumps(explanation.as_json())
    with stagejit.profile() as profile:
        f(x).block_until_ready()
    (row,) = profile.dispatches
    assert row.name.isprintable()
    assert len(str(profile).splitlines()) == len(str(profile).split("\n")) - 1


@given(st.text())
def test_quoted_names_come_back(name: str) -> None:
    text = quoted(name)
    assert unquoted(text) == name
    assert text.isprintable()
    assert text == name or text.startswith('"')
    plan = parse_plan(f"plan @{text} {{\n}}")
    assert plan.name == name
    assert plan.as_text() == f"plan @{text} {{\n}}"


@given(st.text())
def test_markup_is_xml(text: str) -> None:
    made = xml.dom.minidom.parseString(element("p", text, title=text))
    assert "\x00" not in made.toxml()
