"""HTML outputs in a real browser: they render, alone and side by side, in light and in dark, ask
for nothing, and can be searched and unfolded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.inspect import page
from stagejit.inspect.pictures.views import NAMES
from stagejit.stages import Lowered
from tests.inspect.browser import Browser


def network(x: jax.Array, ws: list[jax.Array], n: jax.Array) -> tuple[jax.Array, jax.Array]:
    for w in ws:
        x = jnp.tanh(x @ w) + x
    y, total = jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), c.sum()), x, None, length=3)
    return jax.lax.cond(n > 0, lambda v: jnp.exp(v) @ x, lambda v: v * 2, y), total


@cache
def lowered(target: str = "native") -> Lowered:
    jitted = stagejit.jit(network, options=stagejit.Options(target=target))
    ws = [np.ones((16, 16), np.float32)] * 8
    made: Lowered = jitted.lower(np.ones((16, 16), np.float32), ws, np.float32(1))
    return made


@cache
def profiled() -> stagejit.Profile:
    jitted = stagejit.jit(network)
    ws = [np.ones((16, 16), np.float32)] * 8
    with stagejit.profile() as profile:
        jax.block_until_ready(jitted(np.ones((16, 16), np.float32), ws, np.float32(1)))
    return profile


def document(fragment: str) -> str:
    """A fragment as a notebook would show it."""
    return f'<!DOCTYPE html><html><head><meta charset="utf-8"></head><body>{fragment}</body></html>'


# All HTML that the package makes, by name; each has the search box of `page.py`.
PAGES: dict[str, Callable[[], str]] = {
    **{what: lambda what=what: lowered().picture(what).html for what in NAMES},  # type: ignore[misc]
    "timeline of a GPU": lambda: lowered("cuda-emulated").picture("timeline").html,
    "explain": lambda: lowered().explanation.as_html(),
    "explanation": lambda: document(lowered().explanation._repr_html_()),
    "profile": lambda: profiled().as_html(),
    "measured": lambda: document(profiled()._repr_html_()),
    "lowered": lambda: document(lowered()._repr_html_()),
    "graph": lambda: document(lowered().graph._repr_html_()),
    "plan": lambda: document(lowered().plan._repr_html_()),
}


def brightness(browser: Browser, selector: str) -> int:
    color = browser.run(
        "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", selector
    )
    return sum(int(part) for part in color[color.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_renders_is_searched_and_unfolds(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    for dark in (False, True):
        browser.open(path, dark=dark)
        assert browser.seen(".sj-view .sj-title") == 1
        assert (brightness(browser, ".sj-view") < 200) == dark
        assert browser.seen(".sj-bar") == 1  # the script has run
    browser.click('.sj-button[data-sj-open="all"]')
    assert browser.count("details.sj-fold:not([open])") == 0
    assert browser.run(TEXTS_OUTSIDE) == []
    browser.click('.sj-button[data-sj-open="none"]')
    assert browser.count("details.sj-fold[open]") == 0
    items = browser.count(".sj-item")
    assert browser.search("contract") not in ("", f"0 of {items}", f"{items} of {items}")
    assert browser.count("details.sj-fold[open]") >= 1
    assert browser.seen("tr.sj-out") == 0
    assert browser.run("return CSS.highlights.get('sj-found').size") > 0
    assert browser.search("no such text") == f"0 of {items}"
    assert browser.seen(".sj-fold") == 0
    assert browser.search("") == ""
    assert browser.count(".sj-out") == browser.count(".sj-hit") == 0
    assert browser.count("details.sj-fold[open]") == 0  # as it was before
    assert browser.errors() == []
    assert browser.requests() == []


# Texts in boxes of drawings that do not fit their box.
TEXTS_OUTSIDE = """
    const faults = [];
    for (const item of document.querySelectorAll("svg .sj-item")) {
        const shape = item.querySelector(":scope > .sj-shape");
        if (!shape) continue;
        const box = shape.getBBox();
        for (const text of item.querySelectorAll(":scope > text")) {
            if (!text.textContent) continue;
            const inner = text.getBBox();
            const fits = inner.x >= box.x && inner.x + inner.width <= box.x + box.width + 1
                && inner.y >= box.y - 2 && inner.y + inner.height <= box.y + box.height + 2;
            if (!fits) faults.push(text.textContent);
        }
    }
    return faults;
"""


def test_enter_goes_from_hit_to_hit(browser: Browser, tmp_path: Path) -> None:
    rows = [(f"row {at} {'apple' if at % 40 == 0 else ''}",) for at in range(200)]
    path = tmp_path / "page.html"
    path.write_text(page.page("f", [page.Section("t", page.table(("a",), rows))]), encoding="utf-8")
    browser.open(path)
    assert browser.search("row") == "200 of 200"
    places = []
    for _ in range(60):
        browser.press("Enter")
        places.append(browser.run("return window.scrollY"))
    assert places == sorted(places)
    assert places[0] < places[-1]
    browser.press("Escape")
    assert browser.run("return document.querySelector('.sj-search').value") == ""


def test_outputs_of_one_notebook_do_not_meet(browser: Browser, tmp_path: Path) -> None:
    plan = lowered().plan._repr_html_()
    small = page.fragment("other", [page.table(("a",), [("apple",), ("pear",)])])
    path = tmp_path / "notebook.html"
    path.write_text(document(plan + small + plan + small), encoding="utf-8")
    browser.open(path)
    assert browser.seen(".sj-bar") == 4
    assert browser.search("pear", view=1) == "1 of 2"
    rows = (
        "return document.querySelectorAll('.sj-view')[arguments[0]]"
        ".querySelectorAll('.sj-out').length"
    )
    assert [browser.run(rows, view) for view in range(4)] == [0, 1, 0, 0]
    assert browser.search("apple", view=3) == "1 of 2"
    assert [browser.run(rows, view) for view in range(4)] == [0, 1, 0, 1]
    assert browser.run("return CSS.highlights.get('sj-found').size") == 2
    assert browser.errors() == []


@pytest.mark.parametrize(
    ("attributes", "dark"),
    [
        ('data-jp-theme-light="false"', True),
        ('data-jp-theme-light="true"', False),
        ('class="vscode-dark"', True),
        ('class="vscode-light"', False),
        ('data-theme="dark"', True),
    ],
)
def test_a_view_is_as_dark_as_the_notebook_around_it(
    attributes: str, dark: bool, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "notebook.html"
    fragment = page.fragment("f", [page.table(("a",), [("apple",)])])
    path.write_text(document(f"<div {attributes}>{fragment}</div>"), encoding="utf-8")
    browser.open(path, dark=not dark)
    assert (brightness(browser, ".sj-view") < 200) == dark


@pytest.mark.parametrize("what", NAMES)
def test_an_svg_file_stands_alone(what: str, browser: Browser, tmp_path: Path) -> None:
    path = lowered().picture(what).save(tmp_path / "picture.svg")
    browser.open(path, dark=True)
    assert browser.seen("text") > 3
    fill = "return getComputedStyle(document.querySelector('svg > rect')).fill"
    assert browser.run(fill) == "rgb(22, 24, 29)"
    assert browser.errors() == []
    assert browser.requests() == []
