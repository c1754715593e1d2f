"""The frame of HTML outputs, as text; tests/inspect/browser looks at it in a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from stagejit.inspect.page import Markup, Section, element, fragment, group, item, page, table
from stagejit.inspect.theme import COLORS

_VOID = {"meta", "link", "input", "br"}


class _Balanced(HTMLParser):
    """Fails where a tag is closed that is not the last one that was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _parts() -> list[Section | Markup]:
    rows = [("@map.0", "a < b & c", 12), ("@map.1", Markup("<b>bold</b>"), 3)]
    return [
        Section("decisions", table(("op", "why", "bytes"), rows, numbers={2}), note="2 <applied>"),
        group(item("<script>alert(1)</script>"), context='line "3"'),
    ]


def test_text_is_escaped_and_markup_is_not() -> None:
    text = fragment("f<x>", _parts(), note="a & b")
    assert "f&lt;x&gt;" in text
    assert "a &lt; b &amp; c" in text
    assert "2 &lt;applied&gt;" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<b>bold</b>" in text
    assert 'data-sj-context="line &quot;3&quot;"' in text


@pytest.mark.parametrize("made", [page, fragment])
def test_markup_is_balanced_without_ids_and_loads_nothing(made) -> None:  # type: ignore[no-untyped-def]
    text = made("f", _parts())
    parser = _Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.ids == []
    assert not re.search(r"https?:|@import|url\((?!#)|src=", text)


def test_an_attribute_that_is_none_is_left_out() -> None:
    assert element("td", 1, data_x=None, aria_label='"') == '<td aria-label="&quot;">1</td>'


def _contrast(one: str, other: str) -> float:
    """Of WCAG 2.2, section 1.4.3."""

    def luminance(color: str) -> float:
        parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(COLORS.keys() - {"paper", "raised", "line"}))
def test_colors_can_be_told_from_what_is_behind_them(name: str, mode: int) -> None:
    least = 4.5 if name in ("ink", "soft", "accent", "good", "bad", "warn") else 3.0
    for behind in ("paper", "raised"):
        assert _contrast(COLORS[name][mode], COLORS[behind][mode]) >= least
