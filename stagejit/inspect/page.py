"""The frame of everything that is shown as HTML: pictures, explanations, profiles.

Input: a title, and sections of markup. Output: a document that stands alone (`page`), or a part of
one for a notebook (`fragment`). Invariants: nothing is loaded from anywhere; no element has an id,
and class names begin with `sj-`, so that several outputs of one notebook do not meet; text that is
not `Markup` is escaped. Without scripts (on a code host) everything can be read and unfolded, only
the search box is away.

    page("f", [Section("decisions", table(("rewrite", "reason"), rows), note="12 applied")])

What can be found is an `item`: the rows of a `table`, or any element of the class `sj-item`. A
search hides the others (in an SVG it dims them), opens the sections that have some, and marks the
words; a `group` without items goes, too. Enter goes from hit to hit. Colours are variables: see
`theme.py`.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from stagejit.inspect.theme import theme_css

# Of XML 1.0, "Char".
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def markup(content: object) -> Markup:
    """Markup as it is, anything else as escaped text."""
    return content if isinstance(content, Markup) else Markup(_escaped(content))


def _escaped(content: object) -> str:
    """What is no character of XML is shown as one that stands for it."""
    return html.escape(_NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", str(content)))


def joined(contents: Iterable[object]) -> Markup:
    """One after the other."""
    return Markup("".join(map(markup, contents)))


def element(tag: str, *contents: object, classes: str = "", **attributes: object) -> Markup:
    """`<tag class=... name=...>contents</tag>`. An underscore in the name of an attribute stands
    for a hyphen; attributes that are None are left out."""
    given = {"class": classes or None, **attributes}
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for name, value in given.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{joined(contents)}</{tag}>")


def item(*contents: object, tag: str = "div", classes: str = "") -> Markup:
    """What a search finds as a whole."""
    return element(tag, *contents, classes=f"sj-item {classes}".rstrip())


def group(*contents: object, context: str = "") -> Markup:
    """What is hidden when a search finds none of its items. context: text that counts as part of
    each of them, such as the source line that they stand under."""
    return element("div", *contents, classes="sj-group", data_sj_context=context or None)


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: Collection[int] = ()
) -> Markup:
    """A table whose rows are items. numbers: the columns that stand at the right."""

    def cells(tag: str, contents: Sequence[object]) -> Markup:
        return joined(
            element(tag, content, classes="sj-number" if at in numbers else "")
            for at, content in enumerate(contents)
        )

    body = joined(item(cells("td", row), tag="tr") for row in rows)
    top = element("thead", element("tr", cells("th", head)))
    return element(
        "div", element("table", top, element("tbody", body), classes="sj-table"), classes="sj-wide"
    )


@dataclass(frozen=True)
class Section:
    """A part that can be folded. note: stands beside its title. is_open: to begin with."""

    title: object
    body: object
    note: object = ""
    is_open: bool = True

    def as_markup(self) -> Markup:
        note = element("span", self.note, classes="sj-note") if self.note else ""
        summary = element("summary", self.title, note)
        inside = element("div", self.body, classes="sj-inside")
        opened = {"open": ""} if self.is_open else {}
        return element("details", summary, inside, classes="sj-fold sj-group", **opened)


def fragment(title: object, sections: Iterable[Section | Markup], *, note: object = "") -> str:
    """A view for a notebook, with its colours and its script. note: a line under the title."""
    return (
        f"<style>{_style()}</style>"
        f"{_view(title, sections, note)}"
        f"<script>{_file('page.js')}</script>"
    )


def page(title: object, sections: Iterable[Section | Markup], *, note: object = "") -> str:
    """The same as a document of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'  # else a browser asks the server for one
        f"<title>{markup(title)}</title></head>\n"
        f'<body class="sj-page">{fragment(title, sections, note=note)}</body></html>\n'
    )


def _view(title: object, sections: Iterable[Section | Markup], note: object) -> Markup:
    parts = [each.as_markup() if isinstance(each, Section) else each for each in sections]
    return element(
        "div",
        element("div", title, classes="sj-title"),
        element("div", note, classes="sj-note") if note else "",
        _BAR,
        *parts,
        classes="sj-view",
    )


# Hidden until the script knows that there is something to be found or to be unfolded.
_BAR = Markup(
    '<div class="sj-bar" hidden>'
    '<input class="sj-search" type="search" placeholder="search" '
    'aria-label="search" title="Enter shows the next hit, Escape ends the search">'
    '<button class="sj-button" type="button" data-sj-open="all">expand all</button>'
    '<button class="sj-button" type="button" data-sj-open="none">collapse all</button>'
    '<span class="sj-count" role="status"></span></div>'
)


@functools.cache
def _file(name: str) -> str:
    return (resources.files("stagejit.inspect") / "web" / name).read_text(encoding="utf-8")


@functools.cache
def _style() -> str:
    return f"{theme_css()}\n{_file('page.css')}"
